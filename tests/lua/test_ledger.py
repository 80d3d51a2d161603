"""The script that ends a run, or takes its claim away, counts what the run used: once, in the row of its day."""

import asyncio
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import pytest
from redis.exceptions import ResponseError

from director.broker import keys
from director.core.ids import partition_of_model
from director.core.schema import Claim
from director.core.states import Status
from director.core.usage import Used
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver

RUN: Final = Used(runs=1, ms=2_500, input_tokens=700, cached_tokens=512, output_tokens=40, file_bytes=9)
SEEN: Final = Used(input_tokens=700, output_tokens=12)
TOKEN: Final = "0123456789abcdef"
MONTH: Final = "202701"  # of START_MS
PARTITION: Final = partition_of_model(MODEL)
ROW: Final = f"15 {MODEL} {TOKEN}"
MOST_BYTES: Final = 20 << 20


async def rows(driver: QueueDriver, account: str = ACCOUNT, month: str = MONTH) -> dict[str, Used]:
    found = await driver.counts(keys.ledger(PARTITION, month, account))
    return {row: Used.unpack(packed) for row, packed in found.items()}


async def test_the_end_of_a_run_counts_it_by_model_token_and_day(driver: QueueDriver) -> None:
    claim = await driver.claimed(api_token=TOKEN)
    assert await driver.finish(claim, used=RUN)
    assert await rows(driver) == {ROW: RUN}
    assert await driver.redis.smembers(keys.ledger_accounts(PARTITION, MONTH)) == {ACCOUNT.encode()}


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELED, Status.ABORTED])
async def test_every_kind_of_end_counts(driver: QueueDriver, status: Status) -> None:
    claim = await driver.claimed(api_token=TOKEN)
    assert await driver.finish(claim, status, used=RUN)
    assert await rows(driver) == {ROW: RUN}


async def test_a_repeated_or_stale_end_counts_nothing(driver: QueueDriver) -> None:
    claim = await driver.claimed()
    await driver.finish(claim, used=RUN)
    async with unchanged(driver.redis):
        assert await driver.finish(claim, used=RUN)
        assert await driver.release(claim, spent=True, used=RUN) == "lost"


async def test_ends_of_one_batch_are_added_up(driver: QueueDriver) -> None:
    await driver.submit_many(2, api_token=TOKEN)
    await driver.submit(account="other")
    await asyncio.gather(*(driver.finish(claim, used=RUN) for claim in await driver.claim(3)))
    assert await rows(driver) == {ROW: RUN + RUN}
    assert await rows(driver, "other") == {f"15 {MODEL} ": RUN}


async def test_a_run_that_never_began_leaves_no_row(driver: QueueDriver) -> None:
    claim = await driver.claimed()
    await driver.finish(claim, Status.FAILED, ran_ms=None)
    await driver.cancel(await driver.submit())
    assert await rows(driver) == {}


@pytest.mark.parametrize("how", [{"spent": True}, {"spent": False}, {"spent": True, "code": "x", "began": True}])
async def test_a_run_that_is_given_back_counts_and_so_does_the_next(driver: QueueDriver, how: dict[str, Any]) -> None:
    claim = await driver.claimed(api_token=TOKEN)
    await driver.begin(claim)
    await driver.release(claim, used=RUN, **how)
    await driver.finish(await driver.claim_one(), used=RUN)
    assert await rows(driver) == {ROW: RUN + RUN}


@pytest.mark.parametrize("cancel", [False, True])
async def test_a_lost_run_counts_what_its_director_wrote(driver: QueueDriver, cancel: bool) -> None:
    claim = await driver.claimed(api_token=TOKEN)
    seq = await driver.begin(claim)
    seen = Used(input_tokens=700, output_tokens=12)
    await driver.scripts.advance(
        claim.id, token=claim.token, seq=seq, ran_ms=0, events=[("output", b"1")], used=seen, now_ms=driver.now_ms
    )
    if cancel:
        assert await driver.cancel(claim.id) == "asked"
    driver.pass_time(20)
    assert await driver.reap() == {claim.id: "canceled" if cancel else "waiting"}
    assert await rows(driver) == {ROW: Used(runs=1, ms=15_000) + seen}, "until its lease expired"


async def begin(driver: QueueDriver, claim: Claim, *, remote: str = "", used: Used = SEEN) -> None:
    seq = await driver.begin(claim)
    await driver.scripts.advance(
        claim.id, token=claim.token, seq=seq, ran_ms=0, events=[], remote=remote, used=used, now_ms=driver.now_ms
    )


@pytest.mark.parametrize("how", ["canceled", "late", "dead"])
async def test_a_lost_run_that_is_followed_by_none_counts_whole(driver: QueueDriver, how: str) -> None:
    claim = await driver.claimed(api_token=TOKEN, lifetime_ms=10_000 if how == "late" else None)
    await begin(driver, claim, remote="r1")
    if how == "canceled":
        await driver.cancel(claim.id)
    if how == "dead":
        await driver.redis.hset(keys.record(claim.id), "attempt", 3)
    driver.pass_time(20)
    assert await driver.reap() == {claim.id: how}
    assert await rows(driver) == {ROW: Used(runs=1, ms=15_000) + SEEN}


