"""Prepare a process before it serves: hold SIGTERM, collect garbage rarely, raise the limit of open descriptors.

A SIGTERM during the start waits until a handler exists: else the kernel would drop it for the first process of a
container, and any other would end half-way. The mask of signals survives an exec.
"""

import gc
import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # every command imports this module, so it imports little
    from director.core.clock import Clock

OBJECTS: Final = 10_000
SHARE: Final = 0.9  # the rest of the limit is kept for work that must not fail
COUNT_S: Final = 1.0
COUNT_SHARE: Final = 0.01  # of the limit: a sudden crowd cannot pass between two counts
FOLDERS: Final = ("/proc/self/fd", "/dev/fd")  # Linux; macOS
MACOS_MOST: Final = 10_240  # there the hard limit may read "unlimited", and only this much is granted


def hold_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def release_sigterm() -> None:
    """Deliver SIGTERM from now on, and at once if one waits. Call it when there is a handler."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def collect_garbage_rarely() -> None:
    """Run the garbage collector rarely, and never over the objects that exist now. Call it once all is imported.
    By default Python runs it after each 700 new objects, which is every few requests, and each hundredth run covers all
    modules: 9 % of the API's CPU under load. Objects of ours are rarely in cycles, so they are freed without it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one if possible, and return it. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MACOS_MOST):
        if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > soft):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft


class Descriptors:
    """The number of open descriptors of this process, counted again after a second, or once callers have asked so often
    that they may have opened a hundredth of the limit: counting thousands takes milliseconds.
    """

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._counted_at = float("-inf")
        self._open = 0
        self._asked = 0

    @property
    def limit(self) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    @property
    def open(self) -> int:
        self._asked += 1
        if self._clock.monotonic() - self._counted_at >= COUNT_S or 0 <= COUNT_SHARE * self.limit < self._asked:
            self._asked = 0
            self._counted_at = self._clock.monotonic()
            self._open = self._count()
        return self._open

    @property
    def are_short(self) -> bool:
        return self.limit != resource.RLIM_INFINITY and self.open >= SHARE * self.limit

    def _count(self) -> int:
        for folder in FOLDERS:
            try:
                return len(os.listdir(folder))  # noqa: PTH208 - names, and not thousands of objects
            except FileNotFoundError:
                continue
            except OSError:  # the listing needs a descriptor itself, and none is left
                return self.limit
        return 0
