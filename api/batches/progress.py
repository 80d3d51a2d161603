"""Say how far a batch is: its rate, when it will end, and why lines failed. Pure."""

from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from api.batches.opening import Opening
from api.web.errors import Problem
from director.core.errors import SettingsError
from director.store.batches import CANCELABLE, Batch

RUNS: Final = "in_progress"
SHORTEST_S: Final = 1.0  # for which a rate is counted
UNCOUNTED_MS: Final = 300_000  # for which lines that have ended may not be counted yet


class Cause(Struct, frozen=True):
    """A cause for which lines failed."""

    code: str
    lines: int


class LinesWait(Struct, frozen=True):
    """Why lines of a batch are not accepted just now: the refusal that a POST of one has."""

    code: str
    detail: str


class BatchProgress(Struct, frozen=True, kw_only=True):
    """How far a batch is. `lines_per_second` counts from its first line to the last count. `ends_at`: in seconds since
    1970, when it will end at this rate; null before there is one, and after the last line. Both count only the time in
    which it may run. `open_hours`: null for any time. `opens_at`: when it goes on, if that is not now.
    `waits`: why no line is accepted just now.
    """

    lines_per_second: float | None
    ends_at: int | None
    causes: list[Cause]
    open_hours: str | None
    opens_at: int | None
    waits: LinesWait | None


def progress_of(batch: Batch, now_ms: int) -> BatchProgress:
    done = batch.completed + batch.failed
    began_ms = batch.times.get("in_progress")
    causes = sorted(causes_of(batch).items(), key=lambda each: (-each[1], each[0]))
    opening = _opening_of(batch)
    rate = ends_at = opens_at = None
    if opening is not None and began_ms is not None and done and batch.counted:
        until_ms = batch.counted
        if batch.status == RUNS:  # lines that are not counted yet are no standstill, until they would be
            until_ms = max(until_ms, now_ms - UNCOUNTED_MS)
        rate = done / max(SHORTEST_S, opening.open_ms(began_ms, until_ms) / 1000)
        if batch.status == RUNS:
            ends_at = round(opening.end_after(until_ms, (batch.total - done) / rate * 1000) / 1000)
    if opening is not None and batch.status in CANCELABLE and not opening.is_open(now_ms):
        opens_ms = opening.changes_at(now_ms)
        opens_at = None if opens_ms is None else opens_ms // 1000
    return BatchProgress(
        lines_per_second=None if rate is None else float(f"{rate:.3g}"),
        ends_at=ends_at,
        causes=[Cause(code, lines) for code, lines in causes],
        open_hours=batch.hours or None,
        opens_at=opens_at,
        waits=msgspec.json.decode(batch.waits, type=LinesWait) if batch.waits and batch.status == RUNS else None,
    )


def _opening_of(batch: Batch) -> Opening | None:
    """Return None for hours in a time zone that this machine does not know."""
    with suppress(SettingsError):
        return Opening(batch.hours, msgspec.json.decode(batch.headers, type=dict[str, str]))
    return None


def encode_wait(problem: Problem | None) -> bytes:
    return b"" if problem is None else msgspec.json.encode(LinesWait(problem.code, problem.document.detail))


def causes_of(batch: Batch) -> dict[str, int]:
    return msgspec.json.decode(batch.causes, type=dict[str, int]) if batch.causes else {}
