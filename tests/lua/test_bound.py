"""bound sets how much a queue accepts: everything, a number, or only what can start at once."""

import asyncio
from typing import Any, Final

import pytest

from director.broker.replies import Admission
from director.core.errors import QueueRefused
from tests.support.keyspace import unchanged
from tests.support.queue_driver import QueueDriver


async def refusal(driver: QueueDriver, **options: object) -> QueueRefused:
    """Return the refusal of a submit, which writes nothing."""
    async with unchanged(driver.redis):
        with pytest.raises(QueueRefused) as refused:
            await driver.submit(**options)
    return refused.value


async def test_a_queue_accepts_everything_by_default(driver: QueueDriver) -> None:
    await driver.submit_many(50)
    assert (await driver.stats()).mode == "absorb"


async def test_a_bounded_queue_accepts_up_to_its_bound(driver: QueueDriver) -> None:
    await driver.bound("bounded", 3)
    for account in ("a", "b", "c"):
        await driver.submit(account=account)
    refused = await refusal(driver, account="d", weight=3, idempotency=("digest", "body"))
    assert (refused.code, refused.limit, refused.eta_s) == ("queue_full", 3, None)
    stats = await driver.stats()
    assert (stats.mode, stats.max_queued, stats.waiting) == ("bounded", 3, 3)


async def test_a_refusal_estimates_when_a_permit_becomes_free(driver: QueueDriver) -> None:
    await driver.have_slots(4)
    await driver.bound("bounded", 0)
    assert (await refusal(driver)).retry_after_s == 1, "run times are unknown"
    await driver.bound("absorb")
    await driver.run(await driver.claimed(), 10)
    await driver.bound("bounded", 0)
    assert (await refusal(driver)).retry_after_s == 3, "four slots that take ten seconds for each"


async def test_a_rejecting_queue_accepts_as_many_as_it_has_slots(driver: QueueDriver) -> None:
    await driver.bound("reject")
    refused = await refusal(driver)
    assert (refused.code, refused.limit) == ("no_capacity", 0), "no director is there"
    await driver.have_slots(2)
    await driver.submit_many(2)
    refused = await refusal(driver)
    assert (refused.code, refused.limit) == ("no_capacity", 2)
    claims = await driver.claim(2)
    assert (await refusal(driver)).code == "no_capacity", "slots that are at work are not free"
    await driver.finish(claims[0])
    await driver.submit()
    await refusal(driver)


async def test_a_rejecting_queue_accepts_nothing_while_nothing_can_start(driver: QueueDriver) -> None:
    await driver.have_slots(2)
    await driver.bound("reject")
    await driver.pause()
    assert (await refusal(driver)).code == "no_capacity"
    await driver.pause(paused=False)
    await driver.cancel(await driver.submit())
    driver.pass_time(21)
    assert (await refusal(driver)).code == "no_capacity", "its directors went silent"


@pytest.mark.parametrize(("mode", "limit"), [("bounded", 1), ("reject", None), ("absorb", None)])
async def test_a_repeated_submit_gets_its_answer_and_no_refusal(
    driver: QueueDriver, mode: Admission, limit: int | None
) -> None:
    await driver.have_slots(1)
    await driver.bound(mode, limit)
    options = {"most_queued": 1} if mode == "absorb" else {}
    prediction_id = await driver.submit(idempotency=("digest", "body"), **options)
    async with unchanged(driver.redis):
        assert await driver.submit(prediction_id, **options) == prediction_id
        assert await driver.submit(idempotency=("digest", "body"), **options) == prediction_id
    await refusal(driver, idempotency=("another digest", "body"), **options)


async def test_the_idempotency_key_of_a_refused_submit_stays_free(driver: QueueDriver) -> None:
    await driver.bound("bounded", 0)
    await refusal(driver, idempotency=("digest", "body"))
    await driver.bound("absorb")
    await driver.submit(idempotency=("digest", "another body"))
    assert (await driver.stats()).max_queued is None


async def test_the_limit_of_the_account_is_reported_before_the_bound(driver: QueueDriver) -> None:
    await driver.bound("bounded", 1)
    await driver.submit()
    assert (await refusal(driver, most_queued=1)).code == "too_many_queued"


async def test_setting_the_same_bound_twice_has_one_effect(driver: QueueDriver) -> None:
    await driver.bound("bounded", 7)
    async with unchanged(driver.redis):
        await driver.bound("bounded", 7)


@pytest.mark.parametrize(("mode", "max_queued"), [("bounded", None), ("absorb", 3), ("reject", 3)])
async def test_only_a_bounded_queue_has_a_bound(driver: QueueDriver, mode: str, max_queued: int | None) -> None:
    with pytest.raises(ValueError, match="max_queued"):
        await driver.bound(mode, max_queued)


