"""Run the lines of a batch: within a window of lines in the queue, and committed in parts."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Final

import anyio
from anyio.abc import TaskGroup

from api.batches.lines import BadLine, Call, Line, Outcome
from api.batches.meters import BatchMeter
from api.batches.parts import PART_BYTES, Archive, Buffer
from api.batches.progress import encode_wait
from api.batches.runs import Callers, LineRun, Unfiled
from api.batches.source import Source
from api.web.errors import Problem
from director.core.errors import BackendUnavailable
from director.core.ids import FileId
from director.store.batches import Batch, End

MOST_WINDOW: Final = 1_000  # lines of a batch that are filed and have not ended
MOST_IN_ALL: Final = 4_000  # of all batches of one keeper
MOST_BYTES: Final = 32 << 20  # of these lines, of all batches of one keeper
FILING: Final = 32  # lines of a batch that are being filed at once, and as many that are filed again
AHEAD: Final = 500  # lines that are noted as perhaps filed with one write
UNWRITTEN_BYTES: Final = 2 * PART_BYTES  # of a batch: beyond it no line is filed, and no answer read
MOST_UNWRITTEN: Final = 32 << 20  # of all batches of one keeper, likewise
PART_S: Final = 5.0  # from the first line of a part to its commit
PARTS_IN_ALL: Final = 50  # later the longer a batch runs: one of a day has a few hundred parts, and those of PART_BYTES
LONGEST_PART_S: Final = 300.0  # a fraction of the life of the lines' data
LOOK_S: Final = 0.5
WAITS_S: Final = 5.0  # between two looks at what lines wait for
STUCK_S: Final = 60.0  # for which no line is accepted until another batch gets the slot


class Stop:
    """Why a batch runs no more lines: its `end`, or because this keeper leaves it to another one."""

    def __init__(self) -> None:
        self.end: End | None = None
        self.is_leaving = False
        self.news = asyncio.Event()

    def end_as(self, end: End) -> None:
        self.end = self.end or end
        self.news.set()

    def leave(self) -> None:
        self.is_leaving = True
        self.news.set()

    def __bool__(self) -> bool:
        return self.end is not None or self.is_leaving


class Capacity:
    """How many lines may be under way, of all batches of one keeper."""

    def __init__(self) -> None:
        self.accounts = Counter[str]()  # batches of each
        self.meter = BatchMeter(self.accounts.total)
        self.bytes = Counter[str]()  # of lines under way, by account
        self.unwritten: Counter[FileId] = Counter()  # bytes of answers that are not committed, by batch
        self.turn = asyncio.Semaphore(1)  # of the thread that reads lines
        self.reads = asyncio.Semaphore(4)  # answers of up to 8 MiB that are read at once

    @property
    def window(self) -> int:
        return min(MOST_WINDOW, MOST_IN_ALL // max(1, self.accounts.total()))

    def is_full_of(self, account: str) -> bool:
        """Return whether lines of this account have its share of the bytes. As much is left for one account more."""
        return self.bytes[account] >= MOST_BYTES // (len(+self.accounts) + 1)


class Work:
    def __init__(
        self,
        batch: Batch,
        *,
        source: Source,
        archive: Archive,
        callers: Callers,
        capacity: Capacity,
        stop: Stop,
    ) -> None:
        self._batch = batch
        self._source = source
        self._archive = archive
        self._callers = callers
        self._capacity = capacity
        self._stop = stop
        self._filing = 0
        self._again = asyncio.Semaphore(FILING)
        self._under_way: dict[int, LineRun] = {}
        self._starts: dict[int, int] = {}  # number and first byte of each line that was read and is not committed
        number, at = map(int, batch.place.split(" "))
        self._next = (number, at)
        self._buffer = Buffer()
        self._waits: dict[int, Problem] = {}  # why lines are not accepted just now
        self._is_over = False
        self.is_closed = False  # lines are left that may start only in open hours
        self.is_stuck = False  # no line was accepted for STUCK_S

    @property
    def is_whole(self) -> bool:
        """Return whether each line is written."""
        return self._archive.written.lines == self._batch.total

    async def run(self) -> None:
        """Run all lines that are not written, or until `stop` or until it is stuck. Then all that have ended are
        committed.
        """
        await self._archive.read_noted()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._commit_in_time)
            tasks.start_soon(self._cancel_in_time)
            tasks.start_soon(self._say_why_lines_wait)
            async with anyio.create_task_group() as lines:
                tasks.start_soon(self._leave_if_stuck, lines.cancel_scope)
                await self._start_lines(lines)
                while self._under_way and not self._stop.is_leaving:
                    await self._wait()
                lines.cancel_scope.cancel()
            self._is_over = True
            self._stop.news.set()
        await self._commit()

    async def write_rest(self, outcome: Outcome) -> None:
        """Write all lines that did not run."""
        number, at = self._place(())
        async for lines in self._source.lines(number=number, at=at):
            for line in lines:
                if line.number >= self._batch.total:
                    break
                if not self._archive.written.has(line.number):
                    read = self._source.read(line)
                    self._starts[line.number] = line.at
                    self._add(line.number, "" if isinstance(read, BadLine) else read.custom_id, outcome)
                if self._buffer.size >= PART_BYTES:
                    await self._commit()
        await self._commit()

    async def _start_lines(self, tasks: TaskGroup) -> None:
        number, at = self._next
        async for lines in self._source.lines(number=number, at=at):
            for line in lines:
                if line.number >= self._batch.total:
                    return
                if not self._archive.written.has(line.number):
                    is_new = line.number >= self._archive.filed  # else it may have been filed before: it is looked for
                    await self._wait_for_room(is_new=is_new)
                    if self._stop.is_leaving or (self._stop and is_new):
                        return
                    if is_new and not self._callers.is_open:
                        self.is_closed = True
                        return
                    await self._start(line, tasks)
                self._next = (line.number + 1, line.end)

    async def _start(self, line: Line, tasks: TaskGroup) -> None:
        if line.number >= self._archive.filed:
            await self._archive.note_filed(line.number + AHEAD)
        read = self._source.read(line)
        self._starts[line.number] = line.at
        if isinstance(read, BadLine):  # a keeper with other settings took it
            self._add(line.number, "", Outcome(code=read.code, message=str(read)))
            return
        run = LineRun(
            self._callers,
            line.number,
            read.target,
            reads=self._capacity.reads,
            again=self._again,
            is_full=self._is_full,
            known=self._archive.noted.pop(line.number, None),
            note=self._archive.note_line,
            waits=self._waits,
        )
        if self._stop:  # it may have been filed before: it is only looked for
            await run.stop()
        self._under_way[line.number] = run
        self._filing += 1
        tasks.start_soon(self._run_line, line, read, run)

    async def _run_line(self, line: Line, call: Call, run: LineRun) -> None:
        size = len(line.text or b"")
        self._capacity.bytes[self._batch.account] += size
        try:
            try:
                outcome = await run.file()
            finally:
                self._filing -= 1
                self._stop.news.set()
            self._capacity.meter.lines["filed"] += outcome is None
            self._add(line.number, call.custom_id, outcome or await run.end())
        except Unfiled:  # it stays where the rest begins
            self.is_closed = self.is_closed or not self._stop
        finally:
            run.leave()
            self._capacity.bytes[self._batch.account] -= size
            del self._under_way[line.number]
            self._waits.pop(line.number, None)
            self._stop.news.set()

    def _add(self, number: int, custom_id: str, outcome: Outcome) -> None:
        if not self._buffer.numbers:
            self._buffer.since_s = anyio.current_time()
        size = self._buffer.add(self._batch.id, number, custom_id, outcome)
        self._capacity.unwritten[self._batch.id] += size

    def _is_full(self) -> bool:
        unwritten = self._capacity.unwritten
        return unwritten[self._batch.id] >= UNWRITTEN_BYTES or unwritten.total() >= MOST_UNWRITTEN

    def close(self) -> None:
        """Count nothing more of it."""
        del self._capacity.unwritten[self._batch.id]

    async def _wait_for_room(self, *, is_new: bool) -> None:
        while not (self._stop.is_leaving or (is_new and not self._callers.is_open)) and (
            self._filing >= FILING
            or (not self._stop and len(self._under_way) >= self._capacity.window)  # a stopped line leaves no room
            or self._is_full()
            or (self._under_way and self._capacity.is_full_of(self._batch.account))
        ):
            await self._wait()

    async def _wait(self) -> None:
        self._stop.news.clear()
        with anyio.move_on_after(LOOK_S):  # another task may have cleared what was set
            await self._stop.news.wait()

    async def _cancel_in_time(self) -> None:
        """Cancel all lines once the batch has an end, again and again: one may be about to be filed. Those that wait
        come first, or they would take the slots of those that run.
        """
        while not self._is_over:
            if self._stop.end is not None:
                stops = (run.stop() for run in reversed(self._under_way.values()))
                failed = [each for each in await asyncio.gather(*stops, return_exceptions=True) if each is not None]
                for exc in failed:
                    if not isinstance(exc, BackendUnavailable):
                        raise exc
                await asyncio.sleep(LOOK_S)
            else:
                await self._wait()

    async def _say_why_lines_wait(self) -> None:
        """Write into the batch why lines are not accepted: at a limit, or with a suspended account."""
        said, look_s = encode_wait(None) if not self._batch.waits else b"?", 0.0
        while not self._is_over:
            await self._wait()
            if (now_s := anyio.current_time()) < look_s:
                continue
            look_s = now_s + WAITS_S
            why = encode_wait(next(iter(self._waits.values()), None))
            if why != said:
                with suppress(BackendUnavailable):  # the next look says it
                    await self._archive.note_wait(why)
                    said = why

    async def _leave_if_stuck(self, lines: anyio.CancelScope) -> None:
        """Leave the lines if each one under way was refused for STUCK_S, and none runs."""
        moved_s = anyio.current_time()
        while not (self._is_over or self._stop):
            if not self._under_way or self._waits.keys() != self._under_way.keys():
                moved_s = anyio.current_time()
            elif anyio.current_time() - moved_s >= STUCK_S:
                self.is_stuck = True
                lines.cancel()
                return
            await self._wait()

    async def _commit_in_time(self) -> None:
        began_s = anyio.current_time()
        while not self._is_over:
            now_s = anyio.current_time()
            after_s = min(max(PART_S, (now_s - began_s) / PARTS_IN_ALL), LONGEST_PART_S)
            is_due = bool(self._buffer.numbers) and now_s - self._buffer.since_s >= after_s
            if is_due or self._buffer.size >= PART_BYTES or (self._buffer.numbers and self._is_full()):
                await self._commit()
            else:
                await self._wait()

    async def _commit(self) -> None:
        if not self._buffer.numbers:
            return
        buffer, self._buffer = self._buffer, Buffer()
        number, at = self._place(buffer.numbers)
        await self._archive.commit(buffer, place=f"{number} {at}")
        self._capacity.meter.lines["succeeded"] += len(buffer.lines["output"])
        self._capacity.meter.lines["failed"] += len(buffer.lines["error"])
        self._capacity.unwritten[self._batch.id] -= buffer.size
        for written in buffer.numbers:
            del self._starts[written]
        self._stop.news.set()

    def _place(self, ended: "tuple[()] | list[int]") -> tuple[int, int]:
        """Return number and byte of the first line that is neither written nor among these."""
        over = set(ended)
        return next((start for start in self._starts.items() if start[0] not in over), self._next)
