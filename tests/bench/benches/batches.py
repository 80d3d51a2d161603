"""Count the commands of a prediction, and measure Redis's time, where 16 come at once: enqueue, claim and finish. The
call that lists a prediction for its account is not counted.
"""

from typing import Final

from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.results import OURS
from tests.bench.sides.ours import Ours, ours
from tests.bench.sides.servers import OwnRedis, own_redis

BATCH: Final = 16
MANY: Final = 3_200
ASKING: Final = frozenset({"evalsha", "info", "config"})


async def batches(options: Options) -> Found:
    commands = Rounds("commands of a prediction", "", less_is_better=True)
    took = Rounds("Redis's time of a prediction", "µs", less_is_better=True)
    many = options.many(MANY) // BATCH * BATCH or BATCH
    async with own_redis(options.durability) as server, ours(server) as installation:
        await _played(installation, BATCH)  # the first calls send the scripts
        for _ in range(options.rounds):
            before = await _used(server)
            for _ in range(many // BATCH):
                await _played(installation, BATCH)
            calls, took_us = (now - then for now, then in zip(await _used(server), before, strict=True))
            commands.add(OURS, calls / many)
            took.add(OURS, took_us / many)
            options.say(f"  {commands.last:.1f} commands, {took.last:.0f} µs")
        return Found(
            what=f"enqueue, claim and finish, {BATCH} predictions of one tenant at once",
            redis=await server.release(),
            durability={OURS: options.durability},
            figures=[commands.measured(), took.measured()],
        )


async def _played(installation: Ours, many: int) -> None:
    await installation.preload(many, is_listed=False)
    await installation.end(many)


async def _used(server: OwnRedis) -> tuple[int, float]:
    """Return the commands that scripts and clients called, and the processor time in µs."""
    stats = await server.info("commandstats")
    calls = sum(told["calls"] for name, told in stats.items() if name.removeprefix("cmdstat_") not in ASKING)
    return calls, 1e6 * await server.cpu_s()
