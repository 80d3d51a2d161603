"""lib/share: whose turn it is. Where more waits than runs, tenants are served by weight, each its oldest first."""

import asyncio
from collections import Counter
from itertools import cycle

import pytest

from director.broker import keys
from director.core.ids import LANES, PredictionId
from director.core.schema import Claim
from tests.support.queue_driver import QueueDriver

pytestmark = pytest.mark.anyio


async def batch(driver: QueueDriver, account: str, many: int, **options: object) -> list[PredictionId]:
    return [await driver.submit(account=account, **options) for _ in range(many)]  # type: ignore[arg-type]


async def served(driver: QueueDriver, turns: int) -> list[str]:
    """Whose they were, of so many claims of one each."""
    return [(await driver.claim_one()).record.account for _ in range(turns)]


async def busy(driver: QueueDriver, lane: str = "normal") -> Claim:
    """The only slot runs something of nobody's, and something else of nobody's stands ready before all that follows."""
    await driver.submit(account="nobody", lane=lane)
    claim = await driver.claim_one()
    await driver.submit(account="nobody", lane=lane)
    return claim


async def turns_of(driver: QueueDriver, lane: str = "normal") -> dict[str, float]:
    """Virtual time of each tenant that has turns."""
    return {
        name.decode(): at
        for name, at in await driver.redis.zrange(keys.vtime(driver.queue, lane), 0, -1, withscores=True)
    }


# ── where it stands ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_while_slots_are_free_it_goes_straight_into_a_stream_and_the_rest_into_its_tenants_backlog(
    driver: QueueDriver,
) -> None:
    await driver.have_slots(3)
    ids = await batch(driver, "acme", 5, streams=[0])
    assert await driver.entries() == {0: ids[:3]}
    assert await driver.backlog("acme") == ids[3:]


async def test_a_slot_that_is_taken_is_not_free(driver: QueueDriver) -> None:
    await driver.have_slots(3)
    await batch(driver, "acme", 2)
    await driver.claim(2)
    ids = await batch(driver, "acme", 3)
    assert await driver.backlog("acme") == ids[1:]


async def test_while_nobody_tells_of_slots_one_stands_ready(driver: QueueDriver) -> None:
    ids = await batch(driver, "acme", 3, streams=[0])
    assert await driver.entries() == {0: ids[:1]}
    assert await driver.backlog("acme") == ids[1:]


async def test_nobody_passes_by_what_waits_for_a_turn(driver: QueueDriver) -> None:
    await batch(driver, "acme", 2)
    await driver.have_slots(3)
    other = await driver.submit(account="other")
    assert await driver.backlog("other") == [other]


async def test_what_waits_for_a_turn_in_one_lane_keeps_nobody_from_the_streams_of_another(driver: QueueDriver) -> None:
    await batch(driver, "acme", 5, lane="low")
    high = await driver.submit(account="acme", lane="high", streams=[4])
    assert await driver.entries("high") == {4: [high]}


async def test_a_tenants_own_are_served_in_the_order_in_which_they_came(driver: QueueDriver) -> None:
    ids = await batch(driver, "acme", 20)
    assert [(await driver.claim_one()).id for _ in range(20)] == ids


async def test_one_claim_of_many_serves_as_many_claims_of_one_would(driver: QueueDriver) -> None:
    await busy(driver)
    for account in ("a", "b", "c"):
        await batch(driver, account, 4)
    claims = await driver.claim(10)
    assert [claim.record.account for claim in claims] == ["nobody", *"abc", *"abc", *"abc"]


async def test_after_the_last_one_nothing_is_remembered_of_who_waited(driver: QueueDriver) -> None:
    for lane in LANES:
        for account in ("a", "b"):
            await batch(driver, account, 4, lane=lane, weight=2)
    for claim in await driver.claim_all():
        await driver.run(claim, 1)
    left = {name.decode().rpartition(":q:")[2] for name in await driver.redis.keys("*:q:*")}
    assert not {name for name in left if "backlog" in name or "vtime" in name or "debt" in name}
    assert not {name for name in left if name.endswith((":queued", ":running"))}
    for lane in LANES:
        assert (await driver.meta(f"backlogged:{lane}"), await driver.meta(f"ready:{lane}")) == ("0", "0")
        assert await driver.meta(f"clock:{lane}") == ""


# ── whose turn it is ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_tenant_that_was_served_least_has_the_next_turn(driver: QueueDriver) -> None:
    await busy(driver)
    for account in ("a", "b", "c"):
        await batch(driver, account, 3)
    assert await served(driver, 10) == ["nobody", *"abc", *"abc", *"abc"]


