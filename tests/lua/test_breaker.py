"""Consecutive faults of servers open the breaker of a queue. After a cool time one probe runs."""

from itertools import count
from typing import Any

import pytest

from director.broker import keys
from director.core.errors import QueueRefused
from director.core.policy import Policy
from director.core.schema import Claim
from director.core.states import Status
from tests.support.keyspace import unchanged
from tests.support.queue_driver import VERSION, QueueDriver

DIRECTORS = count(100)


@pytest.fixture
async def driver(driver: QueueDriver) -> QueueDriver:
    """Return a driver whose breaker opens after three faults for 30 s, with more attempts than any test uses."""
    await rule(driver)
    return driver


async def rule(driver: QueueDriver, **options: Any) -> None:
    policy = Policy(**{"breaker_after": 3, "breaker_cool_s": 30, "attempts": 15, "backoff_cap_s": 3600, **options})
    assert await driver.scripts.register(driver.queue, version=VERSION, policy=policy)


async def fill(driver: QueueDriver, many: int = 9) -> None:
    await driver.submit_many(many)


async def fault(driver: QueueDriver, claim: Claim) -> None:
    """Lose the server of a claim. The prediction may run again in an hour."""
    assert await driver.release(claim, spent=True, delay_s=3600) == "delayed"


async def faults(driver: QueueDriver, many: int = 3) -> None:
    """Lose servers one after the other, each of another director and another prediction."""
    for _ in range(many):
        await fault(driver, await driver.claim_one(consumer=f"d{next(DIRECTORS)}"))


async def state(driver: QueueDriver) -> str:
    return (await driver.stats()).breaker


async def opened(driver: QueueDriver) -> None:
    await fill(driver)
    await faults(driver)
    assert await state(driver) == "open"


async def probe(driver: QueueDriver) -> Claim:
    await opened(driver)
    driver.pass_time(30)
    return await driver.claim_one()


@pytest.mark.parametrize("how", ["released", "silent"])
async def test_consecutive_faults_across_directors_open_the_breaker(driver: QueueDriver, how: str) -> None:
    await fill(driver)
    if how == "released":
        await faults(driver, 2)
        assert await state(driver) == ""
        await faults(driver, 1)
    else:
        for number in range(3):
            await driver.claim(1, consumer=f"d{number}")
        driver.pass_time(15)
        assert len(await driver.reap()) == 3
    assert await state(driver) == "open"
    async with unchanged(driver.redis):
        assert await driver.claim(5) == []


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED])
async def test_a_run_that_its_server_completed_resets_the_fault_count(driver: QueueDriver, status: Status) -> None:
    await fill(driver)
    await faults(driver, 2)
    await driver.finish(await driver.claim_one(), status, ran_ms=5)
    await faults(driver, 2)
    assert await state(driver) == ""


async def test_a_prediction_that_never_ran_does_not_affect_the_breaker(driver: QueueDriver) -> None:
    await fill(driver)
    for number in range(6):
        await driver.release(await driver.claim_one(consumer=f"d{number}"))
    await faults(driver, 2)
    await driver.finish(await driver.claim_one(), Status.FAILED, error="no", code="input_refused")
    assert await state(driver) == ""
    await faults(driver, 1)
    assert await state(driver) == "open"


async def test_an_attempt_that_never_ran_does_not_affect_the_breaker(driver: QueueDriver) -> None:
    await fill(driver, 2)
    first = await driver.claim_one()
    await driver.begin(first)
    await fault(driver, first)
    driver.pass_time(3600)
    await driver.promote()
    [again] = [claim for claim in await driver.claim(2) if claim.id == first.id]
    await driver.finish(again, Status.FAILED, error="no", code="input_refused")
    assert await driver.meta("failures") == "1"


async def test_losses_of_one_director_within_a_second_are_one_fault(driver: QueueDriver) -> None:
    await fill(driver)
    claims = await driver.claim(7, consumer="d1")
    for claim in claims[:5]:
        await fault(driver, claim)
        driver.pass_time(0.199)
    assert await driver.meta("failures") == "1"
    driver.pass_time(0.005)
    await fault(driver, claims[5])
    assert await driver.meta("failures") == "2"
    driver.pass_time(1)
    await fault(driver, claims[6])
    assert await state(driver) == "open"


async def test_losses_of_two_directors_within_a_second_are_two_faults(driver: QueueDriver) -> None:
    await fill(driver)
    held = [await driver.claim(4, consumer=name) for name in ("d1", "d2")]
    for claim in (claim for pair in zip(*held, strict=True) for claim in pair):
        await fault(driver, claim)
    assert await driver.meta("failures") == "2"


