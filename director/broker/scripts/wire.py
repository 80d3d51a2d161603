"""Call scripts by name, and convert their arguments and replies."""

from collections.abc import Sequence

from director.broker.gatherer import Arg, Gatherer
from director.core.schema import Event, NewEvent, Outlook


class Wire:
    """The base of all typed calls."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._call = gatherer.call
        self._begin = gatherer.begin
        self._packed = gatherer.packed


def ms(seconds: float) -> int:
    """Convert seconds to the whole milliseconds that scripts take."""
    return int(seconds * 1000)


def now(now_ms: int | None) -> Arg:
    """Convert a time for a script; '' lets the script use the server's clock."""
    return "" if now_ms is None else now_ms


def parts(events: Sequence[NewEvent]) -> list[Arg]:
    """Flatten new events into a script's last arguments."""
    return [part for event in events for part in event]


def event(seq: int, entry: bytes) -> Event:
    """Parse an entry of an event list."""
    kind, at, data = entry.split(b" ", 2)
    return Event(seq, kind.decode(), int(at), data)


def hoped(reply: Sequence[bytes | int] | None) -> Outlook | None:
    """Parse the outlook of a waiting prediction as lib/outlook returns it; None if it does not wait."""
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
    """Parse a number of a reply; '' stands for a missing one."""
    return None if text == b"" else int(float(text))