async def test_a_lost_run_that_is_followed_counts_at_its_end(driver: QueueDriver) -> None:
    claim = await driver.claimed(api_token=TOKEN)
    await begin(driver, claim, remote="r1")
    driver.pass_time(20)
    await driver.reap()
    assert await rows(driver) == {ROW: Used(ms=15_000)}
    await driver.finish(await driver.claim_one(), used=RUN)
    assert await rows(driver) == {ROW: Used(ms=15_000) + RUN}


async def test_a_name_of_an_earlier_claim_leaves_no_run_uncounted(driver: QueueDriver) -> None:
    claim = await driver.claimed(api_token=TOKEN)
    await begin(driver, claim, remote="r1", used=Used())
    driver.pass_time(20)
    await driver.reap()
    await begin(driver, await driver.claim_one())
    driver.pass_time(20)
    await driver.reap()
    assert await rows(driver) == {ROW: Used(runs=1, ms=30_000) + SEEN}


@pytest.mark.parametrize("how", ["reaped", "released"])
@pytest.mark.parametrize("end", ["canceled", "late"])
async def test_a_run_left_for_others_counts_if_it_ends_while_it_waits(driver: QueueDriver, how: str, end: str) -> None:
    claim = await driver.claimed(api_token=TOKEN, lifetime_ms=60_000)
    await begin(driver, claim, remote="r1")
    driver.pass_time(20)
    if how == "reaped":
        await driver.reap()
    else:
        await driver.release(claim, used=Used(ms=15_000))
    if end == "canceled":
        await driver.cancel(claim.id)
    else:
        driver.pass_time(60)
        await driver.expire()
    assert await rows(driver) == {ROW: Used(runs=1, ms=15_000) + SEEN}


async def test_a_run_that_was_followed_is_not_counted_again_while_it_waits(driver: QueueDriver) -> None:
    claim = await driver.claimed(api_token=TOKEN)
    await begin(driver, claim, remote="r1")
    driver.pass_time(20)
    await driver.reap()
    follower = await driver.claim_one()
    await begin(driver, follower, remote="r1")
    await driver.release(follower, used=RUN)
    await driver.cancel(claim.id)
    assert await rows(driver) == {ROW: Used(ms=15_000) + RUN}


async def test_a_run_that_was_left_and_is_canceled_counts_at_the_release(driver: QueueDriver) -> None:
    claim = await driver.claimed(api_token=TOKEN)
    await begin(driver, claim)
    await driver.cancel(claim.id)
    assert await driver.release(claim, used=Used(ms=5_000)) == "canceled"
    assert await rows(driver) == {ROW: Used(runs=1, ms=5_000) + SEEN}


async def test_a_fault_of_one_claim_leaves_the_usage_of_others(driver: QueueDriver) -> None:
    await driver.have_slots(5)
    await driver.submit_many(3, api_token=TOKEN)
    claims = await driver.claim(3)
    for claim in claims:
        await driver.begin(claim)
    bad, *others = (claim.id for claim in claims)
    await driver.redis.hset(keys.record(bad), "attempt", "x")
    driver.pass_time(20)
    assert await driver.reap() == {bad: "fault", **dict.fromkeys(others, "waiting")}
    assert await rows(driver) == {ROW: Used(runs=2, ms=30_000)}
    async with unchanged(driver.redis):
        assert await driver.reap() == {bad: "fault"}
    await driver.redis.hset(keys.record(bad), "attempt", 1)
    assert await driver.reap() == {bad: "waiting"}
    assert await rows(driver) == {ROW: Used(runs=3, ms=45_000)}


async def test_a_claim_without_a_lease_fails_alone(driver: QueueDriver) -> None:
    await driver.have_slots(5)
    for _ in range(2):
        await driver.submit(api_token=TOKEN, streams=[0])
    bad, good = await driver.claim(2)
    await driver.begin(good)
    await driver.redis.hset(keys.record(bad.id), "attempt", "x")
    await driver.redis.delete(keys.lease(driver.queue))
    _, recovered = await driver.recover(0)
    assert recovered == {bad.id: "fault", good.id: "waiting"}
    assert await rows(driver) == {ROW: Used(runs=1)}


@pytest.mark.parametrize("damaged", ["row", "index"])
async def test_an_end_that_cannot_be_counted_writes_nothing(driver: QueueDriver, damaged: str) -> None:
    claim = await driver.claimed()
    await driver.begin(claim)
    ledger, index = keys.ledger(PARTITION, MONTH, ACCOUNT), keys.ledger_accounts(PARTITION, MONTH)
    key = ledger if damaged == "row" else index
    await driver.redis.set(key, "x")
    async with unchanged(driver.redis):
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await driver.finish(claim, used=RUN)
    driver.pass_time(20)
    async with unchanged(driver.redis):
        assert await driver.reap() == {claim.id: "fault"}
    await driver.redis.delete(key)
    assert await driver.finish(claim, used=RUN)
    assert await rows(driver) == {f"15 {MODEL} ": RUN}


