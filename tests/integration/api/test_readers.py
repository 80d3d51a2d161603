"""Test stream readers that are idle, stalled, or cut off from Redis, and the cost of many readers."""

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from api.services import stream_events
from api.services import stream_readers as api_readers
from api.services.stream_events import KEEP_ALIVE, REMOVED, Frames, Mark
from api.services.stream_readers import LargeReadSemaphore, Readers
from api.services.waiters import Waiters
from director.broker import keys
from director.broker.replies import Replayed
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.core.schema import Claim
from director.runtime.startup import Descriptors
from tests.support.event_stream import Told, take_apart
from tests.support.eventually import eventually, turns
from tests.support.garbage import alive, uncollected
from tests.support.queue_driver import ACCOUNT, QueueDriver


class Wire(Scripts):
    def __init__(self, scripts: Scripts) -> None:
        self._call = scripts._call
        self.asked: list[int] = []
        self.before: list[Callable[[], Awaitable[None]]] = []
        self.after: list[Callable[[], Awaitable[None]]] = []

    async def replay(self, prediction_id: PredictionId, *, after: int, **options: Any) -> Replayed | None:
        self.asked.append(after)
        if self.before:
            await self.before.pop(0)()
        replay = await super().replay(prediction_id, after=after, **options)
        if self.after:
            await self.after.pop(0)()
        return replay


class Sink:
    def __init__(self) -> None:
        self.data = b""

    async def send(self, data: bytes) -> None:
        self.data += data

    @property
    def said(self) -> list[str]:
        blocks = [take_apart(block) for block in self.data.decode().split("\n\n")[:-1]]
        return [block.data for block in blocks if isinstance(block, Told)]

    async def says(self, count: int) -> None:
        await eventually(lambda: self.said, f"{count} events came", until=lambda said: len(said) >= count)


@pytest.fixture
def wire(scripts: Scripts) -> Wire:
    return Wire(scripts)


@pytest.fixture
async def readers(redis: Redis, wire: Wire) -> AsyncIterator[Readers]:
    clock = SystemClock()

    async def has_ended(_: PredictionId) -> bool:
        return False

    waiters = Waiters(redis, has_ended=has_ended, read=wire.get, clock=clock, most=10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiters.run)
        yield Readers(wire, waiters, clock=clock, descriptors=Descriptors(clock), most=1_000)
        tasks.cancel_scope.cancel()


@pytest.fixture
async def claim(driver: QueueDriver) -> Claim:
    await driver.submit()
    return await driver.claim_one(lease_s=3600)


async def read(
    readers: Readers,
    prediction_id: PredictionId,
    sink: Sink,
    mark: Mark = Mark(),  # noqa: B008
    account: str = "a",
) -> bool:
    return await readers.read(prediction_id, Frames(mark), sink.send, account=account)


@asynccontextmanager
async def reading(readers: Readers, claim: Claim) -> AsyncIterator[Sink]:
    sink = Sink()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, readers, claim.id, sink)
        yield sink


async def test_failed_look_leaves_nothing_to_the_garbage_collector(readers: Readers, wire: Wire, claim: Claim) -> None:
    async def fail() -> None:
        raise BackendUnavailable("away")

    wire.before = [fail]
    with uncollected():
        with suppress(BackendUnavailable):
            await readers.look(claim.id, 0)
        await turns()  # its task is gone
        assert alive(BackendUnavailable) == 0


async def test_idle_reader_gets_comments(readers: Readers, claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_events, "KEEP_ALIVE_S", 0.02)
    sink = Sink()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, readers, claim.id, sink)
        await eventually(lambda: sink.data, "three came", until=lambda data: data.count(KEEP_ALIVE) >= 3)
        tasks.cancel_scope.cancel()
    assert sink.data.replace(KEEP_ALIVE, b"") == b""


