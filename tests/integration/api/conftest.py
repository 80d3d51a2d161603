"""Serve the API on the test's server, with one account with every right and one model that accepts any input."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx import AsyncClient
from msgspec import Raw
from msgspec.structs import replace
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
THUMBNAIL_VERSION = "c4" * 32
EXAMPLES = Path(*director.examples.__path__)


@pytest.fixture
async def token(redis: Redis) -> str:
    return await Accounts(redis).create_token(ACCOUNT)


@pytest.fixture
def settings(server: RedisServer) -> ApiSettings:
    return ApiSettings(redis_url=server.url, cancel_wait_s=0)  # a played director stops nothing


@pytest.fixture
async def api(settings: ApiSettings, token: str, queue: QueueName) -> AsyncIterator[httpx.AsyncClient]:
    async with api_client(settings, token=token) as client:
        yield client


@pytest.fixture
async def hello(catalog: Catalog) -> QueueName:
    return await register_example(catalog, "hello", HELLO_VERSION)


@pytest.fixture
async def thumbnail(catalog: Catalog) -> QueueName:
    return await register_example(catalog, "thumbnail", THUMBNAIL_VERSION)


async def register_example(catalog: Catalog, name: str, version: str) -> QueueName:
    schema = Raw((EXAMPLES / name / ".cog" / "openapi_schema.json").read_bytes())
    return await catalog.register(f"example/{name}", version, schema=schema, server="0.23.1", policy=Policy())


@pytest.fixture
def director(scripts: Scripts, queue: QueueName) -> PlayedDirector:
    return PlayedDirector(scripts, queue)


@pytest.fixture
async def operator(redis: Redis) -> str:
    return await Accounts(redis).create_token("operators", scopes=("admin",), label="on call")


@pytest.fixture
async def admin(settings: ApiSettings, operator: str, queue: QueueName) -> AsyncIterator[httpx.AsyncClient]:
    async with api_client(replace(settings, cache_s=0), token=operator) as client:
        yield client


@pytest.fixture
async def other(settings: ApiSettings, redis: Redis) -> AsyncIterator[httpx.AsyncClient]:
    async with api_client(settings, token=await Accounts(redis).create_token("other")) as client:
        yield client


@contextmanager
def no_faults() -> Iterator[None]:
    """Check that no task of this loop ends with an error that no code retrieves."""
    faults: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    try:
        yield
    finally:
        loop.set_exception_handler(None)
    assert faults == []


Served = Callable[..., AbstractAsyncContextManager[AsyncClient]]


@pytest.fixture
def served(settings: ApiSettings, token: str, queue: QueueName) -> Served:
    def start(*, peer: str = "127.0.0.1", **changed: Any) -> AbstractAsyncContextManager[AsyncClient]:
        return api_client(replace(settings, **changed), token=token, peer=peer)

    return start


async def listeners(redis: Redis) -> int:
    return len(await redis.pubsub_channels("*:ch:*"))


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")
