"""Record how predictions ended, from what Redis has of them anyway: the logs of their steps, and their records. And
how full the queues with work are, by one look at each.

One keeper does so for each step of ten seconds. It reads a bounded part of a busy log, the newest, and takes the rest
of the step to be like it. A log has about its last 10,000 steps, so it may no longer reach back to the begin of a step
of time. Nothing is written when a prediction is accepted, claimed or finished.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import infos, server_ms, text
from director.core.data_bytes import Fullness
from director.core.ids import Partition, PredictionId, QueueName, created_ms_of
from director.core.trends import STEPS, Level, Point, bucket
from director.keeper.registry import Registry
from director.store.logs import Line, newest_and_oldest, newest_lines
from director.store.queues import Queues
from director.store.records import record_fields
from director.store.trends import Trends, most_queues

STEP_S: Final = STEPS[0].seconds
SETTLED_S: Final = 1  # after the end of a step, what a script had begun is in the log
MOST_READ: Final = 20_000  # steps of predictions in ten seconds, about 1.5 µs of Redis each
MOST_OF_LOG: Final = 5_000  # in one command: Redis serves no other for about 8 ms
LEAST_READ: Final = 200  # of each partition
LOGGED: Final = 10_000  # a shorter log was never cut (lua/lib/log.lua)
LEAST_COVERED_MS: Final = 1_000  # a burst of some milliseconds is not taken to go on for ten seconds
MOST_RECORDS: Final = 2_000  # that are read for the times of their runs
LEAST_RECORDS: Final = 5  # of each queue
MOST_LEVELS: Final = 1_000  # queues with work: about 40 µs of Redis each
AT_ONCE: Final = 25


class StepCounts(Struct):
    """The steps of one queue that were read. `scale`: how many predictions each of them stands for."""

    scale: float = 1.0
    statuses: dict[str, int] = {}
    ran: list[PredictionId] = []
    waits_ms: list[int] = []


@dataclass(slots=True, eq=False)
class Recorder:
    _redis: Redis
    _registry: Registry
    _trends: Trends
    _queues: Queues
    _recorded_s: int = field(default=0)

    async def run_once(self) -> int:
        """Record the last complete step, if it is time. Return how many queues had anything."""
        until_s = STEPS[0].start(await server_ms(self._redis) // 1000 - SETTLED_S)
        if until_s == self._recorded_s:
            return 0
        self._recorded_s = until_s
        return await self.record(until_s)

    async def record(self, until_s: int) -> int:
        """Record the step that ends at `until_s`. Return how many queues had anything, or 0 if another keeper does."""
        if not await self._trends.take_turn(until_s):
            return 0
        seen = await self._read_logs(until_s - STEP_S)
        runs = await self._runs(seen)
        points = {queue: _point(until_s - STEP_S, one, runs.get(queue, {})) for queue, one in seen.items()}
        memory = Fullness.of(await infos(self._redis, "memory"))
        levels = await self._levels(until_s - STEP_S)
        await self._trends.add(points, levels, most=most_queues(memory.limit))
        await self._trends.roll_up(now_s=until_s)
        return len(points)

    async def _levels(self, at_s: int) -> dict[QueueName, Level]:
        """Return how full the queues are in which anything waits or runs now, at the end of this step."""
        live, found = (await self._registry.live())[:MOST_LEVELS], dict[QueueName, Level]()
        for start in range(0, len(live), AT_ONCE):
            for queue, stats in await self._queues.stats_of(live[start : start + AT_ONCE]):
                if stats.live:
                    waiting, slots = (
                        stats.waiting + stats.delayed - stats.planned,
                        stats.slots if stats.directors else 0,
                    )
                    busy_s = stats.claimed * STEP_S
                    found[queue] = Level(at_s=at_s, waiting=waiting, busy_s=busy_s, slots=max(slots, stats.claimed))
        return found

    async def _read_logs(self, from_s: int) -> dict[QueueName, StepCounts]:
        """Read a few entries of each log, and of those that have more an equal part of what may be read."""
        partitions = sorted({keys.queue_partition(queue) for queue in await self._registry.queues()})
        first, last = f"{from_s * 1000}-0", f"{(from_s + STEP_S) * 1000 - 1}"
        found: dict[QueueName, StepCounts] = {}
        busy: list[Partition] = []
        for start in range(0, len(partitions), AT_ONCE):
            some: Sequence[Partition] = partitions[start : start + AT_ONCE]
            lines = await newest_lines(self._redis, some, first=first, last=last, most=LEAST_READ)
            for partition, entries in zip(some, lines, strict=True):
                if len(entries) == LEAST_READ:
                    busy.append(partition)
                else:
                    _note_all(found, entries, scale=1.0)
        for partition in busy:
            most = min(MOST_OF_LOG, max(LEAST_READ, MOST_READ // len(busy)))
            entries, oldest, length = await newest_and_oldest(self._redis, partition, first=first, last=last, most=most)
            is_cut = length >= LOGGED and _at_ms(oldest) >= from_s * 1000
            _note_all(found, entries, scale=_scale(entries, from_s) if is_cut or len(entries) == most else 1.0)
        return found

    async def _runs(self, seen: Mapping[QueueName, StepCounts]) -> dict[QueueName, dict[int, int]]:
        """Return for each queue how many runs took how long, from the records of some that ended."""
        each = max(LEAST_RECORDS, MOST_RECORDS // max(1, len(seen)))
        chosen = [
            (queue, name, one.scale * max(1.0, len(one.ran) / each))
            for queue, one in seen.items()
            for name in (one.ran if len(one.ran) <= each else random.sample(one.ran, each))
        ]
        found: dict[QueueName, dict[int, int]] = {}
        for start in range(0, len(chosen), 10 * AT_ONCE):
            some = chosen[start : start + 10 * AT_ONCE]
            times = await record_fields(self._redis, [name for _, name, _ in some], ("started", "completed"))
            for (queue, _, weight), (started, completed) in zip(some, times, strict=True):
                if started and completed:
                    counts = found.setdefault(queue, {})
                    number = bucket(int(completed) - int(started))
                    counts[number] = counts.get(number, 0) + round(weight)
        return found


def _scale(entries: Sequence[Line], from_s: int) -> float:
    """Return how many log entries each of these stands for: they cover only the end of the step of time."""
    until_ms = (from_s + STEP_S) * 1000
    return STEP_S * 1000 / max(LEAST_COVERED_MS, until_ms - _at_ms(entries[-1])) if entries else 1.0


def _note_all(found: dict[QueueName, StepCounts], entries: Sequence[Line], *, scale: float) -> None:
    for _, fields in entries:
        kind, detail = fields[b"kind"], text(fields[b"detail"])
        if kind not in (b"claimed", b"ended"):
            continue
        one = found.setdefault(QueueName(text(fields[b"queue"])), StepCounts(scale=scale))
        name = PredictionId(text(fields[b"id"]))
        if kind == b"ended":
            status = detail.partition(" ")[0]
            one.statuses[status] = one.statuses.get(status, 0) + 1
            if status in ("succeeded", "failed"):
                one.ran.append(name)
        elif detail.rpartition(" ")[2] == "1":  # a retry waited for its backoff
            one.waits_ms.append(max(0, int(fields[b"at"]) - created_ms_of(name)))


def _point(at_s: int, seen: StepCounts, runs: Mapping[int, int]) -> Point:
    count = {status: math.ceil(seen.scale * number) for status, number in seen.statuses.items()}
    waits: dict[int, int] = {}
    for wait_ms in seen.waits_ms:
        number = bucket(wait_ms)
        waits[number] = waits.get(number, 0) + round(seen.scale)
    return Point(
        at_s=at_s,
        succeeded=count.get("succeeded", 0),
        failed=count.get("failed", 0),
        canceled=count.get("canceled", 0) + count.get("aborted", 0),
        waits=waits,
        runs=runs,
    )


def _at_ms(entry: Line) -> int:
    return int(entry[0].partition(b"-")[0])
