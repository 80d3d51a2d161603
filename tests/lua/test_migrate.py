"""migrate moves waiting predictions with all their data, in order. Claimed ones stay, and none is lost."""

from collections import Counter

import pytest

from director.broker import keys
from director.broker.replies import Migrated
from director.core.errors import UnknownQueue
from director.core.ids import LANES, QueueName, queue_name
from director.core.policy import Policy
from director.core.states import TERMINAL
from director.store.queues import Migration, Moved
from tests.lua.walk import Walk
from tests.properties.books import Books, read_books
from tests.support.keyspace import unchanged
from tests.support.queue_driver import MODEL, QueueDriver

NEWER = "b2" * 32


@pytest.fixture
async def newer(driver: QueueDriver) -> QueueDriver:
    """Return a driver of the queue of the next version."""
    queue = queue_name(MODEL, NEWER)
    await driver.scripts.register(queue, version=NEWER, policy=Policy(streams=4, size=1))
    other = QueueDriver(driver.redis, driver.scripts, queue)
    other._nonces = driver._nonces
    return other


async def migrate(
    one: QueueDriver, to: QueueDriver, *, start: int = 0, count: int = 99, only_asks: bool = False
) -> Migrated:
    moved = await one.scripts.migrate(
        one.queue, to=to.queue, start=start, count=count, only_asks=only_asks, now_ms=one.now_ms
    )
    assert moved is not None
    return moved


async def test_every_waiting_prediction_moves_to_the_other_queue(driver: QueueDriver, newer: QueueDriver) -> None:
    delayed = await driver.submit()
    await driver.release(await driver.claim_one(), spent=True, delay_s=5)
    ids = [await driver.submit(lifetime_ms=60_000, data=b"[%d]" % number) for number in range(3)]
    assert await migrate(driver, newer) == Migrated(next=-1, moved=4, claimed=0, held=0)
    assert await driver.claim_all() == []
    claims = await newer.claim_all()
    assert [claim.id for claim in claims] == ids
    assert [bytes(claim.input) for claim in claims] == [b"[0]", b"[1]", b"[2]"]
    assert {(claim.record.queue, claim.record.version) for claim in claims} == {(newer.queue, NEWER)}
    newer.pass_time(6)
    assert await newer.promote() == 1
    again = await newer.claim_one()
    assert (again.id, again.record.attempt) == (delayed, 2)
    assert set(await newer.members(keys.deadline(newer.queue))) == set(ids)


async def test_planned_prediction_keeps_its_time_in_the_other_queue(driver: QueueDriver, newer: QueueDriver) -> None:
    planned = await driver.submit(start_after=driver.now_ms + 60_000)
    assert await migrate(driver, newer) == Migrated(next=-1, moved=1, claimed=0, held=0)
    newer.pass_time(59)
    assert await newer.promote() == 0
    newer.pass_time(1)
    assert await newer.promote() == 1
    assert (await newer.claim_one()).id == planned


async def test_claimed_and_paused_predictions_stay_in_their_queue(driver: QueueDriver, newer: QueueDriver) -> None:
    claim = await driver.claimed()
    paused = await driver.submit(account="paused")
    await driver.pause(account="paused")
    waiting = await driver.submit()
    assert await migrate(driver, newer) == Migrated(next=-1, moved=1, claimed=1, held=1)
    assert await driver.extend(claim) == ["held"]
    assert await driver.finish(claim)
    assert [claim.id for claim in await newer.claim_all()] == [waiting]
    assert list(await driver.members(keys.live(driver.queue))) == [paused]


async def test_each_account_keeps_order_and_precedes_later_ones(driver: QueueDriver, newer: QueueDriver) -> None:
    there = [await newer.submit(account=account) for account in ("a", "b")]
    here = [await driver.submit(account=account) for account in ("a", "b", "a", "b", "a")]
    for start in (0, 0, 0):  # slices of two: the first ids of `live` are others each time
        await migrate(driver, newer, start=start, count=2)
    claims = [claim.id for claim in await newer.claim_all(at_once=1)]
    ready = claims[:1]  # it stood in a stream before anybody came
    assert ready == there[:1]
    for account, own in (("a", here[::2]), ("b", here[1::2])):
        of_it = [each for each in claims if await newer.field(each, "account") == account]
        assert [each for each in of_it if each in here] == own, account
    assert claims.index(there[1]) > max(claims.index(each) for each in here[1::2])


async def test_a_prediction_that_moved_twice_keeps_its_order(driver: QueueDriver, newer: QueueDriver) -> None:
    first = [await driver.submit() for _ in range(3)]
    await migrate(driver, newer)
    between = [await newer.submit() for _ in range(2)]
    await migrate(newer, driver)
    after = [await driver.submit()]
    assert [claim.id for claim in await driver.claim_all()] == [*first, *between, *after]


async def test_limits_move_with_their_account(driver: QueueDriver, newer: QueueDriver) -> None:
    await driver.limit("a", weight=3, most_running=1)
    ids = [await driver.submit(account="a", weight=3, most_running=1, limits_rev=0) for _ in range(3)]
    await migrate(driver, newer)
    assert await newer.counts(keys.limits(newer.queue)) == {"a": "3 1 0"}
    [claim] = await newer.claim_all()
    assert claim.id == ids[0]
    await newer.finish(claim)
    assert (await newer.claim_one()).id == ids[1]


