"""open_batch, lease_batch and write_batch change a batch only for a writer that may."""

from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.errors import IdempotencyMismatch
from director.core.ids import FileId, new_file_id
from director.store.batches import CLOSED, LIVE, OVER, Batches, Lease
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
ID = new_file_id(NOW)
TOKEN = "t"
MEMBER = f"{ACCOUNT} {ID}".encode()


async def open_one(
    scripts: Scripts, batch_id: FileId = ID, *, at: int = NOW, account: str = ACCOUNT, **most: int
) -> str:
    bounds = {"most": 9, "most_live": 3} | most
    fields = {"status": "validating", "account": account}
    return await scripts.open_batch(account, batch_id, created_ms=at, ttl_s=3600, fields=fields, **bounds)


async def lease(scripts: Scripts, token: str, *, at: int = NOW, lease_s: float = 15) -> str:
    return await scripts.lease_batch(ACCOUNT, ID, token=token, lease_s=lease_s, now_ms=at)


async def write(scripts: Scripts, *, token: str = TOKEN, nonce: str = "n", **given: Any) -> str:
    given = {"allowed": LIVE, "fields": {"total": 7}} | given
    return await scripts.write_batch(ACCOUNT, ID, token=token, nonce=nonce, **given)


async def test_an_opened_batch_waits_for_its_turn(redis: Redis, scripts: Scripts) -> None:
    assert await open_one(scripts) == "opened"
    assert await redis.hgetall(keys.batch(ID)) == {b"status": b"validating", b"account": ACCOUNT.encode()}
    others = [new_file_id(NOW + n) for n in range(1, 3)]
    for each in others:
        assert await open_one(scripts, each) == "opened"
    turns = await redis.zrange(keys.batches(), 0, -1, withscores=True)
    assert [at for _, at in turns] == [NOW, NOW + HOUR_MS, NOW + 2 * HOUR_MS]
    assert await open_one(scripts, new_file_id(NOW), account="other", at=NOW + 5) == "opened"
    [_, (second, _), *_] = await redis.zrange(keys.batches(), 0, -1, withscores=True)
    assert second.startswith(b"other ")
    made = await redis.zrange(keys.all_batches(), 0, -1)
    assert made[:-1] == [f"{each} {ACCOUNT}".encode() for each in [ID, *others]]
    assert made[-1].endswith(b" other")
    names = (
        *(keys.batch(ID), keys.batches(), keys.batches_of(ACCOUNT), keys.batches_live(ACCOUNT)),
        keys.all_batches(),
    )
    assert all([await redis.pttl(name) > HOUR_MS - 60_000 for name in names])


async def test_a_key_makes_one_batch(redis: Redis, scripts: Scripts) -> None:
    given: dict[str, Any] = {"created_ms": NOW, "ttl_s": 3600, "most": 9, "most_live": 3, "fields": {"status": "x"}}
    assert await scripts.open_batch(ACCOUNT, ID, idempotency=("k", "f"), **given) == "opened"
    assert 0 < await redis.pttl(keys.batch_key(ACCOUNT, "k")) <= 24 * HOUR_MS
    other = new_file_id(NOW)
    async with unchanged(redis):
        assert await scripts.open_batch(ACCOUNT, ID, idempotency=("k", "f"), **given) == "opened"
        assert await scripts.open_batch(ACCOUNT, other, idempotency=("k", "f"), **given) == ID
        with pytest.raises(IdempotencyMismatch):
            await scripts.open_batch(ACCOUNT, other, idempotency=("k", "g"), **given)
    assert await scripts.open_batch("other", other, idempotency=("k", "g"), **given) == "opened"


async def test_an_account_has_a_bounded_number(redis: Redis, scripts: Scripts) -> None:
    await open_one(scripts)
    async with unchanged(redis):
        assert await open_one(scripts) == "opened"
        assert await open_one(scripts, new_file_id(NOW), most_live=1) == "full"
        assert await open_one(scripts, new_file_id(NOW), most=1) == "full"
    later = new_file_id(NOW)
    assert await open_one(scripts, later, at=NOW + HOUR_MS + 1, most=1, most_live=1) == "opened"
    assert await redis.zrange(keys.batches_of(ACCOUNT), 0, -1) == [later.encode()]