async def test_an_input_that_kills_its_holders_cannot_open_the_breaker_alone(driver: QueueDriver) -> None:
    await driver.submit()
    for number in range(12):
        claim = await driver.claim_one(consumer=f"d{number}")
        await driver.release(claim, spent=True)
        driver.pass_time(5)
    assert await state(driver) == ""


async def test_one_different_fault_among_them_opens_the_breaker(driver: QueueDriver) -> None:
    poison, other = [await driver.submit(streams=[0]) for _ in range(2)]
    for _ in range(4):
        claim = await driver.claim_one()
        assert claim.id == poison
        await driver.release(claim, spent=True)
        driver.pass_time(5)
    await driver.cancel(poison)
    claim = await driver.claim_one()
    assert claim.id == other
    await fault(driver, claim)
    assert await state(driver) == "open"


@pytest.mark.parametrize("tried", [False, True])
async def test_turning_the_breaker_off_closes_it(driver: QueueDriver, tried: bool) -> None:
    claim = await probe(driver) if tried else await opened(driver)
    await driver.hear_bell()
    await rule(driver, breaker_after=0)
    assert await driver.hear_bell()
    if claim:
        await fault(driver, claim)
    assert await state(driver) == ""
    assert len(await driver.claim(2)) == 2


async def test_a_run_that_succeeds_closes_an_open_breaker(driver: QueueDriver) -> None:
    await fill(driver)
    held = await driver.claim_one(consumer="d9")
    await faults(driver)
    assert await driver.extend(held, consumer="d9") == ["held"]
    await driver.hear_bell()
    await driver.run(held, 1)
    assert await state(driver) == ""
    assert await driver.hear_bell()
    assert len(await driver.claim(9)) == 5


async def test_a_breaker_that_fails_fast_refuses_new_work_and_writes_nothing(driver: QueueDriver) -> None:
    await rule(driver, breaker_mode="fail")
    await opened(driver)
    driver.pass_time(10)
    async with unchanged(driver.redis):
        with pytest.raises(QueueRefused, match="breaker_open") as refused:
            await driver.submit(idempotency=("digest", "body"))
        assert (refused.value.retry_after_s, refused.value.limit, refused.value.eta_s) == (20, None, None)


async def opened_and_emptied(driver: QueueDriver) -> None:
    await fill(driver, 3)
    for claim in [await driver.claim_one(consumer=f"d{number}") for number in range(3)]:
        await fault(driver, claim)
        await driver.cancel(claim.id)


async def test_an_empty_queue_that_fails_fast_probes_with_the_next_submit(driver: QueueDriver) -> None:
    await rule(driver, breaker_mode="fail")
    await opened_and_emptied(driver)
    driver.pass_time(29.999)
    with pytest.raises(QueueRefused):
        await driver.submit()
    driver.pass_time(0.001)
    claim = await driver.claimed()
    with pytest.raises(QueueRefused) as refused:
        await driver.submit()
    assert refused.value.retry_after_s == 1
    await driver.run(claim, 1)
    await driver.submit()


async def test_a_rejecting_queue_probes_with_a_submit_unless_it_is_paused(driver: QueueDriver) -> None:
    await driver.have_slots(4)
    await opened_and_emptied(driver)
    await driver.bound("reject")
    with pytest.raises(QueueRefused, match="no_capacity"):
        await driver.submit()
    driver.pass_time(30)
    await driver.have_slots(4)
    await driver.pause()
    with pytest.raises(QueueRefused, match="no_capacity"):
        await driver.submit()
    await driver.pause(paused=False)
    await driver.claimed()
    with pytest.raises(QueueRefused, match="no_capacity"):
        await driver.submit()


async def test_one_probe_is_handed_out_after_the_cool_time(driver: QueueDriver) -> None:
    await opened(driver)
    await driver.submit()
    driver.pass_time(29.999)
    assert await driver.claim(5) == []
    driver.pass_time(0.001)
    assert await driver.claim(0) == []
    assert await state(driver) == "open", "a claim of zero leaves the probe to another director"
    first = await driver.claim(5, nonce="abc")
    assert len(first) == 1
    assert await state(driver) == "probing"
    assert await driver.claim(5, nonce="abc") == first, "the reply was lost"
    assert await driver.claim(5, consumer="d2") == []


