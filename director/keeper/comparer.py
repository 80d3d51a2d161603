"""Compare both versions of each deployment whose calls are split: count how their runs ended, and stop a new version
that fails more than the old one by more than the margin.

The counts come from the logs of steps and the records, which are there anyway: nothing is written when a run ends.
Each keeper looks. A run counts once, because counts and the last entry that they have are written in one step, and a
split is stopped once, because its writer has to know it as it is. A log has about its last 10,000 steps: what was cut
from it while no keeper ran is not counted.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, get_args

import msgspec
from msgspec import Struct

from director.broker import keys
from director.core.clock import Clock
from director.core.ids import Partition, QueueName
from director.core.policy import Lane
from director.core.split import Split, count_runs, judge
from director.store.deployments import Deployment, Deployments
from director.store.queues import Queues
from director.store.splits import Counts, order

log = logging.getLogger(__name__)

TICK_S: Final = 2.0
AT_ONCE: Final = 25  # splits that are judged together
MOST_READS: Final = 5  # parts of one log in one round
EARLY_MS: Final = 60_000  # the clocks of an API process and of Redis differ by less
COUNTS_ON_MS: Final = 3_600_000  # runs that were under way when their version was stopped are counted this long
WAITS_MS: Final = 300_000  # without a server that is ready or starts, the new version is stopped after this long
BY: Final = "keeper"


class Comparison(Struct, frozen=True):
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
    # by (deployment, began_ms): since when its new version has no server, as this keeper saw
    _silent_ms: dict[tuple[str, int], int] = field(default_factory=dict)

    async def run_once(self) -> Comparison:
        found = list[tuple[Deployment, Split]]()
        for name, kept, deployment in await self._deployments.find_tried():
            if deployment is None or deployment.split is None:
                await self._deployments.remove_void(name, kept)
            elif deployment.trial is not None:  # else it was promoted after the list was read
                found.append((deployment, deployment.trial))
        present = {(deployment.full_name, split.began_ms) for deployment, split in found}
        self._silent_ms = {one: since for one, since in self._silent_ms.items() if one in present}
        found = [(one, split) for one, split in found if split.share or self._age_ms(split) < COUNTS_ON_MS]
        found.sort(key=_partition_of)
        known, counted = await self._read_counts(found), 0
        for partition, some in groupby(found, key=_partition_of):
            counted += await self._count(partition, some, known)
        return Comparison(
            counted, tuple(await self._stop_worse([(deployment, split) for deployment, split in found if split.share]))
        )

    async def _read_counts(self, found: Sequence[tuple[Deployment, Split]]) -> dict[str, Counts]:
        return await self._deployments.splits.read_counts([deployment.full_name for deployment, _ in found])

    def _age_ms(self, split: Split) -> int:
        return self._clock.now_ms() - split.since_ms

    async def _count(
        self, partition: Partition, found: Iterable[tuple[Deployment, Split]], counts: Mapping[str, Counts]
    ) -> int:
        """Count runs of these splits that ended since the last round, in one reading of their log. Return how many."""
        splits, total = self._deployments.splits, 0
        left = {one.full_name: (one, split) for one, split in found if one.full_name in counts}
        known = {name: counts[name].cursor for name in left}
        for _ in range(MOST_READS):
            if not left:
                break
            cursors = {name: known[name] or f"{split.began_ms - EARLY_MS}-0" for name, (_, split) in left.items()}
            queues = {queue for _, split in left.values() for queue in split.queues}
            part = await splits.read_ended(partition, queues, min(cursors.values(), key=order))
            for name, (deployment, split) in list(left.items()):
                if order(part.cursor) <= order(cursors[name]):
                    continue
                ended = count_runs(split, name, part.after(cursors[name]))
                if not await splits.count(name, deployment.kept, known[name], part.cursor, ended):
                    del left[name]  # another keeper has counted, or it was changed: the next round goes on from there
                    continue
                total += _sum_runs(ended)
                known[name] = part.cursor
            if part.is_last:
                break
        return total

    async def _stop_worse(self, found: Sequence[tuple[Deployment, Split]]) -> list[str]:
        """Judge these splits by their counts of now. Return the deployments whose new version was stopped."""
        known, stopped = await self._read_counts(found), list[str]()
        judged = [(one, split, known[one.full_name]) for one, split in found if one.full_name in known]
        for start in range(0, len(judged), AT_ONCE):
            some = judged[start : start + AT_ONCE]  # together, so that Redis gets what they ask in one write
            ends = await asyncio.gather(*(self._stop_if_worse(*one) for one in some))
            stopped += [
                deployment.full_name for (deployment, _, _), is_worse in zip(some, ends, strict=True) if is_worse
            ]
        return stopped

    async def _stop_if_worse(self, deployment: Deployment, split: Split, counts: Counts) -> bool:
        runs = counts.figures.now
        try:
            why = judge(split, runs["old"], runs["new"]) or await self._find_silence(deployment, split)
            if not why or await self._deployments.stop(deployment, by=BY, why=why) != "written":
                return False
        except (ValueError, LookupError, msgspec.MsgspecError):  # one split that cannot be read delays no other
            log.exception("a split cannot be judged", extra={"deployment": deployment.full_name})
            return False
        log.warning("a new version was stopped", extra={"deployment": deployment.full_name, "why": why})
        return True

    async def _find_silence(self, deployment: Deployment, split: Split) -> str:
        """Return why the new version is stopped if it has no server, or each one fails to start, for minutes while work
        waits for it: none of its runs would ever end. One that starts is waited for, as large weights take long to
        load. An outage of both versions says nothing about the new one.
        """
        key, now_ms = (deployment.full_name, split.began_ms), self._clock.now_ms()
        stats = {split.queues[queue]: one for queue, one in await self._queues.stats_of(list(split.queues))}
        old, new = stats.get("old"), stats.get("new")
        waiting = 0 if new is None else sum(map(new.may_start_in, get_args(Lane)))
        if old is None or new is None or not old.slots or new.slots or new.starting or not waiting:
            self._silent_ms.pop(key, None)
            return ""
        if now_ms - self._silent_ms.setdefault(key, now_ms) < WAITS_MS:
            return ""
        return f"no server of the new version is ready, and {waiting:,} wait for one"


def _partition_of(found: tuple[Deployment, Split]) -> Partition:
    _, split = found
    return keys.queue_partition(QueueName(f"{split.model}:"))


def _sum_runs(counts: Mapping[str, int]) -> int:
    return sum(number for of, number in counts.items() if of.count(":") == 1)