async def test_a_dry_run_writes_nothing(driver: QueueDriver, newer: QueueDriver) -> None:
    await driver.submit_many(3)
    async with unchanged(driver.redis):
        assert await migrate(driver, newer, count=2, only_asks=True) == Migrated(next=2, moved=2, claimed=0, held=0)
        assert await migrate(driver, newer, start=2, count=2, only_asks=True) == Migrated(
            next=-1, moved=1, claimed=0, held=0
        )


async def test_a_migration_to_an_unknown_queue_moves_nothing(driver: QueueDriver) -> None:
    await driver.submit()
    async with unchanged(driver.redis):
        nowhere = QueueName(f"{MODEL}:000000000000")
        with pytest.raises(UnknownQueue):
            async for _ in Migration(driver.scripts, driver.queue, nowhere).steps():
                pass


async def test_a_whole_queue_moves_in_slices_past_those_who_stay(driver: QueueDriver, newer: QueueDriver) -> None:
    await driver.submit_many(60, account="paused")
    await driver.pause(account="paused")
    ids = [await driver.submit(account=f"t{number % 7}") for number in range(130)]
    steps = [step async for step in Migration(driver.scripts, driver.queue, newer.queue).steps()]
    assert len(steps) == 4 + 2, "once through all of it, and once more through what stays"
    assert steps[-1] == Moved(moved=130, claimed=0, held=60)
    assert {claim.id for claim in await newer.claim_all()} == set(ids)


async def test_a_migration_is_logged_once(driver: QueueDriver, newer: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await migrate(driver, newer)
    async with unchanged(driver.redis):
        assert await migrate(driver, newer) == Migrated(next=-1, moved=0, claimed=0, held=0)
    [(_, entry)] = await driver.redis.xrevrange(keys.log(keys.queue_partition(driver.queue)), count=1)
    said = [entry[name].decode() for name in (b"id", b"kind", b"queue", b"detail")]
    assert said == [prediction_id, "moved", driver.queue, newer.queue]


class Play(Walk):
    """Callers, directors and an operator that moves slices to and fro. Each step is one script."""

    async def cancel(self) -> None:
        name = self.dice.choice(self.asked) if self.asked else None
        if name is not None and name not in self.held:
            account = await self.sides[0].field(name, "account")
            if await self.sides[0].cancel(name, account=account) == "canceled":
                self.ended[name] += 1

    async def migrate(self) -> None:
        one, other = self.dice.sample(self.sides, 2)
        await migrate(one, other, start=self.dice.choice((0, 0, 2)), count=self.dice.randint(1, 5))

    async def limit(self) -> None:
        most = self.dice.choice((None, 1, 2))
        await self.dice.choice(self.sides).limit(self.dice.choice(("whale", "ant")), most_running=most)

    async def books(self) -> list[Books]:
        tenants = ("whale", "ant", "bee")
        return [await read_books(each.redis, each.queue, self.asked, tenants) for each in self.sides]

    async def look(self) -> None:
        """Check that each prediction is in one place and every counter is right."""
        both = await self.books()
        for one, other in zip(both, reversed(both), strict=True):
            records = {name: one.records[name] for name in self.asked}
            queue = self.sides[both.index(one)].queue
            mine = {name for name, record in records.items() if record["queue"] == queue}
            open_ = {name for name in mine if records[name]["status"] not in TERMINAL}
            assert one.stray == []
            assert one.indexes["live"].keys() == open_
            assert not one.indexes["live"].keys() & other.indexes["live"].keys()
            waiting = [name for name in open_ if not records[name].get("token")]
            backlogged = [name for backlog in one.backlogs.values() for name in backlog]
            for name in waiting:
                places = len(one.entries.get(name, [])) + backlogged.count(name) + (name in one.indexes["delayed"])
                assert places == 1, "it waits in one place"
            assert set(backlogged) | one.indexes["delayed"].keys() <= set(waiting)
            assert one.entries.keys() <= open_
            assert one.counts["queued"] == Counter(records[name]["account"] for name in waiting)
            assert one.counts["running"] == Counter(records[name]["account"] for name in open_ - set(waiting))
            for lane in LANES:
                ready = [name for name in one.entries if name in waiting and records[name]["lane"] == lane]
                assert one.number(f"ready:{lane}") == len(ready)
                assert one.number(f"backlogged:{lane}") == one.backlogged(lane)
                assert not one.turns[lane].keys() & one.debts[lane].keys()
                turns = {tenant for (of, tenant), backlog in one.backlogs.items() if of == lane and backlog}
                assert one.turns[lane].keys() <= turns, "a turn for nothing"

    async def end(self) -> None:
        """Lift all limits and finish everything that is left."""
        for each in self.sides:
            for tenant in ("whale", "ant"):
                await each.limit(tenant, most_running=None)
        await self.finish_all()
        assert self.ended == Counter(self.asked), "each ended once"


@pytest.mark.parametrize("seed", range(12))
async def test_events_between_slices_lose_and_double_nothing(
    driver: QueueDriver, newer: QueueDriver, seed: int
) -> None:
    play = Play(driver, newer, seed)
    await driver.have_slots(seed % 3)
    for _ in range(80):
        await play.step("migrate", "limit")
        await play.look()
    await play.end()
    await play.look()
