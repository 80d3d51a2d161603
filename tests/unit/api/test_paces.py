"""Test that the day of a queue is read once in a while, and that calls beside each other lose none."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from api.services import paces
from api.services.paces import HOLDS_S, Paces
from director.core.ids import QueueName
from director.core.trends import Point, Range
from director.store.trends import Trend, Trends
from tests.support.clock import FakeClock
from tests.support.eventually import turns

ONE, TWO, THREE = QueueName("a/one:1"), QueueName("a/two:1"), QueueName("a/three:1")


class PlayedTrends:
    """Notes what is read of which queues; the answer comes once `may_answer` is set."""

    def __init__(self) -> None:
        self.read: list[list[QueueName]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def many(self, queues: Sequence[QueueName], over: Range, *, now_s: float) -> dict[QueueName, Trend]:
        self.read.append(list(queues))
        await self.may_answer.wait()
        return {queue: Trend([], Point(at_s=0, succeeded=len(self.read))) for queue in queues}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def trends() -> PlayedTrends:
    return PlayedTrends()


@pytest.fixture
def known(trends: PlayedTrends, clock: FakeClock) -> Paces:
    return Paces(cast(Trends, trends), clock)


async def test_history_is_read_again_after_half_a_minute(known: Paces, trends: PlayedTrends, clock: FakeClock) -> None:
    for seconds, reads in ((0.0, [[ONE]]), (HOLDS_S - 1, [[ONE]]), (1.0, [[ONE], [ONE]])):
        clock.pass_time(seconds)
        assert (await known.of([ONE]))[ONE].succeeded == len(reads)
        assert trends.read == reads
    assert set(await known.of([ONE, TWO])) == {ONE, TWO}
    assert trends.read[2:] == [[TWO]]


async def test_queue_that_another_call_forgets_meanwhile_is_still_answered(
    known: Paces, trends: PlayedTrends, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paces, "MOST", 0)
    await known.of([ONE])
    clock.pass_time(HOLDS_S - 1)
    trends.may_answer.clear()
    slow = asyncio.create_task(known.of([ONE, TWO]))
    await turns()
    clock.pass_time(1)
    beside = asyncio.create_task(known.of([THREE]))
    await turns()
    trends.may_answer.set()
    assert set(await slow) == {ONE, TWO}
    assert set(await beside) == {THREE}
