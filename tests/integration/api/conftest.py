"""Serve the API on the test's server, with one account with every right and one model that accepts any input."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from msgspec import Raw
from redis.asyncio import Redis

import director.examples
from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.api import PlayedDirector, api_client
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import RedisServer

HELLO_VERSION = "b2" * 32
HELLO_SCHEMA = Path(*director.examples.__path__) / "hello" / ".cog" / "openapi_schema.json"
THUMBNAIL_VERSION = "c4" * 32
THUMBNAIL_SCHEMA = HELLO_SCHEMA.parents[2] / "thumbnail" / ".cog" / "openapi_schema.json"


@pytest.fixture
async def token(redis: Redis) -> str:
    return await Accounts(redis).create_token(ACCOUNT)


@pytest.fixture
def settings(server: RedisServer) -> ApiSettings:
    return ApiSettings(redis_url=server.url)


@pytest.fixture
async def api(settings: ApiSettings, token: str, queue: QueueName) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client with the account's token. `acme/echo` has an open schema."""
    async with api_client(settings, token=token) as client:
        yield client


@pytest.fixture
async def hello(catalog: Catalog) -> QueueName:
    """Register `example/hello` with the schema that Cog generated for it."""
    schema = Raw(HELLO_SCHEMA.read_bytes())
    return await catalog.register("example/hello", HELLO_VERSION, schema=schema, server="0.23.1", policy=Policy())


@pytest.fixture
async def thumbnail(catalog: Catalog) -> QueueName:
    """Register `example/thumbnail`, which takes a file and returns one in a single answer."""
    schema = Raw(THUMBNAIL_SCHEMA.read_bytes())
    return await catalog.register(
        "example/thumbnail", THUMBNAIL_VERSION, schema=schema, server="0.23.1", policy=Policy()
    )


@pytest.fixture
def director(scripts: Scripts, queue: QueueName) -> PlayedDirector:
    return PlayedDirector(scripts, queue)
