"""I10: what those heard who followed a prediction by its event stream, and how its events are numbered. Pure.

What there was to hear is worked out anew, from the events and the output that Redis has at rest. Of output alone: the
model servers of a run print nothing.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from director.chaos.breach import Breach
from director.chaos.evidence import Evidence
from director.chaos.history import RESTARTS, lives
from director.chaos.journal import Final as Prediction
from director.chaos.journal import Heard, Visited

__all__ = ("followed_once_in_order",)

RETRIED: Final = "retried"
DONE: Final = {"succeeded": "{}", "failed": '{"reason":"error"}'}
CANCELED: Final = '{"reason":"canceled"}'
WORDS: Final = {"error": 1, "done": 2}  # what an id ends with, in their order


class Told(NamedTuple):
    """An event as its reader should hear it. `number`: its place in the log; 0 for what is told at the end only."""

    event: str
    data: str = ""
    number: int = 0


def followed_once_in_order(evidence: Evidence) -> list[Breach]:
    """I10. What never ended is I1's."""
    return [
        Breach("I10", prediction_id, what)
        for prediction_id in evidence.followed
        if evidence.is_terminal(prediction_id)
        for what in (
            *_misnumbered(evidence, evidence.finals[prediction_id]),
            *_turned_away(evidence.visits.get(prediction_id, [])),
            *_misheard(evidence.heard.get(prediction_id, []), evidence.finals[prediction_id]),
        )
    ]


def _misnumbered(evidence: Evidence, final: Prediction) -> Iterator[str]:
    listed = evidence.listed.get(final.id)
    if listed is None:
        yield "nobody was given the list of its events"
        return
    numbers = [number for number, _ in listed.events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its events are numbered {numbers}"
    kinds, there = [kind for _, kind in listed.events], [kind for kind, _, _ in final.events]
    if kinds != there:
        yield f"its events are listed as {kinds}, and are {there}"


def _turned_away(visits: Sequence[Visited]) -> Iterator[str]:
    for visit in visits:
        if 300 <= visit.status < 500:
            yield f"a reader was answered {visit.status}"
        if visit.end == "whole":
            yield "a stream ended as if it were whole, and nobody had said that it is done"


def _misheard(heard: Sequence[Heard], final: Prediction) -> Iterator[str]:
    if len(lives(final.events)) > 1:
        return  # an operator revived it, and numbers began anew
    told = _collapsed(heard)
    wanted = list(_wanted(final))
    for place, (one, other) in enumerate(zip(told, wanted, strict=False)):
        if (one.event, one.data) != (other.event, other.data):
            yield f"heard {one.event} {one.data} as number {place + 1}, where {other.event} {other.data} is due"
            return
        if other.number and _place(one.mark)[0] != other.number:
            yield f"heard event {other.number} under the id {one.mark}"
    if len(told) != len(wanted):
        yield f"heard {len(told)} events of {len(wanted)}"
    for before, after in pairwise(one.mark for one in told if one.mark):
        if _place(after) <= _place(before):
            yield f"heard the id {after} after {before}"
    if final.record["status"] == "succeeded" and (shown := _last_attempt(told)) != _items(final.output):
        yield f"heard {shown}, and its output is {_items(final.output)}"


def _collapsed(heard: Sequence[Heard]) -> list[Heard]:
    """A comment has no id, so one who left behind it hears it again."""
    told: list[Heard] = []
    for one in heard:
        if not (told and one.event == told[-1].event == RETRIED):
            told.append(one)
    return told


def _wanted(final: Prediction) -> Iterator[Told]:
    """All that there was to hear, in order: what the log has, what else the end has, the end."""
    shown = 0
    for number, (kind, _, data) in enumerate(final.events, start=1):
        if kind in RESTARTS:
            if shown:
                yield Told(RETRIED)
            shown = 0
        elif kind == "output":
            shown += 1
            yield Told("output", _text(data.encode()), number)
    yield from (Told("output", item) for item in _items(final.output)[shown:])
    status = final.record["status"]
    if status == "failed":
        yield Told("error", msgspec.json.encode({"detail": final.record.get("error", "")}).decode())
    yield Told("done", DONE.get(status, CANCELED))


def _last_attempt(told: Sequence[Heard]) -> list[str]:
    shown: list[str] = []
    for one in told:
        if one.event == RETRIED:
            shown.clear()
        elif one.event == "output":
            shown.append(one.data)
    return shown


def _items(output: str) -> list[str]:
    if not output or output == "null":
        return []
    items = msgspec.json.decode(output, type=list[Raw]) if output.startswith("[") else [Raw(output.encode())]
    return [_text(bytes(item)) for item in items]


def _text(item: bytes) -> str:
    return msgspec.json.decode(item, type=str) if item.startswith(b'"') else item.decode()


def _place(mark: str) -> tuple[int, ...]:
    """An id, to compare by."""
    return tuple(WORDS[part] if part in WORDS else int(part) for part in mark.split(":"))
