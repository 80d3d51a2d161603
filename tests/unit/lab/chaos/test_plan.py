from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from msgspec.structs import replace

from director.cli import trials
from director.lab.chaos import nemesis as module
from director.lab.chaos import scene
from director.lab.chaos.nemesis import Nemesis
from director.lab.chaos.parties import ODD
from director.lab.chaos.plan import (
    ALL_LINKS,
    ALONE,
    BLACK_HOLE,
    CALLS,
    CLUSTER,
    EQUAL,
    FAILOVERS,
    FAR,
    FULL,
    HEAVY,
    KINDS,
    LARGE,
    LEAVES,
    NEIGHBOURS,
    NOT_IN_PEACE,
    ODDLY,
    ONCE,
    PLANS,
    REPLACE,
    SENTINEL,
    SERVER_KINDS,
    SINGLE,
    STEPS,
    Order,
    Planned,
    ServerKind,
    Stage,
    Tenants,
    bystanders,
    calls,
    fill,
    key_of,
    large,
    make_plain,
    orders,
    rollout,
    rush,
    schedule,
    visit,
)
from director.lab.chaos.run import length_s
from director.lab.chaos.scene import LIMITS, TALKS_AT_ONCE, find_library

STAGE = Stage(
    directors=["director-0", "director-1", "director-2"],
    cogs=["cog-0", "cog-1", "cog-2"],
    apis=["api-0"],
    keepers=["keeper-0", "keeper-1"],
    links=["api-0:redis", "director-0:redis", "director-1:redis", "keeper-0:redis"],
    ways=["director-0:cog", "director-1:cog", "webhooks:sink-0"],
)
MODELS = ("chaos/shared", "chaos/alone")


def load(seed: int, count: int = 5_000) -> list[Order]:
    return list(islice(orders(seed, tenants=40, models=MODELS), count))


def faults(seed: int, *, seconds: float = 600.0, lease_s: float = 3.0) -> list[Planned]:
    return schedule(seed, seconds=seconds, lease_s=lease_s, stage=STAGE)


@pytest.mark.parametrize("drawn", [lambda seed: load(seed, 100), faults], ids=["orders", "faults"])
def test_only_the_same_seed_gives_the_same(drawn):
    assert drawn(1) == drawn(1) != drawn(2)


def test_a_shorter_run_has_the_first_orders_of_a_longer_one():
    assert load(1, 10) == load(1, 100)[:10]


def test_plans_come_in_their_proportions():
    counts = Counter(order.plan for order in load(7))
    assert sum(PLANS.values()) == 1000
    assert {plan: count / 5 for plan, count in counts.items()} == pytest.approx(PLANS, abs=20)


def test_one_tenant_owns_half_and_the_others_share_the_rest_unevenly():
    counts = Counter(order.tenant for order in load(7))
    assert counts[0] / 5_000 == pytest.approx(0.5, abs=0.03)
    assert counts[1] > 2 * counts[4] > 0
    assert max(counts) == 39


def test_lanes_are_in_proportions_of_one_to_six_to_three():
    counts = Counter(order.lane for order in load(7))
    shares = {lane: count / 5_000 for lane, count in counts.items()}
    assert shares == pytest.approx({"high": 0.1, "normal": 0.6, "low": 0.3}, abs=0.03)


def test_median_run_takes_20_ms_and_the_99th_percentile_400():
    times = sorted(order.script.ms for order in load(7))
    assert times[2_500] == pytest.approx(20, rel=0.15)
    assert times[4_950] == pytest.approx(400, rel=0.3)


def test_only_canceled_runs_hang():
    assert {order.plan for order in load(7) if order.script.outcome == "hang"} == {"cancel"}


def test_one_of_ten_starts_within_seconds_and_one_of_eight_is_followed():
    asked = [order.start_by_s for order in load(7) if order.plan == "start_by"]
    followed = [order for order in load(7) if order.is_followed]
    assert [len(asked) / 5_000, len(followed) / 5_000] == pytest.approx([0.1, 0.12], abs=0.02)
    assert set(asked) == {1, 2, 3, 4, 5}
    assert sum(order.script.outputs > 1 for order in followed) > len(followed) / 2


def test_one_of_fifty_is_seen_by_several_clients_and_each_of_those_followed():
    shared = [order for order in load(7) if order.is_shared]
    assert len(shared) / 5_000 == pytest.approx(0.02, abs=0.005)
    assert all(order.is_followed for order in shared)
    assert {order.plan for order in shared} >= {"plain", "cancel", "start_by"}