async def test_behind_a_thousand_of_a_neighbour_on_the_very_same_streams_one_waits_for_one(driver: QueueDriver) -> None:
    await asyncio.gather(*(driver.submit(account="whale", streams=[3, 9]) for _ in range(1000)))
    await driver.claim(10)
    light = await driver.submit(account="light", streams=[3, 9])
    assert light in [claim.id for claim in await driver.claim(2)]


async def test_who_waits_for_each_answer_gets_every_other_turn_beside_a_batch(driver: QueueDriver) -> None:
    await batch(driver, "whale", 50, streams=[3, 9])
    order = []
    await driver.submit(account="light", streams=[3, 9])
    for _ in range(20):
        claim = await driver.claim_one()
        order.append(claim.record.account)
        await driver.run(claim, 1)
        if claim.record.account == "light":
            await driver.submit(account="light", streams=[3, 9])
    assert Counter(order) == {"whale": 10, "light": 10}


async def test_weights_of_one_two_and_four_get_turns_as_one_two_and_four(driver: QueueDriver) -> None:
    await busy(driver)
    for weight, account in ((1, "a"), (2, "b"), (4, "c")):
        await batch(driver, account, 45, weight=weight)
    await driver.claim_one()
    assert Counter(await served(driver, 70)) == {"a": 10, "b": 20, "c": 40}


async def test_what_costs_three_counts_three(driver: QueueDriver) -> None:
    await busy(driver)
    await batch(driver, "dear", 20, cost=3)
    await batch(driver, "cheap", 20)
    await driver.claim_one()
    assert Counter(await served(driver, 20)) == {"dear": 5, "cheap": 15}


async def test_weights_may_be_fractions(driver: QueueDriver) -> None:
    await busy(driver)
    await batch(driver, "half", 20, weight=0.5)
    await batch(driver, "one", 20)
    await driver.claim_one()
    assert Counter(await served(driver, 15)) == {"half": 5, "one": 10}


async def test_who_comes_late_shares_from_then_on_and_is_not_owed_the_past(driver: QueueDriver) -> None:
    await batch(driver, "early", 60)
    await driver.claim(30)
    await batch(driver, "late", 20)
    assert Counter(await served(driver, 20)) == {"early": 10, "late": 10}


async def test_who_was_served_ahead_of_the_others_does_not_get_it_again_by_leaving(driver: QueueDriver) -> None:
    await busy(driver)
    await batch(driver, "a", 20)
    await driver.submit(account="b", cost=10)
    assert await served(driver, 3) == ["nobody", "a", "b"]
    await driver.submit(account="b")  # its backlog was gone, and comes again
    assert await served(driver, 11) == ["a"] * 10 + ["b"]


async def test_once_nobody_waits_for_a_turn_what_was_served_is_forgotten(driver: QueueDriver) -> None:
    await busy(driver)
    await driver.submit(account="a", cost=50)
    assert await served(driver, 2) == ["nobody", "a"]
    await busy(driver)
    await batch(driver, "a", 3)
    await batch(driver, "b", 3)
    assert await served(driver, 7) == ["nobody", *"ab", *"ab", *"ab"]


# ── what it took ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_at_the_end_the_time_that_it_took_counts_and_not_what_was_expected(driver: QueueDriver) -> None:
    await busy(driver)
    await batch(driver, "a", 5)
    await batch(driver, "b", 5)
    await driver.claim_one()
    claim = await driver.claim_one()
    assert (claim.record.account, await turns_of(driver)) == ("a", {"a": 1, "b": 0})
    await driver.run(claim, 2.5)
    assert await turns_of(driver) == {"a": 2.5, "b": 0}


async def test_tenants_whose_runs_take_ten_times_as_long_get_as_many_seconds_and_not_as_many_runs(
    driver: QueueDriver,
) -> None:
    await busy(driver)
    await batch(driver, "long", 20)
    await batch(driver, "short", 120)
    took = {"nobody": 1, "long": 10, "short": 1}
    seconds: Counter[str] = Counter()
    while sum(seconds.values()) < 200:
        claim = await driver.claim_one()
        await driver.run(claim, took[claim.record.account])
        seconds[claim.record.account] += took[claim.record.account]
    assert abs(seconds["long"] - seconds["short"]) <= 20


