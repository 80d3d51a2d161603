"""An outlook says why a prediction waits, how many are ahead of it, and for how long."""

import asyncio
from typing import Any

import pytest

from director.broker import keys
from director.broker.replies import Accepted, Readiness, Swap
from director.core.errors import QueueRefused
from director.core.ids import LANES, PredictionId
from director.core.policy import Policy, shard
from director.core.schema import Outlook
from director.core.usage import Used
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver, enqueue


async def served_by(driver: QueueDriver, slots: int = 1, *, run_s: float | None = None, busy: bool = True) -> None:
    """Report slots of directors, let one run take `run_s` and, if `busy`, occupy all slots."""
    await driver.have_slots(slots)
    if run_s is not None:
        await driver.submit(account="stranger")
        await driver.run(await driver.claim_one(), run_s)
    if busy:
        await driver.submit_many(slots, account="stranger")
        assert len(await driver.claim(slots)) == slots
    await driver.have_slots(slots)


async def reason(driver: QueueDriver, prediction_id: PredictionId) -> tuple[str, int | None]:
    outlook = await driver.outlook(prediction_id)
    return outlook.reason, outlook.detail


async def report(driver: QueueDriver, *states: Readiness) -> None:
    """Send a heartbeat of one more director for each state."""
    for number, state in enumerate(states, start=2):
        await driver.scripts.extend(
            driver.queue, consumer=f"d{number}", lease_s=15, claims=[], slots=1, state=state, now_ms=driver.now_ms
        )


async def accepted(driver: QueueDriver, account: str = ACCOUNT, **options: Any) -> Accepted:
    streams = options.pop("streams", shard(account, streams=16, size=2))
    fields = {"queue": driver.queue, "model": MODEL, "version": VERSION, "now_ms": driver.now_ms}
    return await enqueue(driver.scripts, driver.new_id(), account=account, shard=streams, **fields, **options)


async def test_reason_is_that_no_director_has_come_or_is_left(driver: QueueDriver) -> None:
    first = await driver.submit(account="stranger")
    assert await driver.outlook(first) == Outlook(1, 0, None, None, "no_director")
    await driver.claim_one()
    await served_by(driver)
    prediction_id = await driver.submit()
    driver.pass_time(20)
    assert await reason(driver, prediction_id) == ("waiting_its_turn", None)
    driver.pass_time(0.001)
    assert await reason(driver, prediction_id) == ("no_director", None)


@pytest.mark.parametrize("state", ["starting", "setup_failed", "server_auth"])
async def test_a_starting_or_failed_director_does_not_hide_a_ready_one(driver: QueueDriver, state: Readiness) -> None:
    await served_by(driver)
    await report(driver, state)
    assert await reason(driver, await driver.submit()) == ("waiting_its_turn", None)


@pytest.mark.parametrize(
    ("states", "why"),
    [
        (["starting"], "servers_starting"),
        (["setup_failed"], "setup_failed"),
        (["setup_failed", "starting"], "servers_starting"),
        (["server_auth", "setup_failed"], "server_auth"),
        (["server_auth", "starting"], "servers_starting"),
    ],
)
async def test_reason_names_servers_that_start_fail_or_refuse(
    driver: QueueDriver, states: list[Readiness], why: str
) -> None:
    await report(driver, *states)
    outlook = await driver.outlook(await driver.submit())
    assert (outlook.reason, outlook.p50_ms, outlook.p90_ms) == (why, None, None)


async def swaps(driver: QueueDriver, reason: str, *, eta_s: float, late_s: float, slots: int = 1) -> None:
    """Send a heartbeat of a director whose model shares a device and is not loaded."""
    swap = Swap(reason=reason, eta_s=eta_s, late_s=late_s, slots=slots)  # type: ignore[arg-type]
    await driver.scripts.extend(
        driver.queue,
        consumer="d1",
        lease_s=15,
        claims=[],
        slots=0,
        state="starting",
        swap=swap,
        now_ms=driver.now_ms,
    )


