"""Every order of calls in small worlds keeps the rules, and an order that once broke them is show_trace."""

from typing import Final

import pytest

from director.lab.prove.explore import explore, replay
from director.lab.prove.report import show_trace
from director.lab.prove.server import Edit
from director.lab.prove.worlds import WORLDS

pytestmark = pytest.mark.not_on("cluster", "sentinel", "redis7", why="each worker has a Valkey of its own")

STALE: Final = Edit("if r.token ~= token then return 'lost' end", script="finish")
SMALL: Final = ("first", "takeover")
# Histories that were wrong once: the world, and the calls. `director prove` prints a new one as a row of this table
TRACES: Final[dict[str, tuple[str, str]]] = {
    "a director stands still and comes back": ("takeover", "enqueue 0; claim a; tick; tick; reap; claim b; finish a 0"),
}


@pytest.mark.parametrize("name", SMALL)
def test_no_order_of_calls_in_a_small_world_breaks_a_rule(name: str) -> None:
    explored = explore(name, WORLDS[name])
    assert explored.breach is None
    assert explored.is_whole


@pytest.mark.parametrize(("name", "calls"), TRACES.values(), ids=TRACES)
def test_what_was_wrong_once_stays_mended(name: str, calls: str) -> None:
    assert replay(WORLDS[name], calls.split("; ")) == []


def test_a_breach_has_the_fewest_calls_and_can_be_replayed() -> None:
    found = explore("takeover", WORLDS["takeover"], edits=[STALE])
    assert found.breach is not None
    assert found.breach.calls == ("enqueue 0", "claim a", "tick", "tick", "reap", "finish a 0")
    assert replay(WORLDS["takeover"], found.breach.calls, [STALE]) == [
        "a stale token was answered True",
        "a stale token wrote",
    ]
    assert "enqueue 0; claim a; tick; tick; reap; finish a 0" in show_trace(found)
    assert replay(WORLDS["takeover"], found.breach.calls) == []
