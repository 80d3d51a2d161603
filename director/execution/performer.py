"""Do what the tracker of one claim wants done, in order, and tell it what came of that.

Progress is written and told at once. What takes time, storing files and asking whether an output may be released,
is done one after the other beside the run.
Decides nothing, and never ends a prediction: the end is kept in `end` for whoever settles it.
"""

import asyncio
import logging
from collections import deque
from functools import cached_property
from typing import Final, assert_never

from director.core.clock import Clock
from director.execution.ends import Finish, GiveBack, Judged
from director.execution.holdings import Held
from director.execution.moderation import Moderator
from director.execution.progress import Progress
from director.execution.storing import Kept, Storing
from director.execution.tracker import Ask, Halt, Happening, Remember, Tell, Write
from director.execution.uploads import Upload, Uploaded
from director.files.names import FileName

__all__ = ("Performer",)

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
# Of files that wait to be stored: beyond it the run is not followed until some are
MOST_AHEAD: Final = 64 * MIB


class Performer:
    """One claim's. Its tracker is not to want what there is nobody for.

    `run_limit_s`: how long after its beginning somebody who may release the output is asked for.
    """

    def __init__(
        self,
        held: Held,
        progress: Progress,
        clock: Clock,
        *,
        storing: Storing | None,
        moderator: Moderator | None,
        run_limit_s: float,
    ) -> None:
        self.end: Finish | GiveBack | None = None
        self._held = held
        self._progress = progress
        self._clock = clock
        self._storing = storing
        self._moderator = moderator
        self._run_limit_s = run_limit_s
        self._known: dict[FileName, Kept] = {}
        self._waiting: deque[Upload | Ask] = deque()
        self._ahead = 0
        self._has_files = False
        self._task: asyncio.Task[None] | None = None

    @cached_property
    def _caught_up(self) -> asyncio.Event:
        return asyncio.Event()

    def feed(self, event: Happening) -> None:
        """This happened just now."""
        for effect in self._held.tracker.apply(event, self._clock.monotonic()):
            match effect:
                case Write():
                    self._progress.add(effect.events)
                case Remember():
                    self._progress.remember(effect.remote)
                case Tell():
                    self._progress.tell(effect.event)
                case Halt():
                    self._held.stop(effect.why)
                case Upload():
                    self._ahead += effect.size
                    self._add(effect)
                case Ask():
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

    async def done(self) -> None:
        """Wait until nothing is left to do beside the run. It is let go of when the claim is lost."""
        if self._task is not None:
            await self._held.settle(self._task)

    def drop(self) -> None:
        """Do nothing more, not even what is under way."""
        if self._task is not None:
            self._task.cancel()

    @property
    def has_files(self) -> bool:
        """Did it store any, or begin to?"""
        return self._has_files

    def _add(self, effect: Upload | Ask) -> None:
        self._waiting.append(effect)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                effect = self._waiting.popleft()
                self.feed(await (self._upload(effect) if isinstance(effect, Upload) else self._ask(effect)))
        except Exception:  # then there is no end, and the claim is left to its lease
            log.exception("work beside a run failed", extra={"prediction": self._held.claim.id})
        finally:
            self._caught_up.set()

    async def _upload(self, upload: Upload) -> Uploaded:
        assert self._storing is not None  # noqa: S101 - for the type checker: see the class
        self._has_files = True
        urls = await self._storing.store(self._held.claim.record, upload.files, self._known)
        self._ahead -= upload.size
        self._caught_up.set()
        return Uploaded(upload.number, urls)

    async def _ask(self, ask: Ask) -> Judged:
        assert self._moderator is not None  # noqa: S101 - for the type checker: see the class
        began_at = self._held.tracker.began_at
        assert began_at is not None  # noqa: S101 - for the type checker: it has an output
        return await self._moderator.judge(
            self._held.claim.record,
            ask.output,
            until_s=began_at + self._run_limit_s,
            cut=self._held.wanted_over,
        )