async def test_lost_message_costs_time_but_no_event(
    readers: Readers, claim: Claim, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_readers, "SAFETY_S", 0.05)
    monkeypatch.setattr(Waiters, "_wake", lambda *_: None)
    async with reading(readers, claim) as sink:
        seq = await driver.begin(claim, ("output", b'"a"'))
        await sink.says(1)
        await driver.finish(claim, output=b'["a"]', seq=seq)
    assert sink.said == ["a", "{}"]


async def test_late_reader_does_not_share_an_outdated_answer(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire
) -> None:
    is_answered, goes_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        is_answered.set()
        await goes_on.wait()

    wire.after.append(hold)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(readers.look, claim.id, 1)
        await is_answered.wait()
        await driver.begin(claim, ("output", b'"a"'))
        later = await readers.look(claim.id, 1)
        goes_on.set()
    assert later is not None
    assert [event.kind for event in later.events] == ["started", "output"]


async def test_reader_waits_for_redis_to_return(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_readers, "SAFETY_S", 0.01)

    async def away() -> None:
        raise BackendUnavailable("away")

    async with reading(readers, claim) as sink:
        await eventually(lambda: wire.asked, "it reads")
        wire.before += [away] * 5
        await eventually(lambda: wire.before, "it asked in vain", until=lambda left: not left)
        seq = await driver.begin(claim, ("output", b'"a"'))
        await sink.says(1)
        await driver.finish(claim, output=b'["a"]', seq=seq)
    assert sink.said == ["a", "{}"]


async def test_reader_that_takes_nothing_is_disconnected(
    readers: Readers, claim: Claim, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_readers, "STALL_S", 0.05)
    await driver.begin(claim, ("output", LARGE))
    assert await read(readers, claim.id, Stuck()) is False
    assert readers.reading == 0


async def test_reader_cut_off_at_shutdown_has_not_received_all(readers: Readers, claim: Claim) -> None:
    reading = asyncio.create_task(read(readers, claim.id, Sink()))
    await eventually(lambda: readers.reading, "it reads")
    readers.release()
    assert await reading is False
    assert readers.is_full
    assert await read(readers, claim.id, Sink()) is False


async def test_reader_of_a_prediction_that_moves_has_not_received_all(
    readers: Readers, driver: QueueDriver, wire: Wire
) -> None:
    """Official clients would take an orderly end for the end of the prediction, and not connect again."""
    prediction_id = await driver.submit()
    sink = Sink()
    reading = asyncio.create_task(read(readers, prediction_id, sink))
    await eventually(lambda: wire.asked, "it reads")
    assert await driver.scripts.depart(driver.queue, [(prediction_id, ACCOUNT)], site="far") == ["leaving"]
    assert await driver.scripts.vacate(prediction_id, site="far") == "moved"
    assert await reading is False
    assert sink.said == []


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_data_removed_under_a_reader_is_an_error(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire, is_forgotten: bool
) -> None:
    seq = await driver.begin(claim, ("output", b'"a"'))
    await driver.finish(claim, output=b'["a","b"]', seq=seq)
    gone = [keys.events(claim.id), keys.input_data(claim.id), keys.output_data(claim.id)]

    async def remove() -> None:
        await driver.redis.delete(*gone, *([keys.record(claim.id)] if is_forgotten else []))

    wire.after.append(remove)
    sink = Sink()
    assert await read(readers, claim.id, sink)
    assert sink.said == ["a", f'{{"detail":"{REMOVED}"}}', '{"reason":"error"}']


async def test_readers_of_one_prediction_share_its_looks(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_readers, "SAFETY_S", 60.0)
    sinks = [Sink() for _ in range(200)]
    async with anyio.create_task_group() as tasks:
        for sink in sinks:
            tasks.start_soon(read, readers, claim.id, sink)
        await eventually(lambda: readers.reading, "all read", until=lambda reading: reading == 200)
        await driver.redis.publish(keys.channel(claim.id), 1)
        await anyio.wait_all_tasks_blocked()
        before = len(wire.asked)
        seq = await driver.begin(claim, ("output", b'"a"'))
        for sink in sinks:
            await sink.says(1)
        await driver.finish(claim, output=b'["a"]', seq=seq)
    assert [sink.said for sink in sinks] == [["a", "{}"]] * 200
    assert len(wire.asked) - before < 100


