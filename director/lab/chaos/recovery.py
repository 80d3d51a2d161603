"""Judge promises about time: I12 recovery, I13 late and useless work, I17 writing of ends, I18 lost claims. Pure. A
fault that stood in the way excuses a delay. Each function says which faults it leaves out.
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from director.core import figures
from director.lab.chaos.caller import is_hindered
from director.lab.chaos.evidence import (
    Event,
    Evidence,
    Findings,
    Rules,
    Run,
    Stretch,
    Window,
    depends_on,
    group,
    pid_of,
    stretches,
)
from director.lab.chaos.plan import ALL_LINKS, KEEPERS, NEIGHBOURS

LOST: Final = "director_lost "
SILENT: Final = 0.5  # of a lease: a holder that extends every third of it has two thirds left, and may be late
BACK: Final = frozenset({"created", "retried", "released", "revived"})  # events that put it into its queue
BEFORE_MS: Final = 1_000  # a target that broke shortly before may still be on its way back
WASTED: Final = 0.01  # of the time that model servers worked
# Codes and statuses of an end that came too late → the field of the caller's limit
TOO_LATE: Final = {
    "start_by_exceeded": "start_by_s",
    "deadline_exceeded": "cancel_after_s",
    "aborted": "cancel_after_s",
    "canceled": "cancel_after_s",
}

Change = tuple[str, str, int]
"""('run', 'broken', 'waits' or 'held', server or '', step): how a count changes in the sweep of a queue."""


def _contention(evidence: Evidence, queue: str, ids: list[str]) -> list[Stretch]:
    """Return (from, until) of the times in which all slots were taken, many waited, or the breaker was open. An orphan
    does not count as waiting until it was taken back.
    """
    runs = [run for each in ids for run in evidence.runs.get(each, [])]
    servers = {run.server for run in runs}
    most = max(map(evidence.slots, servers), default=0)
    counts = Counter[tuple[str, str]]()

    def is_full(change: Change) -> bool:
        what, whose, step = change
        counts[what, whose] += step
        # a slot that goes to the first in line is not free for the last one
        if counts["waits", ""] > most or counts["held", ""] > 0:
            return True
        return all(
            counts["run", server] >= evidence.slots(server) or counts["broken", server] > 0 for server in servers
        )

    return list(stretches(sorted(_changes(evidence, queue, ids, runs, servers)), is_full))


def _changes(
    evidence: Evidence, queue: str, ids: list[str], runs: list[Run], servers: set[str]
) -> Iterator[tuple[int, Change]]:
    times = [("run", run.server, run.began, run.ended) for run in runs]
    times += [
        ("broken", server, fault.begin, fault.end)
        for fault in evidence.faults
        for server in servers
        if fault.target in depends_on(server)
    ]
    times += [("held", "", *each) for each in evidence.breakers.get(queue, [])]
    times += [("waits", "", *each) for prediction_id in ids for each in _waits(evidence, prediction_id)]
    for what, whose, since, until in times:
        yield from ((since, (what, whose, 1)), (until, (what, whose, -1)))


def _waits(evidence: Evidence, prediction_id: str) -> Iterator[Stretch]:
    over = [run.began for run in evidence.runs.get(prediction_id, [])] + evidence.ends(prediction_id)
    for kind, at, _ in evidence.finals[prediction_id].events:
        if kind in BACK:
            yield at, min((end for end in over if end >= at), default=evidence.until)


class Recovery(Struct, frozen=True, kw_only=True):
    """One orphan. `all_ms` includes the time in which it could not have started; `ms` does not."""

    id: str
    died: int
    ms: int
    all_ms: int


def recovery_is_quick(evidence: Evidence) -> Findings:
    for each in recoveries(evidence):
        if each.ms > evidence.rules.recovery_s * 1000:
            yield each.id, f"its holder died at {each.died}, it started again {each.ms} ms later"


def recoveries(evidence: Evidence) -> list[Recovery]:
    """Return every prediction that a kill orphaned and that started again. Only the first retry is judged: later ones
    wait on purpose. A death whose window holds an outage of Redis is left out, and one whose next holder was lost
    before it began. Time does not count while the queue had no free slot or an open breaker, while the product
    believed no lease to be over, or while a fault struck the next holder.
    """
    outages = [fault for fault in evidence.faults if fault.is_outage]
    by_queue = group(evidence.finals.values(), lambda final: final.record.get("queue", ""))
    contention = {
        queue: _contention(evidence, queue, [final.id for final in finals]) for queue, finals in by_queue.items()
    }
    breaks = _breaks(evidence)
    found = []
    for final in evidence.finals.values():
        retries = [event for event in final.events if event[0] == "retried"]
        if not retries:
            continue
        retry, next_ms = retries[0], min((at for _, at, _ in retries[1:]), default=math.inf)
        runs = evidence.runs.get(final.id, [])
        again = next((run for run in runs if retry[1] <= run.began <= next_ms), None)
        death = _death(evidence, retry, runs)
        if again is None or death is None or any(outage.overlaps(death, again.began) for outage in outages):
            continue
        all_ms = again.began - death
        full = contention[final.record.get("queue", "")]
        held = _hold_off(breaks, death, evidence.rules)
        struck = _struck_again(evidence, again, retry[1])
        excused_ms = _within([held], death, retry[1]) + _within([*full, *struck], retry[1], again.began)
        found.append(Recovery(id=final.id, died=death, ms=all_ms - excused_ms, all_ms=all_ms))
    return found


def _within(times: list[Stretch], since: int, until: int) -> int:
    """Return how much of this time these stretches cover together."""
    covered, reached = 0, since
    for begin, end in sorted(times):
        covered += max(0, min(end, until) - max(begin, reached))
        reached = max(reached, end)
    return covered


def _struck_again(evidence: Evidence, again: Run, retried: int) -> list[Stretch]:
    """Return the times after its claim for this run in which a fault struck its director or its model server."""
    claims = (claim.at for claim in evidence.claims.get(again.id, []))
    claimed = max((at for at in claims if retried <= at <= again.began), default=again.began)
    way = depends_on(again.server)
    return [(max(fault.begin, claimed), fault.end) for fault in evidence.faults if fault.target in way]


def _breaks(evidence: Evidence) -> list[Stretch]:
    """Return what breaks the keepers' contact with the server: steps of its clock, and times of more than half a lease
    in which no keeper looks. The looks before and after such a time may each be a tick away from it.
    """
    away = Counter[str]()

    def is_unwatched(change: tuple[str, int]) -> bool:
        name, step = change
        away[name] += step
        return all(away[each] > 0 for each in KEEPERS)

    changes = [
        each
        for fault in evidence.faults
        for name in KEEPERS
        if fault.target == name or (fault.is_cut and fault.target == f"{name}:redis")
        for each in ((fault.begin, (name, 1)), (fault.end, (name, -1)))
    ]
    silence_ms = 1000 * (SILENT * evidence.rules.lease_s - 2 * evidence.rules.tick_s)
    unwatched = stretches(sorted(changes), is_unwatched)
    steps = [(at, at) for at, _ in evidence.clock.steps]
    return sorted([*steps, *((begin, end) for begin, end in unwatched if end - begin > silence_ms)])


def _hold_off(breaks: list[Stretch], died: int, rules: Rules) -> Stretch:
    """For one lease after a break of contact, the product believes no lease to be over. A break counts that begins
    before the reaper has seen the end of the lease.
    """
    lease_ms, tick_ms = round(1000 * rules.lease_s), round(1000 * rules.tick_s)
    until = died + lease_ms
    for begin, end in breaks:
        if died <= end and begin <= until + tick_ms:
            until = max(until, end + lease_ms)  # a step may lie within a time without keepers
    return died + lease_ms, until


def only_the_silent_lose(evidence: Evidence) -> Findings:
    """I18: a claim is taken back only from a silent holder. Judged if a run shows which director held it."""
    for final in evidence.finals.values():
        for kind, at, data in final.events:
            if kind == "retried" and data.startswith(LOST):
                name, holder = _director(evidence, final.id, at), data.split(" ")[1]
                if name and not _was_silenced(evidence, name, pid_of(holder), at):
                    yield final.id, f"taken back at {at} from {holder}, which nothing had silenced for that long"


def _director(evidence: Evidence, prediction_id: str, at: int) -> str:
    before = [run for run in evidence.runs.get(prediction_id, []) if run.began <= at]
    return depends_on(max(before, key=lambda run: run.began).server)[1] if before else ""


def _was_silenced(evidence: Evidence, name: str, pid: int, at: int) -> bool:
    """A director extends its lease every third of it. A step of the clock is no excuse."""
    rules = evidence.rules
    since, latest = at - rules.recovery_s * 1000, at - rules.lease_s * SILENT * 1000

    def silences(fault: Window) -> bool:
        if fault.pid == pid and not fault.is_freeze:
            return True
        is_cut = fault.is_cut and fault.target in (f"{name}:redis", ALL_LINKS)
        return fault.overlaps(since, at) and (fault.pid == pid or is_cut or fault.is_outage)

    return any(fault.begin <= latest and silences(fault) for fault in evidence.faults)


def percentile(values: list[int], share: float) -> int | None:
    return figures.percentile(values, share) if values else None


def _death(evidence: Evidence, retry: Event, runs: list[Run]) -> int | None:
    """Return when the holder was heard for the last time. What a director had sent when it was killed arrives once its
    way to Redis is open again, and extends its lease. So does its word that a model server was killed.
    """
    _, at, data = retry
    code, _, holder = data.partition(" ")
    if code == LOST.strip():
        hit = {pid_of(holder)}
    else:
        hit = {run.pid for run in runs if run.began <= at and run.outcome in ("", "crashed")}
    kills = [fault for fault in evidence.faults if fault.is_kill and fault.pid in hit and fault.begin <= at]
    if not kills:
        return None
    last = max(kills, key=lambda kill: kill.begin)
    way = depends_on(last.target)[2]
    cuts = [fault for fault in evidence.faults if fault.is_cut and fault.target == way]
    return max([last.begin, *(cut.end for cut in cuts if cut.begin <= last.begin and cut.end <= at)])


class Waste(Struct, frozen=True, kw_only=True):
    worked_ms: int
    wasted_ms: dict[str, int]
    hindered_ms: dict[str, int]

    @property
    def share(self) -> float:
        return sum(self.wasted_ms.values()) / max(1, self.worked_ms)

    @property
    def share_in_all(self) -> float:
        return self.share + sum(self.hindered_ms.values()) / max(1, self.worked_ms)


def no_work_for_the_dead(evidence: Evidence) -> Findings:
    """I13: nothing is claimed or ended on the wrong side of its limit, and model servers do little useless work. A
    limit that a caller gave passes by the server's clock, which may step.
    """
    yield from _find_late_claims(evidence)
    yield from _find_early_ends(evidence)
    wasted = waste(evidence)
    if wasted.share > WASTED:
        for prediction_id, ms in sorted(wasted.wasted_ms.items(), key=lambda each: -each[1]):
            share = f"{wasted.share:.1%} of the model servers' time went to canceled or late predictions"
            yield prediction_id, f"{ms} ms: {share}"


def _find_late_claims(evidence: Evidence) -> Findings:
    unseeing = _unseeing(evidence)
    for prediction_id, claims in evidence.claims.items():
        due = _due(evidence, prediction_id, "start_by_s")
        if due is None:
            continue
        runs = (run.began for run in evidence.runs.get(prediction_id, []))
        began = min([*runs, *_find_unseen(evidence, prediction_id, unseeing)], default=evidence.until)
        # a prediction that began in time may begin again later
        for claimed in claims:
            late_ms = evidence.clock.server(claimed.at) - due
            if late_ms > 0 and began >= claimed.at:
                yield prediction_id, f"claimed {late_ms} ms after the time by which it was to start"


def _find_unseen(evidence: Evidence, prediction_id: str, unseeing: list[Stretch]) -> list[int]:
    """Return when runs were sent to a server that recorded none of them."""
    final = evidence.finals.get(prediction_id)
    starts = [at for kind, at, _ in final.events if kind == "started"] if final else []
    return [at for at in starts if any(begin <= at <= end for begin, end in unseeing)]


def _unseeing(evidence: Evidence) -> list[Stretch]:
    """Return the times in which a model server takes runs and records none: it is frozen and dies before it wakes, or
    it is dead already. The link to it takes them, as a proxy does, and only then finds out.
    """
    frozen_or_dead = (fault for fault in evidence.faults if fault.is_freeze or fault.is_kill)
    crashes = (run.ended for run in evidence.every_run() if run.outcome == "crashed")
    return [
        *((fault.begin, fault.end) for fault in frozen_or_dead if fault.target.startswith("cog")),
        *((at, at + BEFORE_MS) for at in crashes),
    ]


def _find_early_ends(evidence: Evidence) -> Findings:
    for prediction_id, final in evidence.finals.items():
        how = final.record.get("code") or evidence.status(prediction_id)
        due = _due(evidence, prediction_id, TOO_LATE.get(how, ""))
        ended = max(evidence.ends(prediction_id), default=None)
        if due is None or ended is None:
            continue
        passed = evidence.clock.find_time(due, since=evidence.arrivals[prediction_id].at)
        if ended < passed:
            early_ms = due - evidence.clock.server(ended)
            yield prediction_id, f"ended as too late, {early_ms} ms before its time"


def waste(evidence: Evidence) -> Waste:
    """A prediction is dead once its caller got a 2xx for a cancel, or once its deadline has passed. Its time is wasted
    until the model server is asked to stop it. Time that a fault explains is counted apart. Neighbours are left out: a
    run that hangs always works until its deadline.
    """
    wasted, hindered = Counter[str](), Counter[str]()
    for prediction_id, died in _deaths(evidence):
        for run in evidence.runs.get(prediction_id, []):
            stopped = run.asked or run.ended
            ms = stopped - max(died, run.began)
            if ms > 0:
                counts = hindered if is_hindered(evidence, prediction_id, died, stopped) else wasted
                counts[prediction_id] += ms
    worked = sum(run.ended - run.began for run in evidence.every_run())
    return Waste(worked_ms=worked, wasted_ms=wasted, hindered_ms=hindered)


def _deaths(evidence: Evidence) -> Iterator[tuple[str, int]]:
    for prediction_id, tries in evidence.by_id.items():
        if tries[0].sent.plan in NEIGHBOURS:
            continue
        times = [each.answer.at for each in tries if each.sent.action == "cancel" and each.ok]
        due = _due(evidence, prediction_id, "cancel_after_s")
        if due is not None:
            passed = evidence.clock.find_time(due, since=evidence.arrivals[prediction_id].at)
            times += [] if math.isinf(passed) else [round(passed)]
        if times:
            yield prediction_id, min(times)


def _due(evidence: Evidence, prediction_id: str, asked: str) -> int | None:
    """Return when a limit of the caller passes, by the server's clock. `asked` is the request's field for it."""
    arrived = evidence.arrivals.get(prediction_id)
    seconds = max((getattr(each.sent, asked, 0) for each in evidence.by_id.get(prediction_id, [])), default=0)
    return evidence.clock.server(arrived.at) + seconds * 1000 if arrived is not None and seconds else None


def ends_are_written(evidence: Evidence) -> Findings:
    """I17: the end of a run is written soon, over narrow links too. Only successes are judged whose way to Redis was
    hit by nothing except a narrow link. A director that sends a large end again and again from its first byte is
    caught.
    """
    for prediction_id, run, ms in _find_written(evidence):
        if ms > evidence.rules.write_s * 1000:
            yield prediction_id, f"its run ended at {run.ended}, its end was written {ms} ms later"


def slowest_end_ms(evidence: Evidence) -> int | None:
    return max((ms for *_, ms in _find_written(evidence)), default=None)


def _find_written(evidence: Evidence) -> Iterator[tuple[str, Run, int]]:
    for prediction_id, runs in evidence.runs.items():
        last = max(runs, key=lambda run: run.ended)
        if evidence.status(prediction_id) != "succeeded" or last.outcome != "succeeded":
            continue
        written = max(evidence.ends(prediction_id), default=None)
        way, all_of = depends_on(last.server), ("redis", "all:", "directors")
        if written is not None and not evidence.was_hindered(last.ended - BEFORE_MS, written, way, all_of=all_of):
            yield prediction_id, last, written - last.ended
