"""Run several Redis servers behind one API, each with the model acme/echo. The first is the home."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.policy import Policy
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import PlayedDirector
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer, as_user, redis_server


class Place(Struct, frozen=True, kw_only=True):
    server: RedisServer
    driver: QueueDriver
    director: PlayedDirector
    accounts: Accounts
    catalog: Catalog

    async def has(self) -> int:
        return (await self.driver.scripts.stats(self.driver.queue)).live


@asynccontextmanager
async def place(server: RedisServer) -> AsyncIterator[Place]:
    redis = client(server.admin_url)
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    await redis.flushall()
    catalog = Catalog(redis, scripts, SystemClock())
    queue = await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    try:
        yield Place(
            server=server,
            driver=QueueDriver(redis, scripts, queue),
            director=PlayedDirector(scripts, queue),
            accounts=Accounts(redis),
            catalog=catalog,
        )
    finally:
        await gatherer.aclose()
        await redis.aclose()


@asynccontextmanager
async def two_places(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Place]]:
    """Run the sites eu, the home, and us, for APIs of this process and its children."""
    async with AsyncExitStack() as stack:
        servers = {name: stack.enter_context(redis_server(guarded=True)) for name in ("eu", "us")}
        for name, value in environ(servers).items():
            monkeypatch.setenv(name, value)
        yield {name: await stack.enter_async_context(place(server)) for name, server in servers.items()}


def environ(servers: Mapping[str, RedisServer]) -> dict[str, str]:
    return {f"REDIS_{name.upper()}": as_user("api", server.url) for name, server in list(servers.items())[1:]}


def sites_file(folder: Path, names: list[str], *, top: str = "", **rows: Mapping[str, Any]) -> Path:
    """Write a file of these sites, numbered from 0. `rows`: further keys of each table."""
    lines = [top]
    for number, name in enumerate(names):
        lines += ["[[site]]", f'name = "{name}"', f"number = {number}"]
        lines += [f'redis_url_env = "REDIS_{name.upper()}"'] if number else []
        lines += [f"{field} = {str(value).lower()}" for field, value in rows.get(name, {}).items()]
    path = folder / "sites.toml"
    path.write_text("\n".join(lines))
    return path
