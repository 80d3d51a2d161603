"""Say how far a batch is: its rate, when it will end, and why lines failed. Pure."""

from typing import Final

import msgspec
from msgspec import Struct

from director.store.batches import Batch

SHORTEST_S: Final = 1.0  # for which a rate is counted
UNCOUNTED_MS: Final = 300_000  # for which lines that have ended may not be counted yet


class Cause(Struct, frozen=True):
    """A cause for which lines failed."""

    code: str
    lines: int


class BatchProgress(Struct, frozen=True, kw_only=True):
    """How far a batch is. `lines_per_second` counts from its first line to the last count. `ends_at`: in seconds since
    1970, when it will end at this rate; null before there is one, and after the last line.
    """

    lines_per_second: float | None
    ends_at: int | None
    causes: list[Cause]


def progress_of(batch: Batch, now_ms: int) -> BatchProgress:
    done = batch.completed + batch.failed
    began_ms = batch.times.get("in_progress")
    causes = sorted(causes_of(batch).items(), key=lambda each: (-each[1], each[0]))
    rate = ends_at = None
    if began_ms is not None and done and batch.counted:
        until_ms = batch.counted
        if batch.status == "in_progress":  # lines that are not counted yet are no standstill, until they would be
            until_ms = max(until_ms, now_ms - UNCOUNTED_MS)
        rate = done / max(SHORTEST_S, (until_ms - began_ms) / 1000)
        if batch.status == "in_progress":
            ends_at = round(until_ms / 1000 + (batch.total - done) / rate)
    return BatchProgress(
        lines_per_second=None if rate is None else float(f"{rate:.3g}"),
        ends_at=ends_at,
        causes=[Cause(code, lines) for code, lines in causes],
    )


def causes_of(batch: Batch) -> dict[str, int]:
    return msgspec.json.decode(batch.causes, type=dict[str, int]) if batch.causes else {}
