import msgspec
import pytest

from tests.bench.benches.drain import pace
from tests.bench.judge import changes, told
from tests.bench.ratios import ratio
from tests.bench.results import Load, Machine, Measured, Result, counts, latest, pooled
from tests.bench.tables import measured, pace_table
from tests.bench.targets import Target

MACHINE = Machine(cpu="made up", cores=2, kernel="6", python="3.11", redis="valkey 9")
PROTOTYPE = [100.0, 200.0, 50.0, 400.0, 100.0]


def result(*figures: Measured, bench: str = "drain", at: str = "2026-01-01T00:00:00+00:00") -> Result:
    return Result(
        bench=bench,
        what="made up",
        at=at,
        commit="abc",
        machine=MACHINE,
        load=(Load(average=0.1, busy=0), Load(average=1.9, busy=0.2)),
        took_s=1,
        durability={"ours": "memory", "prototype": "memory"},
        figures=list(figures),
    )


def paced(*parts: float, less_is_better: bool = False) -> Result:
    """Ours in each round, as a part of the prototype."""
    ours = [part * other for part, other in zip(parts, PROTOTYPE, strict=True)]
    rounds = {"prototype": PROTOTYPE, "ours": ours}
    return result(Measured(name="runs a second", unit="/s", rounds=rounds, less_is_better=less_is_better))


def test_rounds_that_disagree_widen_the_interval() -> None:
    close, far = ratio([10, 11, 9], [10, 10, 10]), ratio([10, 20, 5], [10, 10, 10])
    assert close.low < 1 < close.high
    assert far.low < close.low < close.high < far.high
    assert ratio([10], [5]).high == float("inf")


def test_ratio_a_sixth_worse_is_a_regression_but_noise_is_not() -> None:
    before = latest([paced(0.8, 0.8, 0.8, 0.8, 0.8)])
    verdicts = {
        "the same": paced(0.8, 0.8, 0.8, 0.8, 0.8),
        "better": paced(1, 1, 1, 1, 1),
        "14 % worse": paced(0.702, 0.702, 0.702, 0.702, 0.702),
        "16 % worse": paced(0.69, 0.69, 0.69, 0.69, 0.69),
        "bad in two rounds of five": paced(0.8, 0.1, 0.8, 0.1, 0.8),
        "bad in three rounds of five": paced(0.8, 0.1, 0.1, 0.1, 0.8),
    }
    failed = [name for name, now in verdicts.items() if changes(before, latest([now]))[0].is_regression]
    assert failed == ["16 % worse"]
    unsteady = changes(before, latest([verdict for name, verdict in verdicts.items() if "three" in name]))
    assert told(unsteady).startswith("noise")


def test_where_less_is_better_more_is_the_regression() -> None:
    before = latest([paced(1, 1, 1, 1, 1, less_is_better=True)])
    slower, faster = (latest([paced(*[part] * 5, less_is_better=True)]) for part in (1.2, 0.5))
    assert changes(before, slower)[0].is_regression
    assert not changes(before, faster)[0].is_regression


def test_a_slower_machine_is_no_regression() -> None:
    before = paced(0.8, 0.8, 0.8, 0.8, 0.8)
    figure = before.figures[0]
    halved = {side: [value / 2 for value in values] for side, values in figure.rounds.items()}
    now = result(Measured(name=figure.name, unit=figure.unit, rounds=halved))
    assert changes(latest([before]), latest([now]))[0].worse == pytest.approx(0)


def test_a_figure_that_is_too_unsteady_is_not_judged() -> None:
    before, now = (latest([result(beside("p99", part, less_is_better=True, is_judged=False))]) for part in (1, 9))
    assert changes(before, now) == []


def test_what_is_measured_once_more_is_judged_by_the_rounds_of_both() -> None:
    before = latest([paced(0.8, 0.8, 0.8, 0.8, 0.8)])
    unlucky, fair = paced(0.6, 0.6, 0.62, 0.65, 0.7), paced(0.8, 0.8, 0.8, 0.8, 0.8)
    both = pooled(unlucky, fair)
    assert len(both.figures[0].rounds["ours"]) == 10
    assert changes(before, latest([unlucky]))[0].is_regression
    assert not changes(before, latest([both]))[0].is_regression


