from pathlib import Path

import pytest

from director.core.devices import Device, Model
from director.core.errors import SettingsError
from director.lab.simulate.swaps import Timed
from director.lab.simulate.swaps_report import SwapReport, plot_swaps, simulate_swaps, slots_at_once, swaps_text
from director.lab.simulate.trace import Builder, MadeOptions, Trace, make_trace

ONE = [Device("gpu0", 1)]
THREE = [Device("gpu0", 3)]


def timed(name: str, **given: float) -> Timed:
    places = ({"gpu0": 1},)
    return Timed(model=Model(name=name, places=places, run_limit_s=30.0, **given), load_s=10.0)  # type: ignore[arg-type]


def in_turns(models: str = "ABC", *, minutes: float = 6.0) -> Trace:
    return make_trace(MadeOptions(shape="turns", slots=1, load=0.8, run_s=2.0, minutes=minutes, models=tuple(models)))


def by_rule(reports: list[SwapReport]) -> dict[str, SwapReport]:
    return {each.rule: each for each in reports}


def test_made_turns_ask_for_each_model_in_turn() -> None:
    trace = in_turns(minutes=0.2)
    assert [trace.models[number] for number in trace.model] == ["A", "B", "C", "A", "B"]
    assert list(trace.at_ms) == [0, 2500, 5000, 7500, 10000]
    assert set(trace.run_ms) == {2000}


def test_director_runs_twice_as_much_as_first_come_and_waits_no_longer_than_collation() -> None:
    found = by_rule(simulate_swaps(ONE, [timed(name) for name in "ABC"], in_turns()))
    assert found["director"].per_minute >= 2 * found["fcfs"].per_minute
    assert found["director"].p95_s <= found["collation"].p95_s
    assert found["director"].late_s == 0


def test_a_model_with_little_work_does_not_starve_as_it_does_by_collation_alone() -> None:
    """A and B have always work, and both fit. Collation never makes room for C as long as they do."""
    builder = Builder()
    for number in range(400):
        builder.add(at_ms=number * 1000, run_ms=2200, account="x", lane="normal", model="AB"[number % 2])
    for number in range(4):
        builder.add(at_ms=number * 100_000 + 500, run_ms=2000, account="x", lane="normal", model="C")
    models = [timed(name, max_wait_s=60.0) for name in "ABC"]
    trace, two = builder.build(), [Device("gpu0", 2)]
    found = by_rule(simulate_swaps(two, models, trace, ["director", "collation"]))
    longest_s = {rule: each.played.longest_s["C"] for rule, each in found.items()}
    assert longest_s["director"] <= 60 + 30 + 10 + 10 + 1 < 300 < longest_s["collation"]
    assert found["director"].late_s == 0


def test_accounts_of_two_models_get_equal_device_time() -> None:
    """One account sends five times as much, to another model. The longest wait is no help: it is an hour."""
    builder = Builder()
    for number in range(900):
        heavy = number % 6 > 0
        account, name = ("heavy", "A") if heavy else ("light", "B")
        builder.add(at_ms=number, run_ms=2000, account=account, lane="normal", model=name)
    models, trace = [timed(name, max_wait_s=3600.0) for name in "AB"], builder.build()
    reports = simulate_swaps(ONE, models, trace, ["director", "collation"])
    last_s = {each.rule: max(each.played.started_s[number] for number in range(0, 900, 6)) for each in reports}
    early = sum(at_s <= last_s["director"] for at_s in reports[0].played.started_s)
    assert 0.4 < 150 / early < 0.6, "as long as both have work"
    early = sum(at_s <= last_s["collation"] for at_s in reports[1].played.started_s)
    assert not 0.4 < 150 / early < 0.6, "collation runs all of one, then all of the other"


def test_every_rule_runs_all_and_takes_no_more_memory_than_there_is() -> None:
    trace = make_trace(MadeOptions(shape="even", slots=3, load=0.6, minutes=3, models=tuple("ABCDE")))
    for each in simulate_swaps(THREE, [timed(name) for name in "ABCDE"], trace):
        assert each.predictions == len(trace)
        assert each.most_s < 10_000
        spans = [one for one in each.played.spans if one[1] != "absent"]
        moments = sorted(begin for _, _, begin, _ in spans)
        assert max(sum(begin <= at < end for _, _, begin, end in spans) for at in moments) <= 3


def test_a_trace_of_an_unknown_model_is_refused() -> None:
    with pytest.raises(SettingsError, match="no model 'B' that shares"):
        simulate_swaps(ONE, [timed("A")], in_turns("AB"))


def test_made_traffic_is_measured_by_the_slots_that_fit_at_once() -> None:
    models = [timed(name, slots=2) for name in "ABCDE"]
    assert slots_at_once(THREE, models) == 6
    assert slots_at_once([Device("gpu0", 99)], models) == 10
    assert slots_at_once([], [Timed(model=Model(name="A", places=({},)))]) == 1


def test_text_and_picture_show_every_rule(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    models, trace = [timed(name) for name in "AB"], in_turns("AB", minutes=1)
    reports = simulate_swaps(ONE, models, trace)
    text = swaps_text(trace, reports)
    assert "24 predictions of 1 account for 2 models came in 58 s" in text
    assert "first come, first served" in text
    plot_swaps(tmp_path / "swaps.svg", models, reports)
    picture = (tmp_path / "swaps.svg").read_text()
    assert "collation alone: " in picture
    assert "least recently used: " in picture
