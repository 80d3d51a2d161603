"""Accounts with waiting predictions are served by weight, each its oldest first."""

import asyncio
from collections import Counter

import pytest

from director.broker import keys
from director.core.ids import LANES, PredictionId
from director.core.schema import Claim
from tests.support.queue_driver import QueueDriver


async def batch(driver: QueueDriver, account: str, many: int, **options: object) -> list[PredictionId]:
    return [await driver.submit(account=account, **options) for _ in range(many)]


async def served(driver: QueueDriver, turns: int) -> list[str]:
    """Return the accounts of this many single claims."""
    return [(await driver.claim_one()).record.account for _ in range(turns)]


async def busy(driver: QueueDriver, lane: str = "normal", **batches: int) -> Claim:
    """Occupy the only slot and put one more ready entry before these batches. Return the claim of the slot."""
    claim = await driver.claimed(account="stranger", lane=lane)
    await driver.submit(account="stranger", lane=lane)
    for account, many in batches.items():
        await batch(driver, account, many)
    return claim


async def claim_of_a(driver: QueueDriver) -> Claim:
    """Claim a turn of tenant a, which has 3 predictions as tenant b has."""
    await busy(driver, a=3, b=3)
    await driver.claim_one()
    return await driver.claim_one()


async def turns_of(driver: QueueDriver, lane: str = "normal") -> dict[str, float]:
    """Return the virtual time of each tenant that has turns."""
    return {
        name.decode(): at
        for name, at in await driver.redis.zrange(keys.vtime(driver.queue, lane), 0, -1, withscores=True)
    }


@pytest.mark.parametrize(("slots", "ready"), [(3, 3), (0, 1)], ids=["slots", "no director reports slots"])
async def test_submissions_fill_free_slots_first_and_then_the_tenants_backlog(
    driver: QueueDriver, slots: int, ready: int
) -> None:
    await driver.have_slots(slots)
    ids = await batch(driver, "acme", 5, streams=[0])
    assert await driver.entries() == {0: ids[:ready]}
    assert await driver.backlog("acme") == ids[ready:]


async def test_a_taken_slot_is_not_free(driver: QueueDriver) -> None:
    await driver.have_slots(3)
    await batch(driver, "acme", 2)
    await driver.claim(2)
    ids = await batch(driver, "acme", 3)
    assert await driver.backlog("acme") == ids[1:]


async def test_a_new_tenant_queues_behind_those_who_wait_for_turns(driver: QueueDriver) -> None:
    await batch(driver, "acme", 2)
    await driver.have_slots(3)
    other = await driver.submit(account="other")
    assert await driver.backlog("other") == [other]


async def test_a_backlog_in_one_lane_leaves_other_lanes_streams_open(driver: QueueDriver) -> None:
    await batch(driver, "acme", 5, lane="low")
    high = await driver.submit(account="acme", lane="high", streams=[4])
    assert await driver.entries("high") == {4: [high]}


@pytest.mark.parametrize("at_once", [1, 10])
async def test_the_least_served_tenant_gets_the_next_turn(driver: QueueDriver, at_once: int) -> None:
    await busy(driver)
    for account in ("a", "b", "c"):
        await batch(driver, account, 3)
    claims = await driver.claim_all(at_once=at_once)
    assert [claim.record.account for claim in claims] == ["stranger", *"abc", *"abc", *"abc"]


async def test_no_share_keys_remain_after_the_last_run(driver: QueueDriver) -> None:
    for lane in LANES:
        for account in ("a", "b"):
            await batch(driver, account, 4, lane=lane, weight=2)
    for claim in await driver.claim_all():
        await driver.run(claim, 1)
    left = {name.decode().rpartition(":q:")[2] for name in await driver.redis.keys("*:q:*")}
    assert not {name for name in left if any(part in name for part in ("backlog", "vtime", "debt", "charged"))}
    assert not {name for name in left if name.endswith((":queued", ":running"))}
    for lane in LANES:
        assert (await driver.meta(f"backlogged:{lane}"), await driver.meta(f"ready:{lane}")) == ("0", "0")
        assert await driver.meta(f"clock:{lane}") == ""


async def test_a_light_tenant_passes_a_thousand_predictions_of_its_neighbour(driver: QueueDriver) -> None:
    await asyncio.gather(*(driver.submit(account="whale", streams=[3, 9]) for _ in range(1000)))
    await driver.claim(10)
    light = await driver.submit(account="light", streams=[3, 9])
    assert light in [claim.id for claim in await driver.claim(2)]


async def test_a_sequential_caller_gets_every_other_turn_beside_a_batch(driver: QueueDriver) -> None:
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


@pytest.mark.parametrize(
    ("batches", "turns"),
    [
        ({"a": {"weight": 1}, "b": {"weight": 2}, "c": {"weight": 4}}, {"a": 10, "b": 20, "c": 40}),
        ({"half": {"weight": 0.5}, "one": {}}, {"half": 5, "one": 10}),
        ({"dear": {"cost": 3}, "cheap": {}}, {"dear": 5, "cheap": 15}),
    ],
    ids=["weights", "fraction of a weight", "cost"],
)
async def test_turns_follow_weights_and_costs(
    driver: QueueDriver, batches: dict[str, dict[str, float]], turns: dict[str, int]
) -> None:
    await busy(driver)
    for account, options in batches.items():
        await batch(driver, account, 45, **options)
    await driver.claim_one()
    assert Counter(await served(driver, sum(turns.values()))) == turns


