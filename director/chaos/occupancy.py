"""I5, I9, I15: how often and how many at once, by what the model servers wrote down. Pure."""

from collections import Counter, defaultdict
from itertools import pairwise

from director.chaos.breach import Breach
from director.chaos.evidence import Evidence, Run
from director.chaos.history import lives

__all__ = ("attempts_are_bounded", "runs_per_prediction", "slots_are_kept")


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
