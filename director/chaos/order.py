"""I11: who came first is handed out first, by the order of the server's own log. Pure.

Judged are first claims: a retry goes to the head again, and so overtakes on purpose. A tenant's line may lie on several
streams, between which nothing is promised; a lane that had only one stream keeps the order exactly.
"""

from collections import defaultdict
from typing import Final

from msgspec import Struct

from director.chaos.breach import Breach
from director.chaos.evidence import Evidence
from director.chaos.journal import Arrived, Claimed

__all__ = ("IN_ORDER", "Line", "every_line", "first_come_first_claimed")

IN_ORDER: Final = 0.999  # of all first claims


class Line(Struct, frozen=True, kw_only=True):
    """First claims of one tenant out of one stream, in the order of claims. `is_exact`: its lane has no other."""

    claims: list[tuple[Arrived, Claimed]]
    is_exact: bool

    def overtaken(self) -> list[tuple[Arrived, Claimed]]:
        """Those that one which came later was claimed before."""
        found, last = [], -1
        for arrived, claimed in self.claims:
            if arrived.number < last:
                found.append((arrived, claimed))
            last = max(last, arrived.number)
        return found


def first_come_first_claimed(evidence: Evidence) -> list[Breach]:
    """I11."""
    found = every_line(evidence)
    overtaken = [(line, pair) for line in found for pair in line.overtaken()]
    share = 1 - len(overtaken) / max(1, sum(len(line.claims) for line in found))
    return [
        Breach(
            "I11",
            arrived.id,
            f"{arrived.tenant} had a later one claimed before it: {arrived.queue} {arrived.lane} {claimed.stream}",
        )
        for line, (arrived, claimed) in overtaken
        if line.is_exact or share < IN_ORDER
    ]


def every_line(evidence: Evidence) -> list[Line]:
    """Every line of the run."""
    found: dict[tuple[str, str, str, int], list[tuple[Arrived, Claimed]]] = defaultdict(list)
    streams: dict[tuple[str, str], set[int]] = defaultdict(set)
    firsts = sorted((claims[0] for claims in evidence.claims.values()), key=lambda claimed: claimed.number)
    for claimed in firsts:
        if (arrived := evidence.arrivals.get(claimed.id)) is not None:
            found[arrived.queue, arrived.lane, arrived.tenant, claimed.stream].append((arrived, claimed))
            streams[arrived.queue, arrived.lane].add(claimed.stream)
    return [
        Line(claims=claims, is_exact=len(streams[queue, lane]) == 1) for (queue, lane, _, _), claims in found.items()
    ]