async def test_wait_for_a_model_that_is_not_loaded_has_its_swap_in_the_estimate(driver: QueueDriver) -> None:
    await served_by(driver, run_s=10)
    await swaps(driver, "waiting_for_device", eta_s=20, late_s=30)
    first, second = await driver.submit_many(2)
    assert await driver.outlook(first) == Outlook(1, 0, 20_000, 30_000, "waiting_for_device")
    behind = await driver.outlook(second)
    assert (behind.p50_ms, behind.reason) == (30_000, "waiting_for_device"), "after the run of the first"
    await swaps(driver, "loading", eta_s=5, late_s=8, slots=2)
    assert await driver.outlook(second) == Outlook(1, 1, 5_000, 8_000, "loading")
    assert await driver.field(first, "runs") == "", "the factors for waiting times learn from runs alone"


async def test_swap_is_shown_while_its_director_says_so(driver: QueueDriver) -> None:
    await swaps(driver, "loading", eta_s=5, late_s=8)
    assert (await driver.stats()).swap == "loading"
    prediction_id = await driver.submit()
    driver.pass_time(20.001)
    await report(driver, "starting")
    assert await reason(driver, prediction_id) == ("servers_starting", None)
    await swaps(driver, "loading", eta_s=5, late_s=8)
    await report(driver, "ready")
    assert await reason(driver, prediction_id) == ("waiting_its_turn", None), "another has it loaded"
    assert (await driver.stats()).swap == ""


async def test_former_release_reads_a_swap_as_starting(driver: QueueDriver) -> None:
    await swaps(driver, "loading", eta_s=5, late_s=8)
    assert await driver.counts(keys.slots(driver.queue)) == {"d1": "0 starting"}


async def test_reason_is_that_the_queue_is_paused(driver: QueueDriver) -> None:
    await served_by(driver, run_s=10)
    prediction_id = await driver.submit()
    await driver.pause(by="ops")
    paused_ms = driver.now_ms
    driver.pass_time(5)
    await driver.pause(by="others")
    assert await driver.outlook(prediction_id) == Outlook(1, 0, None, None, "paused", paused_ms, "ops")
    stats = await driver.scripts.stats(driver.queue)
    assert (stats.paused, stats.paused_at, stats.paused_by) == (True, paused_ms, "ops")
    await driver.pause(paused=False)
    stats = await driver.scripts.stats(driver.queue)
    assert (stats.paused, stats.paused_at, stats.paused_by) == (False, None, "")
    assert await reason(driver, prediction_id) == ("waiting_its_turn", None)


async def test_reason_is_that_the_account_is_paused(driver: QueueDriver) -> None:
    await served_by(driver)
    mine, other = await driver.submit(), await driver.submit(account="other")
    await driver.pause(account=ACCOUNT)
    assert await reason(driver, mine) == ("paused", 1), "it, and not the whole queue"
    assert await reason(driver, other) == ("waiting_its_turn", None)


async def test_reason_is_that_the_breaker_is_open_or_probing(driver: QueueDriver) -> None:
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(breaker_after=2))
    await driver.have_slots(3)
    await driver.submit_many(3)
    for consumer in ("d1", "d2"):
        await driver.release(await driver.claim_one(consumer=consumer), spent=True, delay_s=60)
    prediction_id = await driver.submit()
    assert await reason(driver, prediction_id) == ("breaker_open", None)
    driver.pass_time(30)
    await driver.have_slots(3)
    await driver.claim_one()
    assert await reason(driver, prediction_id) == ("breaker_open", None)


async def test_reason_is_that_the_account_is_at_its_limit(driver: QueueDriver) -> None:
    await driver.have_slots(9)
    await driver.submit_many(2, most_running=2)
    prediction_id = await driver.submit(most_running=2)
    assert await reason(driver, prediction_id) == ("waiting_its_turn", None)
    await driver.claim(9)
    assert await reason(driver, prediction_id) == ("limit_reached", 2)
    assert await reason(driver, await driver.submit(account="other")) == ("waiting_its_turn", None)