async def test_a_late_tenant_shares_from_its_arrival_and_not_before(driver: QueueDriver) -> None:
    await batch(driver, "early", 60)
    for claim in await driver.claim(30):
        await driver.run(claim, 1)
    await batch(driver, "late", 20)
    assert Counter(await served(driver, 20)) == {"early": 10, "late": 10}


async def test_a_late_tenant_gets_as_many_as_others_are_running(driver: QueueDriver) -> None:
    await batch(driver, "early", 60)
    running = await driver.claim(31)  # the first went into a free slot, and was not charged
    await batch(driver, "late", 50)
    assert Counter(await served(driver, 30)) == {"late": 30}
    assert Counter(await served(driver, 20)) == {"early": 10, "late": 10}
    driver.pass_time(1)
    for claim in running:
        await driver.finish(claim, ran_ms=1000)  # as long as was expected
    assert Counter(await served(driver, 10)) == {"early": 5, "late": 5}


async def test_nothing_stays_charged_after_the_last_run(driver: QueueDriver) -> None:
    await busy(driver, a=3, b=3)
    _, *claims = await driver.claim(5)
    charged = keys.charged(driver.queue, "normal")
    assert await driver.counts(charged) == {"a": "2", "b": "2"}
    await driver.limit("b", weight=4)  # what b was charged before is not given back by this weight
    await driver.release(claims.pop(0))
    for claim in claims:
        await driver.run(claim, 1)
    assert await driver.counts(charged) == {}


async def test_a_forgotten_charge_is_not_given_back(driver: QueueDriver) -> None:
    await busy(driver)
    await driver.submit(account="a", cost=50)
    [_, long] = await driver.claim(2)
    await busy(driver)
    await batch(driver, "a", 3)
    await batch(driver, "b", 3)
    await driver.run(long, 1)
    assert await turns_of(driver) == {"a": 1, "b": 0}


async def test_a_tenant_cannot_escape_its_debt_by_leaving(driver: QueueDriver) -> None:
    await busy(driver)
    await batch(driver, "a", 20)
    await driver.submit(account="b", cost=10)
    assert await served(driver, 3) == ["stranger", "a", "b"]
    await driver.submit(account="b")  # its backlog was gone, and comes again
    assert await served(driver, 11) == ["a"] * 10 + ["b"]


async def test_virtual_time_is_forgotten_once_no_tenant_waits(driver: QueueDriver) -> None:
    await busy(driver)
    await driver.submit(account="a", cost=50)
    assert await served(driver, 2) == ["stranger", "a"]
    await busy(driver)
    await batch(driver, "a", 3)
    await batch(driver, "b", 3)
    assert await served(driver, 7) == ["stranger", *"ab", *"ab", *"ab"]


async def test_the_real_run_time_replaces_the_expected_time_at_the_end(driver: QueueDriver) -> None:
    claim = await claim_of_a(driver)
    assert (claim.record.account, await turns_of(driver)) == ("a", {"a": 1, "b": 0})
    await driver.run(claim, 2.5)
    assert await turns_of(driver) == {"a": 2.5, "b": 0}


async def test_tenants_with_long_and_short_runs_get_equal_seconds(driver: QueueDriver) -> None:
    await busy(driver, long=20, short=120)
    took = {"stranger": 1, "long": 10, "short": 1}
    seconds: Counter[str] = Counter()
    while sum(seconds.values()) < 200:
        claim = await driver.claim_one()
        await driver.run(claim, took[claim.record.account])
        seconds[claim.record.account] += took[claim.record.account]
    assert abs(seconds["long"] - seconds["short"]) <= 20


async def test_recent_runs_set_the_expected_time_of_the_next_ones(driver: QueueDriver) -> None:
    await driver.run(await busy(driver), 6)
    await batch(driver, "a", 2)
    await batch(driver, "b", 3, cost=0.5)
    await driver.claim(4)
    assert await turns_of(driver) == {"a": 6, "b": 6}
    assert (await driver.stats()).service_ms == 6000


@pytest.mark.parametrize("how", ["unspent", "spent", "never began"])
async def test_a_released_claim_or_unbegun_run_costs_its_tenant_nothing(driver: QueueDriver, how: str) -> None:
    claim = await claim_of_a(driver)
    driver.pass_time(9)
    if how == "never began":
        await driver.finish(claim, ran_ms=None)
    else:
        await driver.release(claim, spent=how == "spent")
    assert await turns_of(driver) == {"a": 0, "b": 0}


async def test_canceling_a_waiting_prediction_uses_no_turn(driver: QueueDriver) -> None:
    await busy(driver)
    ids = await batch(driver, "a", 3)
    await batch(driver, "b", 3)
    await driver.cancel(ids[0], account="a")
    assert await driver.backlog("a") == ids[1:]
    assert await served(driver, 5) == ["stranger", *"ab", *"ab"]


