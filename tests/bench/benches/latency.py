"""Measure what a service adds to one call at a time, beside a direct call to the model server."""

from statistics import median
from typing import Final

from director.lab.bench.load import Answered, Load, ask
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.benches.service import DIRECT, Both, both
from tests.bench.results import OURS, Measured
from tests.bench.sides.servers import Durability

__all__ = "latency"

REQUESTS: Final = 200
LEAST_MS: Final = 0.01  # what noise makes of less is no ratio
LIMIT_S: Final = 20.0


async def latency(options: Options) -> Found:
    found = Found(what="one POST with Prefer: wait at a time", redis="", durability={})
    for level in ("memory", "always"):
        async with both(options, level) as beside:
            found.figures += await _measured(options, beside, level)
            found.redis = await beside.turns[0].server.release()
            found.durability |= {f"{service.name}, {level}": service.server.durability for service in beside.turns}
    found.figures.append(_what_a_disk_adds(found))
    return found


async def _measured(options: Options, beside: Both, level: Durability) -> list[Measured]:
    added_p50 = Rounds(f"added p50, {level}", "ms", less_is_better=True)
    added_p99 = Rounds(f"added p99, {level}", "ms", less_is_better=True, is_judged=False)
    whole = Rounds(f"p50, {level}", "ms", less_is_better=True, is_judged=False)
    for service in beside.turns:
        await _one_by_one(service.asks(requests=options.many(REQUESTS), seconds=LIMIT_S))
    for _ in range(options.rounds):
        direct = await _one_by_one(beside.direct(requests=options.many(REQUESTS), seconds=LIMIT_S))
        whole.add(DIRECT, direct.p50_ms)
        for service in beside.turns:
            answered = await _one_by_one(service.asks(requests=options.many(REQUESTS), seconds=LIMIT_S))
            whole.add(service.name, answered.p50_ms)
            added_p50.add(service.name, max(LEAST_MS, answered.p50_ms - direct.p50_ms))
            added_p99.add(service.name, max(LEAST_MS, answered.p99_ms - direct.p50_ms))
            options.say(f"  {service.name:12} {level:8} p50 {answered.p50_ms:.2f} ms, p99 {answered.p99_ms:.2f} ms")
    return [added_p50.measured(), added_p99.measured(), whole.measured()]


async def _one_by_one(load: Load) -> Answered:
    return await ask(load)


def _what_a_disk_adds(found: Found) -> Measured:
    by_name = {figure.name: figure for figure in found.figures}
    added = Rounds("what a log on the disk adds to p50", "ms", less_is_better=True, is_judged=False)
    for side in by_name["added p50, memory"].rounds:
        in_memory, on_disk = (median(by_name[f"added p50, {level}"].rounds[side]) for level in ("memory", "always"))
        added.add(side, max(LEAST_MS, on_disk - in_memory))
    measured = added.measured()
    assert OURS in measured.rounds
    return measured