def beside(name: str, ours: float, **options: bool) -> Measured:
    return Measured(name=name, unit="", rounds={"ours": [ours] * 3, "direct": [1.0] * 3}, **options)


def test_a_target_is_judged_by_the_ratio_or_by_the_value_alone() -> None:
    results = latest([paced(0.7, 0.7, 0.7, 0.7, 0.7)])
    figure = {"what": "x", "bench": "drain", "figure": "runs a second"}
    least = Target(**figure, bound=0.6, beside="prototype", is_least=True)
    assert least.judged(least.found(results)) == "reached"
    most = Target(**figure, bound=20)  # its rounds lie between 35 and 280
    assert most.judged(most.found(results)) == "**missed**"
    assert least.judged(least.found({})) == "not measured"
    assert Target(**figure, bound=1, beside="taskiq").found(results) is None


@pytest.mark.parametrize(
    ("bound", "is_least", "judged"),
    [
        (0.5, True, "reached"),
        (0.5, False, "**missed**"),
        (0.7, True, "not decided"),
        (0.7, False, "not decided"),
        (0.9, True, "**missed**"),
        (0.9, False, "reached"),
    ],
)
def test_only_an_interval_on_one_side_of_the_bound_decides(bound: float, is_least: bool, judged: str) -> None:
    target = Target(what="x", bench="drain", figure="runs a second", bound=bound, beside="prototype", is_least=is_least)
    found = target.found(latest([paced(0.66, 0.68, 0.7, 0.72, 0.74)]))
    assert target.judged(found) == judged


def test_two_rounds_far_apart_decide_nothing() -> None:
    target = Target(what="x", bench="drain", figure="runs a second", bound=1, beside="prototype", is_least=True)
    rounds = {"prototype": [100.0, 100.0], "ours": [110.0, 400.0]}
    found = target.found({"drain": result(Measured(name="runs a second", unit="", rounds=rounds))})
    assert target.judged(found) == "not decided"


def test_a_run_counts_while_the_reference_takes_little_more_than_ever() -> None:
    quick, slow, slower = (of_redis(us) for us in (30.0, 38.0, 40.0))
    seen = [quick, slow, slower]
    assert [counts(run, seen) for run in seen] == [True, True, False]
    target = Target(what="x", bench="drain", figure="processor time of Redis", bound=5, beside="prototype")
    assert target.over(seen) == "5.26–6.67 in 2"
    assert target.over([slower]) == ""


def of_redis(reference_us: float) -> Result:
    rounds = {"prototype": [reference_us] * 3, "ours": [200.0] * 3}
    return result(Measured(name="processor time of Redis", unit="µs", rounds=rounds, less_is_better=True))


def test_what_was_measured_beside_something_else_says_so() -> None:
    quiet, busy = paced(1, 1, 1, 1, 1), Load(average=0.1, busy=0.4)
    doubtful = msgspec.structs.replace(quiet, load=(quiet.load[0], busy))
    assert "busy with something else" in pace_table({"drain": doubtful})
    assert "BUSY" in measured(doubtful)
    assert "busy with something else" not in pace_table({"drain": quiet})


def test_pace_leaves_out_the_start_and_the_end() -> None:
    steady = [10 + number / 100 for number in range(1_000)]
    assert pace([0.0, *steady, 1_000.0]) == pytest.approx(100)
    with pytest.raises(ValueError, match="too few"):
        pace([1.0, 2.0])


@pytest.mark.parametrize(("ours", "theirs"), [([0.0, 1.0], [1.0, 1.0]), ([1.0, 1.0], [0.0, 1.0])])
def test_round_of_nothing_has_no_ratio(ours: list[float], theirs: list[float]) -> None:
    figure = Measured(name="streams", unit="", rounds={"ours": ours, "other": theirs})
    assert figure.references == []
    assert "streams" in measured(result(figure))
