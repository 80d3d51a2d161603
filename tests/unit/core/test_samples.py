from typing import Final

import pytest
from msgspec.structs import replace

from director.core.samples import Sample, arrivals_s, parse

NOW_MS: Final = 1_800_000_000_000
IDLE: Final = parse(b"0 " * 22)


def sample(ago_s: float, *, started: int = 0, **normal: int) -> Sample:
    """Return a sample with these counts of the lane normal."""
    counts = {name: {"high": 0, "normal": count, "low": 0} for name, count in normal.items()}
    return replace(IDLE, at_ms=NOW_MS - int(ago_s * 1000), started=started, **counts)


def rate(*samples: Sample, over_s: float = 60) -> float:
    return arrivals_s(samples, "normal", over_s, now_ms=NOW_MS)


def test_what_came_in_the_window_counts_whole() -> None:
    assert rate(*(sample(ago_s, accepted=n) for ago_s, n in ((70, 1000), (60, 1000), (50, 30), (0, 30)))) == 1.0
    assert rate() == 0.0


@pytest.mark.parametrize("over_s", [60.0, 300.0])
def test_what_came_while_no_keeper_was_there_came_all_that_time(over_s: float) -> None:
    """Count ten a second for half an hour without a keeper, not 300 a second for the last minute."""
    assert rate(sample(1810, accepted=100), sample(0, accepted=18_100), over_s=over_s) == pytest.approx(10)


def test_arrivals_after_idle_time_are_recent() -> None:
    assert rate(sample(1800), sample(5, accepted=600)) == 10.0
