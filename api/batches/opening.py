"""Say when lines of a batch may start: in its open hours, and not before the time of X-Start-After. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from director.core.hours import DAY_MS, open_at, open_spans, parse_hours
from director.core.ids import IDLE

HORIZON_MS: Final = 2 * DAY_MS  # of a forecast: twice the longest life of a batch
SECOND_MS: Final = 1000


class Opening:
    """`hours`: as `core.hours` reads them, or `idle`, which is a lane, or empty. `headers`: those of the batch."""

    def __init__(self, hours: str, headers: Mapping[str, str]) -> None:
        self._hours = parse_hours(hours) if hours not in ("", IDLE) else None
        after = headers.get("x-start-after")
        self._after_ms = 0 if after is None else round(datetime.fromisoformat(after).timestamp() * 1000)
        self._known: tuple[int, bool, int | None] = (0, True, 0)  # from when on, what is so, and until when

    def is_open(self, now_ms: int) -> bool:
        return self._at(now_ms)[0]

    def changes_at(self, now_ms: int) -> int | None:
        """Return when they close, or open where they are closed now. None if that never comes."""
        return self._at(now_ms)[1]

    def opens_at(self, now_ms: int) -> int | None:
        """Return when lines may start: now, or with the next hours. None if that never comes."""
        if self.seconds_left(now_ms) != 0:
            return now_ms
        is_open, at_ms = self._at(now_ms)
        return self._at(at_ms)[1] if is_open and at_ms is not None else at_ms

    def seconds_left(self, now_ms: int) -> int | None:
        """Return for how many whole seconds they are open. None if they do not close."""
        is_open, at_ms = self._at(now_ms)
        if not is_open:
            return 0
        return None if at_ms is None else (at_ms - now_ms) // SECOND_MS

    def open_ms(self, since_ms: int, until_ms: int) -> int:
        """Return for how long they were open in between."""
        return sum(end - start for start, end in self._spans(since_ms, until_ms))

    def end_after(self, now_ms: int, needed_ms: float) -> int:
        """Return when they have been open for this long, or the horizon."""
        for start, end in self._spans(now_ms, now_ms + HORIZON_MS):
            if needed_ms <= end - start:
                return round(start + needed_ms)
            needed_ms -= end - start
        return now_ms + HORIZON_MS

    def _at(self, now_ms: int) -> tuple[bool, int | None]:
        since_ms, is_open, until_ms = self._known
        if since_ms <= now_ms and (until_ms is None or now_ms < until_ms):
            return is_open, until_ms
        is_open, until_ms = self._find(now_ms)
        self._known = (now_ms, is_open, until_ms)
        return is_open, until_ms

    def _find(self, now_ms: int) -> tuple[bool, int | None]:
        if now_ms < self._after_ms:
            is_open, at_ms = self._find(self._after_ms)
            return False, self._after_ms if is_open else at_ms
        return (True, None) if self._hours is None else open_at(self._hours, now_ms)

    def _spans(self, since_ms: int, until_ms: int) -> Iterator[tuple[int, int]]:
        since_ms = max(since_ms, self._after_ms)
        if since_ms >= until_ms:
            return
        if self._hours is None:
            yield since_ms, until_ms
        else:
            yield from open_spans(self._hours, since_ms, until_ms)
