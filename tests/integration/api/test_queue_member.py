"""Test the `queue` member, which explains a wait: it is in every answer about a waiting prediction, and in no other."""

import pytest
from httpx import AsyncClient

from director.broker.scripts import Scripts
from director.core.ids import QueueName
from tests.support.api import PlayedDirector
from tests.support.queue_driver import VERSION

pytestmark = pytest.mark.anyio

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
