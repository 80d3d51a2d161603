"""For how long nobody could have started one more prediction of a queue: all slots taken, many in line, breaker open.

Pure: one sweep over runs, waits and faults for each queue. Deaths that were not recovered from hide nothing here: what
a dead holder has is no waiting prediction until it was taken back.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from director.chaos.evidence import Evidence, Run, leaned_on

__all__ = ("Contention", "by_queue")

Change = tuple[int, Literal["run", "broken", "waits", "held"], str, int]
BACK: frozenset[str] = frozenset({"created", "retried", "released", "revived"})


class Contention(Struct, frozen=True):
    """`full_ms[n]`: how long there was no room, in all, until `edges[n]`."""

    edges: list[int]
    full_ms: list[int]

    def between(self, since: int, until: int) -> int:
        """How long there was no room in this time."""
        return self._until(until) - self._until(since)

    def _until(self, at: int) -> int:
        after = bisect_right(self.edges, at)
        if after == 0:
            return 0
        before = self.full_ms[after - 1]
        if after == len(self.edges):
            return before
        is_full = self.full_ms[after] > before
        return before + (at - self.edges[after - 1] if is_full else 0)


def by_queue(evidence: Evidence) -> dict[str, Contention]:
    """Of each queue."""
    ids: dict[str, list[str]] = defaultdict(list)
    for final in evidence.finals.values():
        ids[final.record.get("queue", "")].append(final.id)
    return {queue: _contention(evidence, queue, members) for queue, members in ids.items()}


def _contention(evidence: Evidence, queue: str, ids: list[str]) -> Contention:
    runs = [run for each in ids for run in evidence.runs.get(each, [])]
    servers = {run.server for run in runs}
    slots = evidence.rules.slots
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    edges, full_ms = list[int](), list[int]()
    total, before, is_full = 0, 0, False
    for at, what, whose, step in sorted(_changes(evidence, queue, ids, runs, servers)):
        if is_full:
            total += at - before
        edges.append(at)
        full_ms.append(total)
        before = at
        counts[what][whose] += step
        # a slot that the next in line takes is not free for the last one
        is_full = counts["waits"][""] > slots or counts["held"][""] > 0
        is_full = is_full or all(counts["run"][server] >= slots or counts["broken"][server] > 0 for server in servers)
    return Contention(edges, full_ms)


def _changes(evidence: Evidence, queue: str, ids: list[str], runs: list[Run], servers: set[str]) -> Iterator[Change]:
    for run in runs:
        yield from ((run.began, "run", run.server, 1), (run.ended, "run", run.server, -1))
    for fault in evidence.faults:
        for server in servers:
            if fault.target in leaned_on(server):
                yield from ((fault.begin, "broken", server, 1), (fault.end, "broken", server, -1))
    for since, until in evidence.breakers.get(queue, []):
        yield from ((since, "held", "", 1), (until, "held", "", -1))
    for each in ids:
        for since, until in _waits(evidence, each):
            yield from ((since, "waits", "", 1), (until, "waits", "", -1))


def _waits(evidence: Evidence, prediction_id: str) -> Iterator[tuple[int, int]]:
    """When it could have been claimed: from each time that it was put into its queue until it began, or ended."""
    events, runs = evidence.finals[prediction_id].events, evidence.runs.get(prediction_id, [])
    over = [run.began for run in runs] + [at for kind, at, _ in events if kind == "completed"]
    for kind, at, _ in events:
        if kind in BACK:
            yield at, min((end for end in over if end >= at), default=evidence.until)
