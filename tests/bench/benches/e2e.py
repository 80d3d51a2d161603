"""Measure a POST with `Prefer: wait` until its answer: rate, and the costs of API, director and Redis."""

import time
from typing import Final

from director.lab.bench.load import ask
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.benches.service import Service, both
from tests.bench.processes import per_second
from tests.bench.sides.ours import SLOTS

CONNECTIONS: Final = (1, 16, 64)
AT_MOST: Final = max(CONNECTIONS)
SECONDS: Final = 3.0
WARM_S: Final = 1.0


class Tally:
    def __init__(self) -> None:
        self.per_s = {many: Rounds(f"predictions a second, {many} connections", "") for many in CONNECTIONS}
        self.p50 = Rounds(f"p50 with {AT_MOST} connections", "ms", less_is_better=True)
        self.p99 = Rounds(f"p99 with {AT_MOST} connections", "ms", less_is_better=True, is_judged=False)
        self.trips = {
            1: Rounds("round trips of a prediction, 1 connection", "", less_is_better=True),
            AT_MOST: Rounds(f"round trips of a prediction, {AT_MOST} connections", "", less_is_better=True),
        }
        self.cpu = {
            part: Rounds(f"processor time of {part}, {AT_MOST} connections", "µs", less_is_better=True)
            for part in ("the API", "the director", "Redis")
        }

    async def round(self, service: Service, many: int, seconds: float) -> float:
        before = await _used(service)
        answered = await ask(service.asks(connections=many, seconds=seconds))
        after = await _used(service)
        api, director, redis, reads, took_s = (now - then for now, then in zip(after, before, strict=True))
        self.per_s[many].add(service.name, answered.per_s)
        if many in self.trips:
            self.trips[many].add(service.name, (reads - await _idle_reads(service) * took_s) / answered.total)
        if many == AT_MOST:
            self.p50.add(service.name, answered.p50_ms)
            self.p99.add(service.name, answered.p99_ms)
            for rounds, cpu_s in zip(self.cpu.values(), (api, director, redis), strict=True):
                rounds.add(service.name, 1e6 * cpu_s / answered.total)
        return answered.per_s

    def rounds(self) -> list[Rounds]:
        return [*self.per_s.values(), self.p50, self.p99, *self.cpu.values(), *self.trips.values()]


async def e2e(options: Options) -> Found:
    tally = Tally()
    async with both(options) as beside:
        for service in beside.turns:
            await ask(service.asks(connections=AT_MOST, seconds=WARM_S))
        for _ in range(options.rounds):
            for many in CONNECTIONS:
                for service in beside.turns:
                    per_s = await tally.round(service, many, options.seconds(SECONDS))
                    options.say(f"  {service.name:12} {many:3} connections: {per_s:6.0f}/s")
        return Found(
            what=f"POST with Prefer: wait, one API process, one director with {SLOTS} slots",
            redis=await beside.turns[0].server.release(),
            durability={service.name: service.server.durability for service in beside.turns},
            figures=[each.measured() for each in tally.rounds()],
        )


async def _used(service: Service) -> tuple[float, ...]:
    """Return the processor time of API, director and Redis, the reads of Redis and the time so far."""
    server = service.server
    return service.api.cpu_s(), service.director.cpu_s(), await server.cpu_s(), await server.reads(), time.monotonic()


async def _idle_reads(service: Service) -> float:
    async def reads() -> list[float]:
        return [await service.server.reads()]

    [idle] = await per_second(reads, 0.5)
    return idle
