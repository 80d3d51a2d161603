import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec import Raw
from msgspec.structs import replace
from redis import exceptions

from director.broker.replies import Ceased, Claims
from director.core.errors import BackendUnavailable, UnknownQueue
from director.core.ids import QueueName
from director.core.schema import Claim
from director.execution.consumer import ClaimPlanner, Consumer, Next
from director.servers.runners.runner import Health, HealthStatus
from director.servers.servers import Permit, Server, Servers
from tests.support.clock import FakeClock
from tests.support.eventually import eventually, turns
from tests.support.scripted_runner import ScriptedRunner
from tests.unit.execution.test_tracker import RECORD

QUEUE = QueueName("acme/echo:a1a1a1a1a1a1")
OLD = QueueName("acme/echo:b2b2b2b2b2b2")


class Counter:
    """A queue, its bell and an executor. Each claim takes one of `answers`: a count, or why it brings nothing.

    `heard` counts the waits at the bell. `depth` has the length of each queue, and replaces `answers`.
    """

    def __init__(
        self,
        slots: int = 1,
        *,
        planner: ClaimPlanner | None = None,
        gather_s: float = 0,
        also: Sequence[QueueName] = (),
        carries: bool = False,
        answers: Sequence[int | Ceased | Exception | asyncio.Event] = (),
        depth: dict[QueueName, int] | None = None,
        cost: float = 1,
        away: Sequence[Exception] = (),
        run_s: float = math.inf,
        places: int = 0,
    ) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []
        self.depth = depth or {}
        self.queues: list[QueueName] = []
        self.bounds: list[tuple[float | None, bool]] = []
        self.cost = cost
        self.heard = 0
        self.carries = carries
        self.carried: list[object] = []
        self.released: list[Claim | str] = []
        self.executed: list[Claim] = []
        self.claimed = 0
        self.registered = self.closed = 0
        self.away = list(away)
        self.bell = asyncio.Event()
        self.run_ends = asyncio.Event()
        self.clock = FakeClock()
        ready = Health(status=HealthStatus.READY)
        self.servers = Servers([Server(ScriptedRunner(), slots, health=ready, places=places, run_s=run_s)])
        parts: Any = {"scripts": self, "executor": self, "wakeup": self}
        self.consumer = Consumer(
            queues=(QUEUE, *also),
            name="d1",
            servers=self.servers,
            clock=self.clock,
            lease_s=15,
            register=self.register,
            planner=planner or ClaimPlanner(),
            gather_s=gather_s,
            **parts,
        )

    async def claim(
        self,
        queue: QueueName,
        *,
        consumer: str,
        nonce: str,
        count: int,
        lease_s: float,
        budget: float | None,
        alone: bool,
        warm: str,
        send: Callable[[bytes], Awaitable[Any]] | None,
    ) -> Claims:
        if send is not None:
            await send(nonce.encode())
        self.asked.append((nonce, count))
        self.bounds.append((budget, alone))
        self.queues.append(queue)
        answer = self.answers.pop(0) if self.answers else 0
        if self.depth:
            answer = min(count, self.depth[queue])
            self.depth[queue] -= answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = 1
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return Claims(why=answer)
        self.claimed += answer
        record = replace(RECORD, cost=self.cost, queue=queue)
        claims = [Claim(replace(record, token=f"{nonce}-{number}"), Raw(b"{}")) for number in range(answer)]
        return Claims(claims, why="count" if answer == count else "empty" if budget is None else "budget")

    async def claims(self) -> int:
        """Return how many claims one step of the consumer brings."""
        before = self.claimed
        await self.consumer.run_once()
        return self.claimed - before

    async def execute(self, claim: Claim, permit: Permit) -> None:
        self.executed.append(claim)
        await self.run_ends.wait()
        self.servers.permits.release(permit)

    async def wait(self) -> bool:
        self.heard += 1
        return await self.bell.wait()

    async def carry(self, call: bytes) -> None:
        self.heard += 1
        self.carried.append(call)
        await self.bell.wait()
        self.bell.clear()
        if self.away:
            raise self.away.pop(0)

    async def close(self) -> None:
        self.closed += 1

    async def release(self, prediction_id: str, *, token: str, spent: bool, code: str) -> None:
        assert (spent, code) == (False, "claimed_ahead")
        self.released.append(token)

    async def register(self) -> None:
        self.registered += 1
        if self.away:
            raise self.away.pop(0)

    @asynccontextmanager
    async def consuming(self) -> AsyncGenerator[asyncio.Task[None]]:
        consuming = asyncio.create_task(self.consumer.run())
        yield consuming
        self.consumer.stop()
        self.run_ends.set()
        await asyncio.wait_for(consuming, 5)

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator["Counter"]:
        """Consume, from the first wait at the bell on."""
        async with self.consuming():
            await eventually(lambda: self.heard, "it waits at the bell", until=(1).__eq__)
            yield self

    async def all_released(self) -> None:
        self.run_ends.set()
        await eventually(lambda: self.servers.permits.busy, "permits are released", until=(0).__eq__)


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep periodic looks out of the test."""
    monkeypatch.setattr("director.broker.news.LEAST_S", 3600)
    monkeypatch.setattr("director.broker.news.LONGEST_S", 3600)


async def test_claim_asks_for_all_permits_and_releases_the_unused() -> None:
    counter = Counter(slots=3, answers=[2])
    assert await counter.claims() == 2
    assert [count for _, count in counter.asked] == [3]
    await eventually(lambda: len(counter.executed), "both run", until=(2).__eq__)
    assert counter.servers.permits.busy == 2
    await counter.all_released()


@pytest.mark.parametrize(
    ("answers", "options", "follows"),
    [
        ([2], {}, Next.CLAIM_AHEAD),
        ([1], {}, Next.AWAIT_WAKEUP),
        (["count"], {}, Next.AWAIT_WAKEUP),
        (["paused"], {"carries": True}, Next.AWAIT_WAKEUP),
        ([0], {"carries": True}, Next.CLAIM_BEHIND_WAKEUP),
        (["budget"], {"planner": ClaimPlanner(batch_cost=4)}, Next.AWAIT_ROOM),
        ([1], {"planner": ClaimPlanner(batch_cost=4)}, Next.CLAIM),
    ],
)
async def test_claim_says_what_to_do_next(answers: list[Any], options: dict[str, Any], follows: Next) -> None:
    counter = Counter(slots=2, answers=answers, **options)
    assert await counter.consumer.run_once() is follows
    await counter.all_released()
    await counter.consumer.abandon()


async def test_short_run_is_claimed_ahead_when_more_waits() -> None:
    counter = Counter(slots=2, run_s=0.1, answers=[2, 1])
    consuming = asyncio.create_task(counter.consumer.run())
    await eventually(lambda: len(counter.executed), "two run and one waits", until=(3).__eq__)
    assert [count for _, count in counter.asked] == [2, 1]
    assert counter.servers.permits.busy == 2
    counter.consumer.stop()
    await asyncio.wait_for(consuming, 5)
    finishing = asyncio.create_task(counter.consumer.wait_until_finished())
    await anyio.wait_all_tasks_blocked()
    assert not finishing.done(), "three still run"
    await counter.all_released()
    await asyncio.wait_for(finishing, 5)


async def test_consumer_that_has_stopped_keeps_no_connection() -> None:
    counter = Counter()
    async with counter.waiting():
        assert counter.closed == 0
    assert counter.closed == 1


@pytest.mark.parametrize("answers", [[1], [2, 0]], ids=["not all that was asked for", "nothing ahead"])
async def test_empty_queue_gets_no_claim_ahead(answers: list[int | Ceased | Exception | asyncio.Event]) -> None:
    counter = Counter(slots=2, run_s=0.1)
    asked = len(answers)
    counter.answers = answers
    if asked == 1:  # and then another one rings, which takes the last slot
        counter.answers.append(1)
        counter.bell.set()
    async with counter.consuming():
        await eventually(lambda: len(counter.executed), "both run", until=(2).__eq__)
        await eventually(lambda: len(counter.answers), "all was asked", until=(0).__eq__)
        await anyio.wait_all_tasks_blocked()
        assert counter.heard == (asked == 1), "only while a slot was free"


async def test_where_costs_are_bounded_nothing_is_claimed_ahead() -> None:
    counter = Counter(slots=1, planner=ClaimPlanner(batch_cost=5), run_s=0.1, answers=[1, 1])
    async with counter.consuming():
        await eventually(lambda: counter.executed, "it runs")
        await anyio.wait_all_tasks_blocked()
        assert len(counter.asked) == 1


async def test_new_prediction_in_an_empty_queue_waits_for_company() -> None:
    async with Counter(slots=4, gather_s=0.002, places=8, answers=[1, 2]).waiting() as counter:
        assert len(counter.asked) == 1, "none waited before"
        counter.bell.set()
        await turns(10)
        assert len(counter.asked) == 1
        counter.clock.pass_time(0.002)
        await eventually(lambda: len(counter.executed), "they run", until=(3).__eq__)


async def test_unknown_queue_is_registered_again_despite_an_outage() -> None:
    counter = Counter()
    counter.bell.set()
    counter.away = [BackendUnavailable("away")]
    counter.answers = [UnknownQueue(QUEUE), UnknownQueue(QUEUE), 1]
    async with counter.consuming():
        await eventually(lambda: counter.registered, "it tried", until=(1).__eq__)
        assert counter.servers.permits.busy == 0
        counter.clock.pass_time(1)
        await eventually(lambda: counter.executed, "it runs")
        assert counter.registered == 2


async def test_broken_claim_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    counter = Counter(answers=[ValueError("an unexpected answer"), 1])
    async with counter.consuming():
        await eventually(lambda: caplog.records, "it is logged")
        assert "an unexpected answer" in caplog.text
        assert counter.servers.permits.busy == 0
        counter.clock.pass_time(1)
        await eventually(lambda: counter.executed, "it runs")


@pytest.mark.parametrize(("mine", "other", "ran"), [(4, 1, {QUEUE, OLD}), (9, 0, {QUEUE}), (0, 9, {OLD})])
async def test_queue_that_has_more_gets_all_slots_before_a_wait(mine: int, other: int, ran: set[QueueName]) -> None:
    counter = Counter(slots=4, also=[OLD], depth={QUEUE: mine, OLD: other})
    async with counter.consuming():
        await eventually(lambda: len(counter.executed), "all slots are used", until=(4).__eq__)
        assert {claim.record.queue for claim in counter.executed} == ran
        assert counter.heard == 0


@pytest.mark.parametrize("why", ["empty", "paused", "open"])
async def test_queue_without_claims_is_asked_again_at_a_wakeup(why: Ceased) -> None:
    async with Counter(answers=[why]).waiting() as counter:
        assert len(counter.asked) == 1
        counter.answers = [1]
        counter.bell.set()
        await eventually(lambda: counter.executed, "it asks again")


@pytest.mark.usefixtures("no_poll")
async def test_prediction_over_the_budget_is_claimed_when_a_run_ends() -> None:
    counter = Counter(slots=2, planner=ClaimPlanner(batch_cost=4), cost=3, answers=[1, "budget", 1])
    async with counter.consuming():
        await eventually(lambda: len(counter.asked), "it asked for another beside it", until=(2).__eq__)
        assert counter.bounds == [(4, True), (1, False)]
        await turns(10)
        assert len(counter.asked) == 2
        counter.run_ends.set()
        await eventually(lambda: len(counter.executed), "the next one runs", until=(2).__eq__)
        assert counter.bounds[2] == (4, True)
        assert counter.heard <= 1  # once all has been handed out


@pytest.mark.usefixtures("no_poll")
async def test_run_that_ends_during_the_claim_is_not_awaited() -> None:
    counter = Counter(slots=2, planner=ClaimPlanner(batch_cost=4), cost=3)
    asked = counter.claim

    async def claim(*args: Any, **options: Any) -> Claims:
        claims = await asked(*args, **options)
        if not claims and claims.why == "budget":
            counter.run_ends.set()
            await eventually(lambda: counter.servers.permits.busy, "its permit is left", until=(1).__eq__)
        return claims

    counter.claim = claim  # type: ignore[method-assign]
    counter.answers = [1, "budget", 1]
    async with counter.consuming():
        await eventually(lambda: len(counter.executed), "the next one runs", until=(2).__eq__)
        assert counter.heard <= 1


@pytest.mark.parametrize("answers", [[], [BackendUnavailable("away")], ["budget"], [ValueError("unexpected")]])
async def test_stopped_while_it_waits_it_ends_at_once(answers: list[Any]) -> None:
    counter = Counter(answers=answers)
    consuming = asyncio.create_task(counter.consumer.run())
    await eventually(lambda: counter.asked, "it asked")
    counter.consumer.stop()
    await asyncio.wait_for(consuming, 5)
    await asyncio.wait_for(counter.consumer.wait_until_finished(), 5)
    assert counter.servers.permits.busy == 0


async def test_canceled_consumer_raises_the_cancellation() -> None:
    counter = Counter()
    consuming = asyncio.create_task(counter.consumer.run())
    await eventually(lambda: counter.asked, "it asked")
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming


async def test_abandoned_runs_have_ended() -> None:
    counter, before = Counter(answers=[1]), asyncio.all_tasks()
    await counter.consumer.run_once()
    await eventually(lambda: counter.executed, "it runs")
    for _ in range(2):  # safe to repeat
        await asyncio.wait_for(counter.consumer.abandon(), 5)
        assert asyncio.all_tasks() == before


async def test_free_permits_are_shared_between_the_queues() -> None:
    counter = Counter(slots=4, also=[OLD], depth={QUEUE: 9, OLD: 9})
    assert await counter.claims() == 4
    assert counter.depth == {QUEUE: 7, OLD: 7}
    await eventually(lambda: len(counter.executed), "they run", until=(4).__eq__)
    counter.run_ends.set()
    counter.servers.resize(counter.servers.all[0], 1)
    await eventually(lambda: counter.servers.permits.busy, "permits are left", until=(0).__eq__)
    for _ in range(6):
        assert await counter.claims() == 1
        await eventually(lambda: counter.servers.permits.busy, "its permit is left", until=(0).__eq__)
    ran = [claim.record.queue for claim in counter.executed[4:]]
    assert ran in ([QUEUE, OLD] * 3, [OLD, QUEUE] * 3)


async def test_a_batch_that_one_claim_fills_is_of_one_queue() -> None:
    counter = Counter(slots=2, also=[OLD], places=4, depth={QUEUE: 2, OLD: 2})
    batches = []
    for _ in range(2):
        assert await counter.claims() == 2
        batches.append(counter.queues[-1])
    assert sorted(batches) == [QUEUE, OLD]
    await eventually(lambda: len(counter.executed), "they run", until=(4).__eq__)
    await counter.all_released()


async def test_another_queue_that_is_gone_is_told_once_and_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    counter = Counter(also=[OLD])
    for _ in range(2):
        counter.queues.clear()
        counter.answers = [0, UnknownQueue(OLD)] if counter.heard % 2 else [UnknownQueue(OLD), 0]
        assert await counter.claims() == 0
        assert set(counter.queues) == {QUEUE, OLD}
        counter.heard += 1
    assert [record.message for record in caplog.records] == ["a queue that is to be read too is not known"]
    assert (counter.registered, counter.servers.permits.busy) == (0, 0)


async def test_batches_of_both_queues_together_cost_no_more_than_one_may() -> None:
    counter = Counter(slots=4, planner=ClaimPlanner(batch_cost=4), also=[OLD], cost=3, answers=[1, "budget"])
    assert await counter.claims() == 1
    assert counter.bounds == [(4, True), (1, False)]
    await eventually(lambda: counter.executed, "it runs")
    await counter.all_released()


async def test_claim_behind_a_wakeup_holds_no_permit() -> None:
    async with Counter(slots=2, carries=True).waiting() as counter:
        assert counter.servers.permits.busy == 0
        counter.answers = [1]
        counter.bell.set()
        await eventually(lambda: counter.executed, "it runs")
        await eventually(lambda: counter.heard, "it waits again, and asked nothing meanwhile", until=(2).__eq__)
        assert [count for _, count in counter.asked] == [2, 2]


async def test_lost_claim_behind_a_wakeup_is_repeated_with_its_nonce() -> None:
    async with Counter(slots=2, carries=True).waiting() as counter:
        counter.answers, counter.away = [1], [exceptions.ConnectionError("lost")]
        counter.bell.set()
        await eventually(lambda: counter.executed, "it runs")
        assert counter.asked[1][0].encode() == counter.carried[0]


async def test_failed_wait_is_not_repeated_at_once() -> None:
    async with Counter(slots=2, carries=True).waiting() as counter:
        counter.away = [exceptions.ConnectionError("no more clients") for _ in range(3)]
        counter.bell.set()
        for heard in (1, 2, 3):
            await anyio.wait_all_tasks_blocked()
            assert counter.heard == heard
            counter.bell.set()
            counter.clock.pass_time(1)


async def test_stopped_consumer_asks_for_nothing_more_than_its_waiting_claim() -> None:
    counter = Counter(slots=2, carries=True)
    consuming = asyncio.create_task(counter.consumer.run())
    await eventually(lambda: counter.heard, "it waits", until=(1).__eq__)
    counter.consumer.stop()
    await asyncio.wait_for(consuming, 5)
    assert (counter.asked[-1][0].encode(), counter.asked[-1][1]) == (counter.carried[0], 0)


async def test_claims_without_a_ready_server_are_released_unspent() -> None:
    async with Counter(slots=2, carries=True).waiting() as counter:
        counter.servers.saw(counter.servers.all[0], Health(status=HealthStatus.UNREACHABLE))
        counter.answers = [2]
        counter.bell.set()
        await eventually(lambda: len(counter.released), "both are given back", until=(2).__eq__)
        assert counter.executed == []


@pytest.mark.parametrize("why", ["a lost claim fails it", "bounded", "batches"])
async def test_no_claim_waits_behind_a_wakeup_where_it_does_harm(why: str) -> None:
    counter = Counter(slots=2, carries=True, planner=ClaimPlanner(batch_size=2) if why == "bounded" else None)
    counter.servers.permits.may_wait = why != "a lost claim fails it"
    counter.servers.all[0].places = 8 if why == "batches" else 0
    async with counter.consuming():
        await eventually(lambda: counter.heard, "it waits", until=(1).__eq__)
        assert counter.carried == []
