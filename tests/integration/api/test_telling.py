"""Test what a caller can ask about its prediction: its place in the queue, its story, its events and its webhook."""

from typing import Any

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import PredictionId, QueueName
from director.store.accounts import Accounts
from tests.support.api import PlayedDirector
from tests.support.queue_driver import ACCOUNT, VERSION

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
    "asked",
    [
        *({"after": text} for text in ("-1", "x", "٣", "9" * 30, "0" * 5_000)),
        *({"limit": text} for text in ("0", "1001", f"{'0' * 30}1001")),
    ],
    ids=lambda asked: "".join(f"{name} {text[:20]}" for name, text in asked.items()),
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


async def test_operators_read_events_and_redeliver(api: AsyncClient, director: PlayedDirector, redis: Redis) -> None:
    path = f"/v1/predictions/{await create(api, **TOLD)}"
    await run(director)

    async def by(account: str, *scopes: str) -> list[int]:
        token = await Accounts(redis).create_token(account, scopes=scopes)
        asked = [("GET", "events"), ("GET", "explain"), ("GET", "webhooks"), ("POST", "webhooks/redeliver")]
        headers = {"authorization": f"Bearer {token}"}
        return [(await api.request(method, f"{path}/{what}", headers=headers)).status_code for method, what in asked]

    assert await by(ACCOUNT, "read", "run") == [200, 200, 200, 200]
    assert await by(ACCOUNT, "read") == [200, 200, 200, 403]
    assert await by("operators", "read", "admin") == [200, 200, 200, 200]
    assert await by("operators", "admin") == [200, 200, 200, 200]
    assert await by("operators", "run") == [403, 403, 403, 404]
    for unknown in ("0" * 26, "nonsense"):
        for what in ("events", "explain"):
            assert (await api.get(f"/v1/predictions/{unknown}/{what}")).status_code == 404


BODY = {"version": VERSION, "input": {}}


async def alive(scripts: Scripts, queue: QueueName, *, slots: int = 1) -> None:
    await scripts.extend(queue, consumer="played", lease_s=60, claims=[], slots=slots)


async def test_queue_member_is_shown_until_the_claim(
    api: AsyncClient, director: PlayedDirector, scripts: Scripts, queue: QueueName
) -> None:
    await alive(scripts, queue)
    made = [(await api.post("/v1/predictions", json=BODY)).json() for _ in range(3)]
    assert [one["queue"]["ahead"] for one in made] == [0, 1, 2]
    assert [one["queue"]["reason"] for one in made] == ["waiting_its_turn"] * 3
    last = f"/v1/predictions/{made[2]['id']}"
    assert (await api.get(last)).json()["queue"]["ahead"] == 2

    claim = await director.claim()
    assert claim.id == made[0]["id"]
    assert "queue" not in (await api.get(f"/v1/predictions/{claim.id}")).json()
    assert (await api.get(last)).json()["queue"]["ahead"] == 1
    await director.begin(claim)
    assert "queue" not in (await api.get(f"/v1/predictions/{claim.id}")).json()
    await director.finish(claim)
    assert "queue" not in (await api.get(f"/v1/predictions/{claim.id}")).json()

    assert "queue" not in (await api.post(f"{last}/cancel")).json()


async def test_eta_appears_once_run_times_are_known(
    api: AsyncClient, director: PlayedDirector, scripts: Scripts, queue: QueueName
) -> None:
    await alive(scripts, queue)
    await api.post("/v1/predictions", json=BODY)
    claim = await director.claim()
    waits = (await api.post("/v1/predictions", json=BODY)).json()
    assert waits["queue"]["eta_s"] is None
    await director.begin(claim)
    await director.finish(claim)
    await api.post("/v1/predictions", json=BODY)
    eta = (await api.post("/v1/predictions", json=BODY)).json()["queue"]["eta_s"]
    assert 0 <= eta["p50"] <= eta["p90"]


async def test_list_omits_the_queue_member(api: AsyncClient) -> None:
    await api.post("/v1/predictions", json=BODY)
    [listed] = (await api.get("/v1/predictions")).json()["results"]
    assert (listed["status"], "queue" in listed) == ("starting", False)


async def test_replay_shows_the_current_queue_member(api: AsyncClient, director: PlayedDirector) -> None:
    headers = {"Idempotency-Key": "k"}
    first = await api.post("/v1/predictions", json=BODY, headers=headers)
    again = await api.post("/v1/predictions", json=BODY, headers=headers)
    assert again.json() == first.json()
    assert "queue" in first.json()
    await director.claim()
    assert "queue" not in (await api.post("/v1/predictions", json=BODY, headers=headers)).json()


async def test_explain_works_while_waiting_while_running_and_after_the_end(
    api: AsyncClient, director: PlayedDirector, scripts: Scripts, queue: QueueName
) -> None:
    await alive(scripts, queue)
    hook = "https://receiver.example/secret-path?token=secret"
    body = {"version": VERSION, "input": {"text": "secret"}, "webhook": hook, "webhook_events_filter": ["completed"]}
    made = (await api.post("/v1/predictions", json=body, headers={"Cancel-After": "5m"})).json()
    path = f"/v1/predictions/{made['id']}/explain"

    waits = (await api.get(path)).json()
    assert waits["queue"] == made["queue"]
    assert waits["submitted"]["told"] == {"position": 1, "ahead": 0, "eta_s": None}
    assert [coming["what"] for coming in waits["next"]] == ["attempt", "deadline"]

    claim = await director.claim()
    await director.begin(claim, b'"secret"')
    runs = (await api.get(path)).json()
    [held] = runs["held"]
    assert (held["director"], held["number"], held["ended_at"]) == ("played", 1, None)
    assert [coming["what"] for coming in runs["next"]] == ["end", "lease", "deadline"]
    assert "queue" not in runs

    await director.finish(claim, output=b'"secret"', logs="secret")
    answer = await api.get(path)
    ended = answer.json()
    assert (ended["ended"]["status"], ended["held"][0]["how"]) == ("succeeded", "succeeded")
    assert ended["webhook"] == {
        "host": "receiver.example",
        "events": ["completed"],
        "is_owed": True,
        "attempts": 0,
        "last": "",
        "next_at": ended["webhook"]["next_at"],
        "deliveries": [],
    }
    assert "secret" not in answer.text
