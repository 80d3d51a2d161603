"""Do what the tracker of one claim wants done, in order, and tell it what came of that.

Progress is written and told at once. What takes time, storing files, is done one after the other beside the run.
Decides nothing, and never ends a prediction: the end is kept in `end` for whoever settles it.
"""

import asyncio
import logging
from collections import deque
from typing import Final, assert_never

from director.core.clock import Clock
from director.core.files import FileName
from director.ends import Finish, GiveBack
from director.holdings import Held
from director.progress import Progress
from director.storing import Storing
from director.tracker import Halt, Happening, Tell, Write
from director.uploads import Upload, Uploaded

__all__ = ("Performer",)

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
# Of files that wait to be stored: beyond it the run is not followed until some are
MOST_AHEAD: Final = 64 * MIB


class Performer:
    """One claim's. Without `storing`, its tracker is not to ask for it."""

    def __init__(self, held: Held, progress: Progress, clock: Clock, storing: Storing | None) -> None:
        self.end: Finish | GiveBack | None = None
        self._held = held
        self._progress = progress
        self._clock = clock
        self._storing = storing
        self._known: dict[FileName, str] = {}
        self._uploads: deque[Upload] = deque()
        self._ahead = 0
        self._caught_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def feed(self, event: Happening) -> None:
        """This happened just now."""
        for effect in self._held.tracker.apply(event, self._clock.monotonic()):
            match effect:
                case Write():
                    self._progress.add(effect.events)
                case Tell():
                    self._progress.tell(effect.event)
                case Halt():
                    self._held.stop(effect.why)
                case Upload():
                    self._add(effect)
                case Finish() | GiveBack():
                    self.end = effect
                case _:
                    assert_never(effect)

    async def room(self) -> None:
        """Wait until the store has caught up enough for the run to be followed further."""
        while self._ahead > MOST_AHEAD and self._task is not None and not self._task.done():
            self._caught_up.clear()
            await self._caught_up.wait()

    def work(self) -> asyncio.Task[None]:
        """What goes on beside the run: over once nothing is left to do."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())
        return self._task

    def drop(self) -> None:
        """Do nothing more, not even what is under way."""
        if self._task is not None:
            self._task.cancel()

    def _add(self, upload: Upload) -> None:
        self._uploads.append(upload)
        self._ahead += upload.size
        self.work()

    async def _work(self) -> None:
        try:
            while self._uploads:
                upload = self._uploads.popleft()
                assert self._storing is not None  # noqa: S101 - for the type checker: see the class
                urls = await self._storing.store(self._held.claim.record, upload.files, self._known)
                self._ahead -= upload.size
                self._caught_up.set()
                self.feed(Uploaded(upload.number, urls))
        except Exception:  # then there is no end, and the claim is left to its lease
            log.exception("work beside a run failed", extra={"prediction": self._held.claim.id})
        finally:
            self._caught_up.set()
