"""Register 10,000 queues: their cost while nothing comes, the keeper's look at all of them, and a prediction there."""

import re
from typing import Final

import httpx

from director.lab.bench.load import ask
from director.local.launcher.processes import free_port
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import per_second, until
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import MODEL, ours
from tests.bench.sides.servers import own_redis

MANY: Final = 10_000
SECONDS: Final = 15.0
REQUESTS: Final = 200
LIMIT_S: Final = 180.0
LOOK: Final = re.compile(r"^director_state_look_seconds (\S+)$", re.MULTILINE)
MB: Final = 1 << 20
BYTES: Final = "Redis's bytes of a queue"
MOST_ROUNDS: Final = 1


async def queues(options: Options) -> Found:
    counts = (1, options.many(MANY))
    found: dict[str, Rounds] = {}
    for _ in range(min(options.rounds, MOST_ROUNDS)):
        for count in counts:
            for figure, value in (await _with(options, count)).items():
                name, _, unit = figure.partition(", in ")
                found.setdefault(name, Rounds(name, unit, less_is_better=True, is_judged=False)).add(
                    f"{count:,}", value
                )
                options.say(f"  {count:6,} {figure}: {value:.4g}")
    one, many = (found["Redis's memory"].measured().median(f"{count:,}") for count in counts)
    found[BYTES] = Rounds(BYTES, "bytes", less_is_better=True, is_judged=False)
    found[BYTES].add(f"{counts[-1]:,}", (many - one) * MB / (counts[-1] - 1))
    async with own_redis(options.durability) as server:
        release = await server.release()
    return Found(
        what=f"an API, a keeper and a director of one model, with 1 queue and with {counts[-1]:,} registered ones",
        redis=release,
        durability={"all": options.durability},
        figures=[each.measured() for each in found.values()],
    )


async def _with(options: Options, count: int) -> dict[str, float]:
    models = [MODEL, *(f"bench/idle-{number}" for number in range(1, count))]
    port = free_port()
    async with (
        model_server() as model,
        own_redis(options.durability) as server,
        ours(server, models) as installation,
        installation.api() as (url, api),
    ):
        used = await server.used_bytes()
        with installation.keeper(PORT=port) as keeper, installation.director(model.url) as director:
            look_s = 0.0

            async def has_looked() -> bool:
                nonlocal look_s
                look_s = await _look_s(port)
                return look_s > 0

            await until("the keeper looked", has_looked, limit_s=LIMIT_S, every_s=0.5, alive=[keeper, director])
            one_by_one = installation.asks(url, requests=options.many(REQUESTS), seconds=LIMIT_S)
            await ask(one_by_one)
            answered = await ask(one_by_one)

            async def used_ms() -> list[float]:
                return [1000 * each for each in (await server.cpu_s(), keeper.cpu_s(), api.cpu_s())]

            redis_ms, keeper_ms, api_ms = await per_second(used_ms, max(3.0, options.seconds(SECONDS)))
            return {
                "Redis's memory, in MB": used / MB,
                "Redis's time while nothing comes, a second, in ms": redis_ms,
                "the keeper's time while nothing comes, a second, in ms": keeper_ms,
                "the API's time while nothing comes, a second, in ms": api_ms,
                "the keeper's look at all queues, in s": await _look_s(port),
                "memory of the keeper, in MB": keeper.resident_bytes() / MB,
                "memory of the API, in MB": api.resident_bytes() / MB,
                "one prediction, p50, in ms": answered.p50_ms,
                "one prediction, p99, in ms": answered.p99_ms,
            }


async def _look_s(port: int) -> float:
    """Return how long the keeper's last look at all queues took, 0 before the first."""
    async with httpx.AsyncClient(trust_env=False) as http:
        try:
            shown = LOOK.search((await http.get(f"http://127.0.0.1:{port}/metrics")).text)
        except httpx.TransportError:
            return 0.0
    return float(shown[1]) if shown else 0.0
