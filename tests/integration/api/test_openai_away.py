"""Test that a call whose caller gets nothing more of it is canceled, also when Redis was away meanwhile."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from httpx import AsyncClient

from api.openai import giving_up
from api.openai.giving_up import Abandoned
from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.core.policy import Policy
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.held_calls import HeldCalls
from tests.support.api import live_api
from tests.support.eventually import eventually, turns
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer, redis_server

pytestmark = [pytest.mark.faults]
BODY: dict[str, Any] = {"model": MODEL, "messages": []}
ENV = {"DIRECTOR_OPENAI": "true"}
PATH = "/openai/v1/chat/completions"
FIRST, SECOND = PredictionId("first"), PredictionId("second")


@pytest.fixture
def own() -> Iterator[RedisServer]:
    with redis_server(guarded=True) as started:
        yield started


@pytest.fixture
async def boss(own: RedisServer) -> AsyncIterator[Any]:
    redis = client(own.admin_url)
    yield redis
    await redis.aclose()


@pytest.fixture
async def http(own: RedisServer, boss: Any) -> AsyncIterator[AsyncClient]:
    gatherer = Gatherer(boss)
    catalog = Catalog(boss, Scripts(gatherer), SystemClock())
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="openai", policy=Policy())
    await gatherer.aclose()
    token = await Accounts(boss).create_token(ACCOUNT)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        live_api(own.url, env=ENV) as live,
        AsyncClient(base_url=live.url, trust_env=False, headers=headers, timeout=30) as http,
    ):
        await cut_off(http, {**BODY, "stream": True})  # what the API keeps of accounts and models is fresh
        await eventually(lambda: statuses(boss), "it is canceled", until=["canceled"].__eq__)
        yield http


async def statuses(boss: Any) -> list[str]:
    found = [await boss.hget(key, "status") for key in await boss.keys("*:rec:*")]
    return sorted(msgspec.convert(each, str) if isinstance(each, str) else each.decode() for each in found)


async def warm_up(http: AsyncClient) -> None:
    """Let the API read the aliases, which it keeps for a second."""
    assert (await http.post(PATH, json={**BODY, "model": "acme/nope"})).status_code == 404


async def cut_off(http: AsyncClient, body: dict[str, Any]) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await http.post(PATH, json=body, timeout=1)


@pytest.mark.parametrize("streams", [True, False])
async def test_call_that_redis_never_confirmed_is_given_up(
    own: RedisServer, boss: Any, http: AsyncClient, streams: bool
) -> None:
    await warm_up(http)
    own.freeze()
    try:
        refused = await http.post(PATH, json={**BODY, "stream": streams})
    finally:
        own.thaw()
    assert refused.status_code == 503
    key = keys.record(PredictionId(refused.headers["x-request-id"]))
    await eventually(lambda: boss.hget(key, "status"), "it is canceled", until=b"canceled".__eq__)


async def test_call_that_its_repeat_finds_is_not_given_up(own: RedisServer, boss: Any, http: AsyncClient) -> None:
    refused: dict[str, httpx.Response] = {}

    async def post(key: str) -> None:
        refused[key] = await http.post(PATH, json=BODY, headers={"Idempotency-Key": key} if key else {})

    await warm_up(http)
    own.freeze()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, "k")
            tasks.start_soon(post, "")
    finally:
        own.thaw()
    records = {key: keys.record(PredictionId(reply.headers["x-request-id"])) for key, reply in refused.items()}
    await eventually(lambda: boss.hget(records[""], "status"), "the other is canceled", until=b"canceled".__eq__)
    assert await boss.hget(records["k"], "status") == b"starting"


async def test_caller_that_leaves_while_redis_is_away_is_not_forgotten(
    own: RedisServer, boss: Any, http: AsyncClient
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cut_off, http, BODY)
        await eventually(lambda: statuses(boss), "it is filed", until=lambda all_: len(all_) == 2)
        own.freeze()
    await anyio.sleep(8)  # the first try has failed
    own.thaw()
    await eventually(lambda: statuses(boss), "it is canceled", until=["canceled", "canceled"].__eq__)


def held_calls() -> HeldCalls:
    return HeldCalls(client("redis://127.0.0.1:1"), "a process")


async def test_round_ends_at_the_first_call_that_redis_does_not_answer() -> None:
    abandoned, asked, is_away = Abandoned(held_calls()), list[str](), True

    def cancel(name: str) -> giving_up.Cancel:
        async def call() -> str:
            asked.append(name)
            if is_away:
                raise BackendUnavailable("away")
            return "canceled"

        return call

    for each in (FIRST, SECOND):
        abandoned.add(each, cancel(each))
    await abandoned.run_once()
    assert asked == [FIRST]
    is_away = False
    await abandoned.run_once()
    await abandoned.run_once()
    assert asked == [FIRST, FIRST, SECOND]


async def test_call_that_is_written_late_is_canceled_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_up, "PAUSE_S", 0)
    abandoned, words, asked = Abandoned(held_calls()), ["unknown", "unknown", "canceled", "unknown"], list[str]()

    async def cancel() -> str:
        asked.append(words[len(asked)])
        return asked[-1]

    abandoned.add(FIRST, cancel, most_unknown=5)
    await eventually(lambda: asked, "it is canceled", until=words[:3].__eq__)
    await turns()
    assert asked == words[:3]
