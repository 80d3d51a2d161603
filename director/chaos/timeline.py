"""All that the journals say about one prediction, in order: what a person reads when it went wrong. Pure."""

from collections.abc import Iterator
from typing import Final

from director.chaos.evidence import Evidence

__all__ = ("timeline",)

MOST: Final = 40


def timeline(evidence: Evidence, prediction_id: str) -> tuple[str, ...]:
    """One line for each thing that happened to it, by whoever saw it; of very many the first and the last."""
    shown = [f"{at} {what}" for at, what in sorted(_rows(evidence, prediction_id), key=lambda row: row[0])]
    return tuple(shown if len(shown) <= MOST else [*shown[: MOST // 2], "…", *shown[-MOST // 2 :]])


def _rows(evidence: Evidence, prediction_id: str) -> Iterator[tuple[int, str]]:
    for each in evidence.by_id.get(prediction_id, []):
        yield each.sent.at, f"client: sends {each.sent.action}, key {each.sent.key}, plan {each.sent.plan!r}"
        if each.answer is not None:
            yield each.answer.at, f"client: hears {each.status} {each.shown}".rstrip()
    if arrived := evidence.arrivals.get(prediction_id):
        yield arrived.at, f"server: accepted for {arrived.tenant}, {arrived.queue} {arrived.lane}"
    for claimed in evidence.claims.get(prediction_id, []):
        yield claimed.at, f"server: claimed from stream {claimed.stream} by {claimed.holder}"
    for run in evidence.runs.get(prediction_id, []):
        yield run.began, f"{run.server}: run {run.run} begins in process {run.pid}"
        yield run.ended, f"{run.server}: run {run.run} ends, {run.outcome or 'and told nobody'}"
    for told in evidence.told.get(prediction_id, []):
        yield told.at, f"sink: hears {told.status} as {told.webhook_id}, answers {told.answered}"
    for heard in evidence.heard.get(prediction_id, []):
        yield heard.at, f"reader: hears {heard.event} {heard.mark} {heard.data}".rstrip()
    for visit in evidence.visits.get(prediction_id, []):
        yield visit.at, f"reader: comes after {visit.after or 'nothing'}, answered {visit.status}; then: {visit.end}"
    if final := evidence.finals.get(prediction_id):
        for kind, at, data in final.events:
            yield at, f"event: {kind} {data}".rstrip()
