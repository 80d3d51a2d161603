"""How many files and sockets a process may open. Raised once, at the start of every command that serves.

Never lowers a limit, and never fails: a process that could not raise it runs on with what it has.
"""

import resource
from contextlib import suppress
from typing import Final

__all__ = ("raise_descriptor_limit",)

MACOS_MOST: Final = 10_240  # there the hard limit may read "unlimited", and only this much is granted


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one; returns what it is now. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MACOS_MOST):
        if _is_more(wanted, than=soft):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft


def _is_more(wanted: int, *, than: int) -> bool:
    if than == resource.RLIM_INFINITY:
        return False
    return wanted == resource.RLIM_INFINITY or wanted > than
