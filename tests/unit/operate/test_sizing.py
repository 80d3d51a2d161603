import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from director.core.policy import Objective, Objectives
from director.operate.sizing import Bounds, Load, count_wanted

IDLE = Load(waiting={}, runnable=0, running=0, arrivals_s={}, service_s=1.0, slots_each=1.0)
SOON: Objectives = {"normal": Objective(share=0.95, within_s=10)}

counts = st.integers(0, 10_000)
rates = st.floats(0, 100)
loads = st.builds(
    Load,
    waiting=st.fixed_dictionaries({"high": counts, "normal": counts, "low": counts}),
    runnable=counts,
    running=counts,
    arrivals_s=st.fixed_dictionaries({"high": rates, "normal": rates, "low": rates}),
    service_s=st.none() | st.floats(0.001, 50),
    slots_each=st.none() | st.floats(1, 64),
    is_paused=st.booleans(),
)
objectives = st.dictionaries(
    st.sampled_from(("high", "normal", "low")),
    st.builds(Objective, share=st.floats(0.01, 0.999), within_s=st.floats(0.01, 3600)),
)


def waiting(count: int, *, running: int = 0) -> Load:
    return replace(IDLE, waiting={"normal": count}, runnable=count, running=running)


@given(load=loads, objectives=objectives, least=st.integers(0, 9), most=st.none() | st.integers(0, 9))
def test_queue_with_work_wants_at_least_one(load: Load, objectives: Objectives, least: int, most: int | None) -> None:
    has_work = load.running or (load.runnable and not load.is_paused)
    assert not has_work or count_wanted(load, objectives, Bounds(least=least, most=most)) >= 1


@given(load=loads, objectives=objectives, more=st.floats(0, 50), lane=st.sampled_from(("high", "normal", "low")))
def test_more_arrivals_never_want_fewer_directors(load: Load, objectives: Objectives, more: float, lane: str) -> None:
    busier = replace(load, arrivals_s={**load.arrivals_s, lane: load.arrivals_s[lane] + more})  # type: ignore[index,dict-item]
    assert count_wanted(busier, objectives) >= count_wanted(load, objectives)


@given(load=loads, objectives=objectives, more=st.integers(0, 1000))
def test_more_runnable_work_never_wants_fewer_directors(load: Load, objectives: Objectives, more: int) -> None:
    assert count_wanted(replace(load, runnable=load.runnable + more), objectives) >= count_wanted(load, objectives)


@given(load=loads, objectives=objectives, most=st.integers(1, 20))
def test_maximum_holds_except_for_running_work_of_a_paused_queue(load: Load, objectives: Objectives, most: int) -> None:
    assert count_wanted(replace(load, is_paused=False), objectives, Bounds(most=most)) <= most


@given(load=loads, objectives=objectives)
def test_paused_queue_wants_only_running_work(load: Load, objectives: Objectives) -> None:
    each = load.slots_each or 1
    told = count_wanted(replace(load, is_paused=True), objectives, Bounds(least=3))
    assert told == math.ceil(load.running / each)


@given(load=loads, objectives=objectives)
def test_running_work_keeps_its_directors(load: Load, objectives: Objectives) -> None:
    assert count_wanted(load, objectives) * (load.slots_each or 1) >= load.running


@pytest.mark.parametrize(
    ("count", "running", "service_s", "expected"),
    [
        (100, 0, 1.0, 10),  # each slot starts one at once, and ten more in ten seconds
        (100, 0, 0.1, 1),
        (100, 0, 1000.0, 100),  # nothing ends in time, so each takes a slot of its own
        (5, 20, 1000.0, 25),
        (5, 20, 10.0, 20),  # half of the twenty running ones end before these five are late
    ],
)
def test_waiting_work_starts_in_time(count: int, running: int, service_s: float, expected: int) -> None:
    assert count_wanted(replace(waiting(count, running=running), service_s=service_s), SOON) == expected


@pytest.mark.parametrize(
    ("arrivals_s", "within_s", "expected"),
    [(0.8, 1000.0, 1), (0.8, 3.0, 2), (8.0, 0.001, 14), (8.0, 1000.0, 9)],
    ids=["there is time", "one would do on average, but not in time", "at once", "one more than on average"],
)
def test_random_arrivals_start_in_time(arrivals_s: float, within_s: float, expected: int) -> None:
    load = replace(IDLE, arrivals_s={"normal": arrivals_s})
    assert count_wanted(load, {"normal": Objective(share=0.95, within_s=within_s)}) == expected


ONE_A_S = {"normal": 1.0}
BLOCKED = replace(IDLE, waiting={"normal": 10_000}, runnable=2, running=2, arrivals_s={"normal": 50.0})
RELAXED = replace(IDLE, waiting={"high": 2, "low": 600}, runnable=602)
LANES: Objectives = {"high": Objective(share=0.95, within_s=1), "low": Objective(share=0.95, within_s=600)}


@pytest.mark.parametrize(
    ("load", "objectives", "least", "expected"),
    [
        pytest.param(IDLE, SOON, 0, 0, id="idle"),
        pytest.param(IDLE, SOON, 2, 2, id="minimum of an idle queue"),
        pytest.param(replace(waiting(100), slots_each=4.0), SOON, 0, 3, id="all slots of a director count"),
        pytest.param(replace(waiting(8), service_s=None, slots_each=None), SOON, 0, 4, id="unseen lasts the objective"),
        pytest.param(replace(waiting(1), service_s=None, arrivals_s=ONE_A_S), SOON, 0, 1, id="unseen, one waits"),
        pytest.param(replace(IDLE, service_s=None, arrivals_s=ONE_A_S), SOON, 0, 0, id="unseen, none waits"),
        pytest.param(RELAXED, LANES, 0, 2, id="relaxed lane"),
        pytest.param(replace(RELAXED, waiting={"high": 602, "low": 0}), LANES, 0, 301, id="urgent lane"),
        pytest.param(BLOCKED, SOON, 0, 2, id="arrivals of blocked accounts"),
    ],
)
def test_directors_are_wanted_for_work_that_can_run(
    load: Load, objectives: Objectives, least: int, expected: int
) -> None:
    assert count_wanted(load, objectives, Bounds(least=least)) == expected
