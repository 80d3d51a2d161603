"""Read open hours, the times in which work may start, and say when they begin and end. Pure.

`22:00-06:00 Europe/Berlin`, `Mon-Fri 20:00-07:00, Sat-Sun 00:00-24:00 Europe/Berlin`. A day is that on which its hours
begin. They are what a clock on the wall shows: on the day that it goes back, an hour in them comes twice.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from msgspec import Struct

from director.core.errors import SettingsError

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WINDOW: Final = re.compile(
    r"(?:(?P<first>[A-Z][a-z]{2})(?:-(?P<last>[A-Z][a-z]{2}))? )?"
    r"(?P<from>[0-2][0-9]:[0-5][0-9])-(?P<to>[0-2][0-9]:[0-5][0-9])"
)
DAY_MIN: Final = 24 * 60
DAY_MS: Final = 86_400_000
MOST_WINDOWS: Final = 8
LONGEST: Final = 200
KNOWN_DAYS: Final = 8  # closures are known that begin within these days
LOOK_DAYS: Final = 24  # the longest time without any: where the clock skips one of a week, the next is two weeks later
EXAMPLE: Final = "open_hours: like 22:00-06:00 Europe/Berlin, or Mon-Fri 20:00-07:00, Sat-Sun 00:00-24:00 Europe/Berlin"


class Window(Struct, frozen=True):
    """Minutes of a day, on days of the week that Monday begins. One that ends before it starts goes over midnight."""

    days: frozenset[int]
    start: int
    end: int

    def has(self, weekday: int, minute: int) -> bool:
        if self.start < self.end:
            return weekday in self.days and self.start <= minute < self.end
        is_evening = weekday in self.days and minute >= self.start
        return is_evening or ((weekday - 1) % 7 in self.days and minute < self.end)


class Hours(Struct, frozen=True):
    windows: tuple[Window, ...]
    zone: ZoneInfo

    def is_open(self, at_ms: int) -> bool:
        wall = datetime.fromtimestamp(at_ms // 1000, self.zone)
        return any(window.has(wall.weekday(), wall.hour * 60 + wall.minute) for window in self.windows)


@lru_cache(maxsize=1_000)
def parse_hours(text: str) -> Hours:
    """Raises SettingsError that says what is wrong."""
    said, _, name = text.rpartition(" ")
    if len(text) > LONGEST or not said or "/" in said:
        raise SettingsError(f"{EXAMPLE}: give windows, then a zone")
    try:
        zone = ZoneInfo(name)
    except (ValueError, OSError, KeyError) as exc:  # a folder of zones is an OSError
        raise SettingsError(f"open_hours: {name} is no time zone, such as Europe/Berlin or UTC") from exc
    windows = tuple(_parse_window(part) for part in said.split(", "))
    if len(windows) > MOST_WINDOWS:
        raise SettingsError(f"open_hours: at most {MOST_WINDOWS} windows")
    return Hours(windows, zone)


def _parse_window(text: str) -> Window:
    match = WINDOW.fullmatch(text)
    if match is None:
        raise SettingsError(f"{EXAMPLE}; {text!r} is neither")
    if unknown := [day for day in (match["first"], match["last"]) if day and day not in DAYS]:
        raise SettingsError(f"open_hours: {unknown[0]} is no day: {', '.join(DAYS)}")
    start, end = _minutes(match["from"]), _minutes(match["to"])
    if start >= DAY_MIN or end > DAY_MIN or start == end:
        raise SettingsError(f"open_hours: {text!r} has no such time. A whole day is 00:00-24:00")
    first = DAYS.index(match["first"]) if match["first"] else 0
    last = DAYS.index(match["last"]) if match["last"] else first if match["first"] else 6
    return Window(frozenset((first + each) % 7 for each in range((last - first) % 7 + 1)), start, end)


def _minutes(text: str) -> int:
    return int(text[:2]) * 60 + int(text[3:])


def open_at(hours: Hours, now_ms: int) -> tuple[bool, int | None]:
    """Return whether they are open, and when that changes; None if it never does."""
    is_open = hours.is_open(now_ms)
    return is_open, next((at for at, then in _changes(hours, now_ms, LOOK_DAYS) if then != is_open), None)


def open_spans(hours: Hours, since_ms: int, until_ms: int) -> Iterator[tuple[int, int]]:
    """Yield the times in between, from and to, in which they are open."""
    opened_at = since_ms if hours.is_open(since_ms) else None
    for at, is_open in _changes(hours, since_ms, (until_ms - since_ms) // DAY_MS + 2):
        if at >= until_ms:
            break
        if not is_open and opened_at is not None:
            yield opened_at, at
        opened_at = at if is_open else None
    if opened_at is not None and opened_at < until_ms:
        yield opened_at, until_ms


@lru_cache(maxsize=1_000)
def closures(text: str, day: int) -> tuple[tuple[int, int], ...]:
    """Return the times in ms, from and to, in which these hours are closed, from a day of UTC since 1970 on. Those
    that begin within KNOWN_DAYS; the end of each is known.
    """
    hours, since = parse_hours(text), day * DAY_MS
    found, closed_at = [], None if hours.is_open(since) else since
    for at, is_open in _changes(hours, since, LOOK_DAYS):
        if is_open and closed_at is not None:
            found.append((closed_at, at))
        closed_at = None if is_open else at
    return tuple((start, end) for start, end in found if start < since + KNOWN_DAYS * DAY_MS)


def _changes(hours: Hours, since_ms: int, days: int) -> Iterator[tuple[int, bool]]:
    """Yield each time after this one at which they open or close, with True where they open."""
    was_open = hours.is_open(since_ms)
    for at in sorted({at for at in _candidates(hours, since_ms, days) if at > since_ms}):
        if (is_open := hours.is_open(at)) != was_open:
            yield at, is_open
        was_open = is_open


def _candidates(hours: Hours, since_ms: int, days: int) -> Iterator[int]:
    """Yield each time at which they may change: the ends of windows, and the steps of the clock."""
    first = datetime.fromtimestamp(since_ms // 1000, hours.zone).date() - timedelta(days=1)
    midnights = [datetime.combine(first + timedelta(days=day), time(), hours.zone) for day in range(days + 2)]
    minutes = {minute for window in hours.windows for minute in (window.start, window.end % DAY_MIN)}
    for midnight, following in pairwise(midnights):
        for minute in minutes:
            wall = midnight.replace(hour=minute // 60, minute=minute % 60)
            yield from (_ms(wall.replace(fold=fold)) for fold in (0, 1))
        if (step := _step_between(hours.zone, _ms(midnight), _ms(following))) is not None:
            yield step


def _step_between(zone: ZoneInfo, low_ms: int, high_ms: int) -> int | None:
    """Return the time, a whole minute, at which the zone's offset becomes another one; None if it stays.

    Offsets are those of instants: a midnight that the clock skips, as in Cairo, has none of its own.
    """
    low, high = low_ms // 60_000, high_ms // 60_000
    before = _offset_at(zone, low)
    if _offset_at(zone, high) == before:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset_at(zone, middle) == before else (low, middle)
    return high * 60_000


def _offset_at(zone: ZoneInfo, minute: int) -> timedelta | None:
    return datetime.fromtimestamp(minute * 60, zone).utcoffset()


def _ms(wall: datetime) -> int:
    return int(wall.astimezone(UTC).timestamp()) * 1000


def show_opening(at_ms: int, zone: str) -> str:
    """Return the time as a clock in that zone shows it: `Mon 22:00 Europe/Berlin`."""
    try:
        wall = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))
    except (ValueError, OSError, KeyError):  # another process knows more zones
        wall, zone = datetime.fromtimestamp(at_ms / 1000, UTC), "UTC"
    return f"{DAYS[wall.weekday()]} {wall:%H:%M} {zone}"
