import math
import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from director.core.figures import jain
from director.core.policy import shard
from tests.bench.figures import table
from tests.support.fair_simulation import (
    SHARD,
    STREAMS,
    Fifo,
    Load,
    Scheme,
    Shards,
    Tenant,
    Turns,
    Window,
    play,
)

SCHEMES: dict[str, Callable[[], Scheme]] = {"fifo": Fifo, "shards only": Shards, "window of 32": Window, "turns": Turns}
BATCH = 10_000
SALTS = 20
UNLUCKY = 1  # a salt where one of them has no stream that is not the whale's


def crowd(salt: int, lights: int = 99) -> tuple[Tenant, list[Tenant]]:
    """A tenant with a batch, and many with little. Names decide the shards, so each salt places them otherwise."""
    return Tenant(f"{salt}:whale"), [Tenant(f"{salt}:light-{i}") for i in range(lights)]


def share_all(one: Tenant, other: Tenant) -> bool:
    mine, theirs = (set(shard(tenant.name, streams=STREAMS, size=SHARD)) for tenant in (one, other))
    return mine == theirs


def neighbours() -> tuple[Tenant, Tenant]:
    """A light tenant whose streams are all the whale's, and the whale."""
    pairs = ((light, whale) for salt in range(SALTS) for whale, lights in [crowd(salt)] for light in lights)
    return next((light, whale) for light, whale in pairs if share_all(light, whale))


def random_s(mean: float, seed: int) -> Callable[[], float]:
    dice = random.Random(seed)
    return lambda: dice.expovariate(1 / mean)


def after_a_batch(scheme: Scheme, salt: int, *, until: float = 2 * BATCH) -> float:
    """The worst wait of 99 tenants with one each that come after a batch, while one slot serves them all."""
    whale, lights = crowd(salt)
    run = play(scheme, Load(whale, BATCH), *(Load(light, since=0.5) for light in lights), until=until)
    return run.worst_wait_s(*lights) if len(run.of(*lights)) == len(lights) else math.inf


def beside_a_batch(scheme: Scheme, *, outstanding: int = 1, most_running: int | None = None, slots: int = 1) -> float:
    """The share of a tenant that sends its next when one ended, with no stream that is not the whale's too."""
    light, whale = neighbours()
    light = Tenant(light.name, most_running=most_running)
    sent = Load(light, outstanding, since=0.5, closed=True)
    run = play(scheme, Load(whale, 3_000), sent, slots=slots, until=1_000)
    return run.shares([light, whale], since=100, until=1_000)[0]


def evenness(scheme: Scheme, *, outstanding: int = 40, slots: int = 1, until: float = 4_000) -> float:
    """Jain's index of twenty equal tenants that always have some waiting; the jobs of five take ten times as long."""
    tenants = [Tenant(f"tenant-{i}") for i in range(20)]
    spans = [random_s(10 if i < 5 else 1, seed=i) for i in range(20)]
    loads = [Load(tenant, outstanding, span, closed=True) for tenant, span in zip(tenants, spans, strict=True)]
    return jain(play(scheme, *loads, slots=slots, until=until).shares(tenants, since=0, until=until))


def weight_error(scheme: Scheme, *, outstanding: int, slots: int = 1) -> float:
    """The worst error of three shares that should be as 1 : 2 : 4."""
    tenants = [Tenant("one", 1), Tenant("two", 2), Tenant("four", 4)]
    loads = [Load(tenant, outstanding, random_s(1, seed=i), closed=True) for i, tenant in enumerate(tenants)]
    shares = play(scheme, *loads, slots=slots, until=2_000).shares(tenants, since=0, until=2_000)
    return max(abs(share * 7 / tenant.weight - 1) for share, tenant in zip(shares, tenants, strict=True))


def long_jobs_share(scheme: Scheme) -> float:
    """Of two tenants that may run one at a time, on one slot: the share of the one with ten times as long jobs."""
    long, short = Tenant("long", most_running=1), Tenant("short", most_running=1)
    run = play(scheme, Load(long, 400, lambda: 10.0), Load(short, 4_000), until=2_000)
    return run.shares([long, short], since=0, until=2_000)[0]


