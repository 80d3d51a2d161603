"""Keep ours and the prototype up side by side: an idle side costs next to nothing."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from msgspec import Struct

from director.lab.bench.load import Load
from tests.bench.benches.options import Options
from tests.bench.processes import Child
from tests.bench.results import OURS
from tests.bench.sides.others import model_server, prototype
from tests.bench.sides.ours import ours
from tests.bench.sides.servers import Durability, OwnRedis, own_redis

DIRECT: Final = "direct"
PROTOTYPE: Final = "prototype"


class Service(Struct, frozen=True, kw_only=True):
    name: str
    asks: Callable[..., Load]
    server: OwnRedis
    api: Child
    director: Child


class Both(Struct, frozen=True, kw_only=True):
    """`turns`: in the order of a round. `direct` asks the model server itself."""

    turns: tuple[Service, ...]
    direct: Callable[..., Load]


@asynccontextmanager
async def both(options: Options, durability: Durability | None = None) -> AsyncIterator[Both]:
    level = durability or options.durability
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(model_server())
        for_bare = await stack.enter_async_context(own_redis(level))
        for_ours = await stack.enter_async_context(own_redis(level))
        bare = await prototype(for_bare)
        installation = await stack.enter_async_context(ours(for_ours))
        bare_url, bare_api = await stack.enter_async_context(bare.api())
        our_url, our_api = await stack.enter_async_context(installation.api())
        stack.enter_context(installation.keeper())
        bare_director = stack.enter_context(bare.director(model.url))
        our_director = stack.enter_context(installation.director(model.url))

        def direct(**how: object) -> Load:
            return Load(url=f"{model.url}/run", **how)  # type: ignore[arg-type]

        yield Both(
            turns=(
                Service(
                    name=PROTOTYPE,
                    asks=lambda **how: bare.asks(bare_url, **how),
                    server=for_bare,
                    api=bare_api,
                    director=bare_director,
                ),
                Service(
                    name=OURS,
                    asks=lambda **how: installation.asks(our_url, **how),
                    server=for_ours,
                    api=our_api,
                    director=our_director,
                ),
            ),
            direct=direct,
        )
