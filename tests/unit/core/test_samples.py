from typing import Final

import pytest
from msgspec.structs import replace

from director.core.samples import Sample, arrivals_s

NOW_MS: Final = 1_700_000_000_000
NONE: Final = {"high": 0, "normal": 0, "low": 0}
IDLE: Final = Sample(
    at_ms=NOW_MS,
    waiting=NONE,
    claimed=0,
    delayed=0,
    oldest_ms=0,
    late=NONE,
    accepted=NONE,
    started=0,
    ended=0,
    waited_ms=0,
    met=NONE,
    missed=NONE,
)


def came(ago_s: float, accepted: int) -> Sample:
    return replace(IDLE, at_ms=NOW_MS - int(ago_s * 1000), accepted=NONE | {"normal": accepted})


def rate(*samples: Sample, over_s: float = 60) -> float:
    return arrivals_s(samples, "normal", over_s, now_ms=NOW_MS)


def test_what_came_in_the_window_counts_whole() -> None:
    assert rate(came(70, 1000), came(60, 1000), came(50, 30), came(0, 30)) == 1.0
    assert rate() == 0.0


@pytest.mark.parametrize("over_s", [60.0, 300.0])
def test_what_came_while_no_keeper_was_there_came_all_that_time(over_s: float) -> None:
    """Count ten a second for half an hour without a keeper, not 300 a second for the last minute."""
    assert rate(came(1810, 100), came(0, 18_100), over_s=over_s) == pytest.approx(10)


def test_arrivals_after_idle_time_are_recent() -> None:
    assert rate(replace(IDLE, at_ms=NOW_MS - 1_800_000), came(5, 600)) == 10.0
