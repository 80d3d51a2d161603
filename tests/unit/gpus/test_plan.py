"""The rules of the planner, one by one, on one device for one model unless a test says otherwise."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from director.core.devices import Device, Model
from director.gpus.plan import Condition, Decision, Load, Waiting, charge, plan
from director.lab.simulate.swaps import Play, Timed
from director.lab.simulate.trace import Builder

ONE = [Device("gpu0", 1)]
TWO = [Device("gpu0", 1), Device("gpu1", 1)]


def model(name: str, **given: Any) -> Model:
    return Model(**{"name": name, "places": ({"gpu0": 1},), "run_limit_s": 20.0, "min_loaded_s": 5.0, **given})


def waits(count: int = 1, *, oldest_s: float = 1.0, account: str = "x", lane: Any = "normal") -> list[Waiting]:
    return [Waiting(account=account, lane=lane, count=count, oldest_s=oldest_s, work_s=float(count))]


def absent(**given: Any) -> Condition:
    return Condition(**{"since_s": 1000.0, "load_s": 10.0, "rest_s": 1.0, **given})


def loaded(place: Mapping[str, int] | None = None, **given: Any) -> Condition:
    return absent(**{"state": "loaded", "place": {"gpu0": 1} if place is None else place, **given})


def loading(**given: Any) -> Condition:
    return loaded(**{"state": "loading", "since_s": 4.0, **given})


def decide(
    seen: Mapping[str, Condition], devices: Any = ONE, used_s: Mapping[str, float] = {}, **given: Any
) -> Decision:
    """`given`: what a model has instead of the defaults, by name."""
    return plan(devices, [given.get(name) or model(name) for name in seen], seen, used_s)


def test_free_room_is_used_at_once() -> None:
    assert decide({"A": absent(waiting=waits())}).load == Load("A", {"gpu0": 1})
    assert decide({"A": absent()}) == Decision(), "and nothing loads that is not wanted"


def test_an_idle_model_makes_room_for_one_that_waits() -> None:
    decision = decide({"A": loaded(), "B": absent(waiting=waits())})
    assert (decision.load, decision.rest) == (None, ("A",))
    assert decision.expected["B"].behind == ("A",)


def test_a_model_stays_loaded_for_its_least_time() -> None:
    decision = decide({"A": loaded(since_s=2.0), "B": absent(waiting=waits(oldest_s=1e6))})
    assert decision.rest == ()
    assert decision.expected["B"].why == "A stays loaded for 3.0 s more."
    assert decide({"A": loaded(since_s=5.0), "B": absent(waiting=waits(oldest_s=1e6))}).rest == ("A",)


def test_without_a_least_time_a_busy_model_stays_as_long_as_it_loads() -> None:
    seen = {"A": loaded(since_s=9.0, waiting=waits()), "B": absent(waiting=waits(oldest_s=1e6))}
    no_time = model("A", min_loaded_s=None)
    assert decide(seen, A=no_time).rest == ()
    assert decide({**seen, "A": loaded(since_s=10.0, waiting=waits())}, A=no_time).rest == ("A",)


def test_without_a_least_time_an_idle_model_makes_room_at_once() -> None:
    seen = {"A": loaded(since_s=0.5), "B": absent(waiting=waits())}
    assert decide(seen, A=model("A", min_loaded_s=None)).rest == ("A",)
    assert decide(seen).rest == (), "it has one of 5 s"


def test_what_waits_for_a_loaded_model_runs_before_it_makes_room() -> None:
    decision = decide({"A": loaded(waiting=waits(3)), "B": absent(waiting=waits(9, oldest_s=40.0))})
    assert decision.rest == ()
    assert decision.expected["B"].why == "A is needed more, and makes room in 4.3 min at the latest."


def test_after_its_longest_wait_a_model_takes_the_place_of_a_busy_one() -> None:
    busy = loaded(waiting=waits(1000))
    assert decide({"A": busy, "B": absent(waiting=waits(oldest_s=299.0))}).rest == ()
    assert decide({"A": busy, "B": absent(waiting=waits(oldest_s=300.0))}).rest == ("A",)


def test_a_wait_begins_again_once_a_model_had_its_turn() -> None:
    """Else a model with an old backlog would come back before one that has not had a turn."""
    seen = {"A": absent(since_s=5.0, waiting=waits(oldest_s=900.0)), "B": absent(waiting=waits(oldest_s=301.0))}
    assert decide(seen).load == Load("B", {"gpu0": 1})


def test_a_busy_model_makes_room_if_less_is_waited_in_all() -> None:
    """A has two runs of 100 s. B runs for 20 s and is loaded and gone in 22 s, so those of A wait 42 s each."""
    long = [Waiting(count=2, oldest_s=1.0, work_s=200.0)]
    assert decide({"A": loaded(waiting=long), "B": absent(waiting=waits(20))}).rest == ("A",)
    assert decide({"A": loaded(waiting=long), "B": absent(waiting=waits(11))}).rest == (), "its turn would be too short"
    assert decide({"A": loaded(waiting=waits(2)), "B": absent(waiting=waits(20))}).rest == (), "A is done in 2 s"
    heavy = model("A", weight=100.0)
    assert decide({"A": loaded(waiting=long), "B": absent(waiting=waits(20))}, A=heavy).rest == ()
    urgent = [Waiting(lane="high", count=20, oldest_s=1.0, work_s=200.0)]
    assert decide({"A": loaded(waiting=urgent), "B": absent(waiting=waits(20, lane="low"))}).rest == ()


def test_what_is_expected_soon_stays() -> None:
    hot = loaded(arrivals_per_s=1.0)
    assert decide({"A": hot, "B": absent(waiting=waits(5))}).rest == ()
    assert decide({"A": hot, "B": absent(waiting=waits(6))}).rest == ("A",), "11 come in the 11 s of the swap"
    both = {"A": loaded({"gpu0": 1}, arrivals_per_s=1.0), "B": loaded({"gpu1": 1}), "C": absent(waiting=waits())}
    places = ({"gpu0": 1}, {"gpu1": 1})
    assert decide(both, TWO, C=model("C", places=places)).rest == ("B",), "the other one makes room"


def test_the_account_that_used_less_device_time_goes_first() -> None:
    seen = {
        "A": absent(waiting=waits(oldest_s=50.0, account="heavy")),
        "B": absent(waiting=waits(oldest_s=1.0, account="light")),
    }
    assert decide(seen).load == Load("A", {"gpu0": 1})
    assert decide(seen, used_s={"heavy": 100.0}).load == Load("B", {"gpu0": 1})


def test_an_account_that_is_far_behind_displaces_a_busy_model() -> None:
    seen = {"A": loaded(waiting=waits(99, account="heavy")), "B": absent(waiting=waits(account="light"))}
    assert decide(seen, used_s={"heavy": 33.0}).rest == (), "three swaps of 11 s are not much"
    assert decide(seen, used_s={"heavy": 34.0}).rest == ("A",)
    shared = {**seen, "A": loaded(waiting=waits(99, account="heavy"), running={"light": 1})}
    assert decide(shared, used_s={"heavy": 99.0}).rest == (), "nor is it behind where it runs"


def test_who_causes_a_swap_pays_for_it() -> None:
    seen = {
        "A": loaded(state="leaving"),
        "B": loading(place={"gpu1": 1}, waiting=waits(3, account="x") + waits(1, account="y")),
        "C": absent(waiting=waits(account="z")),
        "D": loaded({}, running={"x": 1}),
    }
    assert charge({}, TWO, seen, elapsed_s=4.0) == {"x": 3.0, "y": 1.0, "z": 4.0}
    assert charge({}, TWO, seen, elapsed_s=4.0, weights={"z": 2.0})["z"] == 2.0
    runs = {"A": loaded(running={"x": 1, "y": 3}), "B": loaded({"gpu1": 1})}
    assert charge({}, TWO, runs, elapsed_s=4.0) == {"x": 1.0, "y": 3.0}, "and an idle model costs nothing"


def test_a_kept_model_is_loaded_first_and_makes_room_for_none() -> None:
    kept = model("A", keep=True)
    assert decide({"A": absent(), "B": absent(waiting=waits(oldest_s=1e6))}, A=kept).load == Load("A", {"gpu0": 1})
    decision = decide({"A": loaded(), "B": absent(waiting=waits(oldest_s=1e6))}, A=kept)
    assert decision.rest == ()
    assert decision.expected["B"].is_stuck
    assert decision.expected["B"].why == "It does not fit beside A: what is kept or pinned makes no room."


def test_orders_of_an_operator_go_before_all() -> None:
    waiting = absent(waiting=waits(oldest_s=1e6))
    assert decide({"A": absent(order="load"), "B": waiting}).load == Load("A", {"gpu0": 1})
    assert decide({"A": loaded(order="pin"), "B": waiting}).expected["B"].is_stuck
    decision = decide({"A": loaded(order="rest", since_s=0.0, waiting=waits(9)), "B": absent()})
    assert decision.rest == ("A",)
    rested = decide({"A": absent(order="rest", waiting=waits()), "B": absent(waiting=waits())})
    assert rested.load == Load("B", {"gpu0": 1})
    assert rested.expected["A"].why == "An operator put it to rest."


def test_a_failed_load_is_tried_later_and_others_go_on() -> None:
    seen = {"A": absent(retry_in_s=30.0, waiting=waits(oldest_s=1e6)), "B": absent(waiting=waits())}
    decision = decide(seen)
    assert decision.load == Load("B", {"gpu0": 1})
    assert decision.expected["A"].why == "Its last load failed. The next try is in 30 s."
    assert decision.expected["A"].bound_s == math.inf


def test_an_unknown_model_is_loaded_once_to_learn_its_schema() -> None:
    assert decide({"A": absent(is_known=False)}).load == Load("A", {"gpu0": 1})
    seen = {"A": loaded(waiting=waits(5)), "B": absent(is_known=False, since_s=300.0)}
    assert decide(seen).rest == ("A",), "it waits like any other"


def test_a_model_for_any_device_takes_the_free_one() -> None:
    anywhere = model("B", places=({"gpu0": 1}, {"gpu1": 1}))
    assert decide({"A": loaded(), "B": absent(waiting=waits())}, TWO, B=anywhere).load == Load("B", {"gpu1": 1})


def test_a_model_on_several_devices_waits_until_all_are_free() -> None:
    both = model("C", places=({"gpu0": 1, "gpu1": 1},))
    seen = {"A": loaded(), "B": loaded({"gpu1": 1}), "C": absent(waiting=waits())}
    assert sorted(decide(seen, TWO, C=both).rest) == ["A", "B"]
    assert decide({**seen, "A": absent(), "B": loaded({"gpu1": 1}, state="leaving")}, TWO, C=both).load is None


def test_a_model_without_devices_is_in_the_way_of_none() -> None:
    seen = {"A": loaded(waiting=waits()), "B": absent(waiting=waits())}
    assert decide(seen, B=model("B", places=({},))).load == Load("B", {})


def test_only_as_many_models_make_room_as_needed() -> None:
    sizes = {"A": {"gpu0": 1}, "B": {"gpu0": 3}}
    seen = {"A": loaded(sizes["A"]), "B": loaded(sizes["B"], arrivals_per_s=0.001), "C": absent(waiting=waits())}
    wanted = model("C", places=({"gpu0": 3},))
    assert decide(seen, [Device("gpu0", 4)], C=wanted).rest == ("B",)


def test_room_of_an_urgent_model_is_kept_for_it() -> None:
    """C would fit beside A at once, and then B would have to wait for C too."""
    seen = {
        "A": loaded(since_s=1.0, waiting=waits()),
        "B": absent(waiting=waits(oldest_s=400.0)),
        "C": absent(waiting=waits(oldest_s=2.0)),
    }
    decision = decide(seen, [Device("gpu0", 2)], B=model("B", places=({"gpu0": 2},)))
    assert (decision.load, decision.rest) == (None, ())
    assert decision.expected["C"].why == "It waits for B."


def test_a_load_that_is_over_in_time_may_overtake() -> None:
    seen = {
        "A": loaded(state="leaving", running={"x": 1}, longest_run_left_s=60.0, run_s=60.0),
        "B": absent(waiting=waits(oldest_s=400.0)),
        "C": absent(waiting=waits(oldest_s=2.0)),
    }
    devices = [Device("gpu0", 3)]
    assert decide(seen, devices, B=model("B", places=({"gpu0": 2},))).load is not None, "B has its room now"
    large = {**seen, "A": loaded({"gpu0": 2}, state="leaving", running={"x": 1}, longest_run_left_s=60.0, run_s=60.0)}
    assert decide(large, devices, B=model("B", places=({"gpu0": 2},))).load == Load("C", {"gpu0": 1})
    slow = {**large, "C": absent(waiting=waits(oldest_s=2.0), load_s=62.0)}
    assert decide(slow, devices, B=model("B", places=({"gpu0": 2},))).load is None


def test_the_bound_is_the_longest_wait_a_load_the_longest_run_and_a_rest() -> None:
    seen = {"A": loaded(waiting=waits(9)), "B": absent(waiting=waits(oldest_s=100.0))}
    assert decide(seen).expected["B"].bound_s == pytest.approx(200 + 10 + 5 + 20 + 1)
    overdue = {**seen, "B": absent(waiting=waits(oldest_s=900.0))}
    assert decide(overdue).expected["B"].bound_s == pytest.approx(10 + 5 + 20 + 1)


def test_the_bound_counts_a_turn_for_each_model_ahead() -> None:
    seen = {
        "A": loaded(waiting=waits(9)),
        "B": absent(waiting=waits(oldest_s=900.0)),
        "C": absent(waiting=waits(oldest_s=800.0)),
    }
    expected = decide(seen).expected
    assert expected["C"].bound_s == pytest.approx(2 * (10 + 5 + 20 + 1) + 10)
    assert expected["C"].eta_s > expected["B"].eta_s
    assert expected["C"].behind == ("A", "B")


# The rest are things that happened to users of other schedulers


def test_requests_a_b_a_a_c_a_b_c_do_not_thrash() -> None:
    """First come, first served: eight requests of three models were seven swaps, and one for C could wait for ever."""
    builder = Builder()
    for number, name in enumerate("ABAACABC"):
        builder.add(at_ms=number, run_ms=1000, account="x", lane="normal", model=name)
    models = [Timed(model=model(name), load_s=10.0) for name in "ABC"]
    assert Play("fcfs", ONE, models, builder.build()).run().loads == 7
    assert Play("director", ONE, models, builder.build()).run().loads == 3


def test_an_image_run_of_twenty_minutes_is_not_cut_off_by_a_swap() -> None:
    runs = loaded(state="leaving", running={"x": 1}, longest_run_left_s=600.0, run_s=1200.0)
    decision = decide({"image": runs, "chat": absent(waiting=waits(oldest_s=1e6))})
    assert (decision.load, decision.rest) == (None, ())
    assert decision.expected["chat"].why == "It waits for image."
    assert decision.expected["chat"].eta_s == pytest.approx(600 + 1 + 10)


def test_a_second_request_does_not_unload_the_model_of_the_first() -> None:
    first = loading(waiting=waits(account="first"))
    assert decide({"A": first, "B": absent(waiting=waits(account="second"))}).rest == ()
    runs = loaded(since_s=1.0, running={"first": 1}, longest_run_left_s=20.0)
    assert decide({"A": runs, "B": absent(waiting=waits(account="second"))}).rest == ()


def test_a_model_that_is_still_loading_is_not_evicted() -> None:
    seen = {"A": loading(since_s=0.0), "B": absent(waiting=waits(99, oldest_s=1e6)), "C": absent(order="load")}
    decision = decide(seen)
    assert (decision.load, decision.rest) == (None, ())
    assert decision.expected["B"].behind


def test_no_deadlock_when_the_model_chosen_to_leave_gets_a_request() -> None:
    """The model leaves all the same. Its request waits for its next turn, and both know how long that takes."""
    seen = {
        "A": loaded(state="leaving", since_s=3.0, waiting=waits(5)),
        "B": absent(waiting=waits(oldest_s=50.0)),
    }
    decision = decide(seen)
    assert decision.expected["A"].why == "It makes room for another model."
    assert math.isfinite(decision.expected["A"].bound_s)
    gone = {**seen, "A": absent(since_s=0.0, waiting=waits(6))}
    assert decide(gone).load == Load("B", {"gpu0": 1})


@pytest.mark.parametrize("order", ["", "load", "pin"])
def test_a_model_is_loaded_once_however_many_ask_for_it(order: Any) -> None:
    asked = waits(5, account="x") + waits(5, account="y")
    seen = {"A": loading(waiting=asked, order=order), "B": absent()}
    decision = decide(seen, [Device("gpu0", 4)])
    assert (decision.load, decision.rest) == (None, ())
    assert decision.expected["A"].eta_s == 6.0


def test_two_loads_that_are_asked_at_once_follow_each_other() -> None:
    seen = {"A": absent(order="load"), "B": absent(order="load")}
    room = [Device("gpu0", 2)]
    assert decide(seen, room).load == Load("A", {"gpu0": 1})
    assert decide({**seen, "A": loading()}, room).load is None
    assert decide({**seen, "A": loaded()}, room).load == Load("B", {"gpu0": 1})
