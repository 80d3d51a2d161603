"""depart, arrive, vacate and stay move each prediction to another server once, whatever is repeated or cut off."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis import Redis

from director.broker import keys
from director.broker.replies import Arrived
from director.core.errors import IdempotencyMismatch, SettingsError, UnknownQueue
from director.core.ids import PredictionId, QueueName, queue_name
from director.core.policy import Policy
from director.core.states import TERMINAL
from director.core.view import public_input
from director.store.accounts import Accounts
from director.store.departure import Departure, Left, Site, name_site
from tests.lua.walk import Walk
from tests.support.keyspace import dump, holders, leaks, unchanged
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver, driving, enqueue
from tests.support.servers import RedisServer, redis_server

FAR = "far"
CAME_TTL_MS = 30 * 86_400_000
ACCOUNTS = (ACCOUNT, "whale", "ant", "bee")


@pytest.fixture(scope="session")
def other_server(server: RedisServer) -> Iterator[RedisServer]:
    """Start the server that predictions move to, of the same kind."""
    with redis_server(server.kind) as started:
        yield started


@pytest.fixture
async def there(other_server: RedisServer, driver: QueueDriver) -> AsyncIterator[QueueDriver]:
    """Return a driver of the queue of the same name there. All accounts are known there."""
    with Redis.from_url(other_server.url) as redis:
        redis.flushall()
    async with driving(other_server.url) as other:
        for account in ACCOUNTS:
            await Accounts(other.redis).create(account)
        other._nonces = driver._nonces
        yield other
        assert await leaks(other.redis) == []


def site(of: QueueDriver) -> Site:
    return Site(of.redis, of.scripts, Accounts(of.redis))


def departure(one: QueueDriver, other: QueueDriver) -> Departure:
    return Departure(site(one), site(other), one.queue, other.queue)


async def move(one: QueueDriver, other: QueueDriver, **options: Any) -> Left:
    return [Left(), *[done async for done in departure(one, other).steps(**options)]][-1]


async def put_back(one: QueueDriver, other: QueueDriver) -> Left:
    return [Left(), *[done async for done in departure(one, other).put_back()]][-1]


async def depart(one: QueueDriver, *ids: PredictionId, to: str = FAR, account: str = ACCOUNT) -> list[str]:
    asked = [(name, account) for name in ids]
    return list(await one.scripts.depart(one.queue, asked, site=to, now_ms=one.now_ms))


async def arrive(one: QueueDriver, other: QueueDriver, name: PredictionId, **options: Any) -> Arrived:
    """Send a prediction as a mover does, with what is stored at `one` now."""
    flat = [part for pair in (await one.redis.hgetall(keys.record(name))).items() for part in pair]
    return await other.scripts.arrive(
        name,
        other.queue,
        move=int(await one.field(name, "moves")),
        record=flat,
        input=await one.redis.get(keys.input_data(name)),
        events=await one.redis.lrange(keys.events(name), 0, -1),
        now_ms=other.now_ms,
        **options,
    )


async def cancel(of: QueueDriver, name: PredictionId) -> str:
    return await of.scripts.cancel(name, account=ACCOUNT, now_ms=of.now_ms)


async def test_every_waiting_prediction_arrives_at_the_other_server(driver: QueueDriver, there: QueueDriver) -> None:
    delayed = await driver.submit(webhook="https://a.test", webhook_events="completed")
    await driver.release(await driver.claim_one(), spent=True, delay_s=5)
    ids = [await driver.submit(lifetime_ms=60_000, data=b"[%d]" % number) for number in range(3)]
    before = [event.kind for event in (await replayed(driver, delayed)).events]
    assert await move(driver, there) == Left(moved=4)
    assert await driver.claim_all() == []
    claims = await there.claim_all()
    assert [claim.id for claim in claims] == ids
    assert [bytes(claim.input) for claim in claims] == [b"[0]", b"[1]", b"[2]"]
    assert set(await there.members(keys.deadline(there.queue))) == set(ids)
    there.pass_time(6)
    assert await there.promote() == 1
    again = await there.claim_one()
    assert (again.id, again.record.attempt, again.record.webhook) == (delayed, 2, "https://a.test")
    assert [event.kind for event in (await replayed(there, delayed)).events] == before
    assert await there.finish(again)
    assert (await replayed(there, delayed)).events[-1].seq == len(before) + 1, "its events are numbered on"
    assert await there.redis.zrange(keys.listing(ACCOUNT), 0, -1) == sorted(name.encode() for name in [delayed, *ids])


async def test_secret_input_stays_hidden_where_it_arrives(driver: QueueDriver, there: QueueDriver) -> None:
    name = await driver.submit(data=b'{"a":"hush"' + b" " * 58 + b"}", secret="5 69")
    assert await move(driver, there) == Left(moved=1)
    assert await holders(driver.redis, b"hush") == []
    claim = await there.claim_one()
    assert bytes(public_input(claim.record, claim.input)) == b'{"a":"[REDACTED]"}'
    await there.finish(claim)
    assert await holders(there.redis, b"hush") == []
    assert await there.redis.exists(keys.input_data(name))


async def replayed(of: QueueDriver, name: PredictionId) -> Any:
    found = await of.scripts.replay(name, after=0, count=99, most_bytes=9999)
    assert found is not None
    return found


async def test_only_a_tombstone_that_expires_is_left_behind(driver: QueueDriver, there: QueueDriver) -> None:
    name = await driver.submit()
    await move(driver, there)
    stored = await driver.scripts.get(name)
    assert (stored.record.moved, stored.input, stored.outlook) == (await name_site(there.redis), None, None)
    assert (await replayed(driver, name)).moved == stored.record.moved
    # it may wait and run there as long as that, and its record lives a week after its end
    assert CAME_TTL_MS - 60_000 < await driver.redis.pttl(keys.record(name)) <= CAME_TTL_MS
    assert await driver.redis.exists(keys.input_data(name), keys.events(name)) == 0
    stats = await driver.stats()
    assert (stats.live, stats.waiting, stats.leaving) == (0, 0, 0)
    assert await driver.counts(keys.queued(driver.queue)) == {}
    assert await cancel(driver, name) == "moved"
    assert await driver.cancel(name, account="other") == "unknown"
    assert not await driver.scripts.revive(name)
    assert await driver.scripts.erase(name, account=ACCOUNT) == "running"


async def test_moved_predictions_keep_order_and_precede_later_ones(driver: QueueDriver, there: QueueDriver) -> None:
    others = [await there.submit() for _ in range(2)]
    here = [await driver.submit() for _ in range(5)]
    await move(driver, there)
    first, *rest = [claim.id for claim in await there.claim_all(at_once=1)]
    assert first == others[0], "it stood in a stream before anybody came"
    assert rest == [*here, others[1]]


async def test_an_idempotency_key_is_valid_at_both_servers(driver: QueueDriver, there: QueueDriver) -> None:
    name = await driver.submit(idempotency=("key", "body"))
    await move(driver, there)
    for each in (driver, there):
        accepted = await enqueue(
            each.scripts,
            each.new_id(),
            queue=each.queue,
            account=ACCOUNT,
            model=MODEL,
            version=VERSION,
            shard=[0],
            idempotency=("key", "body"),
            now_ms=each.now_ms,
        )
        assert (accepted.id, accepted.replayed) == (name, True)
    with pytest.raises(IdempotencyMismatch):
        await there.submit(idempotency=("key", "another"))
    key = keys.idempotency(account=ACCOUNT, model=MODEL, digest="key")
    assert 0 < await there.redis.pttl(key) <= 24 * 3600 * 1000


async def test_the_accounts_limits_at_the_other_server_apply(driver: QueueDriver, there: QueueDriver) -> None:
    await Accounts(there.redis).set_limits(ACCOUNT, {"max_running": "1"})
    await driver.submit_many(3)
    await move(driver, there)
    assert len(await there.claim_all()) == 1


async def test_a_move_to_another_versions_queue_changes_the_version(driver: QueueDriver, there: QueueDriver) -> None:
    newer = queue_name(MODEL, "b2" * 32)
    await there.scripts.register(newer, version="b2" * 32, policy=Policy())
    there.queue = newer
    await driver.submit()
    await move(driver, there)
    record = (await there.claim_one()).record
    assert (record.queue, record.version) == (newer, "b2" * 32)


async def test_compute_reserved_at_the_first_server_is_given_back(driver: QueueDriver, there: QueueDriver) -> None:
    name = await driver.submit(metered=True)
    await move(driver, there)
    unspent = keys.unspent(keys.queue_partition(driver.queue))
    assert await driver.redis.zrange(unspent, 0, -1, withscores=True) == [(f"{name} {ACCOUNT}".encode(), 0.0)]
    await driver.redis.delete(unspent)  # as the cashier does


async def test_claimed_paused_and_unknown_accounts_predictions_stay(driver: QueueDriver, there: QueueDriver) -> None:
    claim = await driver.claimed()
    paused, strange = await driver.submit(account="bee"), await driver.submit(account="stranger")
    await driver.pause(account="bee")
    waits = await driver.submit()
    left = Left(moved=1, claimed=1, held=1, strange=1)
    before = await dump(driver.redis)
    assert await move(driver, there, only_asks=True) == left
    await name_site(driver.redis)
    assert {k: v for k, v in (await dump(driver.redis)).items() if k != "site"} == before
    assert await move(driver, there) == left
    assert (await there.claim_one()).id == waits
    assert await driver.extend(claim) == ["held"]
    assert await driver.finish(claim)
    assert [one.id for one in await driver.claim_all()] == [strange]
    await driver.pause(paused=False, account="bee")
    assert [one.id for one in await driver.claim_all()] == [paused]


async def test_a_whole_queue_moves_in_slices_past_those_who_stay(driver: QueueDriver, there: QueueDriver) -> None:
    await driver.submit_many(60, account="bee")
    await driver.pause(account="bee")
    ids = [await driver.submit(account=("whale", "ant")[number % 2]) for number in range(130)]
    assert await move(driver, there) == Left(moved=130, held=60)
    assert {claim.id for claim in await there.claim_all()} == set(ids)
    assert await move(driver, there) == Left(held=60)


async def test_a_move_to_the_same_server_or_no_queue_is_refused(driver: QueueDriver, there: QueueDriver) -> None:
    await driver.submit()
    with pytest.raises(SettingsError, match="same Redis server"):
        await move(driver, driver)
    there.queue = QueueName(f"{MODEL}:000000000000")
    with pytest.raises(UnknownQueue):
        await move(driver, there)
    there.queue = QueueName("acme/other:a1a1a1a1a1a1")
    with pytest.raises(SettingsError, match="are not of one model"):
        await move(driver, there)
    assert len(await driver.claim_all()) == 1


async def test_a_leaving_prediction_cannot_be_claimed_or_ended_and_appears_waiting(driver: QueueDriver) -> None:
    name = await driver.submit(lifetime_ms=1000)
    assert await depart(driver, name) == ["leaving"]
    driver.pass_time(5)
    assert await driver.claim_all() == []
    assert await driver.expire() == (0, 0)
    assert await driver.promote() == 0
    assert await driver.reconcile() == (0, {})
    assert not await driver.scripts.revive(name)
    stored = await driver.scripts.get(name)
    assert (stored.record.status, stored.record.leaving, stored.outlook) == ("starting", FAR, None)
    stats = await driver.stats()
    assert (stats.live, stats.waiting, stats.leaving) == (0, 0, 1)
    assert await driver.scripts.unregister(driver.queue) == "live"
    assert await driver.scripts.stay(name, site=FAR, now_ms=driver.now_ms) == "waiting"
    assert await driver.expire() == (1, 0), "its deadline counts again"


async def test_each_step_of_a_move_is_idempotent(driver: QueueDriver, there: QueueDriver) -> None:
    name = await driver.submit()
    for _ in range(2):
        assert await depart(driver, name) == ["leaving"]
        assert await driver.field(name, "moves") == "1"
    assert await arrive(driver, there, name) == "here"
    async with unchanged(there.redis):
        assert await arrive(driver, there, name) == "here"
    await there.redis.delete(keys.came(name))
    assert await arrive(driver, there, name) == "here", "also after the move was forgotten"
    assert await there.redis.zcard(keys.live(there.queue)) == 1
    assert len((await replayed(there, name)).events) == 1
    assert [await driver.scripts.vacate(name, site=FAR, now_ms=driver.now_ms) for _ in range(2)] == ["moved"] * 2
    assert await depart(driver, name) == ["gone"]
    assert await driver.scripts.stay(name, site=FAR) == "gone"


async def test_a_second_mover_to_another_server_changes_nothing(driver: QueueDriver) -> None:
    name = await driver.submit()
    assert await depart(driver, name) == ["leaving"]
    assert await depart(driver, name, to="third") == ["elsewhere"]
    assert await driver.scripts.vacate(name, site="third") == "stays"
    assert await driver.scripts.stay(name, site="third") == "gone"
    assert await driver.scripts.stay(name, site=FAR, now_ms=driver.now_ms) == "waiting"


async def test_a_prediction_that_ended_there_does_not_run_again(driver: QueueDriver, there: QueueDriver) -> None:
    name = await driver.submit()
    await depart(driver, name, to=await name_site(there.redis))
    await arrive(driver, there, name)
    assert await there.finish(await there.claim_one())
    assert await there.scripts.erase(name, account=ACCOUNT) == "erased"
    assert await move(driver, there) == Left(moved=1)
    assert await there.claim_all() == []
    assert await cancel(driver, name) == "moved"


async def test_a_cancel_during_the_move_is_passed_on(driver: QueueDriver, there: QueueDriver) -> None:
    arrived, departed = await driver.submit(), await driver.submit()
    await depart(driver, arrived, departed, to=await name_site(there.redis))
    await arrive(driver, there, arrived)
    claim = await there.claim_one()
    assert [await cancel(driver, name) for name in (arrived, departed)] == ["asked", "asked"]
    assert await driver.scripts.vacate(arrived, site=await name_site(there.redis)) == "cancel"
    assert await move(driver, there) == Left(moved=2)
    assert await there.extend(claim) == ["user"]
    assert await there.field(departed, "status") == "canceled"
    assert await driver.field(arrived, "moved") == await name_site(there.redis)


async def test_a_prediction_put_back_keeps_its_place(driver: QueueDriver, there: QueueDriver) -> None:
    first, late, last = await driver.submit_many(3)
    delayed = await driver.submit()
    driver.pass_time(1)
    to = await name_site(there.redis)
    await depart(driver, late, delayed, to=to)
    gone = await driver.submit()
    await depart(driver, gone, to=to)
    await arrive(driver, there, gone)
    assert await put_back(driver, there) == Left(moved=1, stayed=2)
    assert await arrive(driver, there, late) == "refused", "a mover that is late changes nothing"
    assert [claim.id for claim in await there.claim_all()] == [gone]
    assert [claim.id for claim in await driver.claim_all()] == [first, late, last, delayed]
    assert await put_back(driver, there) == Left()
    again = await driver.submit()
    await depart(driver, again, to=to)
    await put_back(driver, there)
    assert (await move(driver, there)).moved == 1, "one that was put back can move"
    assert [claim.id for claim in await there.claim_all()] == [again]


async def test_putting_back_ends_canceled_and_delays_delayed_ones(driver: QueueDriver, there: QueueDriver) -> None:
    delayed = await driver.submit()
    await driver.release(await driver.claim_one(), spent=True, delay_s=60)
    canceled = await driver.submit()
    await depart(driver, delayed, canceled, to=await name_site(there.redis))
    assert await cancel(driver, canceled) == "asked"
    assert await put_back(driver, there) == Left(stayed=2)
    assert await driver.field(canceled, "status") == "canceled"
    stats = await driver.stats()
    assert (stats.live, stats.delayed, stats.waiting) == (1, 1, 0)
    assert await driver.counts(keys.queued(driver.queue)) == {ACCOUNT: "1"}


async def test_a_late_step_changes_nothing_after_the_return(driver: QueueDriver, there: QueueDriver) -> None:
    name = await driver.submit(data=b"[1]")
    await Accounts(driver.redis).create(ACCOUNT)
    await depart(driver, name, to=await name_site(there.redis))
    stale = [part for pair in (await driver.redis.hgetall(keys.record(name))).items() for part in pair]
    await move(driver, there)
    assert await move(there, driver) == Left(moved=1)
    assert await there.scripts.arrive(name, there.queue, move=1, record=stale, input=b"[1]") == "here"
    assert await there.claim_all() == []
    claim = await driver.claim_one()
    assert (claim.id, bytes(claim.input), claim.record.moved, claim.record.moves) == (name, b"[1]", "", 2)
    assert await driver.finish(claim)
    assert (await replayed(there, name)).moved == await name_site(driver.redis)


class Cut(Exception):
    """The mover is cut off."""


class Play(Walk):
    """Callers, directors and movers at two servers. Each mover may be cut off between any two calls."""

    def __init__(self, driver: QueueDriver, there: QueueDriver, seed: int) -> None:
        super().__init__(driver, there, seed)
        self.canceled: set[PredictionId] = set()

    async def cancel(self) -> None:
        if self.asked:
            name, side = self.dice.choice(self.asked), self.dice.choice(self.sides)
            account = await side.field(name, "account")
            if account and await side.cancel(name, account=account) in ("canceled", "asked"):
                self.canceled.add(name)

    async def keep(self) -> None:
        side = self.dice.choice(self.sides)
        await side.promote()
        await side.expire()
        _, repaired = await side.reconcile()
        assert repaired == {}, "nothing was out of place"

    async def move(self) -> None:
        """Move either way or put back. The mover may be cut off after some calls."""
        one, other = self.dice.sample(self.sides, 2)
        left = self.dice.choice((1, 2, 3, 4, 6, 9, 99))

        def cuts(scripts: Any) -> Any:
            class Cutting:
                def __getattr__(self, name: str) -> Any:
                    async def call(*args: Any, **options: Any) -> Any:
                        nonlocal left
                        if left <= 0:
                            raise Cut
                        left -= 1
                        times = {} if name == "enlist" else {"now_ms": one.now_ms}
                        return await getattr(scripts, name)(*args, **options, **times)

                    return call

            return Cutting()

        sites = [Site(side.redis, cuts(side.scripts), Accounts(side.redis)) for side in (one, other)]
        moving = Departure(sites[0], sites[1], one.queue, other.queue)
        steps = moving.steps() if self.dice.random() < 0.8 else moving.put_back()
        try:
            async for _ in steps:
                pass
        except Cut:
            pass

    async def look(self) -> None:
        """Check that each prediction is in one place and every counter is right."""
        live = [set(await side.members(keys.live(side.queue))) for side in self.sides]
        assert not live[0] & live[1], "it waits at two places"
        for side, lives in zip(self.sides, live, strict=True):
            leaving = set(await side.members(keys.leaving(side.queue)))
            assert not leaving & lives
            records = {name: await side.redis.hgetall(keys.record(name)) for name in self.asked}
            mine = {name: r for name, r in records.items() if r and b"moved" not in r}
            assert {name for name, r in mine.items() if r.get(b"leaving")} == leaving
            open_ = {name for name, r in mine.items() if r[b"status"].decode() not in TERMINAL} - leaving
            assert open_ == lives
            mine_live = (r for name, r in mine.items() if name in lives)
            waiting = Counter(r[b"account"].decode() for r in mine_live if not r.get(b"token"))
            queued = await side.counts(keys.queued(side.queue))
            assert {account: int(count) for account, count in queued.items()} == waiting
            stats = await side.stats()
            assert stats.waiting + stats.delayed == waiting.total()

    async def end(self) -> None:
        """Let everything that is on its way arrive, then finish all of it."""
        one, other = self.sides
        for a, b in ((one, other), (other, one)):
            await put_back(a, b)
        await move(one, other)
        await self.finish_all()


@pytest.mark.parametrize("seed", range(20))
async def test_a_cut_off_mover_loses_and_doubles_nothing(driver: QueueDriver, there: QueueDriver, seed: int) -> None:
    play = Play(driver, there, seed)
    await driver.redis.set(keys.site(), "one")
    await driver.have_slots(seed % 3)
    for account in ACCOUNTS:
        await Accounts(driver.redis).create(account)
    for _ in range(20):
        await play.step("move", "keep")
        await play.look()
    await play.end()
    await play.look()
    for name in play.asked:
        ends = []
        for side in play.sides:
            stored = await side.scripts.get(name)
            if stored is not None and not stored.record.moved:
                ends.append(stored.record.status)
                assert (await replayed(side, name)).events[-1].kind == "completed"
        assert len(ends) == 1, "it ended at one place"
        assert ends[0] == ("succeeded" if play.ended[name] else "canceled")
        assert ends[0] == "succeeded" or name in play.canceled
        assert play.ended[name] <= 1
