"""Read these ten tests first: the life of a prediction, and what holds when something goes wrong.

They run against a real Valkey. `driver` is one queue with time in the test's hands: it makes the typed calls that the
API, the directors and the keeper make. Cancel and webhook use a real director and a small real model server.
"""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from standardwebhooks import Webhook

from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.core.states import Status
from director.store.accounts import Accounts
from tests.support.api import PlayedDirector, api_client, live_api
from tests.support.event_stream import Told, read_events
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, live_director
from tests.support.model_server import ModelServer, model_server
from tests.support.queue_driver import ACCOUNT, VERSION, QueueDriver
from tests.support.servers import RedisServer
from tests.support.sink import sink

# How a director drives the model server: it posts the input and finds the output in the answer.
RUNNER = {"path": "/predict", "input": {"args": {"$input": ""}}, "output": "/result/items"}
DRIVEN: dict[str, Any] = {"runner": "http", "runner_config": json.dumps(RUNNER), "webhook_allow": "loopback"}


@pytest.fixture
async def token(redis: Redis) -> str:
    return await Accounts(redis).create_token(ACCOUNT)


@pytest.fixture
def caller(redis: Redis, scripts: Scripts, queue: QueueName) -> Caller:
    return Caller(redis, scripts)


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[ModelServer]:
    async with model_server() as server:
        yield server


async def test_create_answers_as_soon_as_the_prediction_is_stored(
    server: RedisServer, token: str, driver: QueueDriver
) -> None:
    """The API stores a prediction and answers 201. No director has to run."""
    async with api_client(ApiSettings(redis_url=server.url), token=token) as api:
        answer = await api.post("/v1/predictions", json={"version": VERSION, "input": {"text": "hi"}})
        created = answer.json()
        seen = (await api.get(f"/v1/predictions/{created['id']}")).json()
    assert (answer.status_code, created["status"], seen["input"]) == (201, "starting", {"text": "hi"})
    stats = await driver.stats()
    assert (stats.waiting, stats.directors) == (1, 0)


async def test_claim_gives_one_director_the_right_to_finish(driver: QueueDriver) -> None:
    """A claim is a lease with a random token. The token must be shown to write progress and the end."""
    prediction_id = await driver.submit()
    claim = await driver.claim_one(consumer="d1")
    assert await driver.claim(consumer="d2") == [], "no other director gets it"
    assert (claim.id, bytes(claim.input)) == (prediction_id, b'{"text":"hi"}')
    seq = await driver.begin(claim, ("output", b'"hello"'))
    assert await driver.field(prediction_id, "status") == "processing"
    assert await driver.finish(claim, output=b'["hello"]', seq=seq)
    assert await driver.field(prediction_id, "status") == "succeeded"


async def test_crashed_director_loses_its_claim_and_cannot_finish(driver: QueueDriver) -> None:
    """The keeper gives a claim back when its lease has expired. The old token writes nothing after that."""
    prediction_id = await driver.submit()
    lost = await driver.claim_one(consumer="d1", lease_s=15)
    assert await driver.reap() == {}, "the lease still holds"
    driver.pass_time(16)
    assert await driver.reap() == {prediction_id: "waiting"}
    held = await driver.claim_one(consumer="d2")
    assert (held.id, held.record.attempt) == (prediction_id, 2)
    assert not await driver.finish(lost, Status.FAILED)
    assert await driver.finish(held)
    assert await driver.field(prediction_id, "status") == "succeeded"


async def test_retry_waits_for_its_backoff(driver: QueueDriver) -> None:
    """A director gives a failed attempt back with a delay. The keeper promotes it when the delay is over."""
    prediction_id = await driver.submit()
    first = await driver.claim_one()
    assert await driver.release(first, spent=True, delay_s=5, error="Its server died.", code="server_lost") == "delayed"
    assert (await driver.promote(), await driver.claim()) == (0, [])
    driver.pass_time(5)
    assert await driver.promote() == 1
    second = await driver.claim_one()
    assert (second.id, second.record.attempt) == (prediction_id, 2)


