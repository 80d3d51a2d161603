from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from director.core.schema import Claim
from director.execution.consumer import MOST_AT_ONCE, MOST_SKIPS, ClaimPlanner, ClaimRequest
from director.servers.runners.runner import Batch, Health, HealthStatus
from director.servers.servers import Permit, Server
from tests.support.scripted_runner import ScriptedRunner
from tests.unit.execution.test_tracker import RECORD
from tests.unit.servers.test_servers import Running

SERVER = Server(ScriptedRunner(), 64, health=Health(status=HealthStatus.READY))


def claims(*keys: str, cost: float = 1) -> list[Claim]:
    return [Claim(replace(RECORD, affinity=key, cost=cost), Raw(b"{}")) for key in keys]


def permits(number: int, server: Server = SERVER, *, since: str = "first") -> list[Permit]:
    return [Permit(server, since) for _ in range(number)]


def asked(planner: ClaimPlanner, number: int) -> ClaimRequest:
    request = planner.next(permits(number))
    assert request is not None
    return request


def run(planner: ClaimPlanner, *keys: str, cost: float = 1) -> tuple[ClaimRequest, list[Permit]]:
    request = asked(planner, len(keys))
    return request, planner.take(request, claims(*keys, cost=cost), permits(len(keys)))


def leave(*taken: Permit) -> None:
    for permit in taken:
        permit.taken = False


def test_remote_run_gets_a_permit_of_its_own_server() -> None:
    there = Server(Running(), 1, health=Health(status=HealthStatus.READY))
    new, taken_over = Claim(RECORD, Raw(b"{}")), Claim(replace(RECORD, remote="job 7"), Raw(b"{}"))
    free = [*permits(1, there), *permits(1)]
    taken = ClaimPlanner().take(ClaimRequest(count=2), [new, taken_over], free)
    assert [permit.server for permit in taken] == [SERVER, there]


def test_only_permits_and_a_maximum_bound_a_claim_without_a_batch() -> None:
    assert asked(ClaimPlanner(), 5) == ClaimRequest(count=5)
    assert asked(ClaimPlanner(), MOST_AT_ONCE + 1).count == MOST_AT_ONCE


def test_the_budget_is_what_the_running_ones_leave() -> None:
    planner = ClaimPlanner(batch_cost=10)
    assert asked(planner, 4) == ClaimRequest(count=4, budget=10)
    _, [first, _] = run(planner, "", "", cost=3)
    assert asked(planner, 2) == ClaimRequest(count=2, budget=4, alone=False)
    leave(first)
    assert asked(planner, 3) == ClaimRequest(count=3, budget=7, alone=False)


def test_beside_one_that_fills_the_batch_nothing_is_asked_for() -> None:
    planner = ClaimPlanner(batch_cost=10)
    _, taken = run(planner, "", cost=25)
    assert planner.next(permits(3)) is None
    assert not planner.has_more_room
    leave(*taken)
    assert planner.has_more_room
    assert asked(planner, 3) == ClaimRequest(count=3, budget=10)


def test_many_permits_skip_no_more_than_single_ones() -> None:
    planner = ClaimPlanner()
    run(planner, "a")
    run(planner, *["a"] * (MOST_SKIPS - 3))
    assert (asked(planner, 20).count, asked(planner, 20).warm) == (3, "a")
    run(planner, "a", "b", "b")
    assert (asked(planner, 20).count, asked(planner, 20).warm) == (MOST_SKIPS, "b")


def warm(*keys: str) -> tuple[ClaimPlanner, Server, Server]:
    """Return a planner and two servers that are warm for these keys, or for the last of theirs."""
    planner = ClaimPlanner()
    first, second = (Server(ScriptedRunner(), 2, health=Health(status=HealthStatus.READY)) for _ in "12")
    for key, server in zip(keys, (first, second, second), strict=False):
        request = planner.next(permits(1, server))
        assert request is not None
        leave(*planner.take(request, claims(key), permits(1, server)))
    return planner, first, second


def test_each_server_is_asked_for_what_it_ran_itself() -> None:
    planner, first, second = warm("a", "b")
    assert planner.next(permits(1, first)) == ClaimRequest(count=1, warm="a")
    assert planner.next(permits(1, second)) == ClaimRequest(count=1, warm="b")
    both = [*permits(1, first), *permits(2, second)]
    assert planner.next(both) == ClaimRequest(count=1, warm="a"), "the others are asked for next"


def test_what_has_come_goes_to_the_server_that_is_warm_for_it() -> None:
    planner, first, second = warm("a", "b")
    free = [*permits(1, first), *permits(2, second)]
    taken = planner.take(ClaimRequest(count=3), claims("", "b", "a"), free)
    assert [permit.server for permit in taken] == [second, second, first]
    assert len(set(map(id, taken))) == 3


def test_what_is_warm_on_another_server_is_no_hit() -> None:
    assert warm("a", "a")[0].figures == {"warm_hit_ratio": "0.000"}
    assert warm("a", "a", "a")[0].figures == {"warm_hit_ratio": "0.333"}


def test_restarted_server_is_warm_for_no_key() -> None:
    planner = ClaimPlanner()
    leave(*run(planner, "a")[1])
    assert planner.next(permits(1, since="second")) == ClaimRequest(count=1)


@given(
    batch=st.floats(0.5, 20),
    size=st.integers(0, 6),
    waiting=st.lists(st.floats(0.1, 30), max_size=30),
    dice=st.randoms(use_true_random=False),
)
def test_batch_is_exceeded_only_by_a_single_claim(batch: float, size: int, waiting: list[float], dice: Random) -> None:
    planner = ClaimPlanner(batch_cost=batch, batch_size=size)
    running: list[tuple[Permit, float]] = []
    while waiting:
        request = planner.next(permits(8 - len(running)))
        if request is not None:
            handed: list[float] = []
            while waiting and len(handed) < request.count:  # as the script does
                fits = request.budget is None or sum(handed) + waiting[0] <= request.budget
                if not fits and not (request.alone and not handed):
                    break
                handed.append(waiting.pop(0))
            came = [claim for cost in handed for claim in claims("", cost=cost)]
            taken = planner.take(request, came, permits(len(handed)))
            running += zip(taken, handed, strict=True)
        else:
            assert running, "nothing runs, and yet nothing is asked for"
        assert len(running) <= 1 or sum(cost for _, cost in running) <= batch * (1 + 1e-9)
        assert len(running) <= (size or 8)
        for permit, _ in [each for each in running if dice.random() < 0.5]:
            leave(permit)
        running = [each for each in running if each[0].taken]


def batch_seats(number: int) -> list[Permit]:
    return [Permit(SERVER, "first", place=place) for place in Batch(number).places]


def test_one_claim_fills_one_batch_of_a_server() -> None:
    planner = ClaimPlanner(batch_cost=10, batch_size=3)
    one, other = batch_seats(4), batch_seats(4)
    assert planner.next([*one, *other]) == ClaimRequest(count=3, budget=10)
    assert planner.take(ClaimRequest(count=3, budget=10), claims("", "", "", cost=3), [*one, *other]) == one[:3]
    assert planner.next(other) == ClaimRequest(count=3, budget=10)
    assert planner.figures["batch_fill"] == "0.900"
    planner.take(ClaimRequest(count=3, budget=10), claims("", cost=1), other)
    assert planner.figures["batch_fill"] == "0.500"
