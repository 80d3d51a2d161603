"""Open hours are those that a clock on the wall of their zone shows, on every day of the year."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from director.core.errors import SettingsError
from director.core.hours import (
    DAY_MS,
    KNOWN_DAYS,
    Hours,
    Window,
    closures,
    open_at,
    open_spans,
    parse_hours,
    show_opening,
)

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000


def ms(text: str, zone: ZoneInfo = BERLIN, *, fold: int = 0) -> int:
    wall = datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=zone, fold=fold)
    return int(wall.timestamp() * 1000)


def shown(at_ms: int | None) -> str:
    return "never" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, BERLIN).strftime("%a %d %H:%M %z")


@pytest.mark.parametrize(
    ("text", "at", "is_open", "changes"),
    [
        ("22:00-06:00 Europe/Berlin", "2026-11-29 21:59", False, "Sun 29 22:00 +0100"),
        ("22:00-06:00 Europe/Berlin", "2026-11-29 22:00", True, "Mon 30 06:00 +0100"),
        ("22:00-06:00 Europe/Berlin", "2026-11-30 05:59", True, "Mon 30 06:00 +0100"),
        ("22:00-06:00 Europe/Berlin", "2026-11-30 06:00", False, "Mon 30 22:00 +0100"),
        ("Mon-Fri 22:00-06:00 Europe/Berlin", "2026-11-28 03:00", True, "Sat 28 06:00 +0100"),
        ("Mon-Fri 22:00-06:00 Europe/Berlin", "2026-11-28 23:00", False, "Mon 30 22:00 +0100"),
        ("Mon-Fri 20:00-07:00, Sat-Sun 00:00-24:00 Europe/Berlin", "2026-11-27 21:00", True, "Mon 30 00:00 +0100"),
        ("Fri-Mon 10:00-11:00 Europe/Berlin", "2026-11-30 11:00", False, "Fri 04 10:00 +0100"),
        ("Wed 10:00-11:00 UTC", "2026-11-30 11:00", False, "Wed 02 11:00 +0100"),
        ("00:00-24:00 Europe/Berlin", "2026-11-30 11:00", True, "never"),
        ("22:00-06:00 America/New_York", "2026-11-29 12:00", False, "Mon 30 04:00 +0100"),
        # the clock goes from 2:00 to 3:00
        ("22:00-02:30 Europe/Berlin", "2026-03-29 01:59", True, "Sun 29 03:00 +0200"),
        ("02:30-04:00 Europe/Berlin", "2026-03-29 01:59", False, "Sun 29 03:00 +0200"),
        ("02:00-03:00 Europe/Berlin", "2026-03-29 01:59", False, "Mon 30 02:00 +0200"),
        # from 3:00 to 2:00
        ("22:00-06:00 Europe/Berlin", "2026-10-25 01:00", True, "Sun 25 06:00 +0100"),
        ("22:00-02:30 Europe/Berlin", "2026-10-25 01:00", True, "Sun 25 02:30 +0200"),
        ("22:00-02:30 Europe/Berlin", "2026-10-25 02:30", False, "Sun 25 02:00 +0100"),
    ],
)
def test_hours_are_those_of_the_wall_clock(text: str, at: str, is_open: bool, changes: str) -> None:
    is_so, changes_at = open_at(parse_hours(text), ms(at))
    assert (is_so, shown(changes_at)) == (is_open, changes)


WINDOWS = st.builds(
    Window,
    days=st.frozensets(st.integers(0, 6), min_size=1),
    start=st.integers(0, 1_439),
    end=st.integers(1, 1_440),
).filter(lambda window: window.start != window.end)
ZONES = st.sampled_from(
    [
        *("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Casablanca"),
        *("Africa/Cairo", "America/Havana", "Atlantic/Azores"),  # the clock skips midnight there
    ]
)
HOURS = st.builds(Hours, st.lists(WINDOWS, min_size=1, max_size=3).map(tuple), ZONES.map(ZoneInfo))
YEAR = st.integers(ms("2026-01-01 00:00"), ms("2027-12-31 00:00"))


@given(HOURS, YEAR)
@example(Hours((Window(frozenset(range(7)), 150, 240),), BERLIN), ms("2026-03-29 00:30"))
@example(Hours((Window(frozenset(range(7)), 120, 150),), BERLIN), ms("2026-10-25 00:30"))
@example(Hours((Window(frozenset({6}), 100, 130),), ZoneInfo("Australia/Lord_Howe")), ms("2026-10-03 12:00"))
@example(Hours((Window(frozenset(range(7)), 30, 360),), ZoneInfo("Africa/Cairo")), ms("2027-04-29 12:00"))
@example(Hours((Window(frozenset(range(7)), 1_380, 30),), ZoneInfo("Africa/Cairo")), ms("2027-04-29 21:30"))
@example(Hours((Window(frozenset(range(7)), 1_380, 30),), ZoneInfo("America/Havana")), ms("2027-03-14 04:30"))
def test_next_change_is_the_first_minute_that_differs(hours: Hours, now_ms: int) -> None:
    is_open, changes_at = open_at(hours, now_ms)
    start = now_ms - now_ms % MINUTE_MS
    minutes = range(start + MINUTE_MS, start + 4 * DAY_MS, MINUTE_MS)
    first = next((at for at in minutes if hours.is_open(at) != is_open), None)
    assert is_open == hours.is_open(now_ms)
    if first is None:
        assert changes_at is None or changes_at >= minutes.stop
    else:
        assert changes_at == first


@pytest.mark.parametrize(
    "text",
    ["22:00-06:00 Europe/Berlin", "Sun 02:00-02:30 Europe/Berlin", "Mon-Fri 20:00-07:00, Sat-Sun 00:00-24:00 UTC"],
)
@given(day=st.integers(20_454, 21_000))
def test_closures_are_all_times_that_are_not_open(text: str, day: int) -> None:
    hours, since = parse_hours(text), day * DAY_MS
    found = closures(text, day)
    assert len(found) <= 17
    for at in range(since, since + KNOWN_DAYS * DAY_MS, 30 * MINUTE_MS):
        assert any(start <= at < end for start, end in found) != hours.is_open(at)
    assert all(hours.is_open(end) for _, end in found)


@given(HOURS, YEAR, st.integers(0, 3 * DAY_MS // MINUTE_MS))
def test_open_spans_are_the_open_minutes_in_between(hours: Hours, since_ms: int, minutes: int) -> None:
    since_ms -= since_ms % MINUTE_MS
    until_ms = since_ms + minutes * MINUTE_MS
    spans = list(open_spans(hours, since_ms, until_ms))
    assert all(since_ms <= start < end <= until_ms for start, end in spans)
    found = {at for start, end in spans for at in range(start, end, MINUTE_MS)}
    assert found == {at for at in range(since_ms, until_ms, MINUTE_MS) if hours.is_open(at)}


def test_hours_that_are_always_open_have_no_closures() -> None:
    assert closures("00:00-24:00 UTC", 20_454) == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "give windows"),
        ("idle", "give windows"),
        ("22:00-06:00", "give windows"),
        ("22:00-06:00 Europe/Atlantis", "Europe/Atlantis is no time zone"),
        ("22:00-06:00 ../../etc/passwd", "is no time zone"),
        ("22:00-06:00 Europe", "is no time zone"),
        ("22-06 UTC", "is neither"),
        ("25:00-06:00 UTC", "no such time"),
        ("22:00-24:01 UTC", "no such time"),
        ("10:00-10:00 UTC", "A whole day is 00:00-24:00"),
        ("Xyz 22:00-06:00 UTC", "Xyz is no day"),
        ("22:00-06:00,10:00-11:00 UTC", "is neither"),
        (", ".join(["10:00-11:00"] * 9) + " UTC", "at most 8"),
        ("٢٢:00-06:00 UTC", "is neither"),
    ],
)
def test_invalid_hours_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        parse_hours(text)


@given(st.text() | st.text(alphabet="0123456789:-, MonTueUTC"))
def test_any_text_is_hours_or_refused(text: str) -> None:
    try:
        hours = parse_hours(text)
    except SettingsError:
        return
    assert hours.windows


def test_opening_is_shown_as_the_zone_has_it() -> None:
    at = int(datetime(2026, 11, 30, 21, 0, tzinfo=UTC).timestamp() * 1000)
    assert show_opening(at, "Europe/Berlin") == "Mon 22:00 Europe/Berlin"
    assert show_opening(at, "Mars/Base") == "Mon 21:00 UTC"
