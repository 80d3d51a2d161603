"""The lines of a batch run within a window, and are committed in few parts."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from api.batches import runs
from api.batches import work as module
from api.batches.lines import Call, Line, Outcome
from api.batches.runs import LineRun
from api.batches.work import FILING, MOST_BYTES, MOST_UNWRITTEN, UNWRITTEN_BYTES, Capacity, Stop, Work
from api.web import errors
from api.web.errors import Moved
from director.core.ids import FileId, PredictionId
from tests.support.eventually import eventually

TOTAL = 3_000
BATCH, OTHER = FileId("b"), FileId("c")


class PlayedLine(LineRun):
    """A line that has ended, and whose answer is only read."""

    async def file(self) -> None:
        await asyncio.sleep(0)

    async def _end(self) -> Any:
        return await self._read(None, PredictionId("x"))  # type: ignore[arg-type]


class Played:
    """The work of one batch. `commits`: how many lines each had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, batches: int = 1, size: int = 2) -> None:
        async def read(*_: object) -> Any:
            return SimpleNamespace(record=SimpleNamespace(status="succeeded"), input=b"{}")

        monkeypatch.setattr(module, "LineRun", PlayedLine)
        monkeypatch.setattr(runs, "where_it_is", read)
        monkeypatch.setattr(runs, "PAUSE_S", 0.01)
        answer = Outcome(status=200, body=b"{}".ljust(size), is_good=True)
        monkeypatch.setattr(runs, "show", lambda *_: answer)
        self.commits: list[int] = []
        self.may_commit = anyio.Event()
        self.may_commit.set()
        self.capacity, self.stop = Capacity(), Stop()
        self.capacity.accounts["acme"] = batches
        given: Any = {
            "batch": SimpleNamespace(place="0 0", total=TOTAL, id=BATCH, account="acme", waits=b""),
            "source": SimpleNamespace(lines=self._lines, read=self._read),
            "archive": SimpleNamespace(
                written=SimpleNamespace(lines=0, has=lambda _: False),
                commit=self._commit,
                read_noted=self._read_noted,
                noted={},
                filed=0,
                note_filed=self._note,
                note_line=None,
                note_wait=self._note,
            ),
            "callers": SimpleNamespace(is_open=True, is_closed_out=lambda _: False),
        }
        self.work = Work(given.pop("batch"), capacity=self.capacity, stop=self.stop, **given)

    async def _read_noted(self) -> None: ...

    async def _note(self, _: object) -> None: ...

    async def _lines(self, *, number: int, at: int) -> AsyncIterator[list[Line]]:
        for first in range(number, TOTAL, 100):
            yield [Line(each, each + 1, each * 10, each * 10 + 10, b"x") for each in range(first, first + 100)]

    def _read(self, line: Line) -> Call:
        return Call(f"c{line.number}", SimpleNamespace())  # type: ignore[arg-type]

    async def _commit(self, buffer: Any, *, place: str) -> None:
        await self.may_commit.wait()
        self.commits.append(len(buffer.numbers))


async def test_many_batches_make_no_more_parts_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, batches=64)
    with anyio.fail_after(20):
        await played.work.run()
    assert sum(played.commits) == TOTAL
    assert len(played.commits) <= 5  # one, and one for each 5 s


@pytest.mark.faults
@pytest.mark.parametrize("others", [0, MOST_UNWRITTEN - 1_000_000], ids=["alone", "with-others"])
async def test_answers_stay_in_redis_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    size = 100_000
    played = Played(monkeypatch, size=size)
    played.may_commit = anyio.Event()
    played.capacity.unwritten[OTHER] = others
    unwritten = played.capacity.unwritten
    most = min(UNWRITTEN_BYTES, MOST_UNWRITTEN - others)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.work.run)
        await eventually(lambda: unwritten[BATCH], "there is no room", until=most.__le__)
        for _ in range(20):
            await anyio.sleep(0.01)
        assert unwritten[BATCH] < most + 5 * size
        assert len(played.work._under_way) <= FILING
        del unwritten[OTHER]
        played.may_commit.set()
        await eventually(lambda: sum(played.commits), "all are written", until=TOTAL.__eq__, limit_s=30)
    assert unwritten.total() == 0


async def test_lines_that_are_filed_again_keep_the_bound_on_filing(monkeypatch: pytest.MonkeyPatch) -> None:
    filing, again = [0, 0], set[int]()

    class RemovedLine(PlayedLine):
        """A line whose answer is gone once, so it is filed again."""

        async def _end(self) -> Any:
            stored = await super()._end()
            return stored if self._number in again else SimpleNamespace(record=stored.record, input=None)

        async def _file(self, _: int) -> None:
            again.add(self._number)
            filing[:] = filing[0] + 1, max(filing[0] + 1, filing[1])
            await asyncio.sleep(0.001)
            filing[0] -= 1

    played = Played(monkeypatch)
    monkeypatch.setattr(module, "LineRun", RemovedLine)
    with anyio.fail_after(20):
        await played.work.run()
    assert (filing, len(again), sum(played.commits)) == ([0, FILING], TOTAL, TOTAL)


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_line_that_went_to_others_ends_with_a_503(monkeypatch: pytest.MonkeyPatch, is_stopped: bool) -> None:
    played = Played(monkeypatch)

    async def read(*_: object) -> Any:
        raise Moved("others")

    monkeypatch.setattr(runs, "where_it_is", read)
    monkeypatch.setattr(runs, "LOOK_S", 60.0 if is_stopped else 0.001)
    line = PlayedLine(
        played.work._callers,
        0,
        SimpleNamespace(kind="openai"),  # type: ignore[arg-type]
        reads=played.capacity.reads,
        again=asyncio.Semaphore(FILING),
        is_full=bool,
        known=None,
        note=None,  # type: ignore[arg-type]
        waits={},
    )
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            if is_stopped:
                tasks.start_soon(line.stop)
            outcome = await line.end()
    assert (outcome.status, outcome.is_good) == (503, False)


def test_long_lines_of_one_account_leave_room_for_those_of_others() -> None:
    capacity = Capacity()
    capacity.accounts["long"] = 1
    capacity.bytes["long"] = MOST_BYTES // 2 - 1
    assert not capacity.is_full_of("long")
    capacity.bytes["long"] += 1
    assert capacity.is_full_of("long")
    capacity.accounts["other"] = 3
    assert not capacity.is_full_of("other")
    capacity.bytes["other"] = MOST_BYTES // 3 + 1
    assert capacity.is_full_of("other")
    assert capacity.bytes.total() <= MOST_BYTES
    capacity.accounts["other"] = 0
    capacity.bytes["long"] = MOST_BYTES // 2 - 1
    assert not capacity.is_full_of("long")


async def test_lines_that_are_refused_for_long_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    runs_on = anyio.Event()

    class Refused(PlayedLine):
        async def file(self) -> None:
            if self._number == 0:
                await runs_on.wait()  # it is being filed
                return
            self._waits[self._number] = errors.too_many_batches(retry_after=1)
            await anyio.sleep_forever()

    played = Played(monkeypatch)
    monkeypatch.setattr(module, "LineRun", Refused)
    monkeypatch.setattr(module, "STUCK_S", 0.2)
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(played.work.run)
            await anyio.sleep(0.5)
            assert not played.work.is_stuck, "one may still be accepted"
            runs_on.set()
    assert (played.work.is_stuck, played.work._under_way, played.commits) == (True, {}, [1])