async def test_the_next_ones_are_expected_to_take_what_the_last_ones_took(driver: QueueDriver) -> None:
    await driver.run(await busy(driver), 6)
    await batch(driver, "a", 2)
    await batch(driver, "b", 3, cost=0.5)
    await driver.claim(4)
    assert await turns_of(driver) == {"a": 6, "b": 6}
    assert (await driver.stats()).service_ms == 6000


@pytest.mark.parametrize("spent", [False, True])
async def test_what_was_given_back_cost_its_tenant_nothing(driver: QueueDriver, spent: bool) -> None:
    await busy(driver)
    await batch(driver, "a", 3)
    await batch(driver, "b", 3)
    await driver.claim_one()
    claim = await driver.claim_one()
    driver.pass_time(9)
    await driver.release(claim, spent=spent)
    assert await turns_of(driver) == {"a": 0, "b": 0}


async def test_what_never_began_cost_its_tenant_nothing(driver: QueueDriver) -> None:
    await busy(driver)
    await batch(driver, "a", 3)
    await batch(driver, "b", 3)
    await driver.claim_one()
    claim = await driver.claim_one()
    driver.pass_time(9)
    await driver.finish(claim, ran_ms=None)
    assert await turns_of(driver) == {"a": 0, "b": 0}


async def test_what_was_canceled_while_it_waited_had_no_turn(driver: QueueDriver) -> None:
    await busy(driver)
    ids = await batch(driver, "a", 3)
    await batch(driver, "b", 3)
    await driver.cancel(ids[0], account="a")
    assert await driver.backlog("a") == ids[1:]
    assert await served(driver, 5) == ["nobody", *"ab", *"ab"]


# ── coming back ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("delay_s", [0, 5])
async def test_what_was_given_back_stands_at_the_head_of_its_tenants_line(driver: QueueDriver, delay_s: float) -> None:
    ids = await batch(driver, "a", 5)
    [first, _] = await driver.claim(2)
    await driver.release(first, delay_s=delay_s)
    driver.pass_time(delay_s)
    await driver.promote()
    assert await driver.backlog("a") == [ids[0], *ids[2:]]
    assert (await driver.claim_one()).id == ids[0]


async def test_what_was_given_back_waits_for_its_tenants_turn(driver: QueueDriver) -> None:
    await busy(driver)
    await batch(driver, "a", 3)
    await batch(driver, "b", 3)
    await driver.claim_one()
    first = await driver.claim_one()
    assert await served(driver, 2) == ["b", "a"]
    await driver.release(first)
    assert await turns_of(driver) == {"a": 1, "b": 1}
    assert (await driver.claim_one()).id == first.id
    assert await served(driver, 1) == ["b"]


async def test_what_was_revived_stands_at_the_head_of_its_tenants_line(driver: QueueDriver) -> None:
    dead = await driver.die(account="a")
    ids = await batch(driver, "a", 3)
    assert await driver.revive(dead)
    assert await driver.backlog("a") == [dead, *ids[1:]]
    assert [claim.id for claim in await driver.claim(4)] == [ids[0], dead, *ids[1:]]


async def test_what_expires_in_a_backlog_is_out_of_it(driver: QueueDriver) -> None:
    ids = await batch(driver, "a", 3, lifetime_ms=5_000)
    last = await driver.submit(account="a")
    driver.pass_time(5)
    assert await driver.expire() == (3, 0)
    assert await driver.backlog("a") == [last]
    assert (await driver.claim_one()).id == last
    assert {(await driver.record(dead)).status for dead in ids} == {"failed"}


async def test_what_is_dead_in_a_backlog_ends_on_the_way_and_takes_no_turn(driver: QueueDriver) -> None:
    await busy(driver)
    await batch(driver, "a", 3, lifetime_ms=5_000)
    last = await driver.submit(account="a")
    await batch(driver, "b", 2)
    driver.pass_time(5)
    assert [claim.id for claim in await driver.claim(2)][1] == last
    assert await served(driver, 1) == ["b"]


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("offset", range(12))
async def test_high_is_picked_before_a_backlog_of_normal_at_the_next_turn(driver: QueueDriver, offset: int) -> None:
    await batch(driver, "whale", 40)
    await driver.claim(offset)
    high = await driver.submit(account="light", lane="high")
    assert (await driver.claim_one()).id == high


async def test_backlogs_of_three_lanes_are_served_eight_three_one(driver: QueueDriver) -> None:
    for lane in ("low", "normal", "high"):
        for account in ("a", "b"):
            await batch(driver, account, 12, lane=lane)
    lanes = Counter([(await driver.claim_one()).record.lane for _ in range(24)])
    assert lanes == {"high": 16, "normal": 6, "low": 2}