def test_every_odd_answer_is_ordered_and_none_where_it_is_left_out():
    odd = Counter(order.script.odd for order in load(7) if order.plan == ODDLY)
    assert set(odd) == set(ODD)
    assert {order.script.odd for order in load(7) if order.plan != ODDLY} == {""}
    assert {make_plain(order, [ODDLY]).script.odd for order in load(7)} == {""}


def test_parts_of_a_run_share_no_key():
    assert len({key_of(1, 2), key_of(1, 2, part="calibration"), key_of(1, 2, part="rush-0")}) == 3


def test_in_peace_no_run_crashes_its_model_server():
    peace = [make_plain(order, NOT_IN_PEACE) for order in load(7)]
    assert "crash" in {order.script.outcome for order in load(7)}
    assert "crash" not in {order.script.outcome for order in peace}
    assert Counter(order.lane for order in peace) == Counter(order.lane for order in load(7))


def test_a_rush_fills_its_slots_for_equal_tenants_and_a_heavy_one():
    wanted = list(rush("rush-0", equal=range(40, 46), heavy=0, model="chaos/shared", slots=16, seconds=6))
    seconds = Counter[int]()
    for order in wanted:
        seconds[order.tenant] += order.script.ms / 1000
    assert seconds == pytest.approx({0: 32, **dict.fromkeys(range(40, 46), 16)}, rel=0.05)
    assert {order.tenant for order in wanted[:40]} == {0, *range(40, 46)}, "all of them come at once"
    assert {order.plan for order in wanted if order.tenant} == {EQUAL}
    assert {order.plan for order in wanted if not order.tenant} == {HEAVY}
    assert len({order.script.ms for order in wanted if order.tenant}) == 3, "equal time in unequal runs"
    assert len({order.number for order in wanted}) == len(wanted)


def test_calls_of_a_seed_are_the_same_and_sustained_by_their_slots():
    wanted = list(islice(calls(1, tenants=40), 5_000))
    assert wanted[:50] == list(islice(calls(1, tenants=40), 50)) != list(islice(calls(2, tenants=40), 50))
    counts = Counter(order.plan for order in wanted)
    assert {plan: count / 50 for plan, count in counts.items()} == pytest.approx(CALLS, abs=2)
    assert {order.plan for order in wanted if order.then_ms} == set(LEAVES)
    busy_ms = sum(min(order.script.ms, order.then_ms) if order.plan == "leave" else order.script.ms for order in wanted)
    assert busy_ms / 1000 / sum(order.gap for order in wanted) < TALKS_AT_ONCE / 2


def test_every_slot_is_asked_for_once():
    wanted = list(fill({"a": 3, "b": 1}, until_ms=9_000))
    assert [order.model for order in wanted] == ["a", "a", "a", "b"]
    assert {(order.plan, order.script.until_ms) for order in wanted} == {(FULL, 9_000)}
    assert [order.number for order in wanted] == [0, 1, 2, 3]


def test_large_outputs_of_each_model_end_in_one_moment():
    wanted = list(large("large-0", models=MODELS, tenant=0, until_ms=9_000))
    assert {order.plan for order in wanted} == {LARGE}
    assert {order.script.until_ms for order in wanted} == {9_000}
    assert len({(order.part, order.number) for order in wanted}) == len(wanted)
    assert set(Counter(order.model for order in wanted).values()) == {4}
    assert sum(order.script.fill for order in wanted) < 50_000_000, "twice in a run, output and event each"


def test_a_bystander_wants_little_and_reads_every_second_stream():
    wanted = list(bystanders(ALONE, tenant=46, model=MODELS[1], seconds=4))
    assert {(order.plan, order.tenant, order.model, order.gap) for order in wanted} == {(ALONE, 46, MODELS[1], 0.25)}
    assert [order.number for order in wanted if order.is_followed] == list(range(0, 16, 2))
    assert {order.script.fill > 0 for order in wanted if order.is_followed} == {True}


