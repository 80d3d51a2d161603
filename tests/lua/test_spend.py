"""spend returns unused reservations once and counts what was really spent."""

from typing import Any

import pytest

from director.broker.scripts import Scripts
from director.core.account_limits import Bucket
from director.core.ids import PredictionId, new_prediction_id
from tests.support.keyspace import unchanged

NOW_MS = 20_000 * 86_400_000 + 3_600_000
SLOW = Bucket("create", rate=0.001, burst=2)
P1, P2 = (new_prediction_id(model="acme/painter", now_ms=NOW_MS) for _ in range(2))
DAY_MS = 86_400_000


async def take(scripts: Scripts, name: str, *, of: Bucket = SLOW, at_ms: int = 0) -> bool:
    return (await scripts.reserve("acme", of, id=name, now_ms=NOW_MS + at_ms)).allowed


async def reserve(scripts: Scripts, name: PredictionId, asked_s: float, *, at_ms: int = 0) -> bool:
    return (await scripts.reserve("acme", 100, id=name, asked_s=asked_s, now_ms=NOW_MS + at_ms)).allowed


async def test_only_a_taken_token_is_returned_and_once(scripts: Scripts, redis: Any) -> None:
    for name in "ab":
        await take(scripts, name)
    assert not await take(scripts, "denied")
    await scripts.spend("acme", token=(SLOW, "a"), now_ms=NOW_MS)
    async with unchanged(redis):
        for name in ("a", "denied"):
            assert await scripts.spend("acme", token=(SLOW, name), now_ms=NOW_MS) == (False, False)
        assert await scripts.spend("stranger", prediction_id=P1, token=(SLOW, "a"), now_ms=NOW_MS) == (False, False)


async def test_read_tokens_are_not_returned(scripts: Scripts) -> None:
    read = Bucket("read", rate=0.001, burst=1)
    await take(scripts, "a", of=read)
    assert await scripts.spend("acme", token=(read, "a"), now_ms=NOW_MS) == (False, False)


async def test_compute_can_be_overspent_once_and_is_then_refused(scripts: Scripts, redis: Any) -> None:
    await reserve(scripts, P1, 60)
    await scripts.spend("acme", prediction_id=P1, spent_s=500, now_ms=NOW_MS)
    async with unchanged(redis):
        assert await scripts.spend("acme", prediction_id=P1, spent_s=500, now_ms=NOW_MS) == (False, False)
    denied = await scripts.reserve("acme", 100, id=P2, asked_s=1, now_ms=NOW_MS)
    assert (denied.allowed, denied.remaining) == (False, 0)


@pytest.mark.parametrize("is_first", [True, False], ids=["first of its day", "after another"])
async def test_compute_counts_on_the_day_on_which_it_ended(scripts: Scripts, redis: Any, is_first: bool) -> None:
    planned = [new_prediction_id(model="acme/painter", now_ms=NOW_MS) for _ in range(10)]
    for name in planned:
        assert await reserve(scripts, name, 10)
    at_ms = 6 * DAY_MS
    today = new_prediction_id(model="acme/painter", now_ms=NOW_MS + at_ms)
    if not is_first:
        assert await reserve(scripts, today, 40, at_ms=at_ms), "the reservations of another day are over"
    for name in planned[:-1]:
        assert await scripts.spend("acme", prediction_id=name, spent_s=6, now_ms=NOW_MS + at_ms) == (False, True)
    async with unchanged(redis):
        await scripts.spend("acme", prediction_id=planned[0], spent_s=6, now_ms=NOW_MS + at_ms)
    if is_first:
        assert await reserve(scripts, today, 40, at_ms=at_ms)
    assert not await reserve(scripts, P1, 7, at_ms=at_ms)
    assert await reserve(scripts, P2, 6, at_ms=at_ms)
    await scripts.spend("acme", prediction_id=today, spent_s=0, now_ms=NOW_MS + at_ms)
    assert await reserve(scripts, P1, 40, at_ms=at_ms), "one of today gives back what it reserved"


async def test_compute_that_ends_while_the_clock_is_behind_counts_too(scripts: Scripts) -> None:
    await reserve(scripts, P1, 60)
    await scripts.spend("acme", prediction_id=P1, spent_s=95, now_ms=NOW_MS - DAY_MS)
    assert not await reserve(scripts, P2, 6)
    assert await reserve(scripts, P2, 5)


async def test_one_call_returns_both_reservations_of_a_refused_create(scripts: Scripts) -> None:
    await take(scripts, "a")
    await reserve(scripts, P1, 100)
    assert await scripts.spend("acme", prediction_id=P1, token=(SLOW, "a"), now_ms=NOW_MS) == (True, True)
    assert await reserve(scripts, P2, 100)
    assert [await take(scripts, name) for name in "bcd"] == [True, True, False]


async def test_spend_uses_the_servers_clock_by_default(scripts: Scripts) -> None:
    one = Bucket("create", rate=0.001, burst=1)
    assert (await scripts.reserve("acme", one, id="a")).allowed
    assert await scripts.spend("acme", token=(one, "a")) == (True, False)
    denied = await scripts.reserve("acme", one, id="b")
    assert denied.retry_after_ms < 1000, "all but what would have come in the time of two calls is back"
