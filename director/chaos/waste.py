"""I13: nothing is handed out after the time by which it was to start, nor ended as too late before its time, and model
servers do not work for the dead. Pure. A time that its caller gave it passes by the server's clock, which may step.

Dead is what its caller was told is canceled, or what outlived the time that its caller gave it. Until somebody asks the
server to stop it, its time is wasted; how long a model then takes to stop is the model's own affair. What a fault stood
in the way of is left out.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from director.chaos.breach import Breach
from director.chaos.caller import is_hindered
from director.chaos.evidence import Evidence

__all__ = ("WASTED", "Waste", "no_work_for_the_dead", "waste")

WASTED: Final = 0.01  # of the time that model servers worked
# How a prediction ended whose time was over → the time that its caller gave it
TOO_LATE: Final = {
    "start_by_exceeded": "start_by_s",
    "deadline_exceeded": "cancel_after_s",
    "aborted": "cancel_after_s",
    "canceled": "cancel_after_s",
}


class Waste(Struct, frozen=True, kw_only=True):
    """Time of model servers: all of it, and what each dead prediction got: by itself, and under a fault."""

    worked_ms: int
    wasted_ms: dict[str, int]
    hindered_ms: dict[str, int]

    @property
    def share(self) -> float:
        return sum(self.wasted_ms.values()) / max(1, self.worked_ms)

    @property
    def share_in_all(self) -> float:
        return self.share + sum(self.hindered_ms.values()) / max(1, self.worked_ms)


def no_work_for_the_dead(evidence: Evidence) -> list[Breach]:
    """I13."""
    breaches = [*_claimed_too_late(evidence), *_ended_too_early(evidence)]
    wasted = waste(evidence)
    if wasted.share > WASTED:
        what = f"{wasted.share:.1%} of the model servers' time went to what was canceled or too late"
        breaches += [
            Breach("I13", prediction_id, f"{ms} ms: {what}")
            for prediction_id, ms in sorted(wasted.wasted_ms.items(), key=lambda each: -each[1])
        ]
    return breaches


def _claimed_too_late(evidence: Evidence) -> Iterator[Breach]:
    for prediction_id, claims in evidence.claims.items():
        due = _due(evidence, prediction_id, "start_by_s")
        if due is None:
            continue
        began = min((run.began for run in evidence.runs.get(prediction_id, [])), default=evidence.until)
        # what has begun in time may be begun again after it
        for claimed in claims:
            late_ms = evidence.clock.server(claimed.at) - due
            if late_ms > 0 and began >= claimed.at:
                yield Breach("I13", prediction_id, f"claimed {late_ms} ms after it was to have started")


def _ended_too_early(evidence: Evidence) -> Iterator[Breach]:
    for prediction_id, final in evidence.finals.items():
        due = _due(evidence, prediction_id, TOO_LATE.get(_how_it_ended(final.record), ""))
        ended = max((at for kind, at, _ in final.events if kind == "completed"), default=None)
        if due is None or ended is None:
            continue
        passed = evidence.clock.reached(due, since=evidence.arrivals[prediction_id].at)
        if ended < passed:
            early_ms = due - evidence.clock.server(ended)
            yield Breach("I13", prediction_id, f"ended as too late, {early_ms} ms before its time")


def _how_it_ended(record: Mapping[str, str]) -> str:
    return record.get("code") or record.get("status", "")


def waste(evidence: Evidence) -> Waste:
    """How the model servers' time was spent."""
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
    """(id, since when nobody wants it any more)."""
    for prediction_id, tries in evidence.by_id.items():
        times = [each.answer.at for each in tries if each.sent.action == "cancel" and each.ok and each.answer]
        due = _due(evidence, prediction_id, "cancel_after_s")
        if due is not None:
            passed = evidence.clock.reached(due, since=evidence.arrivals[prediction_id].at)
            times += [] if math.isinf(passed) else [round(passed)]
        if times:
            yield prediction_id, min(times)


def _due(evidence: Evidence, prediction_id: str, asked: str) -> int | None:
    """When a time that its caller gave it is over, by the server's clock. `asked`: the field of the request."""
    arrived = evidence.arrivals.get(prediction_id)
    seconds = max((getattr(each.sent, asked, 0) for each in evidence.by_id.get(prediction_id, [])), default=0)
    return evidence.clock.server(arrived.at) + seconds * 1000 if arrived is not None and seconds else None
