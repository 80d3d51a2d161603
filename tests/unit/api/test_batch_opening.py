"""A batch's lines start in its open hours, and not before its X-Start-After."""

from datetime import UTC, datetime

import pytest

from api.batches.opening import HORIZON_MS, Opening

HOUR = 3_600_000
NIGHT = "22:00-06:00 UTC"


def ms(text: str) -> int:
    return int(datetime.fromisoformat(f"2026-11-{text}:00+00:00").astimezone(UTC).timestamp() * 1000)


def test_batch_without_hours_is_always_open() -> None:
    opening = Opening("", {})
    assert (opening.is_open(ms("29T12:00")), opening.changes_at(0), opening.seconds_left(0)) == (True, None, None)
    assert Opening("idle", {}).is_open(0)
    assert opening.open_ms(5, 9) == 4
    assert opening.end_after(7, 100) == 107


@pytest.mark.parametrize(
    ("now", "after", "is_open", "changes"),
    [
        ("29T21:59", None, False, "29T22:00"),
        ("29T22:00", None, True, "30T06:00"),
        ("29T12:00", "29T20:00", False, "29T22:00"),
        ("29T12:00", "29T23:00", False, "29T23:00"),
        ("29T23:00", "29T20:00", True, "30T06:00"),
    ],
)
def test_lines_wait_for_both_their_hours_and_their_time(
    now: str, after: str | None, is_open: bool, changes: str
) -> None:
    opening = Opening(NIGHT, {} if after is None else {"x-start-after": f"2026-11-{after}:00+00:00"})
    assert (opening.is_open(ms(now)), opening.changes_at(ms(now))) == (is_open, ms(changes))


def test_what_was_found_holds_until_the_next_change_only() -> None:
    opening = Opening(NIGHT, {})
    assert opening.seconds_left(ms("29T22:00")) == 8 * 3600
    assert opening.seconds_left(ms("30T05:59")) == 60
    assert opening.seconds_left(ms("30T06:00")) == 0
    assert opening.seconds_left(ms("29T21:00")) == 0


def test_nothing_starts_in_the_last_second_of_the_hours() -> None:
    opening = Opening(NIGHT, {})
    assert opening.opens_at(ms("30T06:00") - 1_500) == ms("30T06:00") - 1_500
    assert opening.opens_at(ms("30T06:00") - 500) == opening.opens_at(ms("30T06:00")) == ms("30T22:00")


def test_only_open_time_counts_for_a_rate_and_a_forecast() -> None:
    opening = Opening(NIGHT, {})
    assert opening.open_ms(ms("28T20:00"), ms("29T23:00")) == 9 * HOUR
    assert opening.open_ms(ms("29T07:00"), ms("29T21:00")) == 0
    assert opening.end_after(ms("29T05:00"), HOUR) == ms("29T06:00")
    assert opening.end_after(ms("29T05:00"), 2 * HOUR) == ms("29T23:00")
    assert opening.end_after(ms("29T05:00"), 99 * HOUR) == ms("29T05:00") + HORIZON_MS