async def test_total_rate_of_looks_is_bounded(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_readers, "TURNS_PER_S", 100)
    monkeypatch.setattr(api_readers, "TURNS_AT_ONCE", 2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, readers, claim.id, Sink())
        tasks.start_soon(read, readers, claim.id, Sink())
        await eventually(lambda: wire.asked, "they read")
        began, before = time.monotonic(), len(wire.asked)
        for number in range(300):
            await driver.redis.publish(keys.channel(claim.id), number)
        looks, took_s = len(wire.asked) - before, time.monotonic() - began
        tasks.cancel_scope.cancel()
    assert looks <= took_s * 100 + 4


async def test_event_waits_for_no_turns_that_idle_readers_leave(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_readers, "TURNS_PER_S", 2)
    monkeypatch.setattr(api_readers, "TURNS_AT_ONCE", 100)
    monkeypatch.setattr(api_readers, "SAFETY_S", 60.0)
    paused: list[float] = []
    monkeypatch.setattr(readers.clock, "sleep", record_and_pass(paused))
    sink = Sink()
    async with anyio.create_task_group() as tasks:
        for _ in range(30):  # by equal shares each of them has a turn in 15 s
            tasks.start_soon(read, readers, claim.id, Sink())
        tasks.start_soon(read, readers, claim.id, sink)
        await eventually(lambda: wire.asked, "it looked when it was subscribed", until=lambda asked: len(asked) >= 2)
        await driver.begin(claim, ("output", b'"a"'))
        await sink.says(1)
        tasks.cancel_scope.cancel()
    assert paused == []


def test_turns_beyond_the_rate_wait_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_readers, "TURNS_PER_S", 10)
    monkeypatch.setattr(api_readers, "TURNS_AT_ONCE", 3)
    turns = api_readers.Turns()
    assert [turns.take(100.0) > 0 for _ in range(3)] == [False] * 3
    assert turns.take(100.0) == pytest.approx(0)
    assert [turns.take(100.0) for _ in range(6)] == pytest.approx([0.2, 0.2, 0.5, 0.5, 0.5, 0.8])
    assert turns.take(100.6) == pytest.approx(0.2)
    assert [turns.take(200.0) > 0 for _ in range(3)] == [False] * 3


def record_and_pass(paused: list[float]) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    return sleep


async def test_small_events_are_sent_without_reading_the_log(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire
) -> None:
    seq = await driver.begin(claim, ("output", b'"a"'))
    async with reading(readers, claim) as sink:
        await eventually(lambda: wire.asked, "it looked when it was subscribed", until=lambda asked: len(asked) >= 2)
        seq, before = await show(driver, claim, seq, "b", sink), len(wire.asked)
        seq = await show(driver, claim, seq, "c", sink)
        assert len(wire.asked) == before
        await driver.finish(claim, output=b'["a","b","c"]', seq=seq)
    assert sink.said == ["a", "b", "c", "{}"]