DAY_S: Final = 86_400


async def close(driver: QueueDriver, account: str, *, closed: bool = True) -> None:
    """Set hours that begin in 12 hours, for this day of the driver's clock; or take them back."""
    opens = (driver.now_ms // 60_000 + 720) % 1440
    hours = (
        f"{opens // 60:02}:{opens % 60:02}-{(opens + 1) % 1440 // 60:02}:{(opens + 1) % 60:02} UTC" if closed else ""
    )
    await driver.scripts.hours(
        *(driver.queue, hours),
        account=account,
        revision=1 if closed else 2,
        now_ms=driver.now_ms,
    )


async def submit_kind(driver: QueueDriver, kind: str, *, account: str = "night") -> str:
    """Submit what cannot start now, or only while nothing else waits."""
    if kind == "closed":
        await close(driver, account)
    own: dict[str, Any] = {"planned": {"start_after": driver.now_ms + 6 * DAY_S * 1000}, "idle": {"lane": "idle"}}
    return await driver.submit(account=account, **own.get(kind, {}))


KINDS = ["planned", "idle", "closed"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_start_now_takes_no_room_of_a_bounded_queue(driver: QueueDriver, kind: str) -> None:
    await driver.bound("bounded", 3)
    for _ in range(3):
        await submit_kind(driver, kind)
    for number in range(3):
        await driver.submit(account=f"day-{number}")
    assert (await refusal(driver, account="day-3")).code == "queue_full"


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_later_work_has_the_bound_for_itself(driver: QueueDriver, kind: str) -> None:
    await driver.bound("bounded", 3)
    for number in range(3):
        await driver.submit(account=f"day-{number}")
        await submit_kind(driver, kind)
    with pytest.raises(QueueRefused, match="queue_full"):
        await submit_kind(driver, kind)
    for other in KINDS:
        if other != kind:
            await submit_kind(driver, other, account="another")


async def test_planned_work_counts_for_the_bound_once_it_is_due(driver: QueueDriver) -> None:
    await driver.bound("bounded", 3)
    for _ in range(3):
        await submit_kind(driver, "planned")
    driver.pass_time(6 * DAY_S)
    assert (await refusal(driver)).code == "queue_full"


async def test_work_counts_for_the_bound_once_its_hours_begin(driver: QueueDriver) -> None:
    await driver.bound("bounded", 3)
    for _ in range(3):
        await submit_kind(driver, "closed")
    driver.pass_time(DAY_S / 2)
    assert (await refusal(driver)).code == "queue_full"


async def test_one_batch_counts_each_kind_of_its_own_items(driver: QueueDriver) -> None:
    await driver.bound("bounded", 2)
    later = driver.now_ms + DAY_S * 1000
    plans = [later, None, later, None, later, None]
    calls = [driver.submit(account=f"a{number}", start_after=plan) for number, plan in enumerate(plans)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, QueueRefused) for answer in answers] == [False, False, False, False, True, True]


@pytest.mark.parametrize("kind", ["planned", "closed", "held", "limited"])
async def test_a_rejecting_queue_refuses_what_cannot_start_now(driver: QueueDriver, kind: str) -> None:
    await driver.have_slots(2)
    await driver.bound("reject")
    options: dict[str, Any] = {"account": "night"}
    if kind == "planned":
        options["start_after"] = driver.now_ms + 1
    elif kind == "closed":
        await close(driver, "night")
    elif kind == "held":
        await driver.pause(account="night")
    else:
        options["most_running"] = 0
    assert (await refusal(driver, **options)).code == "no_capacity"
    await driver.submit(account="day")


@pytest.mark.parametrize("kind", KINDS)
async def test_what_waited_for_later_takes_no_slot_of_a_rejecting_queue(driver: QueueDriver, kind: str) -> None:
    await driver.have_slots(2)
    for _ in range(4):
        await submit_kind(driver, kind)
    await driver.bound("reject")
    await driver.submit(account="a")
    await driver.submit(account="b")
    assert (await refusal(driver, account="c")).code == "no_capacity"
    assert {claim.record.account for claim in await driver.claim(2)} == {"a", "b"}
    assert (await refusal(driver, account="c")).code == "no_capacity"


async def test_a_rejecting_queue_takes_as_much_idle_work_as_starts(driver: QueueDriver) -> None:
    await driver.have_slots(3)
    await driver.bound("reject")
    await driver.submit()
    for _ in range(2):
        await submit_kind(driver, "idle")
    assert (await refusal(driver, lane="idle", account="night")).code == "no_capacity"
