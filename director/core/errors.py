"""Every error that this package raises on purpose. Each docstring says who can act.

DirectorError
├── SettingsError            the operator: a setting is missing, malformed or contradicts another
├── BackendUnavailable       nobody: Redis is away, slow, loading, full or read-only; ask again later
├── UnsafeBackend            the operator: Redis would lose what it accepts
└── QueueError
    ├── UnknownModel         the caller: the model does not exist, or was deleted
    ├── UnknownQueue         the operator: no director ever registered this model
    ├── IdempotencyMismatch  the caller: one key, two different bodies
    └── QueueRefused         the caller: ask again later, or for less
"""


class DirectorError(Exception):
    """Anything this package raises on purpose."""


class SettingsError(DirectorError):
    """A setting is missing, malformed or contradicts another. Correct it and start again."""


class BackendUnavailable(DirectorError):
    """Redis cannot answer now (away, slow, loading, full, read-only). Nothing is known to be lost: ask again later.

    `is_untouched`: it is sure that nothing was done of what was asked, so it may be asked of another server.
    """

    def __init__(self, reason: str, *, retry_after_s: int = 2, is_untouched: bool = False) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.is_untouched = is_untouched


class UnsafeBackend(DirectorError):
    """Redis would lose what it accepts. Mend its configuration, or name the weaker level on purpose."""


class QueueError(DirectorError):
    """The queue refused, and asking again the same way will not help."""


class UnknownModel(QueueError):
    """There is no such model, or not any more. Do not repeat the call."""


class UnknownQueue(QueueError):
    """No director ever registered this queue. Start one for the model, then submit again."""


class IdempotencyMismatch(QueueError):
    """This idempotency key was used with another body. Use a new key for a new request."""


class QueueRefused(QueueError):
    """The queue takes no more of this now. Nothing was written: ask again after `retry_after_s`, or for less."""

    def __init__(
        self, code: str, *, limit: int | None = None, retry_after_s: int = 1, eta_s: float | None = None
    ) -> None:
        super().__init__(code)
        self.code = code
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.eta_s = eta_s
