import asyncio

import pytest

from director.servers.runners.http_base import Feed
from director.servers.runners.runner import Began, Ended, Logged, Outcome, RunEvent
from tests.support.eventually import turns


async def everything(feed: Feed) -> list[RunEvent]:
    events = [await feed.next()]
    while not isinstance(events[-1], Ended):
        events.append(await feed.next())
    return events


@pytest.mark.parametrize(
    ("outcome", "began"),
    [
        (Outcome.SUCCEEDED, True),
        (Outcome.FAILED, True),
        (Outcome.CANCELED, True),
        (Outcome.INVALID, False),
        (Outcome.REFUSED, False),
        (Outcome.LOST, False),
    ],
)
async def test_immediate_end_reports_began_only_if_it_ran(outcome: Outcome, began: bool) -> None:
    feed, end = Feed(read_ahead=1000), Ended(outcome=outcome)
    feed.end(end)
    assert await everything(feed) == ([Began(), end] if began else [end])


async def test_nothing_follows_the_end() -> None:
    feed, end = Feed(read_ahead=1000), Ended(outcome=Outcome.LOST)
    feed.end(end)
    feed.add(Logged("late"), size=4)
    feed.end(Ended(outcome=Outcome.SUCCEEDED))
    assert await everything(feed) == [end]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(feed.next(), 0)


async def test_room_returns_once_the_reader_has_caught_up() -> None:
    feed = Feed(read_ahead=1000)
    feed.add(Logged("a" * 2000), size=2000)
    room = asyncio.create_task(feed.room())
    await feed.next()  # Began
    await turns()
    assert not room.done()
    await feed.next()
    await room
