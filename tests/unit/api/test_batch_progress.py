"""A batch shows its rate, when it will end, and why its lines failed."""

import msgspec
import pytest

from api.batches.parts import MOST_CAUSES, OTHER_CAUSE, Written
from api.batches.progress import UNCOUNTED_MS, Cause, progress_of
from director.core.ids import new_file_id
from director.store.batches import Batch, BatchStatus

NOW = 1_800_000_000_000


def batch(
    status: BatchStatus = "in_progress", *, done: int = 50, counted: int = NOW, began: int = NOW - 10_000
) -> Batch:
    return Batch(
        id=new_file_id(NOW),
        account="acme",
        api_token="t",
        endpoint="/v1/completions",
        input=new_file_id(NOW),
        window="24h",
        headers=b"{}",
        base="http://x",
        created=began,
        expires=NOW,
        status=status,
        total=100,
        completed=done,
        counted=counted,
        times={"in_progress": began},
    )


def test_forecast_goes_on_at_the_rate_of_the_lines_so_far() -> None:
    seen = progress_of(batch(), NOW + 1000)
    assert (seen.lines_per_second, seen.ends_at) == (5.0, NOW / 1000 + 10)


def test_standstill_lowers_the_rate_once_lines_would_be_counted() -> None:
    later = NOW + UNCOUNTED_MS + 10_000
    seen = progress_of(batch(), later)
    assert (seen.lines_per_second, seen.ends_at) == (2.5, NOW / 1000 + 10 + 20)


@pytest.mark.parametrize("given", [{"done": 0, "counted": 0}, {"status": "completed"}, {"status": "finalizing"}])
def test_no_end_is_forecast_without_a_line_or_after_the_last(given: dict[str, object]) -> None:
    assert progress_of(batch(**given), NOW).ends_at is None  # type: ignore[arg-type]


def test_batch_with_hours_of_an_unknown_zone_shows_no_forecast() -> None:
    stored = msgspec.structs.replace(batch(), hours="22:00-06:00 Mars/Olympus")
    seen = progress_of(stored, NOW)
    assert (seen.open_hours, seen.lines_per_second, seen.ends_at, seen.opens_at) == (stored.hours, None, None, None)


def test_causes_are_bounded_and_none_is_uncounted() -> None:
    written = Written.of(batch())
    written.count({f"c{n}": n for n in range(MOST_CAUSES + 5)})
    written.count({"c1": 4, "new": 2})
    assert len(written.causes) == MOST_CAUSES + 1
    assert sum(written.causes.values()) == sum(range(MOST_CAUSES + 5)) + 6
    assert written.causes[OTHER_CAUSE] == sum(range(MOST_CAUSES, MOST_CAUSES + 5)) + 2
    stored = msgspec.structs.replace(batch(), causes=msgspec.json.encode(written.causes))
    first, *_ = progress_of(stored, NOW).causes
    assert first == Cause(OTHER_CAUSE, written.causes[OTHER_CAUSE])
