"""Count the commands of a prediction, and measure Redis's time, where 16 come at once: enqueue, claim and finish.

While slots are free they go straight into a stream. Without one they join their account's backlog, and claims let them
in. The call that lists a prediction for its account is not counted.
"""

from typing import Final

from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.results import OURS
from tests.bench.sides.ours import Ours, ours
from tests.bench.sides.servers import OwnRedis, own_redis

BATCH: Final = 16
MANY: Final = 3_200
SLOTS: Final = {"": 64, ", from a backlog": 0}
DIRECTOR: Final = "d1"
ASKING: Final = frozenset({"evalsha", "info", "config"})


async def batches(options: Options) -> Found:
    commands = {how: Rounds(f"commands of a prediction{how}", "", less_is_better=True) for how in SLOTS}
    took = {how: Rounds(f"Redis's time of a prediction{how}", "µs", less_is_better=True) for how in SLOTS}
    many = options.many(MANY) // BATCH * BATCH or BATCH
    async with own_redis(options.durability) as server, ours(server) as installation:
        await _played(installation, BATCH)  # the first calls send the scripts
        for _ in range(options.rounds):
            for how, slots in SLOTS.items():
                await installation.scripts.extend(
                    installation.queue, consumer=DIRECTOR, lease_s=15, claims=[], slots=slots
                )
                before = await used_by(server)
                for _ in range(many // BATCH):
                    await _played(installation, BATCH)
                calls, took_us = (now - then for now, then in zip(await used_by(server), before, strict=True))
                commands[how].add(OURS, calls / many)
                took[how].add(OURS, took_us / many)
                options.say(f"  {commands[how].last:.1f} commands, {took[how].last:.0f} µs{how}")
        return Found(
            what=f"enqueue, claim and finish, {BATCH} predictions of one account at once",
            redis=await server.release(),
            durability={OURS: options.durability},
            figures=[each.measured() for how in SLOTS for each in (commands[how], took[how])],
        )


async def _played(installation: Ours, many: int) -> None:
    await installation.preload(many, is_listed=False)
    await installation.end(many)


async def used_by(server: OwnRedis) -> tuple[int, float]:
    """Return the commands that scripts and clients called, and the processor time in µs."""
    stats = await server.info("commandstats")
    calls = sum(found["calls"] for name, found in stats.items() if name.removeprefix("cmdstat_") not in ASKING)
    return calls, 1e6 * await server.cpu_s()
