"""replay returns a prediction's events in pages, without a gap or a repetition."""

from functools import partial

import pytest

from director.broker import keys
from director.broker.replies import Replayed
from director.core.ids import PredictionId
from director.core.schema import LIFE
from tests.support.queue_driver import ACCOUNT, QueueDriver

MEGABYTE = 1 << 20


async def page(
    driver: QueueDriver, prediction_id: PredictionId, *, after: int = 0, count: int = 100, most_bytes: int = MEGABYTE
) -> Replayed:
    found = await driver.scripts.replay(prediction_id, after=after, count=count, most_bytes=most_bytes)
    assert found is not None
    return found


async def long_run(driver: QueueDriver, outputs: int, *, size: int = 1) -> PredictionId:
    await driver.submit()
    claim = await driver.claim_one()
    seq = await driver.begin(claim, *[("output", b'"%d%s"' % (i, b"x" * size)) for i in range(outputs)])
    await driver.finish(claim, seq=seq)
    return claim.id


async def test_replay_returns_all_events_in_order_with_number_and_time(driver: QueueDriver) -> None:
    prediction_id = await long_run(driver, 2)
    found = await page(driver, prediction_id)
    assert (found.account, found.last) == (ACCOUNT, 5)
    told = [(event.seq, event.kind, event.data) for event in found.events]
    assert told == [
        (1, "created", b""),
        (2, "started", b""),
        (3, "output", b'"0x"'),
        (4, "output", b'"1x"'),
        (5, "completed", b"succeeded"),
    ]
    assert {event.at for event in found.events} == {driver.now_ms}


@pytest.mark.parametrize("count", [1, 7, 16, 17, 50, 1000])
async def test_pages_follow_each_other_without_a_gap(driver: QueueDriver, count: int) -> None:
    prediction_id = await long_run(driver, 60)
    seqs: list[int] = []
    while events := (await page(driver, prediction_id, after=len(seqs), count=count)).events:
        assert len(events) <= count
        seqs += [event.seq for event in events]
    assert seqs == list(range(1, 64))


async def test_a_large_page_ends_early_but_has_one_event_at_least(driver: QueueDriver) -> None:
    prediction_id = await long_run(driver, 20, size=1000)
    assert len((await page(driver, prediction_id, after=2, most_bytes=3000)).events) == 3
    assert len((await page(driver, prediction_id, after=2, most_bytes=1)).events) == 1


async def test_a_page_ends_before_an_oversized_event_unless_it_is_requested(driver: QueueDriver) -> None:
    prediction_id = await long_run(driver, 3, size=1000)
    replay = partial(driver.scripts.replay, prediction_id, count=9, most_bytes=900)
    before, cut, whole = await replay(after=1, whole=False), await replay(after=2, whole=False), await replay(after=2)
    assert before is not None
    assert cut is not None
    assert whole is not None
    assert [[event.kind for event in found.events] for found in (before, cut, whole)] == [["started"], [], ["output"]]
    assert [(found.next, found.has_more) for found in (before, cut, whole)] == [(3, True), (3, True), (4, True)]


async def test_the_state_can_be_read_without_an_event(driver: QueueDriver) -> None:
    prediction_id = await long_run(driver, 1)
    found = await page(driver, prediction_id, count=0)
    assert (found.is_terminal, found.last, found.events) == (True, 4, ())
    found = await page(driver, prediction_id, after=4)
    assert (found.last, found.events, found.has_more) == (4, (), False)


async def test_a_restarted_list_is_replayed_from_its_start(driver: QueueDriver) -> None:
    prediction_id = await driver.die()
    before = await page(driver, prediction_id)
    assert before.last > 1
    await driver.revive(prediction_id)
    again = await page(driver, prediction_id, after=before.last)
    assert [(event.seq, event.kind) for event in again.events] == [(LIFE + 1, "revived")]


async def test_a_number_from_before_a_revival_replays_the_whole_new_life(driver: QueueDriver) -> None:
    prediction_id = await driver.die()
    before = await page(driver, prediction_id)
    await driver.revive(prediction_id)
    claim = await driver.claim_one()
    seq = await driver.begin(claim, *[("output", b"1")] * 9)
    await driver.finish(claim, seq=seq)
    for event in before.events:
        again = await page(driver, prediction_id, after=event.seq)
        assert [event.kind for event in again.events] == ["revived", "started", *["output"] * 9, "completed"]
        assert again.last == again.events[-1].seq == LIFE + 12
        assert (again.next, again.has_more) == (LIFE + 13, False)
    rest = await page(driver, prediction_id, after=LIFE + 10)
    assert [(event.seq, event.kind) for event in rest.events] == [(LIFE + 11, "output"), (LIFE + 12, "completed")]
    await driver.redis.delete(keys.events(prediction_id))
    assert (await page(driver, prediction_id)).is_removed


async def test_removed_events_are_reported_and_an_unknown_prediction_is_missing(driver: QueueDriver) -> None:
    prediction_id = await long_run(driver, 1)
    await driver.redis.delete(keys.events(prediction_id))
    found = await page(driver, prediction_id)
    assert (found.account, found.last, found.events, found.is_removed) == (ACCOUNT, 0, (), True)
    assert await driver.scripts.replay(driver.new_id(), after=0, count=9, most_bytes=9) is None


async def test_replay_reports_the_state_of_the_prediction(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(ticket="t")
    found = await page(driver, prediction_id)
    assert (found.status, found.is_terminal, found.ticket) == ("starting", False, "t")
    claim = await driver.claim_one()
    seq = await driver.begin(claim, ("output", b"1"))
    found = await page(driver, prediction_id, count=2)
    assert (found.status, found.is_terminal, found.has_more) == ("processing", False, True)
    await driver.finish(claim, seq=seq)
    found = await page(driver, prediction_id)
    assert (found.status, found.is_terminal, found.has_more) == ("succeeded", True, False)
    assert (await page(driver, await driver.submit())).ticket == ""
