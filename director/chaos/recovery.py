"""I12: how long after the death of its holder a prediction starts again, as nemesis and model servers wrote it down.

Pure. Judged are the first retries: later ones wait on purpose. Left out are deaths whose window holds an outage of
Redis, and time in which no slot was free for it, or its queue's breaker was open: nobody could have started it then.
"""

import math

from msgspec import Struct

from director.chaos.breach import Breach
from director.chaos.contention import by_queue
from director.chaos.evidence import Event, Evidence, Run, Window, pid_of

__all__ = ("Recovery", "percentile", "recoveries", "recovery_is_quick")


class Recovery(Struct, frozen=True, kw_only=True):
    """One orphan: when its holder died, and how long until it ran again; `all_ms` with the wait for a slot."""

    id: str
    died: int
    ms: int
    all_ms: int


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
    contention = by_queue(evidence)
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
        all_ms = again.began - death
        full_ms = contention[final.record.get("queue", "")].between(retry[1], again.began)
        found.append(Recovery(id=final.id, died=death, ms=all_ms - full_ms, all_ms=all_ms))
    return found


def percentile(values: list[int], share: float) -> int | None:
    """Nearest rank: one of the values. None of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _death(retry: Event, runs: list[Run], kills: list[Window]) -> int | None:
    """When the holder that this event names was killed, or the server that its run was on."""
    _, at, data = retry
    code, _, holder = data.partition(" ")
    if code == "director_lost":
        hit = {pid_of(holder)}
    else:
        hit = {run.pid for run in runs if run.began <= at and run.outcome in ("", "crashed")}
    return max((kill.begin for kill in kills if kill.pid in hit and kill.begin <= at), default=None)
