"""Define every error that can leave this package. Each docstring says what to do about it."""

import errno
from typing import Final

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # numbers of an OSError that ends once the disk has room again


class DirectorError(Exception):
    """The base of all errors that this package raises on purpose."""


class SettingsError(DirectorError):
    """A setting is missing, malformed or contradicts another. Correct it and start again."""


class BackendUnavailable(DirectorError):
    """Redis cannot answer now (away, slow, loading, full, read-only). Nothing is known to be lost: retry later.
    `is_untouched`: certainly nothing was carried out, so the request may go to another server.
    """

    def __init__(self, reason: str, *, retry_after_s: int = 2, is_untouched: bool = False) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.is_untouched = is_untouched


class BackendFull(BackendUnavailable):
    """The memory of Redis is full, so it refuses new work. Reads and cancels go on: retry once data has expired."""


class UnsafeBackend(DirectorError):
    """Redis would lose what it accepts. Correct its configuration, or name the weaker level on purpose."""


class QueueError(DirectorError):
    """The queue refused, and repeating the same request will not help."""


class UnknownModel(QueueError):
    """The model does not exist, or no longer. Do not repeat the call."""


class UnknownQueue(QueueError):
    """No director ever registered this queue. Start one for the model, then submit again."""


class IdempotencyMismatch(QueueError):
    """This idempotency key was used with another body. Use a new key for a new request."""


class QueueRefused(QueueError):
    """The queue takes no more now, and nothing was written. Retry after `retry_after_s`, or ask for less."""

    def __init__(
        self, code: str, *, limit: int | None = None, retry_after_s: int = 1, eta_s: float | None = None
    ) -> None:
        super().__init__(code)
        self.code = code
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.eta_s = eta_s


class DataRefused(QueueRefused):
    """The account has too many bytes in Redis, `used` of them. Nothing was written. Retry once some have expired."""

    def __init__(self, code: str, *, limit: int, used: int, retry_after_s: int) -> None:
        super().__init__(code, limit=limit, retry_after_s=retry_after_s)
        self.used = used
