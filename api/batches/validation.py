"""Check a batch before any of its lines runs: each line by itself, then against the others and the catalogue."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from anyio import to_thread

from api.batches.lines import MOST_LINES, BadLine, BatchFault, Call, Line, bad_line_of, digest_of
from api.batches.patience import with_patience
from api.batches.runs import WAITING, Callers
from api.batches.source import MOST_PLACES, Source
from api.batches.targets import Target, find_target
from api.web.errors import Code, Problem

LONGEST_NAME: Final = 150  # of a model, as a line has it
AT_ONCE: Final = 500  # lines that are read in a thread
MOST_FAULTS: Final = 100  # of a file: it is not read beyond them
INPUT_GONE: Final = BatchFault(code="file_not_found", message="The input file is gone.", param="input_file_id")


class Validation:
    """Holds 16 bytes of each `custom_id`, and one key for each model that lines name."""

    def __init__(self, source: Source, callers: Callers) -> None:
        self._source = source
        self._callers = callers
        self._seen: set[bytes] = set()
        self._known: set[tuple[str, str]] = set()
        self.total = 0
        self.faults: list[BatchFault] = []

    async def run(self, *, is_stopped: Callable[[], bool]) -> None:
        """Count the lines, and note what is wrong with them: at most MOST_FAULTS."""
        if not await self._source.exists():
            self.faults.append(INPUT_GONE)
            return
        async for block in self._source.lines():
            for start in range(0, len(block), AT_ONCE):  # a block may have 100,000, and all of them bad
                some = block[start : start + AT_ONCE]
                async with self._source.turn:
                    found = await to_thread.run_sync(self._read, some)
                for line, read in found:
                    self.total += 1
                    if (fault := await self._judge(line, read)) is not None:
                        self.faults.append(fault)
                    if len(self.faults) >= MOST_FAULTS or is_stopped():
                        return
                    if self.total > MOST_LINES:
                        self._note("too_many_lines", f"A batch has at most {MOST_LINES:,} lines.", line=line.place)
                        return
            if self._source.places > MOST_PLACES:
                self._note("too_many_lines", f"A file has at most {MOST_PLACES:,} lines, with blank ones.")
                return
        if not self.total:
            self._note("empty_file", "The input file has no lines.")

    def _note(self, code: str, message: str, param: str | None = None, line: int | None = None) -> None:
        self.faults.append(BatchFault(code=code, message=message, param=param, line=line))

    def _read(self, lines: Sequence[Line]) -> list[tuple[Line, Call | BadLine]]:
        return [(line, self._source.read(line)) for line in lines]

    async def _judge(self, line: Line, read: Call | BadLine) -> BatchFault | None:
        if isinstance(read, BadLine):
            return read.fault(line.place)
        if (digest := digest_of(read.custom_id)) in self._seen:
            return BadLine("duplicate_custom_id", "Another line has this custom_id.", "custom_id").fault(line.place)
        self._seen.add(digest)
        if read.target.key in self._known:
            return None
        bad: BadLine | None = await with_patience(partial(self._find, read.target))
        if bad is not None:
            return bad.fault(line.place)
        self._known.add(read.target.key)
        return None

    async def _find(self, target: Target) -> BadLine | None:
        """Return why the model of a line cannot be found."""
        try:
            await find_target(await self._callers.request(), target)
        except Problem as exc:
            if exc.status in WAITING or exc.code == Code.ACCOUNT_SUSPENDED:
                return None
            bad = bad_line_of(exc)
            return BadLine(bad.code, f"{target.name[:LONGEST_NAME]}: {bad}", bad.param)
        return None
