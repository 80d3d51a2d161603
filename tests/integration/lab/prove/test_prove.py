"""Every order of calls in small worlds keeps the rules, and an order that once broke them is replayed."""

from contextlib import closing
from typing import Final

import pytest

from director.broker import linker
from director.lab.prove.explore import Graph, Next, Worker, explore, replay
from director.lab.prove.report import show_trace
from director.lab.prove.server import Server
from director.lab.prove.worlds import WORLDS
from director.local.server import memory_server
from tests.integration.lab.prove.mutants import MUTANTS, hunt

pytestmark = [
    pytest.mark.tools,
    pytest.mark.not_on("cluster", "sentinel", "redis7", why="each worker has a Valkey of its own"),
]

SMALL: Final = ("first", "keys")
ALIKE: Final = ("webhooks", "cancel", "once", "slots", "moves", "spare", "planned")
COMPARED: Final = 150
PART_S: Final = 7.0  # of each world in the second tier: two minutes of all
QUICK: Final = ("a stale claim may finish", "a repeated claim is not known", "what is taken back keeps its token")
# Histories that were wrong once, or look so: the world, and the calls. `director prove` prints a new one as a row
TRACES: Final[dict[str, tuple[str, str]]] = {
    "a director stands still and comes back": ("takeover", "enqueue 0; claim a; tick; tick; reap; claim b; finish a 0"),
    "an end whose reply was lost is asked for again": (
        "faults",
        "enqueue 0; claim a; finish a 0, reply lost; finish a 0",
    ),
    "a claim is repeated after its lease": (
        "faults",
        "enqueue 0; claim a, reply lost; tick; tick; reap; again a; claim b",
    ),
    "a director drains, and no slot is to spare any more": ("spare", "enqueue 0; enqueue 1; claim a; drain a"),
}


@pytest.mark.parametrize("name", SMALL)
def test_no_order_of_calls_in_a_small_world_breaks_a_rule(name: str) -> None:
    explored = explore(name, WORLDS[name])
    assert explored.breach is None
    assert explored.is_whole


@pytest.mark.faults
@pytest.mark.parametrize("name", [name for name in WORLDS if name not in SMALL])
def test_no_order_of_calls_breaks_a_rule_as_far_as_seconds_go(name: str) -> None:
    explored = explore(name, WORLDS[name], seconds=PART_S)
    assert explored.breach is None
    assert explored.transitions > 100


@pytest.mark.parametrize(
    "name", [pytest.param("lines"), *(pytest.param(each, marks=pytest.mark.faults) for each in ALIKE)]
)
def test_states_that_are_taken_for_one_lead_to_the_same_states(name: str) -> None:
    """Else the exploration would leave out what follows from one of them."""
    with memory_server() as url, closing(Server(url)) as server:
        worker = Worker(WORLDS[name], server)
        root = worker.begin()
        met, layer, compared = {root.key: root.blob}, [root], 0
        while layer and compared < COMPARED:
            following = []
            for each in (each for state in layer for each in expand(worker, state.blob)):
                if each.key not in met:
                    met[each.key] = each.blob
                    following.append(each)
                elif each.blob not in (b"", met[each.key]) and compared < COMPARED:
                    compared += 1
                    one, other = (expand(worker, blob) for blob in (met[each.key], each.blob))
                    assert {found.key for found in one} == {found.key for found in other}
            layer = following
    assert compared == COMPARED


def expand(worker: Worker, blob: bytes) -> list[Next]:
    worker.known.clear()
    [found] = worker.expand([blob])
    return found


@pytest.mark.parametrize(("name", "calls"), TRACES.values(), ids=TRACES)
def test_what_was_wrong_once_stays_mended(name: str, calls: str) -> None:
    assert replay(WORLDS[name], calls.split("; ")) == []


def test_a_breach_has_the_fewest_calls_and_can_be_replayed() -> None:
    edits = [MUTANTS["a stale claim may finish"].edit]
    found = explore("takeover", WORLDS["takeover"], edits=edits)
    assert found.breach is not None
    assert found.breach.calls == ("enqueue 0", "claim a", "tick", "tick", "reap", "finish a 0")
    wrong = replay(WORLDS["takeover"], found.breach.calls, edits)
    assert wrong[:2] == ["a stale token was answered True", "a stale token wrote"]
    assert "0: finish, and it does not hold that the token is that of its claim" in wrong
    assert "enqueue 0; claim a; tick; tick; reap; finish a 0" in show_trace(found)
    assert replay(WORLDS["takeover"], found.breach.calls) == []


def test_a_state_without_a_way_to_rest_is_found() -> None:
    graph = Graph()
    graph.add(-1, Next("", b"first", b"", False, []))
    for parent, key, is_rest, is_fair in (
        (0, b"runs", False, False),
        (1, b"rests", True, True),
        (0, b"caught", False, True),
        (3, b"caught", False, True),
        (1, b"first", False, True),
    ):
        graph.add(parent, Next(f"to {key.decode()}", key, b"", is_rest, [], is_fair))
    assert graph.calls_to(graph.first_stuck() or 0) == ()
    graph.add(0, Next("to runs", b"runs", b"", False, [], True))
    assert graph.calls_to(graph.first_stuck() or 0) == ("to caught",)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_changes_one_place_of_a_script(name: str) -> None:
    edit = MUTANTS[name].edit
    scripts = [edit.script] if edit.script else [path.stem for path in linker.LUA.glob("*.lua")]
    assert {linker.link(script).count(edit.wanted) for script in scripts} - {0} == {1}


FOUND: Final = [name for name, mutant in MUTANTS.items() if mutant.world]


@pytest.mark.faults
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.heavy) for name in FOUND]
)
def test_the_exploration_finds_each_mutant(name: str) -> None:
    assert hunt(name).calls
