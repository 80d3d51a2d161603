"""Test `Prefer: wait`: 201 with the end, or 202 without progress; a disconnected caller ends only its own wait."""

import asyncio
import gc
import json
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from anyio import to_thread
from httpx import AsyncClient
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import RedisError

from api.predictions import intake
from api.services import waiters as api_waiters
from director.broker import keys
from director.broker.gatherer import LARGE_BYTES
from director.broker.replies import Accepted
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, QueueName, queue_name
from director.core.policy import Policy
from director.core.schema import Claim, Stored
from director.core.states import Status
from director.store import glances
from director.store.accounts import Accounts
from director.store.predictions import parse_message
from tests.integration.api.conftest import Served, listeners, no_faults
from tests.support.api import PlayedDirector, live_api
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer

BODY = {"version": VERSION, "input": {}}
CLIENT_GRACE_S: Final = 0.5  # the official Python client times out this long after the time that it asked for


@pytest.fixture(autouse=True)
def no_safety_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay the periodic look to 60 s, so that only a message can wake a waiting caller."""
    monkeypatch.setattr(api_waiters, "SAFETY_S", 60.0)


async def held(api: AsyncClient) -> int:
    return (await api.get("/readyz")).json()["load"]["waits"]


@asynccontextmanager
async def asked(api: AsyncClient, prefer: str = "wait=30") -> AsyncGenerator[list[httpx.Response]]:
    answers: list[httpx.Response] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, api, prefer, answers)
        yield answers


async def holds(api: AsyncClient, count: int) -> None:
    await eventually(lambda: held(api), f"{count} responses wait", until=count.__eq__)


async def ask(api: AsyncClient, prefer: str, answers: list[httpx.Response]) -> None:
    answers.append(await api.post("/v1/predictions", json=BODY, headers={"Prefer": prefer}))


@pytest.mark.parametrize(
    ("status", "ended"),
    [(Status.SUCCEEDED, {"output": b'"done"'}), (Status.FAILED, {"error": "boom"}), (Status.CANCELED, {})],
)
async def test_prediction_that_ends_in_time_is_201(
    api: AsyncClient, director: PlayedDirector, status: Status, ended: dict[str, object]
) -> None:
    async with asked(api) as answers:
        claim = await director.claim()
        await director.begin(claim)
        await director.finish(claim, status, **ended)
    [answer] = answers
    assert (answer.status_code, answer.json()["status"]) == (201, status)
    assert answer.json() == (await api.get(f"/v1/predictions/{claim.id}")).json()
    assert answer.headers["preference-applied"] == "wait=30"
    assert answer.headers["location"] == answer.json()["urls"]["get"]


async def test_cancel_ends_the_wait(api: AsyncClient, redis: Redis, queue: QueueName) -> None:
    async with asked(api, "wait") as answers:
        [name] = await eventually(lambda: redis.zrange(keys.live(queue), 0, 0), "it is queued")
        await api.post(f"/v1/predictions/{name.decode()}/cancel")
    assert (answers[0].status_code, answers[0].json()["status"]) == (201, "canceled")
    assert answers[0].headers["preference-applied"] == "wait"


async def test_running_prediction_is_202_without_progress(api: AsyncClient, director: PlayedDirector) -> None:
    async with asked(api, "wait=0.5") as answers:
        claim = await director.claim()
        await director.begin(claim, b'"half"')
    seen = answers[0].json()
    assert answers[0].status_code == 202
    assert (seen["status"], seen["output"], seen["logs"], seen["started_at"]) == ("starting", None, "", None)
    assert (await api.get(f"/v1/predictions/{claim.id}")).json()["output"] == ["half"]


async def test_replay_of_a_running_prediction_shows_no_progress(api: AsyncClient, director: PlayedDirector) -> None:
    headers = {"Idempotency-Key": "k", "Prefer": "wait=0.1"}
    first = await api.post("/v1/predictions", json=BODY, headers=headers)
    await director.begin(await director.claim(), b'"half"')
    again = await api.post("/v1/predictions", json=BODY, headers=headers)
    assert again.headers["idempotency-replayed"] == "true"
    waited = first.json()
    assert waited.pop("queue")["position"] == 1
    assert (again.status_code, again.json()) == (202, waited)


async def test_waiting_prediction_is_202_with_its_current_outlook(
    api: AsyncClient, queue: QueueName, scripts: Scripts
) -> None:
    async with asked(api, "wait=0.5") as answers:
        await holds(api, 1)
        await scripts.pause(queue, paused=True)
    assert (answers[0].status_code, answers[0].json()["queue"]["reason"]) == (202, "paused")


@pytest.mark.parametrize("is_silent", [False, True], ids=["away", "silent"])
async def test_wait_is_answered_even_without_an_outlook(
    api: AsyncClient, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    async def away(*_: object) -> None:
        if is_silent:
            await anyio.sleep_forever()
        raise BackendUnavailable("away")

    monkeypatch.setattr(Scripts, "story", away)
    assert intake.OUTLOOK_S < CLIENT_GRACE_S / 2
    answer = await api.post("/v1/predictions", json=BODY, headers={"Prefer": "wait=0.1"})
    assert (answer.status_code, "queue" in answer.json()) == (202, False)


async def test_time_spent_on_filing_shortens_the_wait(api: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue, ended, waited = Scripts.enqueue, api_waiters.Waiters.wait_for_end, []

    async def slow_enqueue(*args: Any, **options: Any) -> Accepted:
        await anyio.sleep(0.2)  # the time that has to be missing from the wait
        return await enqueue(*args, **options)

    async def noted(self: api_waiters.Waiters, *args: Any, seconds: float, **options: Any) -> Stored | None:
        waited.append(seconds)
        return await ended(self, *args, seconds=0, **options)

    monkeypatch.setattr(Scripts, "enqueue", slow_enqueue)
    monkeypatch.setattr(api_waiters.Waiters, "wait_for_end", noted)
    for prefer in ("wait=30", "wait=0.1"):
        assert (await api.post("/v1/predictions", json=BODY, headers={"Prefer": prefer})).status_code == 202
    assert 0 < waited[0] <= 29.8
    assert waited[1] == 0


@pytest.mark.parametrize("prefer", ["wait=0", "wait=soon", "respond-async", "wait=-1", ""])
async def test_invalid_preference_is_ignored(api: AsyncClient, prefer: str) -> None:
    answer = await api.post("/v1/predictions", json=BODY, headers={"Prefer": prefer})
    assert (answer.status_code, answer.json()["status"]) == (201, "starting")
    assert "preference-applied" not in answer.headers


async def test_waiting_checks_progress_at_a_bounded_rate_without_reading_it(redis: Redis, driver: QueueDriver) -> None:
    running = await driver.submit()
    looks = 0

    async def has_ended(_: PredictionId) -> bool:
        nonlocal looks
        looks += 1
        return False

    async def read(_: PredictionId, **_whole: bool) -> Stored:
        raise AssertionError("read before its end")

    waiters = api_waiters.Waiters(redis, has_ended=has_ended, read=read, clock=SystemClock(), most=10)

    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiters.run)
        tasks.start_soon(partial(waiters.wait_for_end, running, seconds=30))
        await eventually(lambda: looks, "it looked")
        for seq in range(500):
            await redis.publish(keys.channel(running), seq)
        tasks.cancel_scope.cancel()
    turns = (time.monotonic() - began) / api_waiters.GAP_S
    assert 1 < looks <= api_waiters.BURST + turns + 1


async def test_failed_look_without_remaining_waiters_reports_no_fault(
    redis: Redis, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, may_fail = asyncio.Event(), asyncio.Event()

    async def away(*_: object) -> None:
        is_asked.set()
        await may_fail.wait()
        raise BackendUnavailable("away")

    monkeypatch.setattr(glances, "pipelined", away)
    with no_faults():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(glances.Glances(redis).has_ended, driver.new_id())
            await is_asked.wait()
            tasks.cancel_scope.cancel()
        may_fail.set()
        await anyio.wait_all_tasks_blocked()
        gc.collect()


async def test_hanging_up_at_the_moment_of_the_end_reports_no_fault(redis: Redis, driver: QueueDriver) -> None:
    async def never(_: PredictionId, **_whole: bool) -> Any:
        raise AssertionError("looked")

    waiters = api_waiters.Waiters(redis, has_ended=never, read=never, clock=SystemClock(), most=10)
    wait, gone = api_waiters.Wait(), asyncio.Future[None]()
    prediction_id = driver.new_id()
    waiters.expect(prediction_id, wait)
    with no_faults():
        held = asyncio.create_task(waiters.wait_for_end(prediction_id, seconds=30, wait=wait, gone=gone))
        await anyio.wait_all_tasks_blocked()
        _, wait.ending = parse_message(f"{prediction_id} canceled - 1 0 0 0 0 0\n".encode())
        wait.news.set()
        gone.set_result(None)
        assert await held is wait.ending is not None
        await anyio.wait_all_tasks_blocked()


async def test_partial_output_is_not_sent_to_a_waiting_caller(
    api: AsyncClient, director: PlayedDirector, redis: Redis, scripts: Scripts
) -> None:
    half = b'"%b"' % (b"x" * 1_000_000)

    async def sent_bytes() -> int:
        return int((await redis.info("stats"))["total_net_output_bytes"])

    async with asked(api) as answers:
        claim = await director.claim()
        await holds(api, 1)
        seq = await director.begin(claim, half)
        before = await sent_bytes()
        for _ in range(20):
            piece = [("output", b'"more"')]
            seq = (await scripts.advance(claim.id, token=claim.token, seq=seq, ran_ms=1, events=piece)).seq
            await anyio.sleep(api_waiters.GAP_S)  # the test checks that nothing happens
        assert await sent_bytes() - before < len(half)
        await director.finish(claim, output=b'"whole"')
    assert answers[0].json()["output"] == "whole"


async def test_too_many_waits_are_answered_at_once(served: Served, director: PlayedDirector) -> None:
    async with served(max_waits=1) as api, asked(api) as answers:
        await holds(api, 1)
        second = await api.post("/v1/predictions", json=BODY, headers={"Prefer": "wait=30"})
        assert (second.status_code, second.json()["status"]) == (201, "starting")
        assert "preference-applied" not in second.headers
        for _ in range(2):
            await director.finish(await director.claim(), output=b"1")
    assert answers[0].json()["status"] == "succeeded"


async def test_waits_of_one_account_keep_no_other_from_its_own(
    served: Served, director: PlayedDirector, redis: Redis
) -> None:
    other = {"Authorization": f"Bearer {await Accounts(redis).create_token('other')}", "Prefer": "wait=30"}
    late: list[httpx.Response] = []

    async def ask_late() -> None:
        late.append(await api.post("/v1/predictions", json=BODY, headers=other))

    async with served(max_waits=2) as api, asked(api) as first:
        await holds(api, 1)
        async with asked(api) as second:
            await holds(api, 2)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_late)
                await eventually(lambda: len(first), "the oldest wait is over", until=(1).__eq__)
                await holds(api, 2)
                for _ in range(3):
                    await director.finish(await director.claim(), output=b"1")
    assert (first[0].status_code, first[0].json()["status"]) == (202, "starting")
    assert [(one.status_code, one.json()["status"]) for one in (*second, *late)] == [(201, "succeeded")] * 2


async def test_repeat_of_an_ended_prediction_ends_no_wait(
    served: Served, director: PlayedDirector, redis: Redis
) -> None:
    other = {"Authorization": f"Bearer {await Accounts(redis).create_token('other')}"}
    repeated = {**other, "Idempotency-Key": "k", "Prefer": "wait=30"}
    async with served(max_waits=2) as api:
        await api.post("/v1/predictions", json=BODY, headers={**repeated, "Prefer": "respond-async"})
        await director.finish(await director.claim(), output=b"1")
        async with asked(api) as first:
            await holds(api, 1)
            async with asked(api) as second:
                await holds(api, 2)
                again = await api.post("/v1/predictions", json=BODY, headers=repeated)
                assert (again.json()["status"], again.headers["preference-applied"]) == ("succeeded", "wait=30")
                await holds(api, 2)
                for _ in range(2):
                    await director.finish(await director.claim(), output=b"1")
    assert [one.json()["status"] for one in (*first, *second)] == ["succeeded"] * 2


async def test_wait_that_finds_no_room_ends_no_other(
    served: Served, director: PlayedDirector, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_waiters, "MOST_BYTES", 1_500)
    other = {"Authorization": f"Bearer {await Accounts(redis).create_token('other')}", "Prefer": "wait=30"}
    answers: list[httpx.Response] = []

    async def ask(length: int) -> None:
        body = {"version": VERSION, "input": {"text": "x" * length}}
        answers.append(await api.post("/v1/predictions", json=body, headers={"Prefer": "wait=30"}))

    async with served(max_waits=1_000) as api, anyio.create_task_group() as tasks:
        for count in range(3):
            tasks.start_soon(ask, 480)
            await holds(api, count + 1)
        heavy = {"version": VERSION, "input": {"text": "x" * 680}}  # room for it would take two waits of the three
        late = await api.post("/v1/predictions", json=heavy, headers=other)
        assert (late.status_code, "preference-applied" in late.headers) == (201, False)
        await holds(api, 3)
        for _ in range(4):
            await director.finish(await director.claim(), output=b"1")
    assert [one.json()["status"] for one in answers] == ["succeeded"] * 3


async def test_too_many_held_bytes_are_answered_at_once(
    api: AsyncClient, director: PlayedDirector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_waiters, "MOST_BYTES", 1_500)
    answers: list[httpx.Response] = []
    large = {"version": VERSION, "input": {"text": "x" * 1_000}}

    async def ask_large() -> None:
        answers.append(await api.post("/v1/predictions", json=large, headers={"Prefer": "wait=30"}))

    async with anyio.create_task_group() as tasks:
        for _ in range(2):  # the second time, the bytes of the first one are free again
            tasks.start_soon(ask_large)
            await holds(api, 1)
            await ask_large()
            assert (answers[-1].status_code, "preference-applied" in answers[-1].headers) == (201, False)
            for _ in range(2):
                await director.finish(await director.claim(), output=b"1")
            await holds(api, 0)
    assert [answer.json()["status"] for answer in answers] == ["starting", "succeeded"] * 2


async def test_caller_joining_an_existing_subscription_looks_at_once(
    redis: Redis, scripts: Scripts, driver: QueueDriver
) -> None:
    """The prediction ended before, so neither a confirmation nor a message will arrive."""
    running = await scripts.get(await driver.submit())
    assert running is not None
    ended = replace(running, record=replace(running.record, status=Status.SUCCEEDED))
    now = running

    async def has_ended(_: PredictionId) -> bool:
        return now.record.is_terminal

    async def read(_: PredictionId, **_whole: bool) -> Stored:
        return now

    waiters = api_waiters.Waiters(redis, has_ended=has_ended, read=read, clock=SystemClock(), most=10)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiters.run)
        tasks.start_soon(partial(waiters.wait_for_end, running.record.id, seconds=30))
        await eventually(lambda: listeners(redis), "it is subscribed")
        now = ended
        assert await waiters.wait_for_end(running.record.id, seconds=30) == ended
        tasks.cancel_scope.cancel()


async def test_subscription_ends_with_the_last_wait(api: AsyncClient, director: PlayedDirector, redis: Redis) -> None:
    by_key: list[Any] = []

    async def ask_by_key() -> None:
        headers = {"Prefer": "wait=30", "Idempotency-Key": "k"}
        by_key.append((await api.post("/v1/predictions", json=BODY, headers=headers)).json())

    async def load() -> tuple[int, int]:
        return await held(api), await listeners(redis)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask, api, "wait=30", [])
        for _ in range(2):  # the second look is for the prediction that the first request filed
            tasks.start_soon(ask_by_key)
        await eventually(load, "all wait", until=(7, 1).__eq__)
        for _ in range(6):
            await director.finish(await director.claim(), output=b"1")
    await eventually(load, "no wait is left", until=(0, 0).__eq__)
    one, other = by_key
    assert (one["status"], one["id"]) == (other["status"], other["id"]) == ("succeeded", one["id"])


@pytest.mark.parametrize("size", [3, 30_000])
async def test_message_of_the_end_carries_everything_but_a_large_output(
    served: Served, director: PlayedDirector, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    get, read = Scripts.get, []

    async def noted(self: Scripts, prediction_id: PredictionId, **options: Any) -> Stored | None:
        read.append(prediction_id)
        return await get(self, prediction_id, **options)

    monkeypatch.setattr(Scripts, "get", noted)
    output = json.dumps("é" * size).encode()
    async with served() as api:
        async with asked(api) as answers:
            claim = await director.claim()
            await director.finish(claim, output=output, logs="ü\n1", metrics=b'{"a":1}', code="c")
        assert len(read) == (size > 3)
        assert answers[0].json() == (await api.get(f"/v1/predictions/{claim.id}")).json()
        assert answers[0].json()["output"] == "é" * size


async def test_end_missed_without_a_subscription_is_seen_after_resubscribing(
    api: AsyncClient, director: PlayedDirector, redis: Redis
) -> None:
    async with asked(api) as answers:
        claim = await director.claim()
        await holds(api, 1)
        assert await redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub") >= 1  # Sentinels subscribe too
        await director.finish(claim, output=b"1")
    assert (answers[0].status_code, answers[0].json()["output"]) == (201, 1)


async def test_prediction_moved_to_another_version_ends_under_that_version(
    api: AsyncClient, scripts: Scripts, queue: QueueName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_waiters, "SAFETY_S", 0.1)
    newer = queue_name(MODEL, "b2" * 32)
    await scripts.register(newer, version="b2" * 32, policy=Policy())

    async def is_moved() -> bool:
        moved = await scripts.migrate(queue, to=newer, start=0, count=9, only_asks=False)
        return moved is not None and moved.moved == 1

    async with asked(api) as answers:
        await eventually(is_moved, "it is moved")
        director = PlayedDirector(scripts, newer)
        claim = await director.claim()
        await director.finish(claim, output=b"1")
    assert answers[0].json()["version"] == "b2" * 32
    assert answers[0].json() == (await api.get(f"/v1/predictions/{claim.id}")).json()


async def test_subscription_error_is_logged_once(
    redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = [RedisError("a"), RedisError("b"), OSError("c"), OSError("d"), RedisError("e")]
    clock = FakeClock()

    async def has_ended(_: PredictionId) -> bool:
        return False

    async def read(_: PredictionId, **_whole: bool) -> None:
        return None

    async def fail(_: api_waiters.Waiters) -> None:
        if not reasons:
            await anyio.sleep_forever()
        raise ExceptionGroup("as a task group does", [reasons.pop(0)])

    async def all_were_raised() -> bool:
        clock.pass_time(api_waiters.PAUSE_S)
        return not reasons

    monkeypatch.setattr(api_waiters.Waiters, "run_once", fail)
    waiters = api_waiters.Waiters(redis, has_ended=has_ended, read=read, clock=clock, most=10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiters.run)
        await eventually(all_were_raised, "every error was raised")
        tasks.cancel_scope.cancel()
    assert [vars(record)["reason"] for record in caplog.records] == ["RedisError", "OSError", "RedisError"]


def connect(url: str, token: str) -> socket.socket:
    content = json.dumps(BODY).encode()
    host = urlsplit(url).netloc
    connection = socket.create_connection((urlsplit(url).hostname or "", urlsplit(url).port or 0))
    connection.sendall(
        f"POST /v1/predictions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nPrefer: wait=60\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        + content
    )
    return connection


async def test_disconnected_caller_frees_its_wait_and_cancels_nothing(
    server: RedisServer, token: str, director: PlayedDirector
) -> None:
    async with live_api(server.url) as live, AsyncClient(base_url=live.url, trust_env=False) as api:
        connection = await to_thread.run_sync(connect, live.url, token)
        await holds(api, 1)
        connection.close()
        await holds(api, 0)
        claim = await director.claim()
        assert claim.record.cancel == ""
        await director.finish(claim, output=b"1")


async def test_ending_api_answers_waiting_callers(server: RedisServer, token: str, queue: QueueName) -> None:
    async with live_api(server.url) as live:
        headers = {"Authorization": f"Bearer {token}"}
        async with AsyncClient(base_url=live.url, headers=headers, timeout=90, trust_env=False) as api:
            async with asked(api, "wait=60") as answers:
                await holds(api, 1)
                live.process.terminate()
            await live.process.wait()
    assert (answers[0].status_code, answers[0].json()["status"]) == (202, "starting")


async def ask_to_cancel(api: AsyncClient, claim: Claim, answers: list[httpx.Response]) -> None:
    answers.append(await api.post(f"/v1/predictions/{claim.id}/cancel"))


async def test_answer_to_a_cancel_waits_for_the_end_of_the_run(served: Served, director: PlayedDirector) -> None:
    answers: list[httpx.Response] = []
    async with served(cancel_wait_s=60) as api:
        await api.post("/v1/predictions", json=BODY)
        await director.begin(claim := await director.claim())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_to_cancel, api, claim, answers)
            await holds(api, 1)
            await director.finish(claim, Status.CANCELED)
        assert [(answer.status_code, answer.json()["status"]) for answer in answers] == [(200, "canceled")]
        assert await held(api) == 0


async def test_answer_to_a_cancel_reads_a_large_output_in_the_turn_of_its_account(
    served: Served, director: PlayedDirector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of many cancels could otherwise hold the same megabytes at once."""
    answers: list[httpx.Response] = []
    reads: list[dict[str, Any]] = []
    get = Scripts.get

    async def noted(self: Scripts, prediction_id: PredictionId, **how: Any) -> Stored | None:
        reads.append(how)
        return await get(self, prediction_id, **how)

    monkeypatch.setattr(Scripts, "get", noted)
    large = b'"%b"' % (b"x" * 2 * LARGE_BYTES)
    async with served(cancel_wait_s=60) as api:
        await api.post("/v1/predictions", json=BODY)
        await director.begin(claim := await director.claim())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_to_cancel, api, claim, answers)
            await holds(api, 1)
            await director.finish(claim, Status.CANCELED, output=large)
    assert (answers[0].json()["status"], len(answers[0].json()["output"])) == ("canceled", 2 * LARGE_BYTES)
    assert [how for how in reads if how.get("whole", True) and not how.get("size")] == []
    assert len([how for how in reads if how.get("size")]) == 1


async def test_answer_to_a_cancel_waits_no_longer_than_its_limit(served: Served, director: PlayedDirector) -> None:
    async with served(cancel_wait_s=0.05) as api:
        await api.post("/v1/predictions", json=BODY)
        await director.begin(claim := await director.claim())
        answer = await api.post(f"/v1/predictions/{claim.id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "processing")
        assert await held(api) == 0


async def test_cancels_leave_half_of_the_held_responses_to_others(served: Served, director: PlayedDirector) -> None:
    async with served(cancel_wait_s=60, max_waits=2) as api, asked(api) as answers:
        await director.begin(claim := await director.claim())
        await holds(api, 1)
        answer = await api.post(f"/v1/predictions/{claim.id}/cancel")
        assert answer.json()["status"] == "processing"
        await director.finish(claim, Status.CANCELED)
    assert answers[0].json()["status"] == "canceled"
