import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

import director.execution.active_claims
from director.broker.replies import Advanced
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.schema import Claim, NewEvent
from director.core.states import Status, WebhookEvent
from director.execution.active_claims import GATHER_MOST_S, GATHER_S, LOOK_S, ActiveClaim, Pace, Progress
from director.execution.tracker import Limits, Stop, Tracker
from director.servers.runners.runner import Began
from tests.support.eventually import eventually, turns
from tests.support.queue_driver import QueueDriver
from tests.support.scripted_runner import ScriptedRunner

Finished = Callable[..., Awaitable[None]]
STARTED: NewEvent = ("started", b"")


class Wire(Scripts):
    """The scripts, with what a test does around each `advance`."""

    def __init__(self, scripts: Scripts) -> None:
        self._call = scripts._call
        self.sent: list[list[NewEvent]] = []
        self.after: list[Callable[[], Awaitable[None]]] = []

    async def advance(self, *args: Any, **options: Any) -> Advanced:
        self.sent.append(list(options["events"]))
        advanced = await super().advance(*args, **options)
        if self.after:
            await self.after.pop(0)()
        return advanced


async def lose_the_answer() -> None:
    raise BackendUnavailable("the answer was lost")


async def fail() -> None:
    raise RuntimeError("a fault of ours")


@pytest.fixture
async def claim(driver: QueueDriver) -> Claim:
    await driver.submit()
    return await driver.claim_one(lease_s=3600)


@pytest.fixture
def wire(scripts: Scripts) -> Wire:
    return Wire(scripts)


@pytest.fixture
async def held(claim: Claim) -> ActiveClaim:
    tracker = Tracker(claim.record, Limits())
    tracker.apply(Began(), 0.0)
    return ActiveClaim(claim, tracker, ScriptedRunner(), SystemClock())


@pytest.fixture
async def progress(held: ActiveClaim, wire: Wire) -> AsyncGenerator[Progress]:
    progress = Progress(held, wire, None)
    yield progress
    progress.drop()
    held.lose()
    await held.follow(turns())  # ends what still asks the run to stop


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(director.execution.active_claims, "GATHER_S", 60.0)


def output(number: int) -> NewEvent:
    return ("output", b"%d" % number)


def log(number: int) -> NewEvent:
    return ("logs", b'"%d"' % number)


@pytest.fixture
def finished(driver: QueueDriver, claim: Claim, progress: Progress) -> Finished:
    """Return a function that writes the end, and compares the kinds of all events between creation and end."""

    async def finish(*kinds: str) -> None:
        left = await progress.close()
        assert await driver.finish(claim, Status.SUCCEEDED, seq=progress.seq, events=left, ran_ms=1)
        assert await driver.kinds(claim.id) == ["created", "started", *kinds, "completed"]

    return finish


async def test_simultaneous_events_are_one_write(
    claim: Claim, progress: Progress, wire: Wire, finished: Finished
) -> None:
    for event in (STARTED, output(0), output(1)):
        progress.add((event,))
    await eventually(lambda: progress.seq, "it is written", until=lambda seq: seq == claim.record.seq + 3)
    assert wire.sent == [[STARTED, output(0), output(1)]]
    await finished("output", "output")


@pytest.mark.usefixtures("by_hand")
async def test_output_after_a_quiet_while_is_written_without_waiting_for_more(
    claim: Claim, progress: Progress, wire: Wire, finished: Finished
) -> None:
    progress.add((STARTED,))
    await turns(10)
    assert wire.sent == []
    progress.add((output(0),))
    await eventually(lambda: progress.seq, "it is written", until=lambda seq: seq == claim.record.seq + 2)
    assert wire.sent == [[STARTED, output(0)]]
    progress.add((output(1),))
    await turns(10)
    assert len(wire.sent) == 1, "what follows at once is gathered"
    await finished("output", "output")


@pytest.mark.usefixtures("by_hand")
async def test_a_write_whose_answer_was_lost_is_not_written_twice(
    progress: Progress, wire: Wire, finished: Finished
) -> None:
    wire.after.append(lose_the_answer)
    progress.add((STARTED, log(0)))
    with pytest.raises(BackendUnavailable):
        await progress.run_once()
    progress.add((log(1),))
    assert await progress.run_once() == "held"
    assert wire.sent == [[STARTED, log(0)], [STARTED, log(0), log(1)]]
    await finished("logs", "logs")