class Pushed(Sink):
    """Takes every second piece at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pushed = 0
        self.refused = 0

    def push(self, data: bytes) -> bool:
        if self.refused < self.pushed:
            self.refused += 1
            return False
        self.pushed += 1
        self.data += data
        return True

    async def __call__(self, data: bytes) -> None:
        await self.send(data)


async def test_pushed_events_and_others_come_once_and_in_order(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire
) -> None:
    seq = await driver.begin(claim, ("output", b'"0"'))
    sink = Pushed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(readers.read, claim.id, Frames(Mark()), sink, account="a"))
        await eventually(lambda: wire.asked, "it looked when it was subscribed", until=lambda asked: len(asked) >= 2)
        for number in range(1, 7):
            seq = await show(driver, claim, seq, str(number), sink)
        looked = len(wire.asked)
        advanced = await driver.scripts.advance(
            claim.id, token=claim.token, seq=seq, ran_ms=1, events=[("output", b'"7"'), ("logs", b'"log"')]
        )
        await sink.says(9)
        assert len(wire.asked) == looked
        await driver.finish(claim, output=b"[0,1,2,3,4,5,6,7]", logs="log", seq=advanced.seq)
    assert sink.said == [*map(str, range(8)), "log", "{}"]
    assert (sink.pushed, sink.refused) == (3, 3), "logs are not pushed"


async def test_small_events_of_one_write_are_sent_at_once(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire
) -> None:
    seq = await driver.begin(claim, ("output", b'"0"'))
    sink = Pushed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(readers.read, claim.id, Frames(Mark()), sink, account="a"))
        await eventually(lambda: wire.asked, "it looked when it was subscribed", until=lambda asked: len(asked) >= 2)
        looked = len(wire.asked)
        several = [("output", b'"a b"'), ("output", b'{"c": "d e"}'), ("output", b'"f"')]
        advanced = await driver.scripts.advance(claim.id, token=claim.token, seq=seq, ran_ms=1, events=several)
        await sink.says(4)
        assert (len(wire.asked), sink.pushed) == (looked, 1)
        await driver.finish(claim, output=b"[]", seq=advanced.seq)
    assert sink.said == ["0", "a b", '{"c": "d e"}', "f", "{}"]


@pytest.mark.parametrize("told", [b'6 output 0 "d"', b'3 output 0 "a"', b'7\0output\x010\x01"d"\0output\x010\x01"e"'])
async def test_news_that_do_not_follow_the_mark_make_it_read_the_log(
    readers: Readers, claim: Claim, driver: QueueDriver, wire: Wire, told: bytes
) -> None:
    seq = await driver.begin(claim, ("output", b'"a"'))
    async with reading(readers, claim) as sink:
        await eventually(lambda: wire.asked, "it looked when it was subscribed", until=lambda asked: len(asked) >= 2)
        seq, before = await show(driver, claim, seq, "b", sink), len(wire.asked)
        await driver.redis.publish(keys.channel(claim.id), told)
        await eventually(lambda: len(wire.asked), "it looked", until=lambda looks: looks > before)
        seq = await show(driver, claim, seq, "c", sink)
        await driver.finish(claim, output=b'["a","b","c"]', seq=seq)
    assert sink.said == ["a", "b", "c", "{}"]


async def show(driver: QueueDriver, claim: Claim, seq: int, text: str, sink: Sink) -> int:
    many, event = len(sink.said), ("output", f'"{text}"'.encode())
    advanced = await driver.scripts.advance(claim.id, token=claim.token, seq=seq, ran_ms=0, events=[event])
    await sink.says(many + 1)
    return advanced.seq


LARGE = b'"' + b"x" * 300_000 + b'"'


class Stuck(Sink):
    """Accepts nothing large until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_take = asyncio.Event()

    async def send(self, data: bytes) -> None:
        if data != KEEP_ALIVE and len(data) > 1_000:
            await self.may_take.wait()
        await super().send(data)


@pytest.mark.parametrize("is_shown", [True, False], ids=["on_its_way", "at_its_end"])
async def test_few_readers_get_large_data_at_once_while_others_get_comments(
    readers: Readers, claim: Claim, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    monkeypatch.setattr(api_readers, "KEEP_ALIVE_S", 0.02)
    readers.large_reads = LargeReadSemaphore(1, each=1)
    small = ("output", b'"small"')
    seq = await driver.begin(claim, *([small, ("output", LARGE)] if is_shown else [small]))
    await driver.finish(claim, output=b'["small",%b]' % LARGE, seq=seq)
    slow, other = Stuck(), Sink()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, readers, claim.id, slow)
        await eventually(lambda: readers.large_reads.holders, "it takes the turn")
        tasks.start_soon(read, readers, claim.id, other)
        await eventually(lambda: other.data, "it hears comments", until=lambda data: data.count(KEEP_ALIVE) > 2)
        assert other.said == ["small"]
        slow.may_take.set()
        await other.says(3)
    assert [len(said) for said in other.said] == [len(said) for said in slow.said] == [5, 300_000, 2]
    assert not readers.large_reads.holders


