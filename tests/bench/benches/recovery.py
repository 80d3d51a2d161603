"""Measure how soon another director runs again what a killed one ran, with a long and a short lease."""

import asyncio
import time
from typing import Any, Final

from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import Child, until
from tests.bench.results import OURS
from tests.bench.sides.others import ModelServer, model_server
from tests.bench.sides.ours import HTTP, ours
from tests.bench.sides.servers import own_redis

LEASES_S: Final = (15.0, 3.0)
RUNS: Final = 10
MOST_ROUNDS: Final = 3
LIMIT_S: Final = 90.0
HOLD: Final = HTTP | {"path": "/hold"}


async def recovery(options: Options) -> Found:
    all_again, first = (
        {lease_s: Rounds(f"until {what}, lease {lease_s:g} s", "s", less_is_better=True) for lease_s in LEASES_S}
        for what in ("all run again", "one runs again")
    )
    for _ in range(min(options.rounds, MOST_ROUNDS)):
        for lease_s, late_s in zip(LEASES_S, await asyncio.gather(*map(_killed, LEASES_S)), strict=True):
            first[lease_s].add(OURS, late_s[0])
            all_again[lease_s].add(OURS, late_s[-1])
            options.say(f"  lease {lease_s:g} s: the first after {late_s[0]:.1f} s, all after {late_s[-1]:.1f} s")
    async with own_redis("memory") as server:
        release = await server.release()
    return Found(
        what=f"kill -9 of a director with {RUNS} runs, another one beside it",
        redis=release,
        durability={OURS: "memory"},
        figures=[each.measured() for each in (*all_again.values(), *first.values())],
    )


async def _killed(lease_s: float) -> list[float]:
    async with model_server() as model, own_redis("memory") as server, ours(server) as installation:
        how: dict[str, Any] = {"slots": RUNS, "runner": HOLD, "LEASE_S": lease_s}
        with installation.keeper(LEASE_S=lease_s), installation.director(model.url, **how) as doomed:
            await installation.preload(RUNS)
            await _came(model, RUNS, doomed)
            with installation.director(model.url, **how) as heir:

                async def both_beat() -> bool:
                    stats = await installation.scripts.stats(installation.queue)
                    return stats.slots >= 2 * RUNS

                await until("the other director is there", both_beat, limit_s=LIMIT_S, alive=[heir])
                await model.times()
                killed_at = time.monotonic()
                doomed.kill()
                await _came(model, RUNS, heir)
                return sorted(came_at - killed_at for came_at in await model.times())


async def _came(model: ModelServer, runs: int, director: Child) -> None:
    async def all_came() -> bool:
        return await model.count() >= runs

    await until(f"{runs} runs came", all_came, limit_s=LIMIT_S, every_s=0.05, alive=[director])
