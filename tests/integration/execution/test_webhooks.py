"""Test that webhooks of predictions arrive in order, once or until accepted, although receivers and processes fail."""

import asyncio
import json
import random
from asyncio import gather
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from msgspec import Raw

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId, partition_of
from director.core.policy import Policy
from director.core.schema import Claim
from director.core.settings import DirectorSettings
from director.execution.active_claims import ActiveClaims
from director.execution.executor import Executor
from director.execution.tracker import Limits
from director.files.data_files import DataFiles
from director.servers.runners.runner import (
    Began,
    Ended,
    Health,
    HealthStatus,
    Logged,
    Outcome,
    Produced,
    RunEvent,
    RunRequest,
)
from director.servers.servers import Permit, Server, Servers
from director.store.accounts import Accounts
from director.webhooks.delivery import Post
from director.webhooks.delivery import Webhooks as Deliveries
from director.webhooks.sender import AllowList, Sender
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, keeper_process
from tests.support.queue_driver import ACCOUNT, QueueDriver
from tests.support.scripted_runner import ScriptedRunner
from tests.support.sink import Answer, Received, Sink, sink
from tests.support.told import judge

ALL = "start,output,logs,completed"


def body(received: Received) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(received.body)
    return told


async def completed(receiver: Sink) -> dict[str, Any]:
    await eventually(
        lambda: receiver.received and body(receiver.received[-1])["completed_at"], "the terminal webhook came"
    )
    return body(receiver.received[-1])


async def owed(redis: Any, prediction_id: Any) -> float | None:
    score: float | None = await redis.zscore(keys.owed(partition_of(prediction_id)), prediction_id)
    return score


@pytest.mark.cog
async def test_start_comes_before_output_and_output_before_completed(caller: Caller, live: Live, gate: Gate) -> None:
    async with sink() as receiver, live.director(webhook_allow="loopback"):
        asked = await caller.submit(n=2, gate=str(gate), webhook=receiver.url, webhook_events=ALL)
        await eventually(
            lambda: receiver.received and body(receiver.received[-1])["output"],
            "output is told",
            until=lambda output: output == ["a0", "a1"],
        )
        gate.open()
        last = await completed(receiver)
        ended = await caller.ended(asked)
    told = [body(each) for each in receiver.received]
    assert last == ended
    assert [each["status"] for each in told] == ["processing"] * (len(told) - 1) + ["succeeded"]
    assert {each["started_at"] for each in told} == {ended["started_at"]}
    lengths = [len(each["output"] or []) for each in told]
    assert lengths == sorted(lengths)
    ids = [each.headers["webhook-id"] for each in receiver.received]
    assert len(set(ids)) == len(ids)
    assert ids[0] == f"msg_{asked}_start_1_1"
    assert ids[-1] == f"msg_{asked}_completed"


@pytest.mark.cog
@pytest.mark.parametrize(("events", "expected"), [("completed", 1), ("start,completed", 2), ("start", 1)])
async def test_caller_gets_only_the_requested_events(caller: Caller, live: Live, events: str, expected: int) -> None:
    async with sink() as receiver:
        async with live.director(webhook_allow="loopback") as director:
            asked = await caller.submit(n=3, webhook=receiver.url, webhook_events=events)
            await caller.ended(asked)
            await eventually(lambda: director._claiming and not director._claiming.consumer._runs, "all is told")
        statuses = [body(each)["status"] for each in receiver.received]
    assert len(statuses) == expected
    assert statuses == (["processing"] if "start" in events else []) + (["succeeded"] if "completed" in events else [])
    assert await owed(caller.redis, asked) is None


@pytest.mark.cog
async def test_many_outputs_are_few_webhooks_and_the_last_has_everything(caller: Caller, live: Live) -> None:
    async with sink() as receiver, live.director(webhook_allow="loopback"):
        await caller.submit(n=500, webhook=receiver.url, webhook_events=ALL)
        last = await completed(receiver)
    assert last["output"] == [f"a{number}" for number in range(500)]
    assert 2 <= len(receiver.received) <= 5


@pytest.mark.cog
async def test_dead_receiver_blocks_neither_the_slot_nor_other_receivers(caller: Caller, live: Live) -> None:
    async with sink() as dead, live.director(webhook_allow="loopback"):
        dead.answer = Answer(delay_s=60)
        first = await caller.submit(n=1, webhook=dead.url, webhook_events=ALL)
        assert (await caller.ended(first))["status"] == "succeeded"
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"
        assert [body(each)["status"] for each in dead.received] == ["processing"]  # the receiver still holds it


