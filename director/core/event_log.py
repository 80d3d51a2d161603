"""Show a prediction's events to its caller, each with number, time and data. Pure.

Events hold only the host of a webhook's URL, since the rest may be secret.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from director.core.schema import LIFE, Event
from director.core.view import iso


class EventView(Struct, frozen=True):
    """One event. `data`: an item of output, a string of logs, a metric's name, value and mode; else null."""

    seq: int
    type: str
    at: str
    data: Raw


class DeliveryAttempt(Struct, frozen=True, kw_only=True):
    """One attempt to deliver a webhook.

    `status`: the receiver's, None without an answer. `rule`: the rule that forbids the address, if it was refused.
    """

    event: str
    outcome: str
    status: int | None
    attempt: int
    at: str
    next_at: str | None
    host: str
    rule: str | None = None


def shown_event(event: Event) -> EventView:
    """Return the event as its caller sees it."""
    return EventView(event.seq % LIFE, event.kind, iso(event.at), DATA.get(event.kind, _as_it_is)(event))


def delivery_attempt(event: Event) -> DeliveryAttempt:
    """Parse an event of the kind `webhook`, as lua/deliver.lua writes it."""
    name, outcome, status, attempt, following, host, *rule = event.data.decode().split(" ")
    return DeliveryAttempt(
        event=name,
        outcome=outcome,
        status=None if status == "-" else int(status),
        attempt=int(attempt),
        at=iso(event.at),
        next_at=None if following == "-" else iso(int(following)),
        host=host,
        rule=rule[0] if rule else None,  # release 0.1.0 wrote none, and neither does an allowed address
    )


def _as_it_is(event: Event) -> Raw:
    return Raw(event.data or b"null")


def _status(event: Event) -> Raw:
    return Raw(msgspec.json.encode({"status": event.data.decode()}))


def _given_back(event: Event) -> Raw:
    code, director, *_ = [*event.data.decode().split(" "), ""]
    return Raw(msgspec.json.encode({"code": code, "director": director}))


def _webhook(event: Event) -> Raw:
    attempt = msgspec.structs.asdict(delivery_attempt(event))
    del attempt["at"]  # the event has it already
    return Raw(msgspec.json.encode(attempt))


DATA: Final[Mapping[str, Callable[[Event], Raw]]] = {
    "completed": _status,
    "released": _given_back,
    "restarted": _given_back,
    "retried": _given_back,
    "webhook": _webhook,
}