async def test_closing_waits_for_a_write(claim: Claim, progress: Progress, wire: Wire) -> None:
    written, answered = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        written.set()
        await answered.wait()

    wire.after.append(hold)
    progress.add((STARTED,))
    await asyncio.wait_for(written.wait(), 5)
    progress.add((log(0),))
    closing = asyncio.create_task(progress.close())
    await turns()
    assert not closing.done()
    answered.set()
    assert await closing == (log(0),)
    assert progress.seq == claim.record.seq + 1
    assert len(wire.sent) == 1


async def test_short_run_has_no_extra_write(progress: Progress, wire: Wire, finished: Finished) -> None:
    progress.add((STARTED, output(0)))
    await finished("output")
    assert wire.sent == []


async def test_own_fault_in_a_write_leaves_all_to_the_last_write(
    progress: Progress, wire: Wire, caplog: Any, finished: Finished
) -> None:
    wire.after.append(fail)
    progress.add((STARTED, log(0)))
    await eventually(lambda: "writing progress failed" in caplog.messages, "it is logged")
    progress.add((log(1),))
    await finished("logs", "logs")


@pytest.mark.usefixtures("by_hand")
async def test_answer_canceled_stops_the_run(
    driver: QueueDriver, claim: Claim, held: ActiveClaim, progress: Progress
) -> None:
    await driver.cancel(claim.id)
    progress.add((STARTED,))
    assert await progress.run_once() == "user"
    assert held.tracker.stopped is Stop.USER


@pytest.mark.usefixtures("by_hand")
async def test_lost_claim_writes_nothing(
    driver: QueueDriver, claim: Claim, held: ActiveClaim, progress: Progress
) -> None:
    await driver.release(claim)
    progress.add((STARTED, log(0)))
    assert await progress.run_once() == "lost"
    assert held.is_lost
    assert await driver.kinds(claim.id) == ["created", "released"]


@pytest.mark.parametrize(
    ("busy", "gather_s"),
    [(0.0, GATHER_S), (0.5, GATHER_S), (0.75, (GATHER_S + GATHER_MOST_S) / 2), (1.0, GATHER_MOST_S)],
)
def test_events_are_gathered_longer_only_by_a_process_that_lacks_time(busy: float, gather_s: float) -> None:
    now = 0.0
    pace = Pace(lambda: now, lambda: now * busy)
    assert pace.gather_s() == GATHER_S
    now += LOOK_S
    assert pace.gather_s() == pytest.approx(gather_s)


def test_process_with_time_again_gathers_as_little_as_before() -> None:
    now = wanted = 0.0
    pace = Pace(lambda: now, lambda: wanted)
    now, wanted = LOOK_S, LOOK_S
    assert pace.gather_s() == pytest.approx(GATHER_MOST_S)
    now += LOOK_S / 2
    assert pace.gather_s() == pytest.approx(GATHER_MOST_S), "too early for another look"
    now += LOOK_S / 2
    assert pace.gather_s() == GATHER_S


class Busy(Pace):
    def gather_s(self) -> float:
        return 60.0


async def test_busy_process_writes_the_first_output_at_once(claim: Claim, held: ActiveClaim, wire: Wire) -> None:
    progress = Progress(held, wire, None, Busy())
    progress.add((STARTED,))
    progress.add((output(0),))
    await eventually(lambda: progress.seq, "it is written", until=lambda seq: seq == claim.record.seq + 2)
    progress.add((output(1),))
    await turns(10)
    assert wire.sent == [[STARTED, output(0)]]
    assert await progress.close() == (output(1),)


class Ear:
    def __init__(self) -> None:
        self.heard: list[WebhookEvent] = []

    def tell(self, event: WebhookEvent, *, started_ms: int | None) -> None:
        self.heard.append(event)


async def test_webhook_events_do_not_accumulate(held: ActiveClaim, wire: Wire) -> None:
    ear: Any = Ear()
    progress = Progress(held, wire, ear)
    for _ in range(1000):
        progress.tell(WebhookEvent.LOGS)
    await progress.close()
    assert ear.heard == [WebhookEvent.LOGS]
