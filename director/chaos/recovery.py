"""I12, I18: how soon a prediction starts again after the death of its holder, and that no other holder loses its claim.

Pure. Judged by what nemesis and model servers wrote down. Of I12 the first retries are judged: later ones wait on
purpose. Left out are deaths whose window holds an outage of Redis, and time in which no slot was free for it, or its
queue's breaker was open: nobody could have started it then. For a lease after a step of the server's clock, no lease is
believed to be over.
"""

import math
from typing import Final

from msgspec import Struct

from director.chaos.breach import Breach
from director.chaos.contention import by_queue
from director.chaos.evidence import Event, Evidence, Run, Window, leaned_on, pid_of
from director.chaos.faults import ALL_LINKS

__all__ = ("Recovery", "only_the_silent_lose", "percentile", "recoveries", "recovery_is_quick")

LOST: Final = "director_lost "
SILENT: Final = 0.5  # of a lease, at least: who extends every third of one has two left, and may be late


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
        held_ms = _held_off_ms(evidence, death)
        found.append(Recovery(id=final.id, died=death, ms=all_ms - full_ms - held_ms, all_ms=all_ms))
    return found


def _held_off_ms(evidence: Evidence, died: int) -> int:
    """How long after the end of its lease a claim may be held on to: until a lease without a step has passed."""
    lease_ms = round(evidence.rules.lease_s * 1000)
    until = died + lease_ms
    for at, _ in evidence.clock.steps:
        if died <= at <= until:
            until = at + lease_ms
    return until - died - lease_ms


def only_the_silent_lose(evidence: Evidence) -> list[Breach]:
    """I18. Judged where a run shows which director held it."""
    return [
        Breach("I18", final.id, f"taken back at {at} from {holder}, which nothing had silenced for so long")
        for final in evidence.finals.values()
        for kind, at, data in final.events
        if kind == "retried" and data.startswith(LOST)
        for holder in [data.split(" ")[1]]
        if (name := _director(evidence, final.id, at)) and not _was_silenced(evidence, name, pid_of(holder), at)
    ]


def _director(evidence: Evidence, prediction_id: str, at: int) -> str:
    """The director beside the model server that ran it last before; '' where none did."""
    before = [run for run in evidence.runs.get(prediction_id, []) if run.began <= at]
    return leaned_on(max(before, key=lambda run: run.began).server)[1] if before else ""


def _was_silenced(evidence: Evidence, name: str, pid: int, at: int) -> bool:
    """Had it ended, stood still or been out of reach of Redis, for so long that its lease was over?

    It extends every third of a lease. Steps of the clock are no reason.
    """
    rules = evidence.rules
    since, latest = at - rules.recovery_s * 1000, at - rules.lease_s * SILENT * 1000
    for fault in evidence.faults:
        has_ended = fault.pid == pid and not fault.is_freeze
        is_frozen = fault.pid == pid and fault.is_freeze
        is_cut = fault.kind == "partition" and fault.target in (f"{name}:redis", ALL_LINKS)
        lasted = fault.overlaps(since, at) and (is_frozen or is_cut or fault.is_outage)
        if fault.begin <= latest and (has_ended or lasted):
            return True
    return False


def percentile(values: list[int], share: float) -> int | None:
    """Nearest rank: one of the values. None of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _death(retry: Event, runs: list[Run], kills: list[Window]) -> int | None:
    """When the holder that this event names was killed, or the server that its run was on."""
    _, at, data = retry
    code, _, holder = data.partition(" ")
    if code == LOST.strip():
        hit = {pid_of(holder)}
    else:
        hit = {run.pid for run in runs if run.began <= at and run.outcome in ("", "crashed")}
    return max((kill.begin for kill in kills if kill.pid in hit and kill.begin <= at), default=None)
