"""How a script is called, and how what it takes and gives is written. Knows no script by name."""

from collections.abc import Sequence

from director.broker.gatherer import Arg, Gatherer
from director.core.schema import Event, NewEvent, Outlook


class Wire:
    """What the typed calls of each caller share: the way to the server."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._call = gatherer.call
        self._begin = gatherer.begin
        self._packed = gatherer.packed


def ms(seconds: float) -> int:
    """A span as scripts take it."""
    return int(seconds * 1000)


def now(now_ms: int | None) -> Arg:
    """A time as scripts take it; without one they ask the server's clock."""
    return "" if now_ms is None else now_ms


def parts(events: Sequence[NewEvent]) -> list[Arg]:
    """New events as the rest of a script's arguments."""
    return [part for event in events for part in event]


def event(seq: int, entry: bytes) -> Event:
    """An entry of an event log, as a script returns it."""
    kind, at, data = entry.split(b" ", 2)
    return Event(seq, kind.decode(), int(at), data)


def hoped(reply: Sequence[bytes | int] | None) -> Outlook | None:
    """How it stands with one that waits, as lib/outlook returns it; None where it does not wait."""
    if not reply:
        return None
    position, ahead, p50, p90, reason, detail = reply
    return Outlook(
        int(position),
        int(ahead),
        number(p50),
        number(p90),
        reason.decode() if isinstance(reason, bytes) else "",
        number(detail),
    )


def number(text: bytes | int) -> int | None:
    """A number of a reply that may be missing: '' then."""
    return None if text == b"" else int(float(text))
