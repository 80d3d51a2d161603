"""End the `up` of a home, and what an `up` that was killed left behind. Safe to repeat."""

from director.local.home import UP, Home
from director.local.processes import end, is_alive

__all__ = ("down", "end_leftovers")

UP_GRACE_S = 60.0  # it drains its directors before it ends
PART_GRACE_S = 10.0


def down(home: Home) -> bool:
    """End everything; True if there was something to end."""
    up = home.read().processes.get(UP)
    was_up = up is not None and is_alive(up)
    if up is not None:
        end(up, grace_s=UP_GRACE_S)
    return end_leftovers(home) or was_up


def end_leftovers(home: Home) -> bool:
    """End the parts that `up.json` still names while no `up` runs; True if there were any.

    Valkey is ended last: it was started first.
    """
    state = home.read()
    left = [one for name, one in state.processes.items() if name != UP and is_alive(one)]
    for one in reversed(left):
        end(one, grace_s=PART_GRACE_S)
    if state.pids:
        home.write(state.stopped())
    return bool(left)
