"""Measure how many predictions a second one API process accepts, beside a bare handler with one call to Redis."""

from typing import Any, Final

import msgspec

from director.lab.bench.load import Load, ask
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.results import OURS
from tests.bench.sides.others import bare
from tests.bench.sides.ours import INPUT, ours
from tests.bench.sides.servers import own_redis

__all__ = "accept"

BARE: Final = "bare handler"
CONNECTIONS: Final = 32
SECONDS: Final = 3.0
WARM_S: Final = 1.0


async def accept(options: Options) -> Found:
    per_s = Rounds("accepted a second", "")
    cpu = Rounds("processor time of the API", "µs", less_is_better=True)
    redis_cpu = Rounds("processor time of Redis", "µs", less_is_better=True)
    level = options.durability
    async with (
        own_redis(level) as for_bare,
        own_redis(level) as for_ours,
        ours(for_ours) as installation,
        bare(for_bare) as (bare_url, bare_api),
        installation.api() as (url, api),
    ):
        body = msgspec.json.encode({"input": INPUT}).decode()
        how: dict[str, Any] = {"connections": CONNECTIONS, "seconds": options.seconds(SECONDS)}
        turns = (
            (BARE, Load(url=f"{bare_url}/one", body=body, wanted='"id"', **how), bare_api, for_bare),
            (OURS, installation.asks(url, headers=installation.headers, wanted='"starting"', **how), api, for_ours),
        )
        for _, load, _, _ in turns:  # the first requests find nothing warm
            await ask(msgspec.structs.replace(load, seconds=options.seconds(WARM_S)))
        for _ in range(options.rounds):
            for side, load, process, server in turns:
                before_s, before_redis_s = process.cpu_s(), await server.cpu_s()
                answered = await ask(load)
                per_s.add(side, answered.per_s)
                cpu.add(side, 1e6 * (process.cpu_s() - before_s) / answered.total)
                redis_cpu.add(side, 1e6 * (await server.cpu_s() - before_redis_s) / answered.total)
                options.say(f"  {side:12} {answered.per_s:6.0f}/s")
        return Found(
            what=f"POST without a wait over {CONNECTIONS} connections, one API process",
            redis=await for_ours.release(),
            durability={BARE: level, OURS: level},
            figures=[each.measured() for each in (per_s, cpu, redis_cpu)],
        )
