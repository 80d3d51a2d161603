import pytest

from tests.bench.benches.first_token import P50, P99
from tests.bench.results import OURS, Measured
from tests.bench.targets import TARGETS
from tests.unit.bench.test_judgement import result


@pytest.mark.parametrize(
    ("figure", "ours", "verdict"),
    [(P50, 4.9, "reached"), (P50, 5.1, "**missed**"), (P99, 11.9, "reached"), (P99, 12.1, "**missed**")],
)
def test_targets_of_a_first_token_are_judged(figure: str, ours: float, verdict: str) -> None:
    [target] = [each for each in TARGETS if (each.bench, each.figure) == ("first_token", figure)]
    measured = Measured(name=figure, unit="ms", rounds={OURS: [ours]})
    assert target.judged(target.found({"first_token": result(measured, bench="first_token")})) == verdict
