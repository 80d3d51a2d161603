"""Store the files of a run's output and ask the moderator while the run goes on. Its end waits for both."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from director.core.schema import Record
from director.execution.active_claims import ActiveClaim
from director.execution.moderation import Moderator
from director.execution.run_files import StoredFile, Storing
from director.execution.tracker import Ask, Happening, Judged
from director.execution.uploads import Upload, Uploaded
from director.files.store import FileName

log = logging.getLogger(__name__)

# Bytes of files that wait for the store: beyond it the run is not followed until some are stored
MOST_AHEAD: Final = 64 << 20


class SideWork:
    """The side work of one run, one piece after the other. `apply` gets each result. `files`: what is stored."""

    def __init__(
        self,
        active: ActiveClaim,
        apply: Callable[[Happening], None],
        *,
        storing: Storing | None,
        moderator: Moderator | None,
    ) -> None:
        self.files: dict[FileName, StoredFile] = {}
        self.has_files = False
        self._active = active
        self._apply = apply
        self._storing = storing
        self._moderator = moderator
        self._waiting: deque[Upload | Ask] = deque()
        self._bytes_ahead = 0
        self._caught_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Upload | Ask) -> None:
        if isinstance(work, Upload):
            self._bytes_ahead += work.size
        self._waiting.append(work)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_for_store(self) -> None:
        """Wait while more than MOST_AHEAD bytes wait for the store."""
        while self._bytes_ahead > MOST_AHEAD and self._task is not None and not self._task.done():
            self._caught_up.clear()
            await self._caught_up.wait()

    async def finish(self) -> None:
        """Wait until all of it is done, or the claim is lost."""
        if self._task is not None:
            await self._active.wait_for(self._task)

    def drop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                work = self._waiting.popleft()
                self._apply(await (self._store(work) if isinstance(work, Upload) else self._judge(work)))
        except Exception:  # then there is no end, and the claim is left to its lease
            log.exception("work beside a run failed", extra={"prediction": self._record.id})
        finally:
            self._caught_up.set()

    async def _store(self, upload: Upload) -> Uploaded:
        assert self._storing is not None  # noqa: S101 - without it the tracker asks for no upload
        self.has_files = True
        urls = await self._storing.store(self._record, upload.files, self.files)
        self._bytes_ahead -= upload.size
        self._caught_up.set()
        return Uploaded(upload.number, urls)

    async def _judge(self, ask: Ask) -> Judged:
        moderator, began_at = self._moderator, self._active.tracker.began_at
        assert moderator is not None and began_at is not None  # noqa: S101, PT018 - the tracker asks about an output
        until_s = began_at + self._active.limit_s
        return await moderator.judge(self._record, ask.output, until_s=until_s, cut=self._active.stop_asked)

    @property
    def _record(self) -> Record:
        return self._active.claim.record
