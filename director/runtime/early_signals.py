"""A SIGTERM that comes while a process still starts waits until there is somebody who heeds it.

Of the first process of a container the kernel drops it where no handler stands, and the pod hangs for its whole grace
time. Elsewhere it would end the process half-way. Survives an exec, as a mask of signals does.
"""

import signal

__all__ = ("heed_sigterm", "hold_sigterm")


def hold_sigterm() -> None:
    """From now on it waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def heed_sigterm() -> None:
    """There is a handler now: one that waits is delivered at once."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
