"""Compare both versions of each deployment whose calls are split: count how their runs ended, and stop a new version
that fails more than the old one by more than the margin.

The counts come from the logs of steps and the records, which are there anyway: nothing is written when a run ends.
Each keeper looks. A run counts once, because counts and the last entry that they have are written in one step, and a
split is stopped once, because its writer has to know it as it is. A log has about its last 10,000 steps: what was cut
from it while no keeper ran is not counted, of both versions alike.
"""

import logging
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from director.core.clock import Clock
from director.core.split import Split, count_runs, judge
from director.store.deployments import Deployment, Deployments
from director.store.queues import Queues
from director.store.splits import Watched

log = logging.getLogger(__name__)

TICK_S: Final = 2.0
MOST_READS: Final = 5  # of the log, for one split in one round
SETTLED_MS: Final = 60_000  # a change of a release and of its split are two steps; after this long both are there
WAITS_MS: Final = 300_000  # without a server that is ready or starts, the new version is stopped after this long
BY: Final = "keeper"


class Compared(Struct, frozen=True):
    """The result of one round. `counted`: runs that it read, which another keeper may have counted too. `stopped`:
    deployments whose new version gets nothing more.
    """

    counted: int = 0
    stopped: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Comparer:
    _deployments: Deployments
    _queues: Queues
    _clock: Clock

    async def run_once(self) -> Compared:
        counted, stopped = 0, list[str]()
        for watched in await self._deployments.splits.list_watched():
            deployment = await self._deployments.get(*watched.name.split("/"))
            split = None if deployment is None else deployment.split
            if deployment is None or split is None or split.is_promoted:
                await self._tidy(watched)
                continue
            counted += await self._count(watched.name, split)
            if await self._stop_if_worse(deployment, split):
                stopped.append(watched.name)
        return Compared(counted, tuple(stopped))

    async def _count(self, name: str, split: Split) -> int:
        """Count runs that ended since the last round. Return how many that were."""
        splits, total = self._deployments.splits, 0
        cursor = (await splits.read_counts(name)).cursor
        for _ in range(MOST_READS):
            ended = await splits.read_ended(split, cursor)
            if ended.cursor == cursor:
                break
            counts = count_runs(split, name, ended.runs)
            if not await splits.count(name, split, cursor, ended.cursor, counts):
                break  # another keeper has counted, or the share was changed: the next round goes on from there
            total += sum(number for of, number in counts.items() if ":ms:" not in of)
            cursor = ended.cursor
            if ended.is_all:
                break
        return total

    async def _stop_if_worse(self, deployment: Deployment, split: Split) -> bool:
        if not split.share:
            return False
        runs = (await self._deployments.splits.read_counts(deployment.full_name)).runs
        why = judge(split, runs["old"], runs["new"]) or await self._find_silence(split)
        if not why or await self._deployments.stop(deployment, by=BY, why=why) != "written":
            return False
        log.warning("a new version was stopped", extra={"deployment": deployment.full_name, "why": why})
        return True

    async def _find_silence(self, split: Split) -> str:
        """Return why the new version is stopped if it has no server, or each one fails to start: none of its runs would
        ever end. One that starts is waited for, as large weights take long to load.
        """
        new = next(queue for queue, side in split.queues.items() if side == "new")
        for _, stats in await self._queues.stats_of([new]):
            is_served = stats.slots or stats.starting
            if not is_served and stats.waiting and stats.oldest_ms > WAITS_MS:
                return f"no server of the new version is ready, and {stats.waiting:,} wait for one"
        return ""

    async def _tidy(self, watched: Watched) -> None:
        """Forget what is no split any more: promoted, taken back, or of a release or a deployment that is gone."""
        if self._clock.now_ms() - watched.changed_ms < SETTLED_MS:
            return
        splits, split = self._deployments.splits, watched.split
        is_void = split is not None and not split.is_promoted
        if is_void and await splits.write(watched.name, split, None, by=BY, did="void") != "written":
            return  # it was begun again meanwhile
        await splits.forget(watched.name)
