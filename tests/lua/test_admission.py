"""No limit of a queue admits one more than it says, at any concurrency and over any number of connections."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count, cycle, zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.errors import QueueRefused
from director.core.ids import LANES, QueueName
from director.core.policy import Policy
from director.core.schema import Claim
from tests.support.keyspace import leaks
from tests.support.kinds import Started, whole
from tests.support.queue_driver import MODEL, VERSION, QueueDriver

QUEUE = QueueName(f"{MODEL}:{VERSION[:12]}")
CONNECTIONS = 4
TENANTS = st.sampled_from(["a", "a", "b", "c"])
ASKED = st.lists(st.tuples(TENANTS, st.sampled_from(LANES)), max_size=16)
ROUNDS = st.lists(st.tuples(ASKED, st.lists(st.integers(1, 4), max_size=8), st.integers(0, 9)), min_size=1, max_size=3)
Round = tuple[list[tuple[str, str]], list[int], int]


class Crowd:
    """Many callers and directors of one queue, over several connections of their own."""

    def __init__(self, server: Started) -> None:
        self.runner = asyncio.Runner()
        self.runner.run(self._open(server))
        self._numbers = count()

    async def _open(self, server: Started) -> None:
        self.connections = [client(server.url, connections=1) for _ in range(CONNECTIONS)]
        self.scripts = [Scripts(Gatherer(redis)) for redis in self.connections]
        self.admin = whole(server.admin_url, connections=1)

    def close(self) -> None:
        async def close() -> None:
            for redis in (*self.connections, self.admin):
                await redis.aclose()

        self.runner.run(close())
        self.runner.close()

    async def empty(self) -> QueueDriver:
        await self.admin.flushall()
        await self.scripts[0].register(QUEUE, version=VERSION, policy=Policy(breaker_after=0))
        self.claims: list[Claim] = []
        self.accepted: Counter[str] = Counter()
        return QueueDriver(self.admin, self.scripts[0], QUEUE)

    async def play(self, asked: list[tuple[str, str]], counts: list[int], connections: int, **options: Any) -> None:
        """Make these submits and claims at once, in turns."""
        drivers = [QueueDriver(r, s, QUEUE) for r, s in zip(self.connections, self.scripts, strict=True)]
        over = cycle(drivers[:connections])
        submits = [self._submit(next(over), account, lane, options) for account, lane in asked]
        claims = [self._claim(next(over), many) for many in counts]
        pairs = zip_longest(submits, claims)
        await asyncio.gather(*(call for pair in pairs for call in pair if call is not None))

    async def _submit(self, driver: QueueDriver, account: str, lane: str, options: dict[str, Any]) -> None:
        try:
            await driver.submit(account=account, lane=lane, **options)
        except QueueRefused:
            return
        self.accepted[account] += 1

    async def _claim(self, driver: QueueDriver, many: int) -> None:
        number = next(self._numbers)
        self.claims += await driver.claim(many, consumer=f"d{number % 5}", nonce=f"n{number}")

    async def end(self, driver: QueueDriver, many: int) -> None:
        """Finish, release and lose these claims in turns."""
        ended, self.claims = self.claims[:many], self.claims[many:]
        calls = (driver.finish(c) if n % 3 == 0 else driver.release(c, spent=n % 3 == 1) for n, c in enumerate(ended))
        await asyncio.gather(*calls)

    @property
    def running(self) -> Counter[str]:
        return Counter(claim.record.account for claim in self.claims)


async def queued(driver: QueueDriver) -> Counter[str]:
    return Counter({name: int(many) for name, many in (await driver.counts(keys.queued(QUEUE))).items()})


@pytest.fixture(scope="module")
def crowd(server: Started) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield stack.enter_context(closing(Crowd(server)))


async def an_account_runs_no_more(crowd: Crowd, rounds: list[Round], most: int, connections: int) -> None:
    driver = await crowd.empty()
    for asked, counts, ends in rounds:
        await crowd.play(asked, counts, connections, most_running=most)
        assert all(many <= most for many in crowd.running.values())
        assert await driver.counts(keys.running(QUEUE)) == {name: str(many) for name, many in crowd.running.items()}
        await crowd.end(driver, ends)
    crowd.claims += await driver.claim_all()
    while crowd.claims:  # as many as may run: a free permit is always given
        assert all(many <= most for many in crowd.running.values())
        assert all([await driver.finish(claim) for claim in crowd.claims])
        crowd.claims = await driver.claim_all()
    if most:
        assert (await driver.stats()).live == 0
    assert await leaks(driver.redis) == []


async def an_account_queues_no_more(crowd: Crowd, rounds: list[Round], most: int, connections: int) -> None:
    driver = await crowd.empty()
    waiting: Counter[str] = Counter()
    for asked, counts, _ in rounds:
        waiting.update(account for account, _ in asked)
        await crowd.play(asked, [], connections, most_queued=most)
        waiting = Counter({name: min(most, many) for name, many in waiting.items()})
        assert await queued(driver) == +waiting, "no more, and no fewer"
        await crowd.play(asked, counts, connections, most_queued=most)
        waiting = await queued(driver)
        assert all(many <= most for many in waiting.values())


async def a_bounded_queue_holds_no_more(crowd: Crowd, rounds: list[Round], most: int, connections: int) -> None:
    driver = await crowd.empty()
    await driver.bound("bounded", most)
    for asked, counts, _ in rounds:
        already, before = (await driver.stats()).waiting, crowd.accepted.total()
        await crowd.play(asked, [], connections)
        assert crowd.accepted.total() - before == min(len(asked), most - already)
        await crowd.play(asked, counts, connections)
        assert (await driver.stats()).waiting <= most
        for claim in crowd.claims:
            assert await driver.finish(claim)
        crowd.claims = []


async def a_rejecting_queue_holds_no_more(crowd: Crowd, rounds: list[Round], most: int, connections: int) -> None:
    driver = await crowd.empty()
    slots = most + 1
    await driver.have_slots(slots)
    await driver.bound("reject")
    for asked, counts, ends in rounds:
        already, before = (await driver.stats()).live, crowd.accepted.total()
        await crowd.play(asked, counts, connections)
        assert crowd.accepted.total() - before == min(len(asked), slots - already)
        assert (await driver.stats()).live <= slots
        await crowd.end(driver, ends)


LIMITS = (
    an_account_runs_no_more,
    an_account_queues_no_more,
    a_bounded_queue_holds_no_more,
    a_rejecting_queue_holds_no_more,
)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.__name__)
@settings(max_examples=25, deadline=None, database=None)
@given(rounds=ROUNDS, most=st.integers(0, 5), connections=st.integers(1, CONNECTIONS))
def test_no_limit_admits_one_more(crowd: Crowd, limit: Any, rounds: list[Round], most: int, connections: int) -> None:
    crowd.runner.run(limit(crowd, rounds, most, connections))