async def test_reason_is_that_the_prediction_backs_off(driver: QueueDriver) -> None:
    await served_by(driver, busy=False)
    await driver.submit()
    claim = await driver.claim_one()
    await driver.release(claim, spent=True, delay_s=8)
    driver.pass_time(3)
    outlook = await driver.outlook(claim.id)
    assert outlook == Outlook(1, 0, 5_000, 5_000, "backing_off", driver.now_ms + 5_000)
    driver.pass_time(5)
    await driver.promote()
    assert await reason(driver, claim.id) == ("waiting_its_turn", None)


async def test_reasons_that_stop_all_come_before_reasons_that_stop_one(driver: QueueDriver) -> None:
    await driver.submit(most_running=1)
    await driver.claim_one()
    prediction_id = await driver.submit(most_running=1)
    assert await reason(driver, prediction_id) == ("no_director", None)


async def order(driver: QueueDriver) -> list[PredictionId]:
    return [claim.id for claim in await driver.claim_all()]


@pytest.mark.parametrize("claimed", [0, 2], ids=["first stream next", "another stream next"])
async def test_position_is_exact_in_the_streams_of_a_lane(driver: QueueDriver, claimed: int) -> None:
    await driver.have_slots(12)
    first = [await driver.submit(account="t", streams=[stream]) for stream in (2, 5)][:claimed]
    assert [claim.id for claim in await driver.claim(2)][:claimed] == first
    ids = [await driver.submit(account=f"t{stream}", streams=[stream]) for stream in (2, 2, 7, 2, 5, 7)]
    told = [(await driver.outlook(prediction_id)).ahead for prediction_id in ids]
    served = await order(driver)
    assert told == [served.index(prediction_id) for prediction_id in ids]


async def test_position_is_exact_in_the_backlog_of_the_only_tenant(driver: QueueDriver) -> None:
    await served_by(driver)
    await driver.submit(account="stranger")
    ids = [await driver.submit() for _ in range(6)]
    told = [await driver.outlook(prediction_id) for prediction_id in ids]
    assert [(outlook.position, outlook.ahead) for outlook in told] == [(n, n) for n in range(1, 7)]
    assert (await order(driver))[1:] == ids


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 2, "c": 4}])
async def test_position_errs_by_at_most_the_number_of_level_tenants(
    driver: QueueDriver, weights: dict[str, float]
) -> None:
    await served_by(driver)
    await driver.submit(account="stranger")
    ids = [await driver.submit(account=name, weight=weight) for name, weight in weights.items() for _ in range(8)]
    ids += [await driver.submit(account="b", weight=weights["b"]) for _ in range(8)]
    told = [(await driver.outlook(prediction_id)).ahead for prediction_id in ids]
    served = await order(driver)
    off = [abs(ahead - served.index(prediction_id)) for ahead, prediction_id in zip(told, ids, strict=True)]
    assert max(off) <= 2


@pytest.mark.parametrize("reports", [False, True])
async def test_position_knows_turns_by_tokens(driver: QueueDriver, reports: bool) -> None:
    used = Used(runs=1, ms=1_000, input_tokens=4_000, output_tokens=100) if reports else Used(runs=1, ms=1_000)

    async def run() -> PredictionId:
        claim = await driver.claim_one()
        driver.pass_time(1)
        await driver.finish(claim, ran_ms=1_000, used=used)
        return claim.id

    await driver.have_slots(1)
    await driver.submit(account="a", tokens="4000 ")
    await run()
    for account in ("a", "b") * 30:
        await driver.submit(account=account, tokens="4000 ")
    for _ in range(4):  # one of them is a run ahead of the other
        await run()
    last = [await accepted(driver, account, tokens="4000 ") for account in ("a", "b")]
    waiting = {one.id: one.outlook.ahead for one in last if one.outlook}
    for account in ("a", "b"):
        waiting |= {each: (await driver.outlook(each)).ahead for each in await driver.backlog(account)}
    first = [await run() for _ in waiting]
    assert [each for each, ahead in waiting.items() if abs(ahead - first.index(each)) > 1] == []


