"""Keep the history of queues in Redis, bounded, and read it. A keeper's recorder writes; `director/core/trends.py` has
the steps. A queue that is idle gets no line, and its lists expire.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar

import anyio.lowlevel
from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, read_all, text
from director.core.ids import QueueName
from director.core.trends import (
    MOST_BUCKETS,
    MOST_OF_ALL,
    RANGES,
    STEPS,
    Level,
    Point,
    Range,
    Step,
    level_line,
    levels_of,
    line_of,
    merge,
    parse,
    parse_level,
    steps_of,
)

ALL: Final = QueueName("")  # stands for all queues together
MOST_BYTES: Final = 112 * 1024  # of one queue's eight full lists at worst
ROOM_OF_ALL: Final = 3  # times as much, for all queues together
SHARE: Final = 0.02  # of maxmemory, for the history of all queues
UNLIMITED: Final = 64 << 20  # bytes, on a server without a maxmemory
AT_ONCE: Final = 25  # queues per write: a quarter of a millisecond of the server, which serves others too


class Trend(Struct, frozen=True):
    """One queue, or all together, over a range: its points, oldest first, without idle steps, and their sum."""

    points: Sequence[Point]
    whole: Point


T = TypeVar("T", Point, Level)


@dataclass(frozen=True)
class _Series(Generic[T]):
    """Lines of one kind: where they are, how one is written and read, and how finer ones are merged."""

    key: Callable[[QueueName, Step], str]
    line: Callable[[QueueName, T], str]
    parse: Callable[[bytes], T]
    merge: Callable[[Iterable[T], Step], list[T]]


def most_queues(maxmemory: int) -> int:
    """Return how many queues may have a history of their own: the history takes at most 2 % of the memory."""
    room = int(maxmemory * SHARE) if maxmemory else UNLIMITED
    return max(0, room // MOST_BYTES - ROOM_OF_ALL)


class Trends:
    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # ours answers in bytes

    async def of(self, queue: QueueName, over: Range, *, now_s: float) -> Trend:
        """Return the history of a queue, or of `ALL`. The newest step is made of finer ones."""
        return (await self.many([queue], over, now_s=now_s))[queue]

    async def many(self, queues: Sequence[QueueName], over: Range, *, now_s: float) -> dict[QueueName, Trend]:
        last = STEPS.index(RANGES[over])
        found: dict[QueueName, Trend] = {}
        for start in range(0, len(queues), AT_ONCE):
            some = queues[start : start + AT_ONCE]
            lists = {step.name: await self._read(_PACES, some, step) for step in STEPS[: last + 1]}
            for place, queue in enumerate(some):
                points = _join(_PACES, {name: of_step[place] for name, of_step in lists.items()}, last, now_s=now_s)
                found[queue] = Trend(points, merge(points, at_s=points[0].at_s if points else int(now_s)))
            await anyio.lowlevel.checkpoint()
        return found

    async def levels(self, queue: QueueName, over: Range, *, now_s: float) -> list[Level]:
        """Return how full a queue was, or `ALL`, oldest first, without idle steps."""
        last = STEPS.index(RANGES[over])
        lists = {step.name: (await self._read(_LEVELS, [queue], step))[0] for step in STEPS[: last + 1]}
        return _join(_LEVELS, lists, last, now_s=now_s)

    async def queues(self, *, since_s: float, most: int) -> list[QueueName]:
        """Return the queues that have lines since then, the latest first."""
        found = await ask(lambda: self._redis.zrange(keys.trends(), 0, most - 1, desc=True, withscores=True))
        return [QueueName(text(name)) for name, at_s in found if at_s >= since_s]

    async def take_turn(self, at_s: int) -> bool:
        """Return True to one keeper for each step. If it dies before it has written, that step is missing. The turn is
        kept as long as the line, so that a step is not written again after the clock was set back.
        """
        key, kept_ms = keys.trends_turn(str(at_s)), 1000 * STEPS[0].covers_s
        return bool(await ask(lambda: self._redis.set(key, 1, nx=True, px=kept_ms)))

    async def add(
        self, points: Mapping[QueueName, Point], levels: Mapping[QueueName, Level] | None = None, *, most: int
    ) -> None:
        """Add a line of the finest step for all together, and for the `most` queues with the most work: waiting,
        running, or ended in this step. A queue in which nothing ends keeps its place by what waits. Forget the history
        of the queues beyond `most` that got no line for the longest time.
        """
        full = levels or {}
        if not points and not full:
            return
        at_s = next(one.at_s for some in (points, full) for one in some.values())

        def work(queue: QueueName) -> tuple[float, QueueName]:
            point, level = points.get(queue), full.get(queue)
            return max(point.ended if point else 0, level.waiting + level.busy_s if level else 0), queue

        # both series are of the same queues: `_note` has a place for `most` of them
        busiest = nlargest(most, {*points, *full}, key=work)
        if points:
            await self._write(_PACES, STEPS[0], [(ALL, [merge(points.values(), at_s=at_s)])])
            await self._write(_PACES, STEPS[0], [(one, [points[one]]) for one in busiest if one in points])
        if full:
            await self._write(_LEVELS, STEPS[0], [(ALL, [_sum(full.values(), at_s)])])
            await self._write(_LEVELS, STEPS[0], [(one, [full[one]]) for one in busiest if one in full])
        await self._note(busiest, at_s, most)

    async def _note(self, queues: Sequence[QueueName], at_s: int, most: int) -> None:
        longest, index = STEPS[-1].covers_s, keys.trends()
        if queues:
            await ask(lambda: self._redis.zadd(index, dict.fromkeys(queues, at_s)))
        await ask(lambda: self._redis.zremrangebyscore(index, "-inf", at_s - longest))
        await ask(lambda: self._redis.pexpire(index, 1000 * longest))
        gone = [QueueName(text(name)) for name in await ask(lambda: self._redis.zrange(index, 0, -most - 1))]
        if gone:
            lists = [key(queue, step.name) for queue in gone for step in STEPS for key in (keys.trend, keys.level)]
            await pipelined(self._redis, lambda pipe: [pipe.unlink(key) for key in lists])
            await ask(lambda: self._redis.zrem(index, *gone))

    async def roll_up(self, *, now_s: int) -> None:
        """Merge complete steps into the next coarser one, where the time has come: also those missed meanwhile."""
        for finer, coarser in pairwise(STEPS):
            if now_s % coarser.seconds:
                return
            queues = [ALL, *await self.queues(since_s=now_s - finer.covers_s, most=1_000_000)]
            for start in range(0, len(queues), AT_ONCE):
                some = queues[start : start + AT_ONCE]
                await self._roll_up(_PACES, some, finer, coarser, now_s)
                await self._roll_up(_LEVELS, some, finer, coarser, now_s)

    async def _roll_up(
        self, series: _Series[T], queues: Sequence[QueueName], finer: Step, coarser: Step, now_s: int
    ) -> None:
        fine, known = await self._read(series, queues, finer), await self._read(series, queues, coarser, most=1)
        lines = []
        for queue, points, last in zip(queues, fine, known, strict=True):
            since_s = last[-1].at_s + coarser.seconds if last else 0
            complete = [one for one in points if since_s <= one.at_s < now_s]
            lines.append((queue, series.merge(complete, coarser)))
        await self._write(series, coarser, lines)

    async def _write(self, series: _Series[T], step: Step, lines: Iterable[tuple[QueueName, Sequence[T]]]) -> None:
        given = [
            (series.key(queue, step), [series.line(queue, point) for point in points])
            for queue, points in lines
            if points
        ]

        def write(pipe: Any, some: Sequence[tuple[str, list[str]]]) -> None:
            for key, texts in some:
                pipe.lpush(key, *texts)
                pipe.ltrim(key, 0, step.kept - 1)
                pipe.pexpire(key, 1000 * step.covers_s)

        for start in range(0, len(given), AT_ONCE):
            some = given[start : start + AT_ONCE]
            await pipelined(self._redis, lambda pipe: write(pipe, some))  # noqa: B023

    async def _read(
        self, series: _Series[T], queues: Sequence[QueueName], step: Step, *, most: int = 0
    ) -> list[list[T]]:
        """Return the points of each queue, oldest first. Lines are newest first."""
        last = (most or step.kept) - 1
        found = await read_all(self._redis, queues, lambda pipe, queue: pipe.lrange(series.key(queue, step), 0, last))
        return [[series.parse(line) for line in reversed(lines)] for lines in found]


def _sum(levels: Iterable[Level], at_s: int) -> Level:
    every = list(levels)
    waiting, busy_s, slots = (sum(getattr(one, name) for one in every) for name in ("waiting", "busy_s", "slots"))
    return Level(at_s=at_s, waiting=waiting, busy_s=busy_s, slots=slots)


_PACES: Final = _Series[Point](
    key=lambda queue, step: keys.trend(queue, step.name) if queue else keys.trend_of_all(step.name),
    line=lambda queue, point: line_of(point, most=MOST_BUCKETS if queue else MOST_OF_ALL),
    parse=parse,
    merge=steps_of,
)
_LEVELS: Final = _Series[Level](
    key=lambda queue, step: keys.level(queue, step.name) if queue else keys.level_of_all(step.name),
    line=lambda _, level: level_line(level),
    parse=parse_level,
    merge=levels_of,
)


def _join(series: _Series[T], lists: Mapping[str, Sequence[T]], last: int, *, now_s: float) -> list[T]:
    """Return the points of one step, and for the time after its last line those of the finer steps, merged."""
    step = STEPS[last]
    points, since_s = list[T](), step.start(now_s) - step.covers_s
    for one in reversed(STEPS[: last + 1]):
        added = [point for point in lists[one.name] if point.at_s >= since_s]
        points += added
        since_s = max(since_s, added[-1].at_s + one.seconds if added else 0)
    return series.merge(points, step)
