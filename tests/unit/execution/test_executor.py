import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from director.broker import keys
from director.broker.replies import Advanced
from director.core import data_bytes
from director.core.clock import Clock, SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, partition_of
from director.core.policy import Policy
from director.core.schema import REFERENCE_BYTES, Claim, Reference
from director.core.settings import DirectorSettings
from director.core.states import WebhookEvent
from director.execution.active_claims import ActiveClaim, ActiveClaims, Cut
from director.execution.executor import AWAY_S, TELL_S, Executor, _may_have_begun
from director.execution.run_files import Storing
from director.execution.tracker import DRAINED, Limits, Stop
from director.files.choose import store_in
from director.files.data_files import DataFiles
from director.files.local import LocalFiles
from director.files.store import FileName
from director.servers.runners.runner import (
    Accepted,
    Began,
    Capabilities,
    Ended,
    Health,
    HealthStatus,
    Outcome,
    Produced,
    RunEvent,
    RunRequest,
    Unreceived,
)
from director.servers.servers import Permit, Server, Servers
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.webhooks.delivery import Outbox, Post, Webhooks
from director.webhooks.sender import AllowList, Sender
from tests.support.eventually import eventually, turns
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.scripted_runner import ScriptedRunner
from tests.support.sink import Answer, sink

LIMIT_S = 10


class Bench:
    """An executor on the driver's queue, for one claim at a time."""

    def __init__(self, driver: QueueDriver, sender: Sender) -> None:
        self.driver = driver
        clock, accounts = SystemClock(), Accounts(driver.redis)
        self.post = Post(Webhooks(driver.scripts, accounts, sender, clock), interval_s=0.0)
        self.claims = ActiveClaims()

    @asynccontextmanager
    async def running(self, runner: ScriptedRunner, *claims: Claim, **options: Any) -> AsyncGenerator[Server]:
        """Run these claims on a server with a slot for each, until their last write."""
        server = Server(runner, len(claims), busy=len(claims), health=Health(status=HealthStatus.READY))
        executor = self.executor(Servers([server]), **options)
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
            for claim in claims:
                tasks.create_task(executor.execute(claim, Permit(server, server.since)))
            yield server

    async def execute(self, runner: ScriptedRunner, claim: Claim, **options: Any) -> Server:
        """Run the claim until its last write and return its server."""
        async with self.running(runner, claim, **options) as server:
            pass
        assert server.busy == 0
        assert len(self.claims) == 0
        return server

    def held(self, claim: Claim) -> ActiveClaim:
        held = self.claims.find(claim.id, claim.token)
        assert held is not None
        return held

    def executor(
        self,
        servers: Servers,
        *,
        run_limit_s: float = 60,
        storing: Storing | None = None,
        clock: Clock | None = None,
        dice: Callable[[], float] = lambda: 0.5,
        data_files: DataFiles | None = None,
    ) -> Executor:
        return Executor(
            scripts=self.driver.scripts,
            clock=clock or SystemClock(),
            claims=self.claims,
            servers=servers,
            post=self.post,
            limits=Limits(inline=None if storing is None else 0),
            policy=Policy(),
            settings=DirectorSettings(run_limit_s=run_limit_s),
            dice=dice,
            storing=storing,
            data_files=data_files or DataFiles(SystemClock()),
        )


@pytest.fixture
async def bench(driver: QueueDriver) -> Any:
    await Accounts(driver.redis).create_token(ACCOUNT)
    sender = Sender(AllowList.parse("loopback"))
    yield Bench(driver, sender)
    await sender.aclose()


async def claimed(driver: QueueDriver, **options: Any) -> Claim:
    await driver.submit(**options)
    return await driver.claim_one(lease_s=3600)


async def test_raising_runner_costs_an_attempt_and_is_logged(bench: Bench, driver: QueueDriver, caplog: Any) -> None:
    claim = await claimed(driver)
    await bench.execute(ScriptedRunner(Began(), fault=RuntimeError("a fault of ours")), claim)
    assert (await driver.record(claim.id)).attempt == 1
    assert (await driver.kinds(claim.id))[-1] == "retried"
    [said] = [record for record in caplog.records if record.message == "following a run failed"]
    assert said.exc_info is not None


