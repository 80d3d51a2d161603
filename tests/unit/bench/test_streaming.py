import pytest

from tests.bench.benches.streaming import DIRECT, P50, P99, PER_S, Reading
from tests.bench.results import OURS, Measured
from tests.bench.targets import TARGETS
from tests.unit.bench.test_judgement import result


def test_tokens_written_before_the_reader_was_connected_are_not_late() -> None:
    reading = Reading(10.020, [(10.005, 10.021), (10.019, 10.021), (10.030, 10.033), (10.055, 10.057)])
    assert reading.late_ms == pytest.approx([3, 2])


@pytest.mark.parametrize(
    ("figure", "ours", "direct", "verdict"),
    [
        (P50, 3.9, 1, "reached"),
        (P50, 4.1, 1, "**missed**"),
        (P99, 9.9, 1, "reached"),
        (P99, 21, 1, "**missed**"),
        (PER_S, 85, 100, "reached"),
        (PER_S, 75, 100, "**missed**"),
    ],
)
def test_targets_of_a_stream_are_judged(figure: str, ours: float, direct: float, verdict: str) -> None:
    [target] = [each for each in TARGETS if (each.bench, each.figure) == ("streaming", figure)]
    measured = Measured(name=figure, unit="", rounds={OURS: [ours], DIRECT: [direct]})
    assert target.judged(target.found({"streaming": result(measured, bench="streaming")})) == verdict
