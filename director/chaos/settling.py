"""I17: how long after the end of a run that end is written, by the model server's and the Redis server's words. Pure.

Judged are successes whose way to Redis nothing else had hit than that it became narrow. An end that is sent again and
again from its first byte is written only when the link is wide again.
"""

from collections.abc import Iterator

from director.chaos.breach import Breach
from director.chaos.evidence import Evidence, Run, leaned_on
from director.chaos.faults import NARROW

__all__ = ("ends_are_written", "slowest_end_ms")

BEFORE_MS = 1_000  # what was broken just before may still be on its way back


def ends_are_written(evidence: Evidence) -> list[Breach]:
    """I17."""
    bound_ms = evidence.rules.write_s * 1000
    return [
        Breach("I17", prediction_id, f"its run ended at {run.ended}, and its end was written {ms} ms later")
        for prediction_id, run, ms in _written(evidence)
        if ms > bound_ms
    ]


def slowest_end_ms(evidence: Evidence) -> int | None:
    """The longest of all that are judged."""
    return max((ms for *_, ms in _written(evidence)), default=None)


def _written(evidence: Evidence) -> Iterator[tuple[str, Run, int]]:
    for prediction_id, runs in evidence.runs.items():
        last = max(runs, key=lambda run: run.ended)
        final = evidence.finals.get(prediction_id)
        if final is None or final.record.get("status") != "succeeded" or last.outcome != "succeeded":
            continue
        written = max((at for kind, at, _ in final.events if kind == "completed"), default=None)
        if written is not None and not _is_hindered(evidence, last, written):
            yield prediction_id, last, written - last.ended


def _is_hindered(evidence: Evidence, run: Run, written: int) -> bool:
    needed = leaned_on(run.server)
    return any(
        fault.kind != NARROW
        and fault.overlaps(run.ended - BEFORE_MS, written)
        and (fault.target in needed or fault.target.startswith(("redis", "all:", "directors")))
        for fault in evidence.faults
    )
