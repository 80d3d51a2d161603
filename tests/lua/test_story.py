"""story returns everything known about one prediction except its bulk."""

import pytest

from director.broker import keys
from director.core.ids import PredictionId
from director.core.schema import Claim, Known
from director.operate.story import tell
from tests.support.queue_driver import QueueDriver


async def known(driver: QueueDriver, prediction_id: str) -> Known:
    found = await driver.scripts.story(PredictionId(prediction_id), now_ms=driver.now_ms)
    assert found is not None
    return found


def kinds(found: Known) -> list[str]:
    return [event.kind for event in found.events]


async def test_a_waiting_prediction_has_its_outlook_and_its_allowed_attempts(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    found = await known(driver, prediction_id)
    assert (found.now, found.record, kinds(found)) == (driver.now_ms, await driver.record(prediction_id), ["created"])
    assert (found.outlook.reason, found.attempts) == ("no_director", 3)
    assert (found.due, found.lease, found.owed, found.is_dead) == (None, None, None, False)


async def test_a_claimed_prediction_has_a_lease_and_its_first_position(driver: QueueDriver) -> None:
    claim = await driver.claimed(lease_s=15)
    found = await known(driver, claim.id)
    assert (found.lease, found.outlook, found.record.place) == (driver.now_ms + 15_000, None, "1 0")


async def test_a_backoff_shows_the_time_of_the_next_attempt(driver: QueueDriver, claim: Claim) -> None:
    driver.pass_time(2)
    await driver.release(claim, spent=True, delay_s=5, code="broken")
    found = await known(driver, claim.id)
    assert found.due == driver.now_ms + 5_000
    assert found.events[-1].kind == "retried"
    assert found.events[-1].data.decode().split() == ["broken", "d1", str(driver.now_ms - 2_000)]


async def test_an_owed_webhook_shows_the_time_of_its_next_attempt(driver: QueueDriver) -> None:
    await driver.submit(webhook="https://receiver.example", webhook_events="completed")
    await driver.finish(claim := await driver.claim_one(), grace_s=45)
    assert (await known(driver, claim.id)).owed == driver.now_ms + 45_000
    await driver.deliver(claim.id)
    assert (await known(driver, claim.id)).owed is None


async def test_the_story_of_a_long_run_omits_only_its_bulk(driver: QueueDriver, claim: Claim) -> None:
    bulk = [("output", b'"piece"'), ("logs", b'"line"')] * 600
    seq = await driver.begin(claim, *bulk)
    assert kinds(await known(driver, claim.id)) == ["created", "started"]
    await driver.finish(claim, seq=seq)
    found = await known(driver, claim.id)
    assert kinds(found) == ["created", "started", "completed"]
    assert [event.seq for event in found.events] == [1, 2, 1203]


@pytest.mark.parametrize("events", [497, 498, 499, 996, 997, 998, 1_500])
async def test_the_first_and_last_events_are_shown_without_gap_or_repetition(
    driver: QueueDriver, claim: Claim, events: int
) -> None:
    seq = await driver.begin(claim, *[("note", b"")] * events)
    places = [event.seq for event in (await known(driver, claim.id)).events]
    assert places == (list(range(1, seq + 1)) if events < 1_000 else [*range(1, 501), *range(seq - 499, seq + 1)])


async def test_the_record_is_shown_after_its_events_are_gone(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.finish(claim := await driver.claim_one())
    await driver.redis.delete(keys.events(claim.id))
    found = await known(driver, claim.id)
    assert (found.record.status, found.events) == ("succeeded", ())


async def test_an_unknown_prediction_is_missing(driver: QueueDriver) -> None:
    assert await driver.scripts.story(driver.new_id()) is None


async def test_a_life_with_many_directors_is_shown_as_it_was(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    driver.pass_time(3)
    await driver.release(await driver.claim_one(consumer="full"), code="server_full")
    driver.pass_time(1)
    lost = await driver.claim_one(consumer="lost", lease_s=15)
    driver.pass_time(2)
    await driver.begin(lost)
    driver.pass_time(13)
    assert await driver.reap() == {prediction_id: "waiting"}
    driver.pass_time(1)
    claim = await driver.claim_one(consumer="last")
    await driver.begin(claim)
    driver.pass_time(4)
    await driver.finish(claim, seq=claim.record.seq + 1, ran_ms=4_000)
    driver.pass_time(60)
    story = tell(await known(driver, prediction_id))
    assert [(one.number, one.director, one.waited_s, one.held_s, one.how, one.is_spent) for one in story.held] == [
        (1, "full", 3.0, 0.0, "server_full", False),
        (1, "lost", 1.0, 15.0, "director_lost", True),
        (2, "last", 1.0, 4.0, "succeeded", True),
    ]
    assert [one.started_at is not None for one in story.held] == [False, True, True]
    assert (story.ended.total_s, story.ended.ran_s) == (24.0, 4.0)


async def test_a_cancel_completed_by_an_expired_lease_is_shown_as_the_end(driver: QueueDriver) -> None:
    prediction_id = await driver.submit()
    await driver.claim_one(lease_s=15)
    await driver.cancel(prediction_id)
    assert tell(await known(driver, prediction_id)).next[0].what == "cancel"
    driver.pass_time(15)
    assert await driver.reap() == {prediction_id: "canceled"}
    [held] = tell(await known(driver, prediction_id)).held
    assert (held.director, held.held_s, held.how) == ("d1", 15.0, "canceled")


async def test_a_dead_letter_and_its_revival_are_shown(driver: QueueDriver) -> None:
    prediction_id = await driver.die()
    found = await known(driver, prediction_id)
    assert found.is_dead
    assert tell(found).next[-1].what == "dead_letter"
    driver.pass_time(60)
    await driver.revive(prediction_id)
    driver.pass_time(2)
    await driver.claim_one()
    story = tell(await known(driver, prediction_id))
    assert (len(story.held), story.held[-1].number, story.held[-1].waited_s) == (4, 1, 2.0)
