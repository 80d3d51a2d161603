"""The lines of a batch run within a window, and are committed in few parts."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from api.batches import work as module
from api.batches.lines import Call, Line, Outcome
from api.batches.work import Room, Stop, Work

TOTAL = 3_000


class PlayedLine:
    """A line that ends at once with a body of `size` bytes."""

    size = 2

    def __init__(self, *_: object, **__: object) -> None: ...

    async def stop(self) -> None: ...

    async def file(self) -> None:
        await asyncio.sleep(0)

    async def end(self) -> Outcome:
        return Outcome(status=200, body=b"{}".ljust(self.size), is_good=True)


class Played:
    """The work of one batch. `commits`: how many lines each had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, batches: int = 1) -> None:
        monkeypatch.setattr(module, "LineRun", PlayedLine)
        self.commits: list[int] = []
        self.may_commit = anyio.Event()
        self.may_commit.set()
        self.room, self.stop = Room(), Stop()
        self.room.batches = batches
        given: Any = {
            "batch": SimpleNamespace(filed=0, place="0 0", total=TOTAL, id="x", account="acme"),
            "lease": SimpleNamespace(write=self._write),
            "source": SimpleNamespace(lines=self._lines, read=self._read),
            "archive": SimpleNamespace(
                written=SimpleNamespace(lines=0, has=lambda _: False),
                commit=self._commit,
                noted_lines=self._noted,
                note_line=None,
            ),
            "callers": None,
        }
        self.work = Work(given.pop("batch"), room=self.room, stop=self.stop, **given)

    async def _noted(self) -> dict[int, str]:
        return {}

    async def _write(self, *_: object, **__: object) -> bool:
        return True

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