async def test_one_keeper_has_a_batch_at_a_time(redis: Redis, scripts: Scripts) -> None:
    await open_one(scripts)
    assert await lease(scripts, "one") == "validating"
    async with unchanged(redis):
        assert await lease(scripts, "two", at=NOW + 14_999) == "busy"
        assert await lease(scripts, "two", lease_s=0) == "busy"
    assert await lease(scripts, "one", at=NOW + 14_000) == "validating"
    assert await lease(scripts, "two", at=NOW + 15_001) == "busy"
    assert await lease(scripts, "two", at=NOW + 29_000) == "validating"
    assert await lease(scripts, "one", at=NOW + 29_001) == "busy"
    assert await lease(scripts, "two", at=NOW + 29_001, lease_s=0) == "validating"
    assert await lease(scripts, "one", at=NOW + 29_002) == "validating"


async def test_a_batch_that_is_gone_waits_no_more(redis: Redis, scripts: Scripts) -> None:
    await open_one(scripts)
    await redis.delete(keys.batch(ID))
    assert await lease(scripts, "one") == "gone"
    assert not await redis.exists(keys.batches())
    assert await write(scripts) == "lost"


async def test_a_stale_keeper_writes_nothing(redis: Redis, scripts: Scripts) -> None:
    await open_one(scripts)
    assert await write(scripts) == "lost"
    await lease(scripts, TOKEN)
    await lease(scripts, "other", at=NOW + 20_000)
    async with unchanged(redis):
        assert await write(scripts) == "lost"


async def test_a_write_names_what_it_knows(redis: Redis, scripts: Scripts) -> None:
    await open_one(scripts)
    await lease(scripts, TOKEN)
    async with unchanged(redis):
        assert await write(scripts, allowed=("finalizing",)) == "changed"
        assert await write(scripts, parts=1) == "changed"
    assert await write(scripts, parts=0, fields={"parts": 2, "status": "in_progress"}) == "written"
    async with unchanged(redis):
        assert await write(scripts, parts=0, fields={"parts": 2, "status": "in_progress"}) == "written"
        assert await write(scripts, nonce="m", parts=0) == "changed"
    assert await write(scripts, nonce="m", parts=2) == "written"


async def test_a_late_write_lowers_no_number_of_filed_lines(redis: Redis, scripts: Scripts) -> None:
    await open_one(scripts)
    await lease(scripts, TOKEN)
    assert await write(scripts, nonce="a", fields={"filed": 1_000}) == "written"
    assert await write(scripts, nonce="b", fields={"filed": 500, "total": 9}) == "written"
    assert await redis.hmget(keys.batch(ID), "filed", "total") == [b"1000", b"9"]


async def test_a_caller_needs_no_lease_to_cancel(redis: Redis, scripts: Scripts) -> None:
    await open_one(scripts)
    await lease(scripts, TOKEN)
    assert await write(scripts, token="", allowed=("validating",), fields={"status": "cancelling"}) == "written"
    assert await lease(scripts, TOKEN) == "cancelling"


async def test_an_ended_batch_leaves_its_lists(redis: Redis, scripts: Scripts) -> None:
    await open_one(scripts)
    await lease(scripts, TOKEN)
    assert await write(scripts, is_over=True, fields={"status": "completed"}) == "written"
    assert not await redis.exists(keys.batches_live(ACCOUNT))
    assert await redis.zrange(keys.batches(), 0, -1) == [MEMBER]
    assert await write(scripts, nonce="l", allowed=("completed",), turn=7, fields={}) == "written"
    assert await redis.zscore(keys.batches(), MEMBER) == 7
    assert await write(scripts, nonce="m", allowed=("completed",), turn="-", fields={}) == "written"
    assert await write(scripts, nonce="n2", allowed=("completed",), turn=7, fields={}) == "written"
    assert not await redis.exists(keys.batches())
    assert await redis.zrange(keys.batches_of(ACCOUNT), 0, -1) == [ID.encode()]