async def test_stalled_reader_of_large_data_frees_its_permit(
    readers: Readers, claim: Claim, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_readers, "LARGE_S", 0.2)
    readers.large_reads = LargeReadSemaphore(1, each=1)
    seq = await driver.begin(claim, ("output", LARGE))
    await driver.finish(claim, output=b"[%b]" % LARGE, seq=seq)
    stalled, sink = asyncio.create_task(read(readers, claim.id, Stuck())), Sink()
    await eventually(lambda: readers.large_reads.holders, "it takes the turn")
    assert await read(readers, claim.id, sink)
    assert await stalled is False
    assert len(sink.said) == 2


async def test_slow_reader_of_large_data_gets_more_time_with_each_piece(
    readers: Readers, claim: Claim, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Sink):
        async def send(self, data: bytes) -> None:
            await anyio.sleep(0.1)  # half the time that a piece may take
            await super().send(data)

    monkeypatch.setattr(api_readers, "LARGE_S", 0.2)
    seq = await driver.begin(claim, ("output", LARGE))
    await driver.finish(claim, output=b"[%b]" % LARGE, seq=seq)
    sink = Slow()
    assert await read(readers, claim.id, sink)
    assert len(sink.said) == 2


async def test_waiting_reader_holds_no_sent_data(readers: Readers, claim: Claim, driver: QueueDriver) -> None:
    await driver.begin(claim, ("output", b'"' + b"x" * 2_000_000 + b'"'))

    class Length(Sink):
        async def send(self, data: bytes) -> None:
            self.data += data[-1:]

    sinks = [Length() for _ in range(5)]
    tracemalloc.start()
    try:
        async with anyio.create_task_group() as tasks:
            for sink in sinks:
                tasks.start_soon(read, readers, claim.id, sink)
            for sink in sinks:
                await eventually(lambda sink=sink: sink.data, "it was told", until=lambda data: len(data) > 30)
            await eventually(
                lambda: readers.large_reads.holders, "nothing large is on its way", until=lambda held: not held
            )
            held, _ = tracemalloc.get_traced_memory()
            tasks.cancel_scope.cancel()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000


async def stalled(readers: Readers, claim: Claim, count: int, account: str) -> list["asyncio.Task[bool]"]:
    """Start readers that take nothing, and wait until no more of them get a turn."""
    tasks = [asyncio.create_task(read(readers, claim.id, Stuck(), account=account)) for _ in range(count)]
    most = min(count, api_readers.LARGE_EACH)
    await eventually(
        lambda: [holder for holder in readers.large_reads.holders if holder.account == account],
        "they have their turns",
        until=lambda held: len(held) == most,
    )
    return tasks


async def test_stalled_readers_of_one_account_delay_no_other(
    readers: Readers, claim: Claim, driver: QueueDriver
) -> None:
    seq = await driver.begin(claim, ("output", LARGE))
    await driver.finish(claim, output=b"[%b]" % LARGE, seq=seq)
    tasks = await stalled(readers, claim, 48, "a")
    began, sink = time.monotonic(), Sink()
    with anyio.fail_after(10):
        assert await read(readers, claim.id, sink, account="b")
    assert time.monotonic() - began <= 1
    assert [len(said) for said in sink.said] == [300_000, 2]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not readers.large_reads.holders


async def test_stalled_readers_of_many_accounts_lose_their_turns_while_another_waits(
    readers: Readers, claim: Claim, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_readers, "EVICT_S", 0.2)
    seq = await driver.begin(claim, ("output", LARGE))
    await driver.finish(claim, output=b"[%b]" % LARGE, seq=seq)
    tasks = [task for account in "acde" for task in await stalled(readers, claim, 4, account)]
    assert len(readers.large_reads.holders) == api_readers.LARGE_AT_ONCE
    sink = Sink()
    with anyio.fail_after(5):
        assert await read(readers, claim.id, sink, account="b")
    assert [task.result() for task in tasks if task.done()].count(False) >= 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
