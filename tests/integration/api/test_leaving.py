"""Test what an API process that is ending answers to new streams and calls: it has room, so it says why."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from httpx import AsyncClient
from msgspec.structs import replace
from redis.asyncio import Redis

from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.integration.api.conftest import listeners
from tests.support.api import api_client
from tests.support.queue_driver import MODEL, VERSION

CALL: dict[str, Any] = {"model": MODEL, "messages": []}
CREATE = {"version": f"{MODEL}:{VERSION}", "input": {}}


@pytest.fixture
async def stream(settings: ApiSettings, redis: Redis, catalog: Catalog, token: str) -> str:
    """The path of a stream that is there."""
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="openai", policy=Policy())
    async with api_client(settings, token=token) as api:
        url: str = (await api.post("/v1/predictions", json=CREATE)).json()["urls"]["stream"]
    return url.partition("test")[2]


@pytest.fixture
async def leaving(settings: ApiSettings, stream: str, redis: Redis) -> AsyncIterator[AsyncClient]:
    token = await Accounts(redis).create_token("boss", scopes=("read", "run", "admin"))
    settings = replace(settings, openai=True)
    async with api_client(settings, token=token, on_start=lambda state: state["services"].release()) as api:
        yield api


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        pytest.param("/openai/v1/chat/completions", {"json": {**CALL, "stream": True}}, id="a streamed call"),
        pytest.param("/openai/v1/chat/completions", {"json": CALL}, id="a call"),
        pytest.param("/v1/predictions", {"json": CREATE, "headers": {"Accept": "text/event-stream"}}, id="a create"),
        pytest.param("", {}, id="a stream"),
        pytest.param("/v1/admin/live", {}, id="the page"),
    ],
)
async def test_ending_process_says_so_to_whom_it_refuses(
    leaving: AsyncClient, stream: str, redis: Redis, path: str, sent: dict[str, Any]
) -> None:
    filed = len(await redis.keys("*:rec:*"))
    answer = await leaving.request("POST" if "json" in sent else "GET", path or stream, **sent)
    said = answer.json()
    assert (answer.status_code, said.get("error", said)["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "x-should-retry" not in answer.headers
    assert len(await redis.keys("*:rec:*")) == filed
    assert await listeners(redis) == 0