def share_in_a_crowd(scheme: Scheme) -> float:
    """What a batch gets among 1,000 tenants with two each at any time, in shares of one of the 1,001."""
    whale, lights = crowd(0, lights=1_000)
    loads = [Load(light, 2, since=0.5, closed=True) for light in lights]
    run = play(scheme, Load(whale, 3_000), *loads, slots=4, until=3_000)
    return run.shares([whale, *lights], since=500, until=3_000)[0] * 1_001


@pytest.fixture(scope="module")
def fifo_wait_s() -> float:
    return after_a_batch(Fifo(), salt=0)


@pytest.mark.parametrize("salt", range(SALTS))
def test_behind_a_batch_the_last_of_99_waits_a_fiftieth_of_what_it_would_in_one_line(
    salt: int, fifo_wait_s: float
) -> None:
    assert BATCH < fifo_wait_s < math.inf
    assert after_a_batch(Turns(), salt, until=500) <= fifo_wait_s * 0.02


def test_among_these_salts_is_one_where_a_light_tenant_has_no_stream_of_its_own() -> None:
    whale, lights = crowd(UNLUCKY)
    assert UNLUCKY in range(SALTS)
    assert any(share_all(whale, light) for light in lights)
    assert after_a_batch(Shards(), UNLUCKY, until=BATCH / 2) == math.inf, "shards alone leave it behind the batch"


@pytest.mark.parametrize("outstanding", [1, 2, 8])
def test_who_waits_for_each_answer_gets_half_of_the_slot_beside_a_batch(outstanding: int) -> None:
    assert beside_a_batch(Turns(), outstanding=outstanding) == pytest.approx(1 / 2, rel=0.02)


def test_who_waits_for_each_answer_waits_for_one_run_of_a_batch_at_most() -> None:
    light, whale = neighbours()
    run = play(Turns(), Load(whale, 3_000), Load(light, since=0.5, closed=True), until=500)
    assert run.worst_wait_s(light) <= 1.0


def test_a_thousand_small_tenants_leave_a_batch_its_share() -> None:
    assert share_in_a_crowd(Turns()) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("slots", [1, 4, 16])
def test_equal_tenants_get_equal_seconds_however_long_their_jobs_are(slots: int) -> None:
    assert evenness(Turns(), slots=slots, until=max(500, 4_000 / slots)) >= 0.98


@pytest.mark.parametrize(("outstanding", "slots"), [(4, 1), (8, 4), (400, 1), (400, 4)])
def test_weights_hold_whether_much_or_little_waits(outstanding: int, slots: int) -> None:
    assert weight_error(Turns(), outstanding=outstanding, slots=slots) <= 0.05


def test_who_comes_late_shares_from_then_on_and_is_not_owed_the_past() -> None:
    early, late = [Tenant("a"), Tenant("b")], Tenant("late")
    loads = [Load(tenant, 40, random_s(0.1, seed=i), closed=True) for i, tenant in enumerate([*early, late])]
    loads[2] = Load(late, 40, loads[2].seconds, since=400, closed=True)
    run = play(Turns(), *loads, until=500)
    assert run.shares([*early, late], since=400, until=500) == pytest.approx([1 / 3] * 3, rel=0.05)
    assert run.of(late)[0].waited < 1.0


def test_who_had_the_queue_alone_owes_nothing_for_it() -> None:
    alone, other = Tenant("alone"), Tenant("other")
    run = play(Turns(), Load(alone, 2_000), Load(other, 2_000, since=1_000), until=1_500)
    assert run.shares([alone, other], since=1_000, until=1_500) == pytest.approx([1 / 2] * 2, rel=0.02)


def test_who_was_away_while_others_were_served_comes_back_as_an_equal() -> None:
    stays, returns = Tenant("stays"), Tenant("returns")
    run = play(Turns(), Load(stays, 4_000), Load(returns, 100), Load(returns, 2_000, since=1_000), until=1_500)
    assert run.shares([stays, returns], since=0, until=200) == pytest.approx([1 / 2] * 2, rel=0.02)
    assert run.shares([stays, returns], since=1_000, until=1_500) == pytest.approx([1 / 2] * 2, rel=0.02)


