"""I12: how long after the death of its holder a prediction starts again, as nemesis and model servers wrote it down.

Pure. Judged are the first retries: later ones wait on purpose. Left out are deaths whose window holds an outage of
Redis, and time in which no slot was free: nobody could have started anything then.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from msgspec import Struct

from director.chaos.breach import Breach
from director.chaos.evidence import Event, Evidence, Run, Window

__all__ = ("Recovery", "percentile", "recoveries", "recovery_is_quick")

# A consumer is called <host>-<pid>-<random>.
HOLDER_PID: Final = re.compile(r"-(\d+)-[0-9a-f]+$")


class Recovery(Struct, frozen=True):
    """One orphan: when its holder died, and how long until it ran again."""

    id: str
    died: int
    ms: int


def recovery_is_quick(evidence: Evidence) -> list[Breach]:
    """I12."""
    bound_ms = evidence.rules.recovery_s * 1000
    return [
        Breach("I12", each.id, f"its holder died at {each.died}, and it started again {each.ms} ms later")
        for each in recoveries(evidence)
        if each.ms > bound_ms
    ]


def recoveries(evidence: Evidence) -> list[Recovery]:
    """Every orphan of a kill that started again."""
    kills = [fault for fault in evidence.faults if fault.is_kill]
    outages = [fault for fault in evidence.faults if fault.is_outage]
    by_queue: dict[str, list[Run]] = defaultdict(list)
    for final in evidence.finals.values():
        by_queue[final.record.get("queue", "")] += evidence.runs.get(final.id, [])
    found = []
    for final in evidence.finals.values():
        retry = next((event for event in final.events if event[0] == "retried"), None)
        runs = evidence.runs.get(final.id, [])
        again = next((run for run in runs if retry is not None and run.began >= retry[1]), None)
        death = None if retry is None else _death(retry, runs, kills)
        if retry is None or again is None or death is None:
            continue
        if any(outage.overlaps(death, again.began) for outage in outages):
            continue
        full_ms = _full_ms(evidence, by_queue[final.record.get("queue", "")], since=retry[1], until=again.began)
        found.append(Recovery(final.id, death, again.began - death - full_ms))
    return found


def percentile(values: list[int], share: float) -> int | None:
    """Nearest rank: one of the values. None of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _death(retry: Event, runs: list[Run], kills: list[Window]) -> int | None:
    """When the holder that this event names was killed, or the server that its run was on."""
    _, at, data = retry
    code, _, holder = data.partition(" ")
    if code == "director_lost":
        pid = HOLDER_PID.search(holder)
        hit = {int(pid[1])} if pid else set()
    else:
        hit = {run.pid for run in runs if run.began <= at and run.outcome in ("", "crashed")}
    return max((kill.begin for kill in kills if kill.pid in hit and kill.begin <= at), default=None)


def _full_ms(evidence: Evidence, runs: list[Run], *, since: int, until: int) -> int:
    """For how long in this time no server that could be used had a free slot, by all runs of the queue's model."""
    beside = [run for run in runs if run.began < until and run.ended > since]
    edges = {since, until}
    for run in beside:
        edges |= {run.began, run.ended}
    for fault in evidence.faults:
        edges |= {fault.begin, fault.end}
    inside = sorted(edge for edge in edges if since <= edge <= until)
    servers = {run.server for run in runs}
    return sum(
        end - begin
        for begin, end in pairwise(inside)
        if not any(_is_free(server, begin, beside, evidence) for server in servers)
    )


def _is_free(server: str, at: int, runs: list[Run], evidence: Evidence) -> bool:
    busy = sum(run.server == server and run.began <= at < run.ended for run in runs)
    return busy < evidence.rules.slots and not any(
        fault.begin <= at < fault.end and fault.target in _leaned_on(server) for fault in evidence.faults
    )


def _leaned_on(server: str) -> Iterator[str]:
    """What a run on this server needs: the server, the director of the same number beside it, and its way to Redis."""
    director = f"director-{server.rpartition('-')[2]}"
    yield from (server, director, f"{director}:redis")