async def test_a_successful_probe_closes_the_breaker_and_sends_a_wakeup(driver: QueueDriver) -> None:
    claim = await probe(driver)
    await driver.hear_bell()
    await driver.run(claim, 1)
    assert await state(driver) == ""
    assert await driver.hear_bell()
    await faults(driver, 2)
    assert await state(driver) == "", "it takes as many faults as at first"
    await faults(driver, 1)
    assert await driver.meta("open_until") == str(driver.now_ms + 30_000), "and opens for the first cool time"


async def test_each_failed_probe_doubles_the_cool_time_up_to_ten_times(driver: QueueDriver) -> None:
    claim, cooled = await probe(driver), []
    for _ in range(6):
        assert await driver.release(claim, spent=True) == "waiting"
        assert await state(driver) == "open"
        cooled.append((int(await driver.meta("open_until")) - driver.now_ms) / 1000)
        driver.pass_time(cooled[-1] - 0.001)
        assert await driver.claim() == []
        driver.pass_time(0.001)
        claim = await driver.claim_one()
    assert cooled == [60, 120, 240, 300, 300, 300]


@pytest.mark.parametrize("how", ["silent", "dead letter"])
async def test_a_lost_probe_or_one_that_becomes_a_dead_letter_fails(driver: QueueDriver, how: str) -> None:
    claim = await probe(driver)
    if how == "silent":
        driver.pass_time(15)
        assert list(await driver.reap()) == [claim.id]
    else:
        await rule(driver, attempts=1)
        assert await driver.release(claim, spent=True) == "dead"
    assert (await state(driver), await driver.meta("open_until")) == ("open", str(driver.now_ms + 60_000))


async def test_a_dead_probe_fails_beside_the_end_of_another_claim(driver: QueueDriver) -> None:
    await fill(driver)
    other = await driver.claim_one(consumer="d9")
    await faults(driver)
    driver.pass_time(30)
    await rule(driver, attempts=1)
    claim = await driver.claim_one()
    assert await driver.cancel(other.id) == "asked"
    driver.pass_time(15)
    assert list(await driver.reap()) == [other.id, claim.id]
    assert (await state(driver), await driver.meta("open_until")) == ("open", str(driver.now_ms + 60_000))


async def test_a_fault_of_another_prediction_does_not_fail_the_probe(driver: QueueDriver) -> None:
    await fill(driver)
    other = await driver.claim_one(consumer="d9")
    await faults(driver)
    driver.pass_time(30)
    claim = await driver.claim_one()
    await fault(driver, other)
    assert await state(driver) == "probing"
    await driver.run(claim, 1)
    assert await state(driver) == ""


async def end_without_result(driver: QueueDriver, claim: Claim, how: str) -> None:
    match how:
        case "released":
            assert await driver.release(claim) == "waiting"
        case "delayed":
            assert await driver.release(claim, delay_s=60) == "delayed"
        case "refused_by_the_server":
            assert await driver.finish(claim, Status.FAILED, error="no", code="input_refused")
        case "canceled":
            assert await driver.cancel(claim.id) == "asked"
            assert await driver.finish(claim, Status.CANCELED)
        case "canceled_and_silent":
            await driver.cancel(claim.id)
            driver.pass_time(15)
            assert await driver.reap() == {claim.id: "canceled"}


@pytest.mark.parametrize("how", ["released", "delayed", "refused_by_the_server", "canceled", "canceled_and_silent"])
async def test_a_probe_without_a_result_lets_another_start_at_once(driver: QueueDriver, how: str) -> None:
    claim = await probe(driver)
    await driver.hear_bell()
    await end_without_result(driver, claim, how)
    assert await state(driver) == "open"
    assert await driver.hear_bell()
    assert len(await driver.claim(5)) == 1
    assert await state(driver) == "probing"


async def test_promote_sends_a_wakeup_only_once_a_probe_is_allowed(driver: QueueDriver) -> None:
    await opened(driver)
    await driver.hear_bell()
    driver.pass_time(29.999)
    await driver.promote()
    assert not await driver.hear_bell()
    driver.pass_time(0.001)
    await driver.promote()
    assert await driver.hear_bell()
    await driver.claim_one()
    await driver.promote()
    assert not await driver.hear_bell(), "one tries"


async def test_a_lost_probe_record_lets_another_probe_start(driver: QueueDriver) -> None:
    lost = await probe(driver)
    assert await driver.claim(5) == []
    await driver.redis.delete(*(key(lost.id) for key in (keys.record, keys.input_data, keys.events)))
    assert len(await driver.claim(5)) == 1
    assert await state(driver) == "probing"
    driver.pass_time(15)
    await driver.reap()
    await driver.reconcile()