def test_what_one_owes_is_forgotten_once_nobody_waits() -> None:
    owes, other = Tenant("a"), Tenant("b")
    busy = [Load(other, 3), Load(owes, 1, lambda: 100.0)]  # the other waits for its second while this long one runs
    later = [Load(tenant, 500, since=1_000) for tenant in (owes, other)]
    run = play(Turns(), *busy, *later, until=1_100)
    assert run.shares([owes, other], since=1_000, until=1_100) == pytest.approx([1 / 2] * 2, rel=0.05)


def test_a_tenant_at_its_running_limit_blocks_nobody_and_leaves_no_slot_idle() -> None:
    light, whale = neighbours()
    limited = Tenant(light.name, most_running=1)
    run = play(Turns(), Load(limited, 5_000), Load(whale, 5_000, since=0.5), slots=4, until=1_000)
    assert run.shares([limited, whale], since=10, until=1_000) == pytest.approx([1 / 4, 3 / 4], rel=0.02)
    # in the first half second there is nobody else, and it may not take the other three
    assert run.idle_s == pytest.approx(0.5 * 3)


def test_a_tenant_may_use_all_of_its_running_limit_beside_a_batch() -> None:
    assert beside_a_batch(Turns(), outstanding=100, most_running=1, slots=2) == pytest.approx(1 / 2, rel=0.02)


def test_tenants_at_their_limits_still_share_by_seconds() -> None:
    assert long_jobs_share(Turns()) == pytest.approx(1 / 2, rel=0.02)


NAMES = st.sampled_from("abcde")
LIMITS = {"a": 1, "b": 2, "c": None, "d": None, "e": 3}


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(
        st.tuples(NAMES, st.integers(1, 6), st.integers(1, 9), st.integers(0, 30)), min_size=1, max_size=12
    ),
    slots=st.integers(1, 5),
)
def test_whatever_comes_each_is_served_once_in_its_tenants_order_and_within_its_limit(
    batches: list[tuple[str, int, int, int]], slots: int
) -> None:
    tenants = {name: Tenant(name, weight=1 + len(name), most_running=most) for name, most in LIMITS.items()}
    loads = [Load(tenants[name], jobs, partial(float, s), since=since) for name, jobs, s, since in batches]
    run = play(Turns(), *loads, slots=slots)
    assert len(run.started) == sum(jobs for _, jobs, _, _ in batches)
    for tenant in tenants.values():
        own = run.of(tenant)
        assert [job.arrived for job in own] == sorted(job.arrived for job in own)
        for job in own:
            at_once = sum(other.started <= job.started < other.ended for other in own)
            assert at_once <= (tenant.most_running or slots)


def test_no_plainer_scheme_is_as_fair() -> None:
    figures = {
        name: {
            "worst wait behind a batch": after_a_batch(scheme(), salt=UNLUCKY),
            "one outstanding beside it": beside_a_batch(scheme()),
            "Jain, 40 outstanding": evenness(scheme()),
            "Jain, 2 outstanding": evenness(scheme(), outstanding=2),
            "1:2:4 error, 400 outstanding": weight_error(scheme(), outstanding=400),
            "1:2:4 error, 8 outstanding": weight_error(scheme(), outstanding=8),
            "batch among 1,000": share_in_a_crowd(scheme()),
            "long jobs at a limit": long_jobs_share(scheme()),
        }
        for name, scheme in SCHEMES.items()
    }
    print(table(figures))
    turns = figures.pop("turns")
    for other in figures.values():
        assert other["one outstanding beside it"] < 0.1 < turns["one outstanding beside it"]
        assert other["1:2:4 error, 8 outstanding"] > 0.5 > turns["1:2:4 error, 8 outstanding"]
        assert other["long jobs at a limit"] > 0.9 > turns["long jobs at a limit"]
