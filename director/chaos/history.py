"""I1, I2, I4: what became of each prediction, by its events, its record and the runs that the model servers saw.

Pure. A prediction's events are read as lives (a revived one has several) of attempts (a retry begins another).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import Struct

from director.chaos.evidence import Breach, Event, Evidence, Run
from director.chaos.journal import Arrived, Claimed
from director.chaos.journal import Final as Prediction
from director.core.states import TERMINAL

RESTARTS: Final = frozenset({"retried", "released", "revived"})
MODEL_FAILED: Final = "model_failed"


class Attempt(Struct, frozen=True):
    """Events from the moment that a prediction could be claimed anew."""

    opened: int
    events: list[Event]


def lives(events: list[Event]) -> list[list[Event]]:
    """Cut where an operator revived it."""
    cut: list[list[Event]] = [[]]
    for event in events:
        if event[0] == "revived":
            cut.append([])
        cut[-1].append(event)
    return cut


def nothing_is_lost(evidence: Evidence) -> list[Breach]:
    """I1."""
    breaches = []
    for prediction_id in evidence.accepted():
        status = evidence.status(prediction_id)
        if not status:
            breaches.append(Breach("I1", prediction_id, "it was accepted, and there is no record of it"))
        elif status not in TERMINAL:
            breaches.append(Breach("I1", prediction_id, f"it was accepted, and is {status} for ever"))
    return breaches


def one_end(evidence: Evidence) -> list[Breach]:
    """I2."""
    breaches = []
    for final in evidence.finals.values():
        status = final.record.get("status", "")
        if not status:
            continue
        *former, last = lives(final.events)
        wanted = [1] * len(former) + [int(status in TERMINAL)]
        ends = [[data for kind, _, data in life if kind == "completed"] for life in [*former, last]]
        if [len(each) for each in ends] != wanted:
            breaches.append(Breach("I2", final.id, f"it is {status}, and its ends are {ends}"))
        elif ends[-1] and ends[-1][-1] != status:
            breaches.append(Breach("I2", final.id, f"it ended as {ends[-1][-1]}, and its record says {status}"))
        elif not former:
            breaches += [
                Breach("I2", final.id, f"its caller was shown {shown}, and now it is {status}")
                for shown in _shown(evidence, final.id)
                if shown != status
            ]
    return breaches


def _shown(evidence: Evidence, prediction_id: str) -> list[str]:
    """Ends that the client was shown; canceled ones are I6's."""
    tries = evidence.by_id.get(prediction_id, [])
    return sorted({each.shown for each in tries if each.shown in ("succeeded", "failed")})


def only_current_runs_write(evidence: Evidence) -> list[Breach]:
    """I4."""
    breaches = []
    for final in evidence.finals.values():
        runs = {run.run: run for run in evidence.runs.get(final.id, [])}
        wrong = [*_after_the_end(final), *_by_strangers(final, runs), *_end_of_a_stranger(final, runs)]
        breaches += [Breach("I4", final.id, what) for what in wrong]
    return breaches


def _after_the_end(final: Prediction) -> Iterator[str]:
    for life in lives(final.events):
        kinds = [kind for kind, _, _ in life]
        after = kinds[kinds.index("completed") + 1 :] if "completed" in kinds else []
        if wrong := [kind for kind in after if kind != "webhook"]:  # how its caller was told is noted behind it
            yield f"after its end: {', '.join(wrong)}"


def _by_strangers(final: Prediction, runs: dict[str, Run]) -> Iterator[str]:
    """Outputs of an attempt are from one run, which began after the attempt could be claimed."""
    for attempt in _attempts(final.events):
        writers = sorted({_writer(data) for kind, _, data in attempt.events if kind == "output"})
        if len(writers) > 1:
            yield f"one attempt has outputs of the runs {', '.join(writers)}"
        for writer in writers:
            if (why := _stranger(writer, runs, attempt)) is not None:
                yield why