async def test_weight_that_came_in_the_same_call_counts_in_the_outlook(driver: QueueDriver) -> None:
    await served_by(driver, run_s=1)
    heavy = (accepted(driver, "heavy", weight=4) for _ in range(8))
    *_, last = await asyncio.gather(*heavy, *(accepted(driver, "light") for _ in range(3)))
    assert last.outlook is not None
    assert last.outlook.ahead >= 2 + 2 * 4, "its own before it, and four of the other for each of these"


async def test_a_light_tenant_sees_almost_none_of_an_earlier_batch(driver: QueueDriver) -> None:
    await served_by(driver)
    await driver.submit_many(100, account="whale")
    light = await driver.outlook(await driver.submit(account="light"))
    assert light.position == 1
    assert light.ahead <= 2


async def test_position_counts_as_many_of_another_lane_as_have_turns(driver: QueueDriver) -> None:
    await served_by(driver, slots=3)
    await driver.submit_many(20, account="other", lane="high")
    prediction_id = await driver.submit()
    assert (await driver.outlook(prediction_id)).ahead == 2, "two of high have their turns before one of normal"
    high = await driver.submit(lane="high", account="other")
    assert (await driver.outlook(high)).ahead == 21, "20 of its own, and the one"


async def test_position_counts_no_more_of_another_lane_than_wait(driver: QueueDriver) -> None:
    await served_by(driver)
    await driver.submit(account="other", lane="high")
    await driver.submit_many(8, account="other")
    last = await driver.submit(account="other")
    assert (await driver.outlook(last)).ahead == 9


async def test_positions_advance_when_others_leave_the_queue(driver: QueueDriver) -> None:
    await served_by(driver)
    ids = [await driver.submit() for _ in range(5)]
    await driver.cancel(ids[2])
    await driver.claim_one()
    assert [(await driver.outlook(ids[n])).ahead for n in (1, 3, 4)] == [0, 1, 2]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    "before", ["", "me", "me me", "me me me", "other", "other other me other", "stranger other me me"]
)
async def test_acceptance_and_an_immediate_read_give_the_same_outlook(
    driver: QueueDriver, before: str, lane: str
) -> None:
    await served_by(driver, run_s=4)
    for other in LANES:
        for account in before.split():
            await driver.submit(account=account, lane=other)
    told = await accepted(driver, account="me", lane=lane)
    assert told.outlook == await driver.outlook(told.id)


@pytest.mark.parametrize("streams", [[1], [4], [6], [4, 1]])
async def test_outlook_at_acceptance_is_exact_with_free_slots_in_any_stream(
    driver: QueueDriver, streams: list[int]
) -> None:
    await driver.have_slots(9)
    await driver.submit(account="t", streams=[3])
    await driver.claim_one()
    for stream in (1, 1, 4, 1, 6):
        await driver.submit(account=f"t{stream}", streams=[stream])
    told = await accepted(driver, streams=streams)
    assert told.outlook == await driver.outlook(told.id)
    assert told.outlook.ahead == (await order(driver)).index(told.id)


async def test_outlook_knows_that_an_account_was_served_ahead_of_others(driver: QueueDriver) -> None:
    await served_by(driver, run_s=1)
    await driver.submit_many(12, account="other")
    await driver.submit(account="me", cost=5)
    await driver.claim(3)
    told = await accepted(driver, account="me")
    assert told.outlook == await driver.outlook(told.id)
    assert told.outlook.ahead == 4


async def test_a_free_slot_means_an_immediate_start(driver: QueueDriver) -> None:
    await served_by(driver, slots=2, busy=False)
    assert (await accepted(driver)).outlook == Outlook(1, 0, 0, 0, "waiting_its_turn")
    await driver.submit()
    outlook = await driver.outlook(await driver.submit())
    assert (outlook.p50_ms, outlook.p90_ms) == (None, None), "no run has ended"