def test_neighbours_of_all_kinds_come_and_each_visit_has_keys_of_its_own():
    tenants = Tenants(*range(47, 53))
    visits = [
        visit(part, tenants, crowded=MODELS[0], quiet=MODELS[1], spare="s", hooks=["a", "b"]) for part in ("x", "y")
    ]
    wanted = [order for each in visits for orders in each.values() for order in orders]
    assert set(visits[0]) == set(NEIGHBOURS)
    assert len({key_of(1, order.number, part=order.part) for order in wanted}) == len(wanted)
    assert {order.plan for order in wanted if order.model == MODELS[1]} == {"dead", "sick", "hang"}
    assert {order.cancel_after_s for order in wanted} == {5, 8}, "none outlives its visit by long"
    assert Counter(order.hook for order in wanted if order.plan == "dead") == {"a": 80, "b": 80}
    assert {order.hook for order in wanted if order.plan != "dead"} == {""}
    assert sum(order.padding + 2 * order.script.fill for order in wanted if order.plan != "hoard") < 30_000_000
    hoarded = sum(order.padding for order in visits[0]["hoard"])
    assert hoarded > 4 * int(LIMITS["hoard"]["max_data_bytes"]), "its account's limit is reached, and bounds it"


def test_a_long_run_has_every_kind_of_fault():
    assert {fault.kind for fault in faults(1)} == kinds_of(SINGLE) | {kind for _, kind, *_ in (*ONCE, *STEPS)}


def test_every_run_on_sentinels_has_each_failover():
    stage = replace(STAGE, kind=SENTINEL, has_clock=False)
    for seed in range(5):
        assert {fault.kind for fault in schedule(seed, seconds=60, lease_s=3, stage=stage)} >= set(FAILOVERS)


def test_the_command_line_names_each_kind_of_servers():
    assert trials.SERVER_KINDS == SERVER_KINDS


def kinds_of(kind: ServerKind) -> set[str]:
    return {name for name, facts in KINDS.items() if kind in facts.kinds}


@pytest.mark.parametrize("kind", [SENTINEL, CLUSTER])
def test_a_group_has_its_own_faults_and_says_which_of_a_single_server_it_lacks(kind: ServerKind):
    stage = replace(STAGE, kind=kind, servers=["redis-0", "redis-1"], sentinels=["sentinel-0"], has_clock=False)
    planned = {fault.kind for fault in schedule(1, seconds=900, lease_s=3, stage=stage)}
    assert planned == kinds_of(kind) | {each[1] for each in ONCE}
    options = scene.Options(seed=1, seconds=60, kind=kind)
    assert all(name in options.left_out for name in (*(kinds_of(SINGLE) - planned), "clock steps"))


def test_faults_come_in_order_and_none_outlasts_the_run():
    planned = faults(3, seconds=20, lease_s=15)
    assert [fault.at_ms for fault in planned] == sorted(fault.at_ms for fault in planned)
    assert max(fault.at_ms + fault.lasts_ms for fault in planned if fault.kind != "memory_full") <= 20_000


def test_a_frozen_director_misses_two_leases():
    assert {fault.lasts_ms for fault in faults(1)[:-40] if fault.kind == "stop_director"} == {6_000}


def test_no_target_is_hit_twice_at_once():
    drawn = [fault for fault in faults(5) if fault.kind in KINDS]
    for number, fault in enumerate(drawn):
        for other in drawn[:number]:
            if other.at_ms + other.lasts_ms > fault.at_ms:
                both_links = ALL_LINKS in (fault.target, other.target) and {fault.target, other.target} & {*STAGE.links}
                assert fault.target != other.target
                assert not both_links


def test_at_most_one_director_is_frozen():
    frozen = [fault for fault in faults(5, lease_s=15) if fault.kind == "stop_director"]
    ends = [fault.at_ms + fault.lasts_ms for fault in frozen]
    assert len(frozen) > 5
    assert all(end <= later.at_ms for end, later in zip(ends, frozen[1:], strict=False))


def test_the_nemesis_can_carry_out_every_kind():
    nemesis = Nemesis(scene=None, journal=None, say=print)
    assert nemesis.kinds >= set(KINDS) | {kind for _, kind, *_ in (*ONCE, *STEPS)} | {REPLACE}


async def test_a_drawn_fault_is_left_out_if_its_target_is_not_back_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LATE_S", 0.05)
    nemesis = Nemesis(SimpleNamespace(clock=None, names=()), journal=None, say=print)
    done: list[str] = []

    async def perform(fault: Planned) -> None:
        done.append(f"{fault.kind} {fault.at_ms}")
        await anyio.sleep(0.2)  # longer than a fault waits for its target

    nemesis._perform = dict.fromkeys(("kill_api", "memory_full"), perform)
    planned = [(0, "kill_api", "a"), (20, "kill_api", "a"), (20, "memory_full", "a"), (20, "kill_api", "b")]
    await nemesis.run([Planned(at_ms=at_ms, kind=kind, target=target) for at_ms, kind, target in planned], seconds=5)
    assert sorted(done) == ["kill_api 0", "kill_api 20", "memory_full 20"]


