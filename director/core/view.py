"""Convert stored predictions and their events to what callers see: in GET, in webhooks and in held responses. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from director.core.hours import show_opening
from director.core.ids import Kind, created_ms_of
from director.core.schema import LIFE, Eta, Event, Outlook, Place, Prediction, Record, Stored, Urls

PATHS: Final[Mapping[Kind, str]] = {"": "predictions", "training": "trainings", "procedure": "procedures"}
NOTHING: Final = Raw(b"{}")
REDACTED: Final = b'"[REDACTED]"'  # in place of a secret value; lua/lib/ends.lua has it too
# A chunk of a call that says only who speaks has a kind of its own: until another one comes, its run may be repeated
OUTPUTS: Final = frozenset({"output", "role"})
RESTARTS: Final = frozenset({"retried", "released", "restarted", "revived"})
LINES_DROPPED: Final = "… earlier lines were dropped …\n"  # first line of logs that were cut


def view(stored: Stored) -> Prediction:
    """Return what callers see. `created_at` is the time in the id, because lists and their filters go by ids. The API's
    clock made it, and that of Redis the other times: where it is behind, they are shown as equal and not as earlier.
    """
    record = stored.record
    created = created_ms_of(record.id)
    base = address(record)
    return Prediction(
        id=record.id,
        model=record.model,
        version=record.version,
        input=NOTHING if stored.input is None else public_input(record, stored.input),
        output=stored.output,
        logs=stored.logs,
        error=record.error or None,
        status=record.status,
        created_at=iso(created),
        started_at=None if record.started is None else iso(max(created, record.started)),
        completed_at=None if record.completed is None else iso(max(created, record.completed)),
        data_removed=stored.input is None,
        metrics=_metrics(stored),
        urls=Urls(
            get=base,
            cancel=f"{base}/cancel",
            web=f"{record.url}/p/{record.id}",
            stream=f"{record.url}/v1/streams/{record.id}{record.ticket}" if record.ticket else "",
        ),
        deployment=record.deployment or UNSET,
        destination=record.destination or UNSET,
        deadline=iso(record.deadline) if record.deadline and record.deadline_status else UNSET,
        code=record.code or UNSET,
        queue=place(stored.outlook, stored.record) if stored.outlook else UNSET,
        webhook=record.webhook or UNSET,
        webhook_events_filter=tuple(record.webhook_events.split(",")) if record.webhook else UNSET,
    )


def public_input(record: Record, given: Raw) -> Raw:
    """Return the input without its secret values. The only way in which an input is shown."""
    return Raw(redact(bytes(given), record.secret)) if record.secret else given


def redact(given: bytes, secret: str) -> bytes:
    """Replace the values that `secret` of the record names, whether they were overwritten before or not."""
    shown: list[bytes] = []
    at = 0
    for start, end in secret_places(secret):
        shown += (given[at:start], REDACTED)
        at = end
    if at > len(given):  # the input is gone, and something else in its place
        return bytes(NOTHING)
    return b"".join((*shown, given[at:]))


def secret_places(secret: str) -> Iterator[tuple[int, int]]:
    numbers = map(int, secret.split())
    return zip(numbers, numbers, strict=True)


def address(record: Record) -> str:
    return f"{record.url}/v1/{PATHS[record.kind]}/{record.id}"


# The closed set of reasons with their texts; `{}` is the outlook's detail
REASONS: Final = {
    "waiting_its_turn": "It starts when those before it have.",
    "idle": "It starts while nothing else waits in its queue and more slots are free than idle work leaves to others.",
    "no_director": "No director serves this model now.",
    "servers_starting": "No server of this model is ready: each one starts, or does not answer.",
    "loading": "The model is being loaded onto its device.",
    "waiting_for_device": "The model is not loaded: it waits for room on a device that other models use.",
    "setup_failed": "The model's servers failed to start: the operator must correct this.",
    "server_auth": "The model's servers refuse the key of their director: the operator must correct this.",
    "paused": "An operator paused this queue.",
    "account_paused": "An operator paused this account in this queue.",
    "account_suspended": "This account is suspended.",
    "breaker_open": "The model's servers failed several times in a row: nothing starts until one run has succeeded.",
    "limit_reached": "This account runs as many as it may at once: {}.",
    "closed": "It waits for its open hours, which begin {}.",
    "start_after": "Its caller asked that it does not start before {}.",
    "backing_off": "Its last attempt was lost; the next one may start at {}.",
    "overloaded": "No server took it, for example because it was overloaded; it may start at {}.",
}


DATED: Final = frozenset({"start_after", "backing_off"})  # the outlook's detail is a time
# by the outlook's detail; any other value means the whole queue, and is the time of the pause
PAUSED: Final = {1: "account_paused", 2: "account_suspended"}


def place(outlook: Outlook, record: Record) -> Place:
    known = outlook.p50_ms is not None and outlook.p90_ms is not None
    detail = outlook.detail
    words = PAUSED.get(detail or 0, "paused") if outlook.reason == "paused" else outlook.reason
    if words == "backing_off" and not record.history:  # an attempt that was lost is in the history
        words = "overloaded"
    shown = "" if detail is None else iso(detail) if outlook.reason in DATED else str(detail)
    if words == "closed" and detail is not None:
        shown = show_opening(detail, outlook.by)
    return Place(
        position=outlook.position,
        ahead=outlook.ahead,
        eta_s=Eta((outlook.p50_ms or 0) / 1000, (outlook.p90_ms or 0) / 1000) if known else None,
        reason=outlook.reason,
        detail=f"{outlook.by} paused this queue." if words == "paused" and outlook.by else REASONS[words].format(shown),
        since=iso(detail) if words == "paused" and detail else None,
    )


def fold(events: Sequence[Event]) -> tuple[Raw | None, str]:
    """Return output and logs of a run so far, from its events. A new attempt clears both."""
    items: list[bytes] = []
    logs: list[str] = []
    for event in events:
        if event.kind in RESTARTS:
            items.clear()
            logs.clear()
        elif event.kind in OUTPUTS:
            items.append(event.data)
        elif event.kind == "logs":
            logs.append(msgspec.json.decode(event.data, type=str))
    return join(items), "".join(logs)


def join(items: Sequence[bytes]) -> Raw | None:
    return Raw(b"[" + b",".join(items) + b"]") if items else None


def iso(at_ms: int) -> str:
    """Return RFC 3339 with milliseconds and Z, as Replicate writes it."""
    seconds, rest = divmod(at_ms, 1000)
    return f"{_second(seconds)}.{rest:03}Z"


@lru_cache(maxsize=64)
def _second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat().removesuffix("+00:00")


def _metrics(stored: Stored) -> dict[str, Raw]:
    """Return the model's metrics with Director's own times, since the model's clock is not trusted."""
    record = stored.record
    if record.completed is None:
        return {}
    metrics = msgspec.json.decode(record.metrics, type=dict[str, Raw]) if record.metrics else {}
    metrics["total_time"] = _seconds(record.completed - record.created)
    if record.started is not None:
        metrics["predict_time"] = _seconds(record.completed - record.started)
    return metrics


def _seconds(ms: int) -> Raw:
    return Raw(str(ms / 1000).encode())


# Events hold only the host of a webhook's URL, since the rest may be secret.


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


def show_event(event: Event) -> EventView:
    data = DATA[event.kind](event) if event.kind in DATA else Raw(event.data or b"null")
    kind = "output" if event.kind in OUTPUTS else event.kind
    return EventView(event.seq % LIFE, kind, iso(event.at), data)


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
        rule=rule[0] if rule else None,  # an allowed address has none
    )


def _status(event: Event) -> Raw:
    return Raw(msgspec.json.encode({"status": event.data.decode()}))


def _show_release(event: Event) -> Raw:
    code, director, *_ = [*event.data.decode().split(" "), ""]
    return Raw(msgspec.json.encode({"code": code, "director": director}))


def _webhook(event: Event) -> Raw:
    attempt = msgspec.structs.asdict(delivery_attempt(event))
    del attempt["at"]  # the event has it already
    return Raw(msgspec.json.encode(attempt))


DATA: Final[Mapping[str, Callable[[Event], Raw]]] = {
    "completed": _status,
    "released": _show_release,
    "restarted": _show_release,
    "retried": _show_release,
    "webhook": _webhook,
}