async def test_batch_out_of_its_hours_comes_when_they_begin_or_with_a_cancel(redis: Redis, scripts: Scripts) -> None:
    batches = Batches(redis, scripts)
    await open_one(scripts)
    lease = Lease(scripts, ACCOUNT, ID)
    await lease.hold()
    assert await lease.write({"opens": NOW + 9}, nonce="a", turn=CLOSED + NOW + 9)
    assert await batches.waiting(9, now_ms=NOW + 8) == ([], [])
    assert await batches.waiting(9, now_ms=NOW + 9) == ([(ACCOUNT, ID)], [])
    batch = SimpleNamespace(account=ACCOUNT, id=ID, created=NOW)
    assert await batches.cancel(batch, now_ms=NOW) == "written"  # type: ignore[arg-type]
    assert await batches.waiting(9, now_ms=NOW) == ([(ACCOUNT, ID)], [])
    assert not await lease.write({"opens": NOW}, nonce="b", allowed=("in_progress",), turn=CLOSED + NOW + 99)
    assert await batches.waiting(9, now_ms=NOW) == ([(ACCOUNT, ID)], [])


async def test_owed_webhooks_hide_no_batch_that_waits(redis: Redis, scripts: Scripts) -> None:
    batches = Batches(redis, scripts)
    await open_one(scripts)
    lease = Lease(scripts, ACCOUNT, ID)
    await lease.hold()
    assert await lease.write({"status": "completed"}, nonce="a", is_over=True)
    other = new_file_id(NOW)
    await open_one(scripts, other, at=NOW + 5)
    assert await batches.waiting(1, now_ms=NOW) == ([(ACCOUNT, other)], [(ACCOUNT, ID)])
    assert await lease.write({}, nonce="b", allowed=("completed",), turn=OVER + NOW + 9)
    assert await batches.waiting(1, now_ms=NOW + 8) == ([(ACCOUNT, other)], [])
    assert await batches.waiting(1, now_ms=NOW + 9) == ([(ACCOUNT, other)], [(ACCOUNT, ID)])


async def test_survey_tells_batches_that_run_wait_and_are_closed_apart(redis: Redis, scripts: Scripts) -> None:
    batches, ids = Batches(redis, scripts), [new_file_id(NOW + n) for n in range(4)]
    runs, waits, closed, over = ids
    for each in ids:
        account = "other" if each == waits else ACCOUNT
        fields = {"status": "in_progress", "account": account, "created": NOW}
        await scripts.open_batch(account, each, created_ms=NOW, ttl_s=3600, fields=fields, most=9, most_live=9)
    for each in (runs, closed, over):
        await scripts.lease_batch(ACCOUNT, each, token=TOKEN, lease_s=15, now_ms=NOW)
    opens = {"fields": {"opens": NOW + HOUR_MS}, "turn": CLOSED + NOW + HOUR_MS}
    for each, given in ((closed, opens), (over, {"fields": {"status": "completed"}, "is_over": True, "turn": OVER})):
        await scripts.write_batch(ACCOUNT, each, token=TOKEN, nonce="n", allowed=LIVE, **given)  # type: ignore[arg-type]
    seen = await batches.survey(now_ms=NOW + 9_000)
    assert {name: count for name, count in seen.counts.items() if count} == {"in_progress": 2, "closed": 1}
    assert seen.oldest_waiting_ms == 9_000
    later = await batches.survey(now_ms=NOW + HOUR_MS + 5)
    assert (later.counts["in_progress"], later.counts["closed"]) == (3, 0)
    await scripts.write_batch("other", waits, token="", nonce="m", allowed=LIVE, fields={"opens": NOW + HOUR_MS})
    await scripts.lease_batch(ACCOUNT, runs, token=TOKEN, lease_s=9_000, now_ms=NOW)
    assert (await batches.survey(now_ms=NOW + HOUR_MS + 5)).oldest_waiting_ms == 5


async def test_batches_of_an_account_that_has_one_running_are_not_overdue(redis: Redis, scripts: Scripts) -> None:
    batches, (runs, waits) = Batches(redis, scripts), [new_file_id(NOW + n) for n in range(2)]
    for each in (waits, runs):
        fields = {"status": "in_progress", "account": ACCOUNT, "created": NOW}
        await scripts.open_batch(ACCOUNT, each, created_ms=NOW, ttl_s=3600, fields=fields, most=9, most_live=9)
    assert (await batches.survey(now_ms=NOW + 9_000)).oldest_waiting_ms == 9_000
    await scripts.lease_batch(ACCOUNT, runs, token=TOKEN, lease_s=15, now_ms=NOW)
    assert (await batches.survey(now_ms=NOW + 9_000)).oldest_waiting_ms == 0
    assert (await batches.survey(now_ms=NOW + 16_000)).oldest_waiting_ms == 16_000, "its keeper is gone"
