"""A SIGTERM that comes while a process still starts waits until there is somebody who heeds it.

Of the first process of a container the kernel drops it where no handler stands, and the pod hangs for its whole grace
time. Elsewhere it would end the process half-way. Survives an exec, as a mask of signals does.
"""

import gc
import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final


def hold_sigterm() -> None:
    """From now on it waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def heed_sigterm() -> None:
    """There is a handler now: one that waits is delivered at once."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


# Have Python look for garbage in cycles seldom, and never among what a process has at its start.
#
# By itself it looks after 700 objects more, which is every few requests, and at each hundredth time through all
# modules: 9 % of the API's CPU under load. What is dropped here is hardly ever in a cycle, and is gone at once without
# a look.

OBJECTS: Final = 10_000


def look_seldom() -> None:
    """For the whole process, from now on. Call it once all is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])


# How many files and sockets a process may open, and how many it has open.
#
# The limit is raised once, at the start of every command that serves. Never lowers it, and never fails: a process that
# could not raise it runs on with what it has.

if TYPE_CHECKING:  # every command imports this room, and has no time to import more
    from director.core.clock import Clock


SHARE: Final = 0.9  # beyond it the rest is kept for what must not fail
COUNT_S: Final = 1.0
COUNT_SHARE: Final = 0.01  # of the limit: a crowd that comes at once is not let in unseen
FOLDERS: Final = ("/proc/self/fd", "/dev/fd")  # Linux; macOS

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


class Descriptors:
    """How many this process has open. Counted anew after a second, or once it was asked for so often that those who
    asked may have opened a hundredth of all: of thousands it takes milliseconds.
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
        """How many were open lately; 0 where the system does not tell."""
        self._asked += 1
        if self._clock.monotonic() - self._counted_at >= COUNT_S or 0 <= COUNT_SHARE * self.limit < self._asked:
            self._asked = 0
            self._counted_at = self._clock.monotonic()
            self._open = self._count()
        return self._open

    @property
    def are_short(self) -> bool:
        """Is nine tenths of what it may have open?"""
        return self.limit != resource.RLIM_INFINITY and self.open >= SHARE * self.limit

    def _count(self) -> int:
        for folder in FOLDERS:
            try:
                return len(os.listdir(folder))  # noqa: PTH208 - names, and not thousands of objects
            except FileNotFoundError:
                continue
            except OSError:  # to look takes a descriptor, and there is none
                return self.limit
        return 0