def _end_of_a_stranger(final: Prediction, runs: dict[str, Run]) -> Iterator[str]:
    """The output at rest, and the status, are those of a run of the last attempt which ended so on its server."""
    status = final.record.get("status", "")
    if status not in TERMINAL:
        return
    *_, attempt = _attempts(final.events)
    writers = _writers(final.output)
    if len(writers) > 1:
        yield f"its output is of the runs {', '.join(writers)}"
    for writer in writers:
        if (why := _stranger(writer, runs, attempt)) is not None:
            yield f"at rest: {why}"
    told = "failed" if final.record.get("code") == MODEL_FAILED else "succeeded" if status == "succeeded" else None
    if told and not any(_ended_so(run, told, attempt) for run in runs.values() if not writers or run.run in writers):
        yield f"it {told}, and no run of its last attempt did"


def _ended_so(run: Run, outcome: str, attempt: Attempt) -> bool:
    return run.outcome == outcome and run.began >= attempt.opened


def _stranger(writer: str, runs: dict[str, Run], attempt: Attempt) -> str | None:
    """Why this run may not have written in this attempt; None when it may."""
    run = runs.get(writer)
    if run is None:
        return f"an output of the run {writer or 'of nobody'}, which no model server had of it"
    if run.began < attempt.opened:
        return f"an output of the run {writer}, whose claim was taken away before"
    return None


def _attempts(events: list[Event]) -> list[Attempt]:
    found = [Attempt(events[0][1] if events else 0, [])]
    for event in events:
        if event[0] in RESTARTS:
            found.append(Attempt(event[1], []))
        found[-1].events.append(event)
    return found


def _writer(item: str) -> str:
    """The run that made one item of output; '' where it names none."""
    made = msgspec.json.decode(item)
    return str(made.get("run", "")) if isinstance(made, dict) else ""


def _writers(output: str) -> list[str]:
    made = msgspec.json.decode(output) if output else []
    items = made if isinstance(made, list) else [made]
    return sorted({str(item.get("run", "")) if isinstance(item, dict) else "" for item in items})


# I5, I9, I15: how often and how many at once, by what the model servers wrote down. Pure.


def attempts_are_bounded(evidence: Evidence) -> list[Breach]:
    """I5. What was given back unspent may run again on top."""
    rules = evidence.rules
    breaches = []
    for prediction_id, runs in evidence.runs.items():
        final = evidence.finals.get(prediction_id)
        events = final.events if final else []
        most = rules.attempts * len(lives(events)) + sum(kind == "released" for kind, _, _ in events)
        if len(runs) > most:
            breaches.append(Breach("I5", prediction_id, f"it ran {len(runs)} times, and {most} are allowed"))
        # a run whose claim was lost may go on until its director has noticed
        allowed_ms = (rules.lease_s + rules.grace_s) * 1000
        for earlier, later in pairwise(sorted(runs, key=lambda run: run.began)):
            both_ms = min(earlier.ended, later.ended) - later.began
            if both_ms > allowed_ms:
                what = f"the runs {earlier.run} and {later.run} went on beside each other for {both_ms} ms"
                breaches.append(Breach("I5", prediction_id, what))
    return breaches


def slots_are_kept(evidence: Evidence) -> list[Breach]:
    """I9. One breach for each server, where it was at its worst."""
    by_server: dict[str, list[Run]] = defaultdict(list)
    for run in evidence.every_run():
        by_server[run.server].append(run)
    breaches = []
    for server, runs in sorted(by_server.items()):
        most, at = _peak(runs)
        if most > evidence.rules.slots:
            what = f"{most} runs at once at {at}, on {evidence.rules.slots} slots"
            breaches.append(Breach("I9", server, what))
    return breaches


def _peak(runs: list[Run]) -> tuple[int, int]:
    """Most runs at once, and when. In one millisecond ends come before beginnings."""
    steps = sorted([(run.began, 1) for run in runs] + [(run.ended, -1) for run in runs])
    running = most = when = 0
    for at, step in steps:
        running += step
        if running > most:
            most, when = running, at
    return most, when


def runs_per_prediction(evidence: Evidence) -> dict[int, int]:
    """I15, which is told and not judged: number of runs → predictions that had so many."""
    counts = Counter(len(evidence.runs.get(each, [])) for each in evidence.finals.keys() | evidence.runs.keys())
    return dict(sorted(counts.items()))


# I11: who came first is handed out first, by the order of the server's own log. Pure.
#
# Judged are first claims: a retry goes to the head again, and so overtakes on purpose. A tenant's line may lie on
# several streams, between which nothing is promised; a lane that had only one stream keeps the order exactly.

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