@pytest.mark.cog
async def test_failed_terminal_webhook_stays_owed_until_its_next_attempt(caller: Caller, live: Live) -> None:
    async with sink() as receiver, live.director(webhook_allow="loopback"):
        receiver.answer = Answer(status=500)
        before = SystemClock().now_ms()
        asked = await caller.submit(n=1, webhook=receiver.url, webhook_events="completed")
        record = await eventually(
            lambda: caller.record(asked), "it is noted", until=lambda record: record.webhook_outcome
        )
        after = SystemClock().now_ms()
    assert (record.status, record.webhook_outcome, record.webhook_attempts) == ("succeeded", "failed", 1)
    due = await owed(caller.redis, asked)
    assert before + 1800 <= due <= after + 2200  # the first backoff: two seconds, plus or minus a tenth


@pytest.mark.cog
async def test_forbidden_receiver_is_recorded_as_refused_and_never_reached(caller: Caller, live: Live) -> None:
    async with sink() as receiver, live.director():
        asked = await caller.submit(n=1, webhook=receiver.url, webhook_events=ALL)
        assert (await caller.ended(asked))["status"] == "succeeded"
        record = await eventually(
            lambda: caller.record(asked), "it is noted", until=lambda record: record.webhook_outcome
        )
    assert record.webhook_outcome == "refused"
    [*_, told] = await caller.redis.lrange(keys.events(record.id), 0, -1)
    assert told.endswith(b" private_address")
    assert await owed(caller.redis, asked) is None
    assert receiver.received == []


@pytest.mark.cog
async def test_released_prediction_sends_no_terminal_webhook(caller: Caller, live: Live, gate: Gate) -> None:
    async with sink() as receiver:
        async with live.director(webhook_allow="loopback", drain_s=0) as director:
            await caller.running(n=1, gate=str(gate), webhook=receiver.url, webhook_events="start,completed")
            await receiver.arrived(1)
            await director.drain()
        gate.open()
        async with live.director(webhook_allow="loopback"):
            await completed(receiver)
    assert [body(each)["status"] for each in receiver.received] == ["processing", "processing", "succeeded"]


PHASE_S = 30.0
CALLERS = 8


async def submit_for(seconds: float, caller: Caller, url: str) -> list[str]:
    ids: list[str] = []
    until = anyio.current_time() + seconds
    while anyio.current_time() < until:
        ids.append(asked := await caller.submit(n=2, webhook=url, webhook_events=ALL))
        await caller.ended(asked)
    return ids


async def told_after_failures(
    caller: Caller, submits: Callable[[str, float], Awaitable[list[str]]], phase_s: float, *, limit_s: float
) -> None:
    """Check that a receiver that fails, dies and returns gets every end."""
    redis = caller.redis

    async def count_owed() -> int:
        return int(await redis.zcard(keys.owed(partition_of(PredictionId(ids[0])))))

    async with sink() as failing:
        failing.answer = Answer(status=500)
        ids = await submits(failing.url, phase_s)
    ids += await submits(failing.url, phase_s)
    assert await count_owed() == len(ids), "no end could be delivered so far"
    async with sink(failing.port) as living:
        assert living.url == failing.url
        ids += await submits(living.url, phase_s / 3)
        await eventually(count_owed, "all is told", until=(0).__eq__, limit_s=limit_s)
    [secret] = await Accounts(redis).webhook_secrets(ACCOUNT)
    names = [one.headers["webhook-id"] for one in living.received]
    told = [name for name in names if name.endswith("_completed")]
    print(f"{len(ids)} predictions; 500 to {len(failing.received)} webhooks; {len(told) - len(set(told))} ends twice")
    assert set(told) == {f"msg_{one}_completed" for one in ids}
    judge([*failing.received, *living.received], ids, secret, is_whole=False)


@pytest.mark.faults
@pytest.mark.cog
async def test_every_end_reaches_a_receiver_that_failed_died_and_returned(caller: Caller, live: Live) -> None:
    async def submits(url: str, seconds: float) -> list[str]:
        return await submit_for(seconds, caller, url)

    schedule, probe_s = ",".join(["0.2s"] * 40), 0.4
    director = live.director(webhook_allow="loopback", webhook_schedule=schedule)
    async with director, live.keeper(schedule=schedule, probe_s=probe_s):
        await told_after_failures(caller, submits, 1.5, limit_s=20 + 4 * probe_s)