async def test_cancel_stops_the_run_on_the_model_server(
    caller: Caller, server: RedisServer, model: ModelServer, tmp_path: Path
) -> None:
    """A caller's cancel is stored at once. The director learns of it with its next heartbeat and stops the run."""
    gate = Gate(tmp_path / "gate")  # the model waits for this file, which never comes
    async with live_director(server.url, model.url, **DRIVEN):
        prediction_id = await caller.submit(gate=str(gate))
        await caller.shows(prediction_id, status="processing")
        await caller.cancel(prediction_id)
        assert (await caller.ended(prediction_id))["status"] == "canceled"
        await eventually(Path(f"{gate}.stopped").exists, "the model server stopped the run")


async def test_webhook_carries_the_terminal_prediction_and_a_signature(
    caller: Caller, server: RedisServer, redis: Redis, model: ModelServer, token: str
) -> None:
    """The director sends the webhook after the terminal record is written. The account's secret signs it."""
    async with sink() as receiver, live_director(server.url, model.url, **DRIVEN):
        prediction_id = await caller.submit(n=2, webhook=receiver.url, webhook_events="completed")
        ended = await caller.ended(prediction_id)
        await eventually(lambda: receiver.received, "the webhook arrived")
    [(headers, body)] = receiver.received
    assert (ended["output"], json.loads(body)) == (["a0", "a1"], ended)
    assert headers["webhook-id"] == f"msg_{prediction_id}_completed", "each delivery has the same id"
    [secret] = await Accounts(redis).webhook_secrets(ACCOUNT)
    Webhook(secret).verify(body, dict(headers))  # raises if a byte is different


async def test_stream_shows_output_while_the_run_goes_on(
    server: RedisServer, scripts: Scripts, queue: QueueName, token: str
) -> None:
    """The event stream has each piece of output as it is written, and ends with `done`."""
    director = PlayedDirector(scripts, queue)
    async with live_api(server.url) as api, httpx.AsyncClient(trust_env=False, timeout=20) as http:
        headers = {"Authorization": f"Bearer {token}"}
        body = {"version": VERSION, "input": {}, "stream": True}
        created = (await http.post(f"{api.url}/v1/predictions", json=body, headers=headers)).json()
        claim = await director.claim()
        seq = await director.begin(claim, b'"one"')
        events = (one async for one in read_events(http, created["urls"]["stream"]) if isinstance(one, Told))
        first = await anext(events)
        assert (first.event, first.data) == ("output", "one"), "it comes before the run has ended"
        await director.finish(claim, output=b'["one"]', seq=seq)
        assert [one.event async for one in events] == ["done"]


async def test_fairness_lets_a_small_account_pass_a_large_one(driver: QueueDriver) -> None:
    """The account that was served least has the next turn. One prediction does not wait for a hundred of another."""
    for _ in range(100):
        await driver.submit(account="large")
    await driver.submit(account="small")
    turns = [(await driver.claim_one()).record.account for _ in range(3)]
    assert "small" in turns


async def test_limit_keeps_what_one_account_runs_at_once(driver: QueueDriver) -> None:
    """Predictions over the limit wait and are not refused. The end of a run makes room for the next."""
    for _ in range(5):
        await driver.submit(account="limited", most_running=2)
    other = await driver.submit(account="other")
    claims = await driver.claim(10)
    assert sorted(claim.record.account for claim in claims) == ["limited", "limited", "other"]
    assert await driver.finish(next(claim for claim in claims if claim.id != other))
    assert [claim.record.account for claim in await driver.claim(10)] == ["limited"]


async def test_dead_letter_keeps_the_prediction_until_an_operator_revives_it(driver: QueueDriver) -> None:
    """By default the third lost attempt fails the prediction. Its input is kept, so that an operator can revive it."""
    prediction_id = await driver.submit()
    ends = [
        await driver.release(await driver.claim_one(), spent=True, error="It broke.", code="broken") for _ in range(3)
    ]
    assert ends == ["waiting", "waiting", "dead"]
    assert await driver.field(prediction_id, "status") == "failed"
    assert (await driver.stats()).dead == 1
    assert await driver.revive(prediction_id)
    assert await driver.finish(await driver.claim_one())
    assert await driver.field(prediction_id, "status") == "succeeded"