async def test_what_a_tenant_had_in_one_lane_does_not_count_in_another(driver: QueueDriver) -> None:
    for lane in ("low", "normal"):
        for account in ("nobody", "a", "b"):
            await batch(driver, account, 6, lane=lane)
    await driver.claim(8)
    assert await turns_of(driver) == {"a": 2, "b": 2, "nobody": 1}
    assert await turns_of(driver, "low") == {"a": 1, "b": 0, "nobody": 0}


# ── nothing is stranded ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_directors_that_take_one_each_are_rung_for_until_every_backlog_is_empty(driver: QueueDriver) -> None:
    for account, lane in zip("abcdefghijklmnopqrstuvwxyz", cycle(LANES), strict=False):
        await batch(driver, account, 4, lane=lane)
    count = 0
    while await driver.hear_bell():
        count += len(await driver.claim(1))
    assert count == 4 * 26, "nothing waits while the bell is silent"


async def test_backlogs_outlive_a_resize_both_ways(driver: QueueDriver) -> None:
    ids = {prediction_id for account in "abcd" for prediction_id in await batch(driver, account, 5)}
    await driver.scripts.resize(driver.queue, streams=1)
    some = {claim.id for claim in await driver.claim(7)}
    await driver.scripts.resize(driver.queue, streams=32)
    assert some | {claim.id for claim in await driver.claim_all()} == ids


async def test_a_backlog_that_claims_pass_by_is_offered_again(driver: QueueDriver) -> None:
    ids = await batch(driver, "a", 3)
    await driver.redis.delete(keys.vtime(driver.queue, "normal"))
    assert [claim.id for claim in await driver.claim(5)] == ids[:1]
    await driver.hear_bell()
    _, repaired = await driver.reconcile()
    assert list(repaired.values()) == ["offered"], "one of them makes claims look there"
    assert await driver.hear_bell()
    assert [claim.id for claim in await driver.claim(5)] == ids[1:]


async def test_what_was_lost_out_of_a_backlog_is_put_in_line_again(driver: QueueDriver) -> None:
    ids = await batch(driver, "a", 4)
    await driver.redis.zrem(keys.backlog(driver.queue, "normal", "a"), ids[2])
    assert await driver.reconcile() == (0, {ids[2]: "placed"})
    assert [claim.id for claim in await driver.claim(5)] == ids


async def test_what_stands_in_a_backlog_and_has_ended_is_passed_over(driver: QueueDriver) -> None:
    ids = await batch(driver, "a", 3)
    await driver.cancel(ids[1], account="a")
    await driver.redis.zadd(keys.backlog(driver.queue, "normal", "a"), {ids[1]: 1})
    assert [claim.id for claim in await driver.claim(5)] == [ids[0], ids[2]]


# ── what a lost key makes of the counts ──────────────────────────────────────────────────────────────────────────────


async def test_the_list_of_what_lives_may_be_lost_and_nothing_is_stranded(driver: QueueDriver) -> None:
    for _ in range(5):
        await driver.submit()
    await driver.redis.delete(keys.live(driver.queue))
    await driver.reconcile()
    claims = await driver.claim_all()
    assert len(claims) == 5
    for claim in claims:
        await driver.finish(claim)


async def test_a_count_that_is_too_high_is_put_right_by_a_claim_that_finds_nobody(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.redis.hset(keys.meta(driver.queue), mapping={"backlogged:normal": 5, "ready:normal": 5})
    [claim] = await driver.claim(2)
    await driver.submit()
    assert (await driver.stats()).normal == 1
    await driver.finish(claim)


async def test_a_count_below_nothing_promises_nobody_a_place_in_front(driver: QueueDriver) -> None:
    await driver.redis.hset(keys.meta(driver.queue), mapping={"backlogged:normal": -3, "ready:normal": -3})
    first, second = await driver.submit(), await driver.submit(account="b")
    assert (await driver.outlook(second)).ahead >= 0
    assert {claim.id for claim in await driver.claim_all()} == {first, second}


async def test_a_claim_that_meets_only_what_is_gone_says_that_there_may_be_more(driver: QueueDriver) -> None:
    ids = [await driver.submit() for _ in range(70)]
    for name in ids[:-1]:
        await driver.redis.delete(keys.record(name), keys.input_data(name), keys.events(name))
    await driver.hear_bell()
    assert await driver.claim() == []
    assert await driver.hear_bell()
    assert [claim.id for claim in await driver.claim()] == ids[-1:]
    await driver.reconcile()