async def test_numbers_of_a_newer_release_stay_in_a_row(driver: QueueDriver) -> None:
    key = keys.ledger(PARTITION, MONTH, ACCOUNT)
    await driver.redis.hset(key, f"15 {MODEL} ", "1 2 3 4 5 6 7")
    await driver.finish(await driver.claimed(), used=Used(runs=1))
    assert await driver.counts(key) == {f"15 {MODEL} ": "2 2 3 4 5 6 7"}
    month = f"00 {MODEL} "
    assert await driver.scripts.fold(PARTITION, MONTH, ACCOUNT, [(f"15 {MODEL} ", month)], kept_s=3600) == 1
    assert await driver.counts(key) == {month: "2 2 3 4 5 6 7"}


async def test_tokens_of_an_earlier_claim_are_not_counted_again(driver: QueueDriver) -> None:
    claim = await driver.claimed(api_token=TOKEN)
    seq = await driver.begin(claim)
    await driver.scripts.advance(
        claim.id, token=claim.token, seq=seq, ran_ms=0, events=[], used=Used(output_tokens=12), now_ms=driver.now_ms
    )
    await driver.release(claim, spent=True, used=Used(runs=1, output_tokens=12))
    again = await driver.claim_one()
    await driver.begin(again)
    driver.pass_time(20)
    await driver.reap()
    assert await rows(driver) == {ROW: Used(runs=2, ms=15_000, output_tokens=12)}


async def test_a_dead_letter_that_is_revived_counts_under_its_token(driver: QueueDriver) -> None:
    dead = await driver.die(api_token=TOKEN)
    assert await driver.revive(dead)
    await driver.finish(await driver.claim_one(), used=RUN)
    assert await rows(driver) == {ROW: RUN}


async def test_days_are_those_of_the_calendar_in_utc(driver: QueueDriver) -> None:
    draw = Random(7)
    days = [draw.randrange(20_000, 60_000) for _ in range(60)] + [20_512, 21_184, 47_540, 47_541]
    for day in days:
        driver.now_ms = day * 86_400_000 + draw.randrange(86_400_000)
        at = datetime.fromtimestamp(driver.now_ms / 1000, UTC)
        claim = await driver.claimed()
        await driver.finish(claim, used=Used(runs=1))
        assert f"{at:%d} {MODEL} " in await rows(driver, month=f"{at:%Y%m}"), at


async def test_a_month_is_kept_for_thirteen_months(driver: QueueDriver) -> None:
    await driver.finish(await driver.claimed(), used=RUN)
    for key in (keys.ledger(PARTITION, MONTH, ACCOUNT), keys.ledger_accounts(PARTITION, MONTH)):
        assert await driver.lifetime_s(key) == 400 * 86_400


async def test_folding_adds_days_to_their_month_once(driver: QueueDriver) -> None:
    days = []
    for _ in range(3):
        driver.pass_time(86_400)
        await driver.finish(await driver.claimed(api_token=TOKEN), used=RUN)
        days.append(f"{datetime.fromtimestamp(driver.now_ms / 1000, UTC):%d} {MODEL} {TOKEN}")
    month = f"00 {MODEL} {TOKEN}"
    pairs = [(day, month) for day in days]
    for folded in (3, 0):
        assert await driver.scripts.fold(PARTITION, MONTH, ACCOUNT, pairs, kept_s=3600) == folded
        assert await rows(driver) == {month: RUN + RUN + RUN}
    assert await driver.lifetime_s(keys.ledger(PARTITION, MONTH, ACCOUNT)) == 3600


@pytest.mark.not_on("cluster", "sentinel", why="memory is spread over nodes, or has what replicas have not read yet")
async def test_a_month_of_many_accounts_and_models_fits_into_twenty_megabytes(driver: QueueDriver) -> None:
    """100 accounts × 50 models × 30 days, each row as a busy day has it, in the partitions of the models."""
    before = (await driver.redis.info("memory"))["used_memory"]
    row = Used(runs=12_345, ms=98_765_432, input_tokens=123_456_789, cached_tokens=45_678_901, output_tokens=9_876_543)
    for number in range(50):
        model = f"acme/model-{number:02}"
        pipe = driver.redis.pipeline(transaction=False)
        for account in range(100):
            name = f"account-{account:03}"
            key = keys.ledger(partition_of_model(model), MONTH, name)
            for day in range(1, 31):
                # one write for each row, as runs make them: a block that grows has no room to spare
                pipe.hset(key, f"{day:02} {model} {TOKEN}", row.packed)
            pipe.expire(key, 3600)
            pipe.sadd(keys.ledger_accounts(partition_of_model(model), MONTH), name)
        pipe.expire(keys.ledger_accounts(partition_of_model(model), MONTH), 3600)
        await pipe.execute()
    took = (await driver.redis.info("memory"))["used_memory"] - before
    print(f"{took:,} bytes, {took / 150_000:.0f} a row")
    assert took <= MOST_BYTES
    one = keys.ledger(partition_of_model("acme/model-00"), MONTH, "account-000")
    assert await driver.redis.memory_usage(one) < 4096
    await driver.redis.flushall()
