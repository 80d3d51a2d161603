"""Run at half of the saturated rate: memory, descriptors and Redis's keys must stay flat."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from director.bench.load import ask
from tests.bench.benches.options import Found, Rounds
from tests.bench.processes import Child
from tests.bench.results import OURS
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import Ours, ours
from tests.bench.sides.servers import Durability, OwnRedis, own_redis
from tests.bench.slopes import Growth, growth

CONNECTIONS: Final = 64
SATURATE_S: Final = 10.0
SLICE_S: Final = 30.0  # after which its callers hang up and others come
WARM_TTLS: Final = 3.0
MOST_TTL_S: Final = 60.0
LEAST_TTL_S: Final = 4.0
LOOKS: Final = 120
MB: Final = 1 << 20

# what grows by less than this over all the time is not said to grow
FLOORS: Final = {"MB": 2.0, "": 3.0, "keys": 50.0}


class SoakOptions(Struct, frozen=True, kw_only=True):
    """`part`: of the rate at which it is saturated."""

    say: Callable[[str], None]
    minutes: float = 30.0
    part: float = 0.5
    durability: Durability = "memory"

    @property
    def ttl_s(self) -> float:
        return min(MOST_TTL_S, max(LEAST_TTL_S, self.minutes * 6))


class Watch:
    def __init__(self, server: OwnRedis, *children: Child) -> None:
        self._server = server
        self._children = children
        self._seen: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._at: list[float] = []

    async def look(self) -> None:
        self._at.append(time.monotonic())
        for one in self._children:
            self._seen[f"{one.name}, memory", "MB"].append(one.resident_bytes() / MB)
            self._seen[f"{one.name}, descriptors", ""].append(one.descriptors())
        self._seen["redis, memory", "MB"].append(await self._server.used_bytes() / MB)
        self._seen["redis, keys", "keys"].append(await self._server.redis.dbsize())

    def growths(self, *, since: float) -> list[Growth]:
        first = sum(at < since for at in self._at)
        return [
            growth(name, unit, self._at[first:], values[first:], floor=FLOORS[unit])
            for (name, unit), values in self._seen.items()
        ]


async def soak(options: SoakOptions) -> tuple[Found, bool]:
    env: dict[str, Any] = {"DATA_TTL_S": options.ttl_s / 2, "RECORD_TTL_S": options.ttl_s}
    async with (
        model_server() as model,
        own_redis(options.durability) as server,
        ours(server) as installation,
        installation.api(LISTING_TTL_S=2 * options.ttl_s) as (url, api),
    ):
        with installation.keeper() as keeper, installation.director(model.url, **env) as director:
            watch = Watch(server, api, director, keeper)
            per_s, growths = await _soaked(options, installation, url, watch)
        for each in growths:
            options.say(f"  {each}")
        grows = [each.name for each in growths if not each.is_flat]
        verdict = f"GROWS: {', '.join(grows)}" if grows else "all flat"
        found = Found(
            what=f"{options.minutes:g} minutes at {per_s:.0f}/s, {options.part:g} of what it can do: {verdict}",
            redis=await server.release(),
            durability={OURS: options.durability},
            figures=[Rounds.one(f"growth of {each.name}", f"{each.unit} an hour", each.per_hour) for each in growths],
        )
        return found, not grows


async def _soaked(options: SoakOptions, installation: Ours, url: str, watch: Watch) -> tuple[float, list[Growth]]:
    seconds = options.minutes * 60
    saturated = await ask(installation.asks(url, connections=CONNECTIONS, seconds=min(SATURATE_S, seconds / 6)))
    per_s = options.part * saturated.per_s
    options.say(
        f"  {saturated.per_s:.0f}/s with {CONNECTIONS} connections; now {per_s:.0f}/s for {options.minutes:g} min"
    )
    began = time.monotonic()
    load = asyncio.create_task(_load(installation, url, per_s, began + seconds))
    try:
        while not load.done():
            await watch.look()
            await asyncio.wait([load], timeout=seconds / LOOKS)
        load.result()
    finally:
        load.cancel()
    return per_s, watch.growths(since=began + min(WARM_TTLS * options.ttl_s, seconds / 3))


async def _load(installation: Ours, url: str, per_s: float, until: float) -> None:
    while (left := until - time.monotonic()) > 1:
        await ask(installation.asks(url, connections=CONNECTIONS, seconds=min(SLICE_S, left), rate=per_s))
