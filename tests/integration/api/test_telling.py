"""Test what a caller can ask about notifications: the events of a prediction, its webhook, and a redelivery."""

from typing import Any

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import PredictionId
from director.store.accounts import Accounts
from tests.support.api import PlayedDirector
from tests.support.queue_driver import ACCOUNT, VERSION

pytestmark = pytest.mark.anyio

HOOK = "https://receiver.example/secret?token=secret"
TOLD = {"webhook": HOOK, "webhook_events_filter": ["completed"]}


@pytest.fixture(autouse=True)
async def nothing_stays_owed(redis: Redis) -> Any:
    yield
    for name in await redis.keys("*:owed"):
        await redis.delete(name)


async def create(api: AsyncClient, **fields: Any) -> PredictionId:
    made = await api.post("/v1/predictions", json={"version": VERSION, "input": {}, **fields})
    return PredictionId(made.json()["id"])


async def run(director: PlayedDirector, *outputs: bytes) -> None:
    claim = await director.claim()
    seq = await director.begin(claim, *outputs)
    await director.finish(claim, output=b'["x"]', seq=seq)


async def test_events_of_a_prediction_come_in_pages(api: AsyncClient, director: PlayedDirector) -> None:
    prediction_id = await create(api)
    await run(director, b'"a"', b'{"b":[]}')
    path = f"/v1/predictions/{prediction_id}/events"
    first = (await api.get(path, params={"limit": "2"})).json()
    assert [(event["seq"], event["type"]) for event in first["events"]] == [(1, "created"), (2, "output")]
    rest = (await api.get(path, params={"after": first["next"]})).json()
    assert [(event["seq"], event["data"]) for event in rest["events"]] == [(3, {"b": []}), (4, {"status": "succeeded"})]
    assert (await api.get(path, params={"after": rest["next"]})).json() == {
        "events": [],
        "next": 4,
        "data_removed": False,
    }


async def test_removed_data_leaves_no_events(api: AsyncClient, redis: Redis) -> None:
    prediction_id = await create(api)
    await redis.delete(keys.events(prediction_id))
    answer = (await api.get(f"/v1/predictions/{prediction_id}/events")).json()
    assert answer == {"events": [], "next": 0, "data_removed": True}


@pytest.mark.parametrize(
    "asked", [{"after": "-1"}, {"after": "x"}, {"after": "٣"}, {"after": "9" * 30}, {"limit": "0"}, {"limit": "1001"}]
)
async def test_invalid_number_is_named(api: AsyncClient, asked: dict[str, str]) -> None:
    answer = await api.get(f"/v1/predictions/{await create(api)}/events", params=asked)
    assert answer.status_code == 422
    assert [field["field"] for field in answer.json()["invalid_fields"]] == list(asked)


async def test_every_attempt_is_shown_with_the_next_delivery(
    api: AsyncClient, director: PlayedDirector, scripts: Scripts
) -> None:
    prediction_id = await create(api, **TOLD)
    path = f"/v1/predictions/{prediction_id}/webhooks"
    waits = (await api.get(path)).json()
    assert (waits["id"], waits["data_removed"]) == (prediction_id, False)
    assert (waits["webhook"]["is_owed"], waits["webhook"]["deliveries"]) == (False, [])
    await run(director)
    await scripts.deliver(prediction_id, outcome="failed", delay_s=60, status=503, host="receiver.example")
    answer = await api.get(path)
    webhook = answer.json()["webhook"]
    [attempt] = webhook.pop("deliveries")
    assert attempt == {
        "event": "completed",
        "outcome": "failed",
        "status": 503,
        "attempt": 1,
        "at": attempt["at"],
        "next_at": webhook["next_at"],
        "host": "receiver.example",
        "rule": None,
    }
    assert webhook == {
        "host": "receiver.example",
        "events": ["completed"],
        "is_owed": True,
        "attempts": 1,
        "last": "failed",
        "next_at": attempt["next_at"],
    }
    assert "secret" not in answer.text


async def test_prediction_without_a_webhook_shows_none(api: AsyncClient) -> None:
    assert (await api.get(f"/v1/predictions/{await create(api)}/webhooks")).json()["webhook"] is None


async def test_redelivery_is_owed_at_once(api: AsyncClient, director: PlayedDirector, scripts: Scripts) -> None:
    prediction_id = await create(api, **TOLD)
    await run(director)
    await scripts.deliver(prediction_id, outcome="gone", delay_s=None, status=410, host="receiver.example")
    answer = await api.post(f"/v1/predictions/{prediction_id}/webhooks/redeliver")
    webhook = answer.json()["webhook"]
    assert (answer.status_code, webhook["is_owed"], webhook["last"], webhook["attempts"]) == (200, True, "gone", 1)
    assert webhook["next_at"] >= webhook["deliveries"][0]["at"]


async def test_impossible_redelivery_is_refused_with_a_reason(
    api: AsyncClient, director: PlayedDirector, redis: Redis
) -> None:
    async def asked(prediction_id: str) -> tuple[int, str]:
        answer = await api.post(f"/v1/predictions/{prediction_id}/webhooks/redeliver")
        return answer.status_code, answer.json().get("code", "")

    prediction_id = await create(api, **TOLD)
    assert await asked(prediction_id) == (409, "not_terminal")
    await run(director)
    await redis.delete(keys.input_data(prediction_id))
    assert await asked(prediction_id) == (410, "data_removed")
    silent = await create(api)
    await run(director)
    assert await asked(silent) == (409, "no_webhook")
    assert await asked("0" * 26) == (404, "")
    assert await asked("nonsense") == (404, "")


async def test_operators_view_and_redeliver_but_read_no_events(
    api: AsyncClient, director: PlayedDirector, redis: Redis
) -> None:
    path = f"/v1/predictions/{await create(api, **TOLD)}"
    await run(director)

    async def by(account: str, *scopes: str) -> list[int]:
        token = await Accounts(redis).create_token(account, scopes=scopes)
        asked = [("GET", "events"), ("GET", "explain"), ("GET", "webhooks"), ("POST", "webhooks/redeliver")]
        headers = {"authorization": f"Bearer {token}"}
        return [(await api.request(method, f"{path}/{what}", headers=headers)).status_code for method, what in asked]

    assert await by(ACCOUNT, "read", "run") == [200, 200, 200, 200]
    assert await by(ACCOUNT, "read") == [200, 200, 200, 403]
    assert await by("operators", "read", "admin") == [404, 200, 200, 200]
    assert await by("operators", "admin") == [403, 200, 200, 200]
    assert await by("operators", "run") == [403, 403, 403, 404]
    for unknown in ("0" * 26, "nonsense"):
        for what in ("events", "explain"):
            assert (await api.get(f"/v1/predictions/{unknown}/{what}")).status_code == 404
