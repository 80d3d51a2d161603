"""Properties of the planner: in plays of random traffic, and of single decisions whatever the state is."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from director.core.devices import Model
from director.gpus.plan import Condition, Waiting, charge, plan
from tests.unit.gpus.worlds import CheckedPlay, World, never_started, overtaken_when_urgent, stays_s, worlds

pytestmark = pytest.mark.faults

seconds = st.integers(0, 100).map(float)


@given(worlds())
@example(overtaken_when_urgent())
@settings(max_examples=200, deadline=None)
def test_every_prediction_starts_and_every_load_begins_within_its_bound(world: World) -> None:
    played = CheckedPlay(world).run()
    assert never_started(played.started_s) == []
    assert played.late_s <= 0.001


waiting = st.builds(
    Waiting,
    account=st.sampled_from("xyz"),
    lane=st.sampled_from(["high", "normal", "low"]),
    count=st.integers(1, 50),
    oldest_s=seconds,
    work_s=seconds,
)


@st.composite
def seen_in(draw: st.DrawFn, world: World) -> Mapping[str, Condition]:
    """Any state that does not take more memory than there is, with any orders and failed loads."""
    room = {device.name: device.memory for device in world.devices}
    found = {}
    for one in world.models:
        model = one.model
        place = draw(st.sampled_from(model.places))
        state = draw(st.sampled_from(["absent", "loading", "loaded", "leaving"]))
        if any(need > room[name] for name, need in place.items()):
            state = "absent"
        if state == "absent":
            place = {}
        for name, need in place.items():
            room[name] -= need
        runs = state in ("loaded", "leaving") and draw(st.booleans())
        found[model.name] = Condition(
            state=state,
            since_s=draw(seconds),
            place=place,
            running={draw(st.sampled_from("xyz")): 1} if runs else {},
            longest_run_left_s=draw(seconds) if runs else 0.0,
            waiting=draw(st.lists(waiting, max_size=3)),
            arrivals_per_s=draw(st.sampled_from([0.0, 0.1, 10.0])),
            is_known=draw(st.booleans()),
            order=draw(st.sampled_from(["", "", "", "load", "rest", "pin"])),
            retry_in_s=draw(st.sampled_from([0.0, 0.0, 5.0])),
            load_s=one.load_s,
            rest_s=one.rest_s,
            run_s=draw(seconds),
        )
    return found


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_decision_keeps_its_rules_in_any_state(data: st.DataObject) -> None:
    world = data.draw(worlds())
    models = [one.model for one in world.models]
    seen = data.draw(seen_in(world))
    used_s = data.draw(st.dictionaries(st.sampled_from("xyz"), seconds))
    decision = plan(world.devices, models, seen, used_s)
    _check_rest(decision.rest, models, seen)
    if decision.load is not None:
        one, place = seen[decision.load.model], decision.load.place
        assert (one.state, one.retry_in_s) == ("absent", 0.0)
        assert one.order != "rest"
        for device in world.devices:
            taken = sum(other.place.get(device.name, 0) for other in seen.values())
            assert taken + place.get(device.name, 0) <= device.memory
            if device.name in place:
                assert all(other.state != "loading" or device.name not in other.place for other in seen.values())
    for name, one in seen.items():
        if one.state != "loaded" and one.waiting:
            expected = decision.expected[name]
            assert expected.why
            assert expected.is_stuck == math.isinf(expected.bound_s) == math.isinf(expected.eta_s)
            assert min(expected.bound_s, expected.eta_s) >= 0


def _check_rest(rest: tuple[str, ...], models: list[Model], seen: Mapping[str, Condition]) -> None:
    for model in models:
        one = seen[model.name]
        if model.name in rest and one.order != "rest":
            assert one.state == "loaded"
            assert one.since_s >= stays_s(model, load_s=one.load_s, waits=bool(one.waiting))
            assert not model.keep
            assert one.order != "pin"


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_something_changes_soon_if_a_model_waits_for_too_long(data: st.DataObject) -> None:
    """There is no deadlock: one that is urgent and not stuck loads now, or what is in its way changes by itself."""
    world = data.draw(worlds())
    models = [one.model for one in world.models]
    seen = data.draw(seen_in(world))
    decision = plan(world.devices, models, seen, {})
    urgent = [
        model.name
        for model in models
        if seen[model.name].state == "absent"
        and seen[model.name].waiting
        and not decision.expected[model.name].is_stuck
        and min(seen[model.name].since_s, max(each.oldest_s for each in seen[model.name].waiting)) >= model.max_wait_s
    ]
    changes = decision.load or decision.rest or any(one.state in ("loading", "leaving") for one in seen.values())
    must_stay = any(
        one.state == "loaded" and one.since_s < stays_s(model, load_s=one.load_s, waits=bool(one.waiting))
        for model in models
        for one in [seen[model.name]]
    )
    assert not urgent or changes or must_stay


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_device_time_is_charged_once_and_forgotten(data: st.DataObject) -> None:
    world = data.draw(worlds())
    seen = data.draw(seen_in(world))
    memory = {device.name: device.memory for device in world.devices}
    most = sum(taken / memory[name] for one in seen.values() for name, taken in one.place.items())
    used_s = charge({"x": 100.0}, world.devices, seen, elapsed_s=10.0)
    assert sum(used_s.values()) <= 100.0 + 10.0 * most + 0.001
    idle = {name: Condition(state=one.state, place=one.place) for name, one in seen.items()}
    assert charge(used_s, world.devices, idle, elapsed_s=1e6) == {}
