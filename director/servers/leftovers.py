"""Delete what coglet leaves behind of each run: a folder, for ever, with any output above 8 MiB in it.

Deletes only folders of predictions that Redis says are terminal, or has not known for a day, and to which nothing was
written recently. The model server writes there and is untrusted, so no link is followed.
"""

import logging
import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final, NoReturn

from anyio import to_thread
from msgspec import Struct
from redis.asyncio import Redis

from director.core.clock import Clock
from director.core.ids import PredictionId, is_prediction_id
from director.core.states import TERMINAL
from director.runtime.sweep import LIMIT, repeat
from director.store.records import statuses

log = logging.getLogger(__name__)

SWEEP_S: Final = 60.0
QUIET_S: Final = 300.0  # since the last write, if the prediction is terminal: a server may act on a cancel late
# since the last write, if Redis does not know it: a caller may have asked the server directly
UNKNOWN_S: Final = 86_400.0


class _Leftover(Struct, frozen=True):
    id: PredictionId
    quiet_s: float


class Leftovers(Struct, eq=False):
    folder: Path
    redis: Redis
    clock: Clock
    has_warned: bool = False

    async def run(self) -> NoReturn:
        await repeat(self.run_once, role="leftovers", tick_s=SWEEP_S, clock=self.clock)

    async def run_once(self) -> int:
        deleted = 0
        quiet = self._quiet()
        try:
            while found := await to_thread.run_sync(lambda: list(islice(quiet, LIMIT))):
                deleted += await to_thread.run_sync(self._delete, await self._over(found))
        except FileNotFoundError:  # no server has run anything yet
            return deleted
        except OSError:
            self._warn()
        finally:
            quiet.close()
        if deleted:
            log.info("leftovers of model servers deleted", extra={"deleted": deleted})
        return deleted

    async def _over(self, found: Sequence[_Leftover]) -> list[PredictionId]:
        known = await statuses(self.redis, [each.id for each in found])
        return [
            each.id
            for each, status in zip(found, known, strict=True)
            if (each.quiet_s > UNKNOWN_S if status is None else status in TERMINAL)
        ]

    def _quiet(self) -> Generator[_Leftover, None, None]:
        with _open(self.folder) as folder, os.scandir(folder) as entries:
            for entry in entries:
                if is_prediction_id(entry.name) and entry.is_dir(follow_symlinks=False):
                    quiet_s = self.clock.now_ms() / 1000 - _last_write_s(entry.name, folder)
                    if quiet_s > QUIET_S:
                        yield _Leftover(PredictionId(entry.name), quiet_s)

    def _delete(self, leftovers: Sequence[PredictionId]) -> int:
        deleted = 0
        with _open(self.folder) as folder:
            for name in leftovers:
                try:
                    shutil.rmtree(name, dir_fd=folder)
                    deleted += 1
                except OSError:
                    self._warn()
        return deleted

    def _warn(self) -> None:
        if not self.has_warned:
            log.warning("leftovers of model servers cannot be deleted", exc_info=True)
        self.has_warned = True


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    """Open the folder itself, never a link put in its place or in its parent's."""
    links = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    opened = os.open(folder.parent.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in (folder.parent.name, folder.name):
            below = os.open(name, links, dir_fd=opened)
            os.close(opened)
            opened = below
        yield opened
    finally:
        os.close(opened)


def _last_write_s(name: str, folder: int) -> float:
    last = 0.0
    for path in (name, f"{name}/inputs", f"{name}/outputs"):
        with suppress(OSError):
            last = max(last, os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime)
    return last
