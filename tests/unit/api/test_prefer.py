import hashlib
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.predictions.bodies import (
    affinity_digest,
    cancel_after_seconds,
    cost_units,
    preference,
    start_after_ms,
    start_by_seconds,
)
from api.web.errors import Problem


@pytest.mark.parametrize(
    ("prefer", "seconds", "echo"),
    [
        ([], None, None),
        (["wait"], 60, "wait"),
        (["wait=5"], 5, "wait=5"),
        ([" WAIT = 5 "], 5, "wait=5"),
        (['wait="5"'], 5, "wait=5"),
        (["wait=5; strict"], 5, "wait=5"),
        (["wait=2.5"], 2.5, "wait=2.5"),
        (["wait=999"], 60, "wait=60"),
        (["wait=" + "9" * 5_000], 60, "wait=60"),
        (["respond-async, wait=10"], 10, "wait=10"),
        (["respond-async", "wait=10"], 10, "wait=10"),
        (["wait=10, wait=20"], 10, "wait=10"),
        (['note="a, wait=9; wait=8", wait=7'], 7, "wait=7"),
        (["respond-async"], None, None),
        (["wait=0"], None, None),
        (["wait=soon"], None, None),
        (["wait=٣"], None, None),
        (["waiting=5"], None, None),
        (['"wait'], 60, "wait"),
        ([",;=,"], None, None),
    ],
)
def test_prefer_is_clamped_or_ignored(prefer: list[str], seconds: float | None, echo: str | None) -> None:
    assert preference(prefer) == (None if seconds is None else (seconds, echo))


@given(st.lists(st.text() | st.text(alphabet='wait=0123456789.,;" \\')))
def test_no_prefer_is_ever_an_error(prefer: list[str]) -> None:
    asked = preference(prefer)
    assert asked is None or 0 < asked[0] <= 60


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("90s", 90),
        ("5m", 300),
        ("1h30m45s", 5_445),
        ("1h5s", 3_605),
        ("24h", 86_400),
        (" 30 ", 30),
    ],
)
def test_a_duration_is_read(text: str, seconds: int) -> None:
    assert cancel_after_seconds(text) == seconds


@given(st.text() | st.text(alphabet="0123456789hms "))
def test_a_duration_is_in_range_or_refused(text: str) -> None:
    try:
        seconds = cancel_after_seconds(text)
    except Problem:
        return
    assert 5 <= seconds <= 86_400


@pytest.mark.parametrize(("text", "seconds"), [("1", 1), ("90", 90), (" 86400 ", 86_400)])
def test_a_start_is_asked_for_within_whole_seconds(text: str, seconds: int) -> None:
    assert start_by_seconds(text) == seconds


NOW_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
WEEK_MS = 7 * 86_400_000


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        ("30", 30),
        ("8h", 28_800),
        ("1h30m", 5_400),
        (" 168h ", 604_800),
        ("2027-01-15T09:00:00+01:00", 0),
        ("2027-01-15t08:00:10z", 10),
        ("2027-01-15 08:00:00.0005Z", 0.001),
        ("2027-01-22T08:00:00Z", 604_800),
        ("2026-01-01T00:00:00-05:00", -32_756_400),
    ],
)
def test_a_start_is_planned_for_a_time_or_after_a_duration(text: str, after_s: float) -> None:
    assert start_after_ms(text, NOW_MS) - NOW_MS == after_s * 1000


@given(st.text() | st.text(alphabet="0123456789hmsTZ:-+ "))
def test_a_planned_start_is_within_a_week_or_refused(text: str) -> None:
    try:
        at_ms = start_after_ms(text, NOW_MS)
    except Problem:
        return
    assert at_ms <= NOW_MS + WEEK_MS


@pytest.mark.parametrize(
    ("text", "cost"), [("1", 1), (" 2.5 ", 2.5), ("0.001", 0.001), ("1000000", 1_000_000), ("007", 7)]
)
def test_a_cost_is_a_number_of_units(text: str, cost: float) -> None:
    assert cost_units(text) == cost


REFUSED: list[tuple[Callable[[str], object], str, tuple[str, ...]]] = [
    (
        cancel_after_seconds,
        "Cancel-After must be a duration such as 90s",
        ("", "4", "-5", "24h1s", "86401", "9" * 5_000, "1.5m", "5 m", "5d", "30m1h", "1h30", "s", "٣٠"),
    ),
    (
        start_by_seconds,
        "X-Start-By must be a whole number of seconds from 1 to 86400",
        ("", "0", "-1", "86401", "1.5", "90s", "1e3", "٣٠", "9" * 5_000),
    ),
    (
        partial(start_after_ms, now_ms=NOW_MS),
        "X-Start-After must be a duration such as 8h or a time such as 2027-01-31T22:00:00Z",
        (
            *("", "-1", "+30", "1.5h", "168h1s", "9" * 5_000, "٣٠", "2027-01-22T08:00:00.001Z", "2027-13-01T00:00:00Z"),
            *("2027-01-16", "2027-01-16T08:00:00", "2027-01-16T25:00:00Z", "2027-W03-1T08:00:00Z", "tomorrow"),
        ),
    ),
    (
        cost_units,
        r"X-Cost must be a number from 0\.001 to 1,000,000",
        ("", "0", "0.0", "-1", "1e3", "nan", "inf", ".5", "1,5", "1000001", "٣", "9" * 5_000),
    ),
    (affinity_digest, "X-Affinity-Key must be", ("", "x" * 256, "a\tb", "a\x00")),
]


@pytest.mark.parametrize(
    ("read", "wanted", "text"), [(read, wanted, text) for read, wanted, texts in REFUSED for text in texts]
)
def test_invalid_header_is_a_422_that_says_what_is_valid(read: Callable[[str], object], wanted: str, text: str) -> None:
    with pytest.raises(Problem, match=wanted) as refused:
        read(text)
    assert refused.value.status == 422


def test_an_affinity_key_is_known_by_sixteen_digits_of_its_digest() -> None:
    assert affinity_digest("style-7") == hashlib.sha256(b"style-7").hexdigest()[:16]
    assert affinity_digest("x" * 255) != affinity_digest("x" * 254)