@pytest.mark.parametrize("delay_s", [0, 5])
async def test_a_released_prediction_returns_to_the_head_of_its_backlog(driver: QueueDriver, delay_s: float) -> None:
    ids = await batch(driver, "a", 5)
    [first, _] = await driver.claim(2)
    await driver.release(first, delay_s=delay_s)
    driver.pass_time(delay_s)
    await driver.promote()
    assert await driver.backlog("a") == [ids[0], *ids[2:]]
    assert (await driver.claim_one()).id == ids[0]


async def test_a_released_prediction_waits_for_its_tenants_turn(driver: QueueDriver) -> None:
    first = await claim_of_a(driver)
    assert await served(driver, 2) == ["b", "a"]
    await driver.release(first)
    assert await turns_of(driver) == {"a": 1, "b": 1}
    assert (await driver.claim_one()).id == first.id
    assert await served(driver, 1) == ["b"]


async def test_a_revived_prediction_goes_to_the_head_of_its_backlog(driver: QueueDriver) -> None:
    dead = await driver.die(account="a")
    ids = await batch(driver, "a", 3)
    assert await driver.revive(dead)
    assert await driver.backlog("a") == [dead, *ids[1:]]
    assert [claim.id for claim in await driver.claim(4)] == [ids[0], dead, *ids[1:]]


async def test_a_claim_ends_late_predictions_without_using_a_turn(driver: QueueDriver) -> None:
    await busy(driver)
    await batch(driver, "a", 3, lifetime_ms=5_000)
    last = await driver.submit(account="a")
    await batch(driver, "b", 2)
    driver.pass_time(5)
    assert [claim.id for claim in await driver.claim(2)][1] == last
    assert await served(driver, 1) == ["b"]


@pytest.mark.parametrize("offset", range(12))
async def test_a_high_prediction_is_claimed_next_despite_a_normal_backlog(driver: QueueDriver, offset: int) -> None:
    await batch(driver, "whale", 40)
    await driver.claim(offset)
    high = await driver.submit(account="light", lane="high")
    assert (await driver.claim_one()).id == high


async def test_backlogs_of_three_lanes_are_served_eight_to_three_to_one(driver: QueueDriver) -> None:
    for lane in ("low", "normal", "high"):
        for account in ("a", "b"):
            await batch(driver, account, 12, lane=lane)
    lanes = Counter([(await driver.claim_one()).record.lane for _ in range(24)])
    assert lanes == {"high": 16, "normal": 6, "low": 2}


async def test_virtual_time_is_separate_in_each_lane(driver: QueueDriver) -> None:
    for lane in ("low", "normal"):
        for account in ("stranger", "a", "b"):
            await batch(driver, account, 6, lane=lane)
    await driver.claim(8)
    assert await turns_of(driver) == {"a": 2, "b": 2, "stranger": 1}
    assert await turns_of(driver, "low") == {"a": 1, "b": 0, "stranger": 0}


async def test_reconcile_restores_a_prediction_missing_from_its_backlog(driver: QueueDriver) -> None:
    ids = await batch(driver, "a", 4)
    await driver.redis.zrem(keys.backlog(driver.queue, "normal", "a"), ids[2])
    assert await driver.reconcile() == (0, {ids[2]: "placed"})
    await driver.cancel(ids[1], account="a")
    await driver.redis.zadd(keys.backlog(driver.queue, "normal", "a"), {ids[1]: 1})
    assert [claim.id for claim in await driver.claim(5)] == [ids[0], *ids[2:]], "a terminal one is skipped"


async def test_losing_the_live_list_strands_nothing(driver: QueueDriver) -> None:
    await driver.submit_many(5)
    await driver.redis.delete(keys.live(driver.queue))
    await driver.reconcile()
    claims = await driver.claim_all()
    assert len(claims) == 5
    for claim in claims:
        await driver.finish(claim)


async def test_a_claim_that_finds_an_empty_backlog_corrects_its_count(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.redis.hset(keys.meta(driver.queue), mapping={"backlogged:normal": 5, "ready:normal": 5})
    [claim] = await driver.claim(2)
    await driver.submit()
    assert (await driver.stats()).normal == 1
    await driver.finish(claim)


async def test_a_negative_count_never_gives_a_negative_position(driver: QueueDriver) -> None:
    await driver.redis.hset(keys.meta(driver.queue), mapping={"backlogged:normal": -3, "ready:normal": -3})
    first, second = await driver.submit(), await driver.submit(account="b")
    assert (await driver.outlook(second)).ahead >= 0
    assert {claim.id for claim in await driver.claim_all()} == {first, second}


async def test_a_claim_of_only_missing_records_sends_a_wakeup_for_more(driver: QueueDriver) -> None:
    ids = [await driver.submit() for _ in range(70)]
    for name in ids[:-1]:
        await driver.redis.delete(keys.record(name), keys.input_data(name), keys.events(name))
    await driver.hear_bell()
    assert await driver.claim() == []
    assert await driver.hear_bell()
    assert [claim.id for claim in await driver.claim()] == ids[-1:]
    await driver.reconcile()
