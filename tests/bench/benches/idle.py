"""Measure what an idle installation, and each further director, ask of Redis."""

import asyncio
from contextlib import ExitStack
from typing import Final

from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import Child, per_second, until
from tests.bench.results import OURS
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import SLOTS, Ours, ours
from tests.bench.sides.servers import OwnRedis, own_redis

MORE: Final = 4  # directors beside the first one
SECONDS: Final = 6.0
MOST_ROUNDS: Final = 3
LIMIT_S: Final = 60.0


async def idle(options: Options) -> Found:
    base_us = Rounds("Redis's time of an idle installation, a second", "µs", less_is_better=True)
    each_us = Rounds("Redis's time of an idle director, a second", "µs", less_is_better=True)
    each_reads = Rounds("round trips of an idle director, a second", "", less_is_better=True)
    level = options.durability
    seconds = max(3.0, options.seconds(SECONDS))  # several beats
    for _ in range(min(options.rounds, MOST_ROUNDS)):
        async with (
            model_server() as model,
            own_redis(level) as server,
            ours(server) as installation,
            installation.api(),
        ):
            with installation.keeper(), ExitStack() as stack:
                first = stack.enter_context(installation.director(model.url))
                await _there(installation, 1, first)
                base = await _asked(server, seconds)
                more = [stack.enter_context(installation.director(model.url)) for _ in range(MORE)]
                await _there(installation, 1 + MORE, *more)
                all_of_them = await _asked(server, seconds)
                release = await server.release()
        base_us.add(OURS, base[0])
        each_us.add(OURS, max(1.0, (all_of_them[0] - base[0]) / MORE))
        each_reads.add(OURS, max(0.01, (all_of_them[1] - base[1]) / MORE))
        options.say(f"  an installation {base[0]:.0f} µs a second, each further director {each_us.last:.0f}")
    return Found(
        what=f"an API, a keeper and one director, then {MORE} directors more",
        redis=release,
        durability={OURS: level},
        figures=[each.measured() for each in (base_us, each_us, each_reads)],
    )


async def _there(installation: Ours, directors: int, *alive: Child) -> None:
    async def all_beat() -> bool:
        return (await installation.scripts.stats(installation.queue)).slots >= directors * SLOTS

    await until(f"{directors} directors are there", all_beat, limit_s=LIMIT_S, every_s=0.1, alive=alive)
    await asyncio.sleep(1)  # what they do once, at their start


async def _asked(server: OwnRedis, seconds: float) -> tuple[float, float]:
    """Return microseconds of Redis's time and its reads, a second."""

    async def used() -> tuple[float, float]:
        return 1e6 * await server.cpu_s(), await server.reads()

    cpu_us, reads = await per_second(used, seconds)
    return cpu_us, reads
