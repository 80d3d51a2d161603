"""Test that a private model looks nonexistent on every route to callers without access."""

from collections.abc import AsyncIterator

import httpx
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from tests.integration.api.conftest import HELLO_VERSION
from tests.support.api import api_client

pytestmark = pytest.mark.anyio

HELLO = "example/hello"
OF_THE_MODEL = ("", "/versions", f"/versions/{HELLO_VERSION}")
CREATES = (
    ("/predictions", {"version": HELLO}, 422),
    ("/predictions", {"version": f"{HELLO}:{HELLO_VERSION}"}, 422),
    ("/predictions", {"version": HELLO_VERSION}, 422),
    (f"/models/{HELLO}/predictions", {}, 404),
)


@pytest.fixture
async def private(hello: QueueName, redis: Redis) -> None:
    """Make the hello model private."""
    await redis.hset(keys.model(HELLO), "visibility", "private")


@pytest.fixture
async def owner(settings: ApiSettings, redis: Redis) -> AsyncIterator[httpx.AsyncClient]:
    async with api_client(settings, token=await Accounts(redis).create_token("example")) as client:
        yield client


@pytest.fixture
async def operator(settings: ApiSettings, redis: Redis) -> AsyncIterator[httpx.AsyncClient]:
    scopes = ("read", "run", "admin")
    async with api_client(settings, token=await Accounts(redis).create_token("ops", scopes=scopes)) as client:
        yield client


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize("path", OF_THE_MODEL)
async def test_only_the_owner_and_operators_find_a_private_model(
    api: httpx.AsyncClient, owner: httpx.AsyncClient, operator: httpx.AsyncClient, path: str
) -> None:
    answers = [(await client.get(f"/v1/models/{HELLO}{path}")).status_code for client in (api, owner, operator)]
    assert answers == [404, 200, 200]


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize(("path", "body", "refused"), CREATES)
async def test_only_the_owner_and_operators_run_a_private_model(
    api: httpx.AsyncClient, owner: httpx.AsyncClient, path: str, body: dict[str, str], refused: int
) -> None:
    asked = {**body, "input": {"text": "hi"}}
    answers = [(await client.post(f"/v1{path}", json=asked)).status_code for client in (api, owner)]
    assert answers == [refused, 201]


@pytest.mark.usefixtures("private")
@pytest.mark.parametrize(("path", "body", "refused"), CREATES)
async def test_private_model_looks_nonexistent_to_others(
    api: httpx.AsyncClient, path: str, body: dict[str, str], refused: int
) -> None:
    def never(text: str) -> str:
        return text.replace("hello", "never").replace(HELLO_VERSION, "0" * 64)

    asked = await api.post(f"/v1{path}", json={**body, "input": {}})
    other = {name: never(text) for name, text in body.items()}
    unknown = await api.post(f"/v1{never(path)}", json={**other, "input": {}})
    assert (asked.status_code, asked.json()) == (refused, unknown.json())


@pytest.mark.usefixtures("hello")
@pytest.mark.parametrize("path", OF_THE_MODEL)
async def test_model_registered_by_a_director_is_public(api: httpx.AsyncClient, path: str) -> None:
    assert (await api.get(f"/v1/models/{HELLO}{path}")).status_code == 200