@pytest.mark.parametrize(
    ("events", "became"),
    [
        pytest.param([Began(), Ended(outcome=Outcome.LOST)], "failed", id="lost after it began"),
        pytest.param([Ended(outcome=Outcome.LOST)], "failed", id="lost before its start was seen"),
        pytest.param([Accepted("a:1"), Ended(outcome=Outcome.REFUSED)], "failed", id="refused, and its server has it"),
        pytest.param([Began(), Ended(outcome=Outcome.REFUSED)], "starting", id="refused late"),
        pytest.param([Ended(outcome=Outcome.REFUSED)], "starting", id="refused"),
    ],
)
async def test_run_that_may_have_begun_ends_where_nothing_may_run_twice(
    bench: Bench, driver: QueueDriver, catalog: Catalog, events: list[RunEvent], became: str
) -> None:
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy(on_lost="fail"))
    claim = await claimed(driver)
    await bench.execute(ScriptedRunner(*events), claim)
    assert (await driver.record(claim.id)).status == became


@pytest.mark.parametrize(
    ("endpoint", "has", "status"),
    [("chat", {"chat"}, "succeeded"), ("chat", {"embeddings"}, "failed"), ("", (), "succeeded")],
)
async def test_body_of_openai_runs_only_where_the_server_has_its_endpoint(
    bench: Bench, driver: QueueDriver, endpoint: str, has: Collection[str], status: str
) -> None:
    claim = await claimed(driver, endpoint=endpoint)
    runner = ScriptedRunner(Began(), Ended(outcome=Outcome.SUCCEEDED))
    runner.capabilities = Capabilities(endpoints=frozenset(has))
    await bench.execute(runner, claim)
    record = await driver.record(claim.id)
    assert record.status == status
    assert [request.endpoint for request in runner.requests] == ([endpoint] if status == "succeeded" else [])
    if status == "failed":
        assert (record.code, "OpenAI's API" in record.error) == ("invalid_input", True)


async def test_runner_raising_after_its_end_changes_nothing(bench: Bench, driver: QueueDriver, caplog: Any) -> None:
    claim = await claimed(driver)
    end = Ended(outcome=Outcome.SUCCEEDED, output=Raw(b'"x"'))
    await bench.execute(ScriptedRunner(Began(), end, fault=RuntimeError("too late")), claim)
    assert (await driver.record(claim.id)).status == "succeeded"
    assert "following a run failed" in caplog.messages


@pytest.mark.parametrize("is_dead", [True, False])
async def test_server_that_a_run_found_dead_is_doubted(bench: Bench, driver: QueueDriver, is_dead: bool) -> None:
    claim = await claimed(driver)
    server = await bench.execute(ScriptedRunner(Began(), Ended(outcome=Outcome.LOST, server_is_dead=is_dead)), claim)
    assert server.doubt.is_set() == is_dead


async def test_nothing_of_an_attempt_is_told_once_another_one_may_begin(bench: Bench, driver: QueueDriver) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def slowly(host: str, port: int) -> list[str]:
        asked.set()
        await go.wait()
        return ["127.0.0.1"]

    sender = Sender(AllowList.parse("loopback"), resolve=slowly)
    bench = Bench(driver, sender)
    async with sink() as receiver:
        claim = await claimed(driver, webhook=receiver.url, webhook_events="start,completed")
        runner = ScriptedRunner(Began())
        running = asyncio.create_task(bench.execute(runner, claim))
        await asyncio.wait_for(asked.wait(), LIMIT_S)
        runner.goes_on.set()  # the server stopped it unasked
        await running
        go.set()
        await sender.aclose()
    assert (await driver.record(claim.id)).token == ""
    assert receiver.received == []


