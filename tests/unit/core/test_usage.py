from datetime import UTC, date, datetime, timedelta

import pytest
from msgspec import Raw

from director.core.usage import (
    NAMES,
    NOTHING,
    Price,
    Row,
    Sums,
    Used,
    last_of_month,
    list_months_to_fold,
    months_of,
)

WHOLE = Used(runs=2, ms=3_500, input_tokens=700, cached_tokens=512, output_tokens=40, file_bytes=9)


@pytest.mark.parametrize("used", [NOTHING, WHOLE, Used(runs=1), Used(file_bytes=1), Used(input_tokens=10**12)])
def test_what_is_packed_is_unpacked_the_same(used: Used) -> None:
    assert Used.unpack(used.packed) == used


def test_zeros_at_the_end_take_no_room() -> None:
    assert (NOTHING.packed, Used(runs=3, ms=20).packed, Used(runs=3).packed_tokens) == ("", "3 20", "")


@pytest.mark.parametrize("name", NAMES)
def test_every_spelling_of_a_token_metric_counts(name: str) -> None:
    assert NOTHING.with_metric(name, Raw(b"7")) == Used(**{NAMES[name]: 7})


@pytest.mark.parametrize("value", [b"-1", b"1.5", b"1e300", b'"7"', b"null", b"[7]", b"NaN", b"1000000001"])
def test_a_token_metric_that_is_no_count_is_ignored(value: bytes) -> None:
    assert WHOLE.with_metric("input_tokens", Raw(value)) == WHOLE


def test_cached_tokens_cost_their_own_price_or_that_of_the_input() -> None:
    used = Used(runs=2, ms=4_000, input_tokens=3_000_000, cached_tokens=1_000_000, output_tokens=2_000_000)
    assert Price(input=1, cached=0.25, output=3).cost(used) == 2 + 0.25 + 6
    assert Price(input=1).cost(used) == 3
    assert Price(second=0.5, run=10).cost(used) == 2 + 20


def test_more_cached_tokens_than_input_cost_no_negative_price() -> None:
    assert Price(input=1, cached=0).cost(Used(input_tokens=5, cached_tokens=9)) == 0


def test_rows_are_added_up_by_what_is_asked_for() -> None:
    sums = Sums(["account", "model"])
    for account, model, day in [("a", "x/m", "2026-11-01"), ("a", "x/m", "2026-11-02"), ("b", "x/free", "2026-11-01")]:
        sums.add([Row(account=account, model=model, token="t", day=day, used=Used(runs=1, output_tokens=10))])
    found = sums.result({"x/m": Price(run=0.1)})
    assert [(each.by, each.used.runs, each.cost) for each in found] == [
        (("a", "x/m"), 2, 0.2),
        (("b", "x/free"), 1, None),
    ]
    [whole] = sums.result({"x/m": Price(run=0.1)}, by=0)
    assert (whole.used.output_tokens, whole.cost) == (30, 0.2)


def test_months_cover_the_days_across_a_year() -> None:
    assert months_of(date(2026, 11, 30), date(2027, 2, 1)) == ["202611", "202612", "202701", "202702"]
    assert (last_of_month("202612"), last_of_month("202802")) == (date(2026, 12, 31), date(2028, 2, 29))


def test_only_months_whose_days_are_all_older_than_ninety_days_are_added_up() -> None:
    for day, latest in [("2026-11-29", "202607"), ("2026-11-30", "202608"), ("2027-03-31", "202611")]:
        now_ms = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)
        assert list_months_to_fold(now_ms)[-1] == latest, day
        assert f"{date.fromisoformat(day) - timedelta(days=400):%Y%m}" == list_months_to_fold(now_ms)[0]