@pytest.mark.parametrize("seconds", [15.0, 60.0, 3600.0])
def test_no_time_of_the_servers_clock_comes_twice_before_the_end(seconds: float):
    stepped = {kind for _, kind, *_ in STEPS}
    steps = [fault for fault in faults(1, seconds=seconds) if fault.kind in stepped]
    offset_ms, shown = 0, []
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        offset_ms += int(step.detail) * 1000
        until_ms = following.at_ms if following else int(2 * seconds * 1000)
        shown.append((step.at_ms + offset_ms, until_ms + offset_ms))
    shown = sorted([*shown, (0, steps[0].at_ms)])
    assert all(end <= begin for (_, end), (begin, _) in pairwise(shown))


@pytest.mark.parametrize(("seconds", "longest_ms"), [(60.0, 10_000), (180.0, 30_000), (600.0, 60_000)])
def test_drawn_black_holes_last_from_five_seconds_to_a_sixth_of_the_run(seconds: float, longest_ms: int):
    holes = [
        fault
        for seed in range(40)
        for fault in faults(seed, seconds=seconds)
        if fault.kind == BLACK_HOLE and fault.target != FAR and fault.at_ms + fault.lasts_ms < seconds * 1000
    ]
    assert min(hole.lasts_ms for hole in holes) == pytest.approx(5_000, abs=200)
    assert longest_ms * 0.9 <= max(hole.lasts_ms for hole in holes) <= longest_ms
    assert {hole.target for hole in holes} >= {*STAGE.links, *STAGE.ways, ALL_LINKS}


@pytest.mark.parametrize("seconds", [60.0, 120.0, 600.0])
def test_one_director_is_away_until_its_kernel_gives_up_a_silent_connection(seconds: float):
    [far] = [fault for fault in faults(1, seconds=seconds) if fault.target == FAR]
    assert 46_000 <= far.lasts_ms <= 60_000
    others = [part for part, kind, *_ in ONCE if kind == "delete_version"] + [0.5] * (seconds >= 90)
    assert far.at_ms + far.lasts_ms + 500 < min(others) * seconds * 1000, "it is back for what it is needed for"


def test_a_run_without_libfaketime_has_no_clock_steps():
    stage = replace(STAGE, has_clock=False)
    kinds = {fault.kind for fault in schedule(1, seconds=60, lease_s=3, stage=stage)}
    assert not kinds & {kind for _, kind, *_ in STEPS}


def test_rollout_replaces_each_process_once_under_load():
    planned = rollout("/other", seconds=20, stage=STAGE)
    targets = [fault.target for fault in planned]
    assert targets == ["keeper-0", "director-0", "api-0", "keeper-1", "director-1", "director-2"]
    assert {(fault.kind, fault.detail) for fault in planned} == {(REPLACE, "/other")}
    assert [fault.at_ms for fault in planned] == [0, 2_000, 4_000, 6_000, 8_000, 10_000]


def test_a_run_says_which_faults_it_cannot_have(monkeypatch: pytest.MonkeyPatch):
    options = scene.Options(seed=1, seconds=60)
    monkeypatch.setattr(scene, "find_library", lambda wanted: None)
    assert options.left_out == "clock steps left out: libfaketime is not installed"
    monkeypatch.setattr(scene, "find_library", lambda wanted: Path("/lib/libfaketime.so.1"))
    assert options.left_out == ""


def test_a_run_lasts_until_its_predictions_are_sent_but_no_longer_than_redis_remembers_them():
    options = scene.Options(seed=1, seconds=60)
    assert length_s(options, 40) == 60
    assert length_s(replace(options, predictions=20_000), 40) == 500
    assert length_s(replace(options, predictions=20_000), 400) == 60
    assert length_s(replace(options, predictions=20_000), 4) == 2_400
    assert length_s(replace(options, seconds=7_200), 4) == 7_200


def test_libfaketime_is_found_in_the_folder_of_an_architecture(tmp_path: Path):
    library = tmp_path / "usr" / "lib" / "x-linux-gnu" / "faketime" / "libfaketime.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    places = [f"{tmp_path.relative_to('/')}/usr/lib/*/faketime/libfaketime.so.1"]
    assert find_library(places=places) == library
    assert find_library(str(library)) == library
    assert find_library(places=[]) is None
    assert find_library("/no/such/file") is None