def failing_finish(driver: QueueDriver, monkeypatch: pytest.MonkeyPatch, *, is_done: bool, times: int) -> None:
    """Let the first calls of `finish` fail. `is_done` lets Redis do them and loses the answers."""
    finish, left = driver.scripts.finish, [None] * times

    async def fail(*args: Any, **options: Any) -> bool:
        finished = await finish(*args, **options) if is_done or not left else False
        if left:
            left.pop()
            raise BackendUnavailable("it is away")
        return finished

    monkeypatch.setattr(driver.scripts, "finish", fail)


async def left_to_the_courier(driver: QueueDriver, claim: Claim) -> bool:
    owed = keys.owed(partition_of(claim.id))
    left = list(await driver.members(owed))
    await driver.redis.delete(owed)
    return left == [claim.id]


async def test_late_end_is_left_to_the_courier(
    bench: Bench, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.execution.executor.GRACE_S", TELL_S + AWAY_S / 2)
    failing_finish(driver, monkeypatch, is_done=True, times=1)
    async with sink() as receiver:
        claim = await claimed(driver, webhook=receiver.url, webhook_events="completed")
        await bench.execute(ScriptedRunner(Began(), Ended(outcome=Outcome.SUCCEEDED)), claim)
    assert (await driver.record(claim.id)).status == "succeeded"
    assert receiver.received == [], "its grace is over: a courier may be at it"
    assert await left_to_the_courier(driver, claim)


class Hurried(SystemClock):
    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_retries_of_ends_are_spread(bench: Bench, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_finish(driver, monkeypatch, is_done=False, times=2)
    claim, clock = await claimed(driver), Hurried()
    runner = ScriptedRunner(Began(), Ended(outcome=Outcome.SUCCEEDED))
    await bench.execute(runner, claim, clock=clock, dice=iter((0.0, 1.0)).__next__)
    assert (await driver.record(claim.id)).status == "succeeded"
    assert clock.slept == [AWAY_S * 0.5, 2 * AWAY_S * 1.5]


async def test_run_shorter_than_a_write_sends_start_and_end_in_order(bench: Bench, driver: QueueDriver) -> None:
    events = [Began(), Produced(Raw(b'"x"'), 0), Ended(outcome=Outcome.SUCCEEDED, output=Raw(b'["x"]'))]
    async with sink() as receiver:
        claim = await claimed(driver, webhook=receiver.url, webhook_events="start,output,logs,completed")
        await bench.execute(ScriptedRunner(*events), claim)
    ids = [each.headers["webhook-id"].removeprefix(f"msg_{claim.id}_") for each in receiver.received]
    assert ids == ["start_1_1", "completed"]
    assert await driver.kinds(claim.id) == ["created", "started", "output", "completed", "webhook"]


async def test_a_claim_that_was_lost_ends_without_a_word(bench: Bench, driver: QueueDriver) -> None:
    async with sink() as receiver:
        claim = await claimed(driver, webhook=receiver.url, webhook_events="start,completed")
        runner = ScriptedRunner(Began())
        async with bench.running(runner, claim):
            await runner.started.wait()
            bench.held(claim).lose()
        assert runner.let_go.is_set()
    assert receiver.received == []
    assert (await driver.record(claim.id)).token == claim.token


class Queuing(ScriptedRunner):
    """A runner that waits until a slot of its server is free."""

    def __init__(self, *events: RunEvent, wait_s: float) -> None:
        super().__init__(*events)
        self._wait_s = wait_s

    async def run(self, request: RunRequest) -> AsyncGenerator[RunEvent, None]:
        await asyncio.sleep(self._wait_s)  # longer than a run may take once it began
        async for event in super().run(request):
            yield event


async def test_run_limit_counts_from_the_start_of_the_run(bench: Bench, driver: QueueDriver) -> None:
    runner = Queuing(Began(), Ended(outcome=Outcome.SUCCEEDED, output=Raw(b'"x"')), wait_s=0.1)
    claim = await claimed(driver)
    await bench.execute(runner, claim, run_limit_s=0.01)
    assert (await driver.record(claim.id)).status == "succeeded"


class Reluctant(ScriptedRunner):
    """A runner that releases a run late. `story` has starts and ends of runs in order."""

    def __init__(self) -> None:
        super().__init__(Began())
        self.story: list[str] = []
        self.lets_go = asyncio.Event()

    async def run(self, request: RunRequest) -> AsyncGenerator[RunEvent, None]:
        self.story.append("start")
        try:
            async for event in super().run(request):
                yield event
        finally:
            await self.lets_go.wait()
            self.story.append("end")


async def test_newer_claim_starts_after_the_run_of_the_older_is_released(bench: Bench, driver: QueueDriver) -> None:
    runner = Reluctant()
    server = Server(runner, 2, busy=2, health=Health(status=HealthStatus.READY))
    executor = bench.executor(Servers([server]))
    older = await claimed(driver)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(executor.execute(older, Permit(server, server.since)))
        await runner.started.wait()
        held = bench.claims.find(older.id, older.token)
        assert held is not None
        assert await driver.release(older) == "waiting"
        newer = await driver.claim_one(lease_s=3600)
        tasks.create_task(executor.execute(newer, Permit(server, server.since)))
        await eventually(lambda: bench.claims.find(newer.id, newer.token), "it is held")
        await runner.let_go.wait()
        for _ in range(3):  # the heartbeat and each write tell it as well
            held.lose()
            await turns()
        assert runner.story == ["start"]
        runner.lets_go.set()
        runner.goes_on.set()
    assert runner.story == ["start", "end", "start", "end"]


PNG = Raw(b'"data:image/png;base64,iVBORw=="')


class SlowStore(LocalFiles):
    """A store that does not answer before `goes_on`. `asked` counts its requests, and `kept` has the files."""

    def __init__(self) -> None:
        self.asked = 0
        self.goes_on = asyncio.Event()
        self.kept: set[FileName] = set()

    async def put(self, name: FileName, data: bytes, *, content_type: str) -> None:
        self.asked += 1
        try:
            await self.goes_on.wait()
        finally:  # also if its caller has given up
            self.kept.add(name)

    async def remove(self, prediction_id: PredictionId) -> None:
        self.kept.clear()

    async def url(self, name: FileName, *, base: str, expires_s: int) -> str:
        return str(name)


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


def storing(store: SlowStore, driver: QueueDriver) -> Storing:
    return Storing(store, driver.scripts, SystemClock(), DirectorSettings(run_limit_s=60, data_ttl_s=60))


async def test_end_waits_for_files_without_the_slot(bench: Bench, driver: QueueDriver, store: SlowStore) -> None:
    runner = ScriptedRunner(Began(), Ended(outcome=Outcome.SUCCEEDED, output=PNG))
    claim = await claimed(driver)
    async with bench.running(runner, claim, storing=storing(store, driver)) as server:
        await eventually(lambda: store.asked, "the store is asked")
        await eventually(lambda: server.busy, "the permit is left", until=lambda busy: busy == 0)
        assert len(bench.claims) == 1
        assert not (await driver.record(claim.id)).is_terminal
        store.goes_on.set()
    assert (await driver.record(claim.id)).status == "succeeded"


async def test_abandoned_run_leaves_no_file(bench: Bench, driver: QueueDriver, store: SlowStore) -> None:
    runner = ScriptedRunner(Began(), Produced(PNG, 0), Unreceived(too_large=True))
    claim = await claimed(driver)
    async with bench.running(runner, claim, storing=storing(store, driver)):
        await eventually(lambda: store.asked, "the store is asked")
        runner.goes_on.set()
    assert (await driver.record(claim.id)).code == "output_too_large"
    assert not store.kept


@pytest.mark.parametrize(("claims", "wait_s"), [(1, 15), (2, 30), (12, 1800)])
async def test_an_input_that_cannot_be_read_is_tried_again_later(
    bench: Bench, driver: QueueDriver, claims: int, wait_s: int
) -> None:
    claim = await claimed(driver, data=bytes(Reference("a0" * 16, 99)))
    claim.record = replace(claim.record, claims=claims)
    before_ms = SystemClock().now_ms()
    await bench.execute(ScriptedRunner(), claim)
    due_ms = await driver.redis.zscore(keys.delayed(driver.queue), claim.id)
    assert 0 <= due_ms - before_ms - 1000 * wait_s < 10_000
    assert (await driver.record(claim.id)).attempt == 0
    assert (await driver.kinds(claim.id))[-1] == "released"


async def test_files_stay_where_the_input_is_one_of_them(
    bench: Bench, driver: QueueDriver, store: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(data_bytes, "at_end", lambda *_, input_bytes, **__: counted.append(input_bytes))
    runner = ScriptedRunner(Began(), Produced(PNG, 0), Unreceived(too_large=True))
    large = b'{"text":"' + b"x" * 1024 + b'"}'
    found = store_in(str(tmp_path), driver.redis, SystemClock())
    files = DataFiles(SystemClock(), found, from_bytes=1024)
    prediction_id = driver.new_id()
    claim = await claimed(driver, prediction_id=prediction_id, data=await files.put(prediction_id, large))
    async with bench.running(runner, claim, storing=storing(store, driver), data_files=files):
        await eventually(lambda: store.asked, "the store is asked")
        runner.goes_on.set()
    assert (await driver.record(claim.id)).code == "output_too_large"
    assert store.kept
    assert claim.input == Raw(large), "the run was given the data"
    assert counted == [REFERENCE_BYTES], "as when it was accepted"


async def test_files_that_cannot_be_uncounted_are_left_to_the_keeper(
    driver: QueueDriver, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("Redis is away")

    record, files = (await claimed(driver)).record, storing(store, driver)
    await files.count(record, 9)
    store.kept.add(FileName(record.id, "a0" * 16, "png"))
    with monkeypatch.context() as patched:
        patched.setattr(driver.scripts, "stow", away)
        await files.remove(record)
    assert store.kept, "without its files the keeper would not see that it is still counted"
    await files.remove(record)
    assert not store.kept
    assert (await driver.scripts.stow(ACCOUNT)).total == 0


async def test_a_store_slower_than_the_runs_slows_them(
    bench: Bench, driver: QueueDriver, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.execution.executor.MOST_ENDING", 1)
    runner = ScriptedRunner(Began(), Ended(outcome=Outcome.SUCCEEDED, output=PNG))
    claims = [await claimed(driver), await claimed(driver)]
    async with bench.running(runner, *claims, storing=storing(store, driver)) as server:
        await eventually(lambda: store.asked, "both wait for the store", until=lambda asked: asked == 2)
        assert server.busy == 1
        store.goes_on.set()
    assert server.busy == 0


async def test_a_run_is_not_followed_further_than_its_store_can_take(
    bench: Bench, driver: QueueDriver, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.execution.side_work.MOST_AHEAD", 20)
    produced = [Produced(PNG, index) for index in range(50)]
    runner = ScriptedRunner(Began(), *produced, Ended(outcome=Outcome.SUCCEEDED))
    claim = await claimed(driver)
    async with bench.running(runner, claim, storing=storing(store, driver)):
        await eventually(lambda: store.asked, "the store is asked")
        assert not bench.held(claim).tracker.is_over
        store.goes_on.set()
    shown = await driver.scripts.get(claim.id)
    assert shown is not None
    assert len(msgspec.json.decode(shown.output or b"")) == 50


async def test_a_run_that_is_over_keeps_no_slot_for_its_store(
    bench: Bench, driver: QueueDriver, store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time limit cannot end it any more, since nothing follows it."""
    monkeypatch.setattr("director.execution.side_work.MOST_AHEAD", 0)
    runner = ScriptedRunner(Began(), Ended(outcome=Outcome.SUCCEEDED, output=PNG))
    async with bench.running(runner, await claimed(driver), storing=storing(store, driver)) as server:
        await eventually(lambda: store.asked, "the store is asked")
        await eventually(lambda: server.busy, "its slot is free", until=(0).__eq__)
        store.goes_on.set()


async def test_claim_lost_during_uploads_writes_nothing(bench: Bench, driver: QueueDriver, store: SlowStore) -> None:
    runner = ScriptedRunner(Began(), Ended(outcome=Outcome.SUCCEEDED, output=PNG))
    claim = await claimed(driver)
    async with bench.running(runner, claim, storing=storing(store, driver)):
        await eventually(lambda: store.asked, "the store is asked")
        bench.held(claim).lose()
    assert (await driver.record(claim.id)).token == claim.token


async def test_early_closed_outbox_sends_the_start(bench: Bench, driver: QueueDriver) -> None:
    async with sink() as receiver, asyncio.timeout(LIMIT_S):
        claim = await claimed(driver, webhook=receiver.url, webhook_events="start,completed")
        await driver.begin(claim)
        stored = await driver.scripts.get(claim.id)
        assert stored is not None
        box = Outbox(claim.record, bench.post, lambda _: stored)
        box.tell(WebhookEvent.START, started_ms=1)
        await box.close()
        assert len(receiver.received) == 1


@pytest.mark.parametrize(("name", "bound"), [("MOST_TELLING", 0), ("TELL_S", 0.05)])
async def test_end_beyond_the_bounds_is_left_to_the_courier(
    bench: Bench, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch, name: str, bound: float
) -> None:
    monkeypatch.setattr(f"director.execution.executor.{name}", bound)
    async with sink() as receiver:
        receiver.answer = Answer(delay_s=LIMIT_S)
        claim = await claimed(driver, webhook=receiver.url, webhook_events="completed")
        await bench.execute(ScriptedRunner(Began(), Ended(outcome=Outcome.SUCCEEDED)), claim)
    assert (await driver.record(claim.id)).status == "succeeded"
    assert await left_to_the_courier(driver, claim)


async def test_hanging_receivers_of_an_account_leave_deliveries_to_others(
    bench: Bench, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.execution.executor.MOST_TELLING", 4)
    runner = ScriptedRunner(Began(), Ended(outcome=Outcome.SUCCEEDED))
    server = Server(runner, 4, busy=4, health=Health(status=HealthStatus.READY))
    executor = bench.executor(Servers([server]))
    await Accounts(driver.redis).create_token("bee")
    async with sink() as hanging, sink() as receiver, asyncio.timeout(LIMIT_S):
        hanging.answer = Answer(delay_s=LIMIT_S)
        claims = [await claimed(driver, webhook=hanging.url, webhook_events="completed") for _ in range(3)]
        others = [asyncio.create_task(executor.execute(claim, Permit(server, server.since))) for claim in claims]
        await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)  # it may have half of them
        await eventually(lambda: len(hanging.received) == 2, "both deliveries hang")
        claim = await claimed(driver, account="bee", webhook=receiver.url, webhook_events="completed")
        await executor.execute(claim, Permit(server, server.since))
        assert len(receiver.received) == 1
        for other in others:
            other.cancel()
        await asyncio.wait(others)


async def test_run_left_on_its_server_is_released_with_its_name_there(
    bench: Bench, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, left = driver.scripts.advance, [None] * 3

    async def fail(*args: Any, **options: Any) -> Advanced:
        if left:
            left.pop()
            raise BackendUnavailable("it is away")
        return await advance(*args, **options)

    monkeypatch.setattr(driver.scripts, "advance", fail)
    runner = ScriptedRunner(Accepted("a:1"))
    runner.capabilities = Capabilities(resumes=True)
    claim = await claimed(driver)
    async with bench.running(runner, claim, dice=lambda: -0.5):  # it does not wait before it tries again
        await runner.started.wait()
        await eventually(lambda: bench.held(claim).tracker.is_accepted, "its server has it")
        bench.held(claim).stop(Stop.DRAIN)
    record = await driver.record(claim.id)
    assert (record.token, record.remote) == ("", "a:1")


@pytest.mark.parametrize(("cut", "began"), [(Cut.LEFT, False), (Cut.STUCK, True), (None, True)])
def test_run_left_to_the_next_director_is_no_second_run(cut: Cut | None, began: bool) -> None:
    tracker = SimpleNamespace(is_accepted=True, began_at=1.0)
    active = SimpleNamespace(cut=cut, tracker=tracker)
    assert _may_have_begun(active, DRAINED) is began
