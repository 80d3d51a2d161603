"""Measure calls on a full queue beside the same calls on an empty one, in turn on one server."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, TypeVar

from msgspec import Struct
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.figures import percentile
from director.core.ids import lowest_id_at
from director.lab.simulate.play import AT_ONCE, INPUT, VirtualQueue
from director.local.server import own_server
from tests.bench.figures import Figure, table
from tests.bench.play import POLICY

URL: Final = "http://127.0.0.1:8080"  # the API stores one with each prediction
SLOTS: Final = 8
RAN_MS: Final = 1_000
WARM_UP: Final = 100
CPU_ROUNDS: Final = 10  # one round of ten is enough for a mean
STEPS: Final = 10  # lines of progress while the queue is filled
MOST_SLOWER: Final = 2.0
MOST_SERVER: Final = 1.3
MOST_BYTES: Final = 1_500

Answer = TypeVar("Answer")
Meter = Callable[[], Awaitable[float]]
"""A number that only grows: a call costs what it adds to this."""

Taken = dict[str, list[float]]
"""Measurements by the name of the call."""


class DepthOptions(Struct, frozen=True, kw_only=True):
    waiting: int = 1_000_000
    tenants: int = 100
    rounds: int = 3_000


class Side:
    def __init__(self, scripts: Scripts, name: str, *, tenants: int) -> None:
        self.queue = VirtualQueue(scripts, f"bench/{name}", POLICY)
        self._scripts = scripts
        self._tenants = [f"tenant-{i}" for i in range(tenants)]
        self._numbers = count()

    async def fill(self, jobs: int) -> None:
        for first in range(0, jobs, AT_ONCE):
            await asyncio.gather(*(self._submit() for _ in range(first, min(jobs, first + AT_ONCE))))

    async def _submit(self) -> None:
        tenant, prediction_id = self._next_tenant(), self.queue.new_id()
        await asyncio.gather(
            self._scripts.enlist(prediction_id, account=tenant, oldest=lowest_id_at(0)),
            self.queue.enqueue(prediction_id, tenant, url=URL),
        )

    def _next_tenant(self) -> str:
        self.queue.now_ms += 1
        return self._tenants[next(self._numbers) % len(self._tenants)]

    async def round(self, meter: Meter, taken: Taken) -> None:
        """Enqueue, read, claim and finish one prediction; afterwards as many wait as before."""

        async def measured(what: str, call: Awaitable[Answer]) -> Answer:
            before = await meter()
            answer = await call
            taken[what].append(await meter() - before)
            return answer

        tenant, newest = self._next_tenant(), self.queue.new_id()
        await measured("enqueue", self.queue.enqueue(newest, tenant, url=URL))
        await measured("get with outlook", self._scripts.get(newest, now_ms=self.queue.now_ms))
        [claim] = await measured("claim", self.queue.claim())
        self.queue.now_ms += RAN_MS
        await measured("finish", self.queue.finish(claim, ran_ms=RAN_MS))

    async def waiting(self) -> int:
        return (await self._scripts.stats(self.queue.name, now_ms=self.queue.now_ms)).waiting


async def depth_figures(options: DepthOptions, say: Callable[[str], None]) -> list[Figure]:
    async with own_server() as redis:
        gatherer = Gatherer(redis)
        full, empty = (Side(Scripts(gatherer), name, tenants=options.tenants) for name in ("full", "empty"))
        for side in (full, empty):
            await side.queue.register()
            await side.queue.report_slots(SLOTS)
        say(f"{options.waiting:,} of {options.tenants} tenants on a Valkey in memory, without an append-only file")
        each_bytes = await _filled(redis, full, options.waiting, say)
        figures = [*await _measured(redis, full=full, empty=empty, rounds=options.rounds, say=say), each_bytes]
        say(f"then {await full.waiting():,} waited in the full queue and {await empty.waiting()} in the empty one")
        await gatherer.aclose()
    return figures


async def _filled(redis: Redis, full: Side, jobs: int, say: Callable[[str], None]) -> Figure:
    before, began, added = await _used_bytes(redis), time.perf_counter(), 0
    for step in range(1, STEPS + 1):
        await full.fill(jobs * step // STEPS - added)
        added = jobs * step // STEPS
        say(f"  {added:>9,} added in {time.perf_counter() - began:.0f} s")
    each = (await _used_bytes(redis) - before) / jobs
    name = f"memory of a waiting prediction beside its input of {len(INPUT)} bytes"
    return Figure(name=name, value=round(each - len(INPUT)), bound=MOST_BYTES, unit=" bytes")


async def _measured(redis: Redis, *, full: Side, empty: Side, rounds: int, say: Callable[[str], None]) -> list[Figure]:
    async def clock_ms() -> float:
        return time.perf_counter() * 1000

    async def cpu_us() -> float:
        untyped: Any = redis
        return float((await untyped.info("commandstats"))["cmdstat_evalsha"]["usec"])

    await _in_turn(full, empty, clock_ms, WARM_UP)
    full_ms, empty_ms = await _in_turn(full, empty, clock_ms, rounds)
    full_us, empty_us = await _in_turn(full, empty, cpu_us, max(1, rounds // CPU_ROUNDS))
    slower = {call: percentile(full_ms[call], 0.99) / percentile(empty_ms[call], 0.99) for call in full_ms}
    rows = {
        call: {
            "p50 ms empty": percentile(empty_ms[call], 0.5),
            "p50 ms full": percentile(full_ms[call], 0.5),
            "p99 ms empty": percentile(empty_ms[call], 0.99),
            "p99 ms full": percentile(full_ms[call], 0.99),
            "p99 full ÷ empty": slower[call],
            "server µs empty": _mean(empty_us[call]),
            "server µs full": _mean(full_us[call]),
        }
        for call in full_ms
    }
    say(f"{rounds:,} calls of each kind on each queue, in turn; server's own time: mean of {len(full_us['claim']):,}")
    say(table(rows))
    judged = ("enqueue", "claim")
    server = {call: _mean(full_us[call]) / _mean(empty_us[call]) for call in judged}
    return [
        *(
            Figure(name=f"p99 of {call}, full beside empty", value=slower[call], bound=MOST_SLOWER, unit=" ×")
            for call in judged
        ),
        *(
            Figure(name=f"Redis's time of {call}, full beside empty", value=server[call], bound=MOST_SERVER, unit=" ×")
            for call in judged
        ),
    ]


async def _in_turn(full: Side, empty: Side, meter: Meter, rounds: int) -> tuple[Taken, Taken]:
    of_full: Taken = defaultdict(list)
    of_empty: Taken = defaultdict(list)
    for number in range(rounds):
        turns = [(full, of_full), (empty, of_empty)]
        for side, taken in turns if number % 2 else reversed(turns):
            await side.round(meter, taken)
    return of_full, of_empty


async def _used_bytes(redis: Redis) -> int:
    untyped: Any = redis
    return int((await untyped.info("memory"))["used_memory"])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
