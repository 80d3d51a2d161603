"""Show what was explored: a row of each world, and a breach as a test that replays it."""

from collections.abc import Sequence
from typing import Final

from director.lab.prove.explore import Explored

HEAD: Final = f"{'world':<12}{'states':>10}{'transitions':>13}{'depth':>7}{'seconds':>9}  explored"


def row(explored: Explored) -> str:
    e = explored
    how = "breach" if e.breach else "all of it" if e.is_whole else f"to depth {e.depth}"
    return f"{e.world:<12}{e.states:>10,}{e.transitions:>13,}{e.depth:>7}{e.seconds:>9.1f}  {how}"


def text(found: Sequence[Explored]) -> str:
    """Return the sums, and each breach."""
    states, transitions = sum(each.states for each in found), sum(each.transitions for each in found)
    seconds = sum(each.seconds for each in found)
    lines = [
        f"{len(found)} worlds: {states:,} states, {transitions:,} transitions in {seconds:.1f} s,"
        f" {transitions / max(seconds, 0.001):,.0f} a second."
    ]
    for each in found:
        if each.breach is not None:
            lines += ["", f"{each.world}: {each.breach.what}, after {len(each.breach.calls)} calls.", show_trace(each)]
    return "\n".join(lines)


def show_trace(explored: Explored) -> str:
    """Return the breach as a row of TRACES in tests/integration/lab/prove/test_prove.py, which replays it."""
    breach = explored.breach
    calls = "; ".join(breach.calls) if breach else ""
    return f'    "{breach and breach.what}": ("{explored.world}", "{calls}"),'
