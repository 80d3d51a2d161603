"""Test what callers at the old site see of a prediction during and after its move to another Redis server."""

from typing import Any

import httpx
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import PredictionId, QueueName
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from tests.support.api import api_client
from tests.support.queue_driver import ACCOUNT, VERSION

KEY = {"idempotency-key": "once"}


@pytest.fixture
async def leaving(api: AsyncClient, scripts: Scripts, queue: QueueName) -> PredictionId:
    made = await api.post("/v1/predictions", json={"version": VERSION, "input": {}}, headers=KEY)
    prediction_id = PredictionId(made.json()["id"])
    assert await scripts.depart(queue, [(prediction_id, ACCOUNT)], site="far") == ["leaving"]
    return prediction_id


@pytest.fixture
async def moved(leaving: PredictionId, scripts: Scripts) -> PredictionId:
    assert await scripts.vacate(leaving, site="far") == "moved"
    return leaving


async def test_moving_prediction_shows_starting_and_accepts_a_cancel(
    api: AsyncClient, leaving: PredictionId, scripts: Scripts
) -> None:
    path = f"/v1/predictions/{leaving}"
    shown = (await api.get(path)).json()
    assert (shown["status"], shown["input"]) == ("starting", {})
    assert "queue" not in shown
    assert (await api.post(f"{path}/cancel")).status_code == 200
    [coming, *_] = (await api.get(f"{path}/explain")).json()["next"]
    assert coming["what"] == "move"
    assert await scripts.stay(leaving, site="far") == "canceled"


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", ""),
        ("POST", "/cancel"),
        ("GET", "/events"),
        ("GET", "/explain"),
        ("GET", "/webhooks"),
        ("POST", "/webhooks/redeliver"),
        ("DELETE", ""),
    ],
)
async def test_moved_prediction_is_503_for_its_owner_and_404_for_others(
    api: AsyncClient, moved: PredictionId, redis: Redis, method: str, rest: str
) -> None:
    answer = await api.request(method, f"/v1/predictions/{moved}{rest}")
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "moved", "5")
    token = await Accounts(redis).create_token("stranger")
    other = await api.request(method, f"/v1/predictions/{moved}{rest}", headers={"authorization": f"Bearer {token}"})
    assert other.status_code == 404


async def test_event_stream_of_a_moved_prediction_is_503(
    api: AsyncClient, leaving: PredictionId, scripts: Scripts
) -> None:
    address = (await api.get(f"/v1/predictions/{leaving}")).json()["urls"].get("stream")
    assert address is not None
    await scripts.vacate(leaving, site="far")
    answer = await api.get(httpx.URL(address).raw_path.decode())
    assert (answer.status_code, answer.json()["code"]) == (503, "moved")


async def test_moved_prediction_is_not_listed_and_keeps_its_idempotency_key(
    api: AsyncClient, moved: PredictionId, redis: Redis
) -> None:
    listed: dict[str, Any] = (await api.get("/v1/predictions")).json()
    assert listed["results"] == []
    again = await api.post("/v1/predictions", json={"version": VERSION, "input": {}}, headers=KEY)
    assert (again.status_code, again.json()["code"]) == (503, "moved")
    assert await redis.exists(keys.input_data(moved)) == 0


async def test_repeated_create_beyond_a_limit_reports_the_move(
    moved: PredictionId, redis: Redis, settings: ApiSettings, token: str
) -> None:
    await Accounts(redis).set_limits(ACCOUNT, {"compute_s_total": "1"})
    body = {"version": VERSION, "input": {}}
    async with api_client(settings, token=token) as api:
        keys_used = ({"idempotency-key": "another"}, {"idempotency-key": "third"}, KEY)
        answers = [await api.post("/v1/predictions", json=body, headers=key) for key in keys_used]
    assert [answer.status_code for answer in answers] == [201, 402, 503]
    assert answers[-1].json()["code"] == "moved"
