"""Test that an ended prediction can be deleted, and that its deletion leaves nothing, not even its files."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from director.core.clock import SystemClock
from director.core.ids import PredictionId, QueueName
from director.core.settings import ApiSettings
from director.files.choose import store_in
from director.files.store import file_name
from director.store.accounts import Accounts
from tests.support.api import PlayedDirector, api_client
from tests.support.keyspace import dump
from tests.support.queue_driver import VERSION

pytestmark = pytest.mark.anyio

ASKED = {"version": VERSION, "input": {"text": "mine"}}


async def made(api: httpx.AsyncClient) -> Any:
    return (await api.post("/v1/predictions", json=ASKED)).json()


async def ended(api: httpx.AsyncClient, director: PlayedDirector) -> Any:
    prediction = await made(api)
    await director.finish(await director.claim(), output=b'"private"')
    return prediction


async def test_deletion_leaves_nothing(api: httpx.AsyncClient, director: PlayedDirector, redis: Redis) -> None:
    gone = await ended(api, director)
    assert (await api.delete(f"/v1/predictions/{gone['id']}")).status_code == 204
    for path in ("", "/explain", "/events", "/webhooks"):
        assert (await api.get(f"/v1/predictions/{gone['id']}{path}")).status_code == 404
    assert (await api.get(gone["urls"]["stream"])).status_code == 404
    assert (await api.get("/v1/predictions")).json()["results"] == []
    assert not [key for key, value in (await dump(redis)).items() if gone["id"] in str(key) or "private" in str(value)]
    assert (await api.delete(f"/v1/predictions/{gone['id']}")).status_code == 404


@pytest.mark.parametrize("runs", [False, True])
async def test_active_prediction_must_be_canceled_before_deletion(
    api: httpx.AsyncClient, director: PlayedDirector, runs: bool
) -> None:
    prediction = await made(api)
    if runs:
        await director.begin(await director.claim())
    answer = await api.delete(f"/v1/predictions/{prediction['id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_terminal")
    assert answer.headers["x-should-retry"] == "false"
    assert (await api.get(f"/v1/predictions/{prediction['id']}")).status_code == 200


async def test_another_account_cannot_delete(
    api: httpx.AsyncClient, settings: ApiSettings, director: PlayedDirector, redis: Redis
) -> None:
    mine = await ended(api, director)
    async with api_client(settings, token=await Accounts(redis).create_token("rival")) as rival:
        assert (await rival.delete(f"/v1/predictions/{mine['id']}")).status_code == 404
    assert (await api.get(f"/v1/predictions/{mine['id']}")).json()["output"] == "private"


async def test_deletion_removes_its_files(
    settings: ApiSettings, token: str, queue: QueueName, director: PlayedDirector, redis: Redis, tmp_path: Path
) -> None:
    store = store_in(str(tmp_path), redis, SystemClock())
    assert store is not None
    async with api_client(replace(settings, files_dir=str(tmp_path)), token=token) as api:
        gone = await ended(api, director)
        name = file_name(PredictionId(gone["id"]), b"picture", content_type="image/png")
        await store.put(name, b"picture", content_type="image/png")
        assert (await api.delete(f"/v1/predictions/{gone['id']}")).status_code == 204
    assert await store.open(name) is None
