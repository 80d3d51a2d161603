"""Test that operators read the log of operator changes over HTTP, one page at a time."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from tests.support.api import api_client

pytestmark = pytest.mark.anyio

PATH = "/v1/admin/audit"


@pytest.fixture
async def admin(settings: ApiSettings, redis: Redis, queue: QueueName) -> AsyncIterator[httpx.AsyncClient]:
    token = await Accounts(redis).create_token("operators", scopes=("admin",))
    async with api_client(replace(settings, cache_s=0), token=token) as client:
        yield client


async def read(admin: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await admin.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def test_change_is_shown_with_its_operator(admin: httpx.AsyncClient, redis: Redis) -> None:
    assert await read(admin) == {"changes": [], "next": "0-0"}
    await admin.post("/v1/admin/accounts", json={"name": "umbrella", "type": "user"})
    page = await read(admin)
    [change] = page["changes"]
    [operator] = await Accounts(redis).tokens.of("operators")
    assert (change["kind"], change["account"], change["queue"]) == ("account_created", "umbrella", None)
    assert (change["by"], change["detail"]) == (f"operators/{operator.id}", {"type": "user"})
    assert page["next"] == change["entry"]


async def test_pages_continue_and_wait_for_new_entries(admin: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await admin.post("/v1/admin/accounts", json={"name": name})
    first = await read(admin, limit=2)
    second = await read(admin, limit=2, after=first["next"])
    assert [change["account"] for page in (first, second) for change in page["changes"]] == ["a", "b", "c"]
    assert await read(admin, after=second["next"]) == {"changes": [], "next": second["next"]}
    await admin.post("/v1/admin/accounts", json={"name": "d"})
    assert [change["account"] for change in (await read(admin, after=second["next"]))["changes"]] == ["d"]


async def test_newest_entries_can_come_first(admin: httpx.AsyncClient) -> None:
    assert await read(admin, order="desc") == {"changes": [], "next": None}
    for name in ("a", "b", "c"):
        await admin.post("/v1/admin/accounts", json={"name": name})
    first = await read(admin, order="desc", limit=2)
    second = await read(admin, order="desc", limit=2, after=first["next"])
    assert [change["account"] for page in (first, second) for change in page["changes"]] == ["c", "b", "a"]
    assert second["next"] is None


@pytest.mark.parametrize(
    "query", ["after=x", "after=-1", "after=1", f"after={'9' * 30}-0", "limit=0", "limit=1001", "order=x"]
)
async def test_invalid_page_is_refused(admin: httpx.AsyncClient, query: str) -> None:
    answer = await admin.get(f"{PATH}?{query}")
    assert (answer.status_code, answer.json()["invalid_fields"][0]["field"]) == (422, query.partition("=")[0])


async def test_only_operators_read_the_audit_log(admin: httpx.AsyncClient, token: str) -> None:
    answer = await admin.get(PATH, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 403