@pytest.mark.cog
@pytest.mark.heavy
async def test_ends_arrive_under_load_with_default_settings(caller: Caller, live: Live, second_cog_url: str) -> None:
    async def submits(url: str, seconds: float) -> list[str]:
        return [one for ids in await gather(*(submit_for(seconds, caller, url) for _ in range(CALLERS))) for one in ids]

    async with (
        keeper_process(live.url, webhook_allow="loopback"),
        live.process(webhook_allow="loopback"),
        live.process(second_cog_url, webhook_allow="loopback"),
    ):
        await told_after_failures(caller, submits, PHASE_S, limit_s=4 * PHASE_S)


class PacedRunner(ScriptedRunner):
    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    async def run(self, request: RunRequest) -> AsyncGenerator[RunEvent, None]:
        """Yield output and logs, with or without pauses, then an end of some kind."""
        dice = self._dice
        outputs = dice.randrange(4)
        if not outputs or dice.random() < 0.8:  # the first output shows that some runs have begun
            yield Began()
        for number in range(outputs):
            await self._pause()
            yield Produced(Raw(b'"%d"' % number), number)
            if dice.random() < 0.5:
                await self._pause()
                yield Logged(f"line {number}\n")
        await self._pause()
        outcome = dice.choice((Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED))
        yield Ended(outcome=outcome, error="no" if outcome == Outcome.FAILED else "")

    async def _pause(self) -> None:
        if self._dice.random() < 0.6:
            await asyncio.sleep(self._dice.random() * self._dice.choice((0.02, 0.02, 0.3)))  # a run's own time


class Paced:
    """An executor that runs many predictions at once, and a slow receiver."""

    def __init__(self, driver: QueueDriver, sender: Sender, interval_s: float) -> None:
        clock, accounts = SystemClock(), Accounts(driver.redis)
        self._scripts: Scripts = driver.scripts
        self._claims = ActiveClaims()
        self._post = Post(Deliveries(driver.scripts, accounts, sender, clock), interval_s)

    async def execute(self, claim: Claim, dice: random.Random) -> None:
        server = Server(PacedRunner(dice), 1, busy=1, health=Health(status=HealthStatus.READY))
        executor = Executor(
            scripts=self._scripts,
            clock=SystemClock(),
            claims=self._claims,
            servers=Servers([server]),
            post=self._post,
            limits=Limits(),
            policy=Policy(),
            settings=DirectorSettings(run_limit_s=60),
            dice=lambda: 0.5,
            data_files=DataFiles(SystemClock()),
        )
        await executor.execute(claim, Permit(server, server.since))


@pytest.mark.parametrize(
    ("many", "seed"), [pytest.param(100, 1, id="100"), pytest.param(10_000, 2, id="10,000", marks=pytest.mark.heavy)]
)
async def test_start_is_delivered_before_any_output_and_the_end_last(
    driver: QueueDriver, monkeypatch: pytest.MonkeyPatch, many: int, seed: int
) -> None:
    # a busy machine must not lose what is sent once: this receiver never fails
    monkeypatch.setattr("director.webhooks.sender.CONNECT_S", 60.0)
    dice = random.Random(seed)
    await Accounts(driver.redis).create_token(ACCOUNT)
    [secret] = await Accounts(driver.redis).webhook_secrets(ACCOUNT)
    sender = Sender(AllowList.parse("loopback"), timeout_s=60)
    paced = Paced(driver, sender, interval_s=0.005)
    at_once = asyncio.Semaphore(12)  # with more callers a run would end before its start is delivered

    async def one(claim: Claim) -> None:
        async with at_once:
            await paced.execute(claim, random.Random(claim.id))

    left, webhooks, progress = many, 0, 0
    while left:
        async with sink() as receiver:  # one loop for each part, so that none holds all of them
            ids = [await driver.submit(webhook=receiver.url, webhook_events=ALL) for _ in range(min(left, 500))]
            receiver.answers.extend(Answer(delay_s=dice.choice((0, 0, 0.002, 0.01))) for _ in range(5 * len(ids)))
            claims = await driver.claim_all()
            assert len(claims) == len(ids)
            async with asyncio.TaskGroup() as tasks:
                for claim in claims:
                    tasks.create_task(one(claim))
            await nothing_is_owed(driver, receiver)
        judge(receiver.received, ids, secret)
        webhooks += len(receiver.received)
        progress += len(receiver.received) - 2 * len(ids)
        left -= len(ids)
    await sender.aclose()
    print(f"{many:,} predictions were told of in order, by {webhooks:,} webhooks; {progress:,} are of output and logs")
    assert progress > 0, "without them there is no order to keep; how many there are is up to the machine"


async def nothing_is_owed(driver: QueueDriver, receiver: Sink) -> None:
    """Check that no webhook is owed and no connection open. This director leaves no end to the courier."""
    assert await driver.redis.exists(keys.owed(partition_of(driver.new_id()))) == 0
    assert receiver.open == 0