@pytest.mark.parametrize(("slots", "waits_s"), [(1, [10, 20, 30]), (4, [10, 12.5, 15])])
async def test_wait_covers_every_run_that_must_end_first(driver: QueueDriver, slots: int, waits_s: list[float]) -> None:
    await served_by(driver, slots, run_s=10)
    ids = [await driver.submit() for _ in range(3)]
    outlooks = [await driver.outlook(prediction_id) for prediction_id in ids]
    assert [(outlook.p50_ms or 0) / 1000 for outlook in outlooks] == waits_s
    assert all((outlook.p90_ms or 0) > (outlook.p50_ms or 0) for outlook in outlooks)


async def test_wait_knows_how_long_a_run_has_run(driver: QueueDriver) -> None:
    await served_by(driver, run_s=10)
    prediction_id = await driver.submit()
    driver.pass_time(7)
    assert (await driver.outlook(prediction_id)).p50_ms == 3_000
    assert (await accepted(driver)).outlook.p50_ms == 13_000


@pytest.mark.parametrize(("slots", "p50_s"), [(1, 80), (4, 10 / 3)])
async def test_an_overdue_run_is_expected_to_take_as_long_again(driver: QueueDriver, slots: int, p50_s: float) -> None:
    await served_by(driver, slots, run_s=10)
    prediction_id = await driver.submit()
    driver.pass_time(90)
    await driver.have_slots(slots)
    outlook = await driver.outlook(prediction_id)
    assert outlook.p50_ms == pytest.approx(p50_s * 1000, abs=1)
    assert outlook.p90_ms is not None
    assert outlook.p90_ms > 2 * outlook.p50_ms, "nothing is known of it any more"


async def test_the_newest_runs_weigh_most(driver: QueueDriver) -> None:
    await served_by(driver, run_s=10, busy=False)
    for _ in range(200):
        await driver.submit(account="stranger")
        await driver.run(await driver.claim_one(), 2)
    await served_by(driver)
    outlook = await driver.outlook(await driver.submit())
    assert outlook.p50_ms is not None
    assert 2_000 <= outlook.p50_ms < 2_300


async def test_run_time_includes_its_cost(driver: QueueDriver) -> None:
    await served_by(driver, busy=False)
    await driver.submit(account="stranger", cost=5)
    await driver.run(await driver.claim_one(), 10)
    stats = await driver.stats()
    assert (stats.service_ms, stats.service_cost) == (10_000, 5)


async def test_an_account_at_its_limit_waits_for_its_own_runs(driver: QueueDriver) -> None:
    await served_by(driver, slots=8, run_s=10, busy=False)
    ids = [await driver.submit(most_running=2) for _ in range(6)]
    await driver.claim(8)
    waits = [(await driver.outlook(prediction_id)).p50_ms for prediction_id in ids[2:]]
    assert waits == [5_000, 10_000, 15_000, 20_000]


@pytest.mark.parametrize(
    ("run_s", "busy", "start_by_ms"),
    [(10, True, 10_000), (None, True, 1), (10, False, 1)],
    ids=["in time", "unknown wait", "immediate start"],
)
async def test_a_start_in_time_is_accepted(
    driver: QueueDriver, run_s: float | None, busy: bool, start_by_ms: int
) -> None:
    await served_by(driver, run_s=run_s, busy=busy)
    await driver.submit(start_by_ms=start_by_ms)


async def test_a_start_that_would_be_late_is_refused_and_nothing_written(driver: QueueDriver) -> None:
    await served_by(driver, run_s=10)
    await driver.submit()
    async with unchanged(driver.redis):
        with pytest.raises(QueueRefused, match="cannot_start_in_time") as refused:
            await driver.submit(start_by_ms=14_500, weight=2, idempotency=("digest", "body"))
    assert (refused.value.eta_s, refused.value.retry_after_s) == (20, 6)


async def test_a_repeated_submit_gets_its_answer_and_no_refusal(driver: QueueDriver) -> None:
    await served_by(driver, run_s=10)
    prediction_id = await driver.submit(start_by_ms=10_000, idempotency=("digest", "body"))
    await driver.submit_many(5)
    assert await driver.submit(start_by_ms=10_000, idempotency=("digest", "body")) == prediction_id
    with pytest.raises(QueueRefused):
        await driver.submit(start_by_ms=10_000)
