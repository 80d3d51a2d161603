"""Read the bodies that create predictions, the names of models and versions, and the headers that say how to run; and
show a prediction to its client. Reports everything that is wrong with a body at once. `validation` checks `input`.
"""

import contextlib
import hashlib
import math
import re
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from api.predictions.streams import STREAM, StreamEvent
from api.services.lookups import VersionRef
from api.web.errors import input_too_large, invalid_header, invalid_input, invalid_version, not_found
from api.web.http import Members, Request, read_body, type_of, wrong_type
from api.web.route import Answer, Parameter, changes, one_of
from director.core.ids import ALL_LANES, MODEL_NAME, VERSION_ID
from director.core.schema import Prediction, Stored
from director.core.states import Status, WebhookEvent
from director.core.view import view
from director.core.webhooks import parse_webhook_url

MODEL: Final = re.compile(MODEL_NAME)
VERSION: Final = re.compile(VERSION_ID)
# old official clients still send the last two; they have no effect
KNOWN_KEYS: Final = frozenset({"input", "webhook", "webhook_events_filter", "stream", "webhook_completed"})
# members that callers of other services try, and the header that says it here
IN_HEADERS: Final = {
    "priority": "X-Priority",
    "lane": "X-Priority",
    "timeout": "Cancel-After",
    "cancel_after": "Cancel-After",
    "deadline": "Cancel-After",
    "start_by": "X-Start-By",
    "start_after": "X-Start-After",
    "cost": "X-Cost",
    "affinity_key": "X-Affinity-Key",
    "idempotency_key": "Idempotency-Key",
    "prefer": "Prefer",
    "wait": "Prefer",
}
MAX_FILTER: Final = 20
EVENTS: Final = ", ".join(f'"{event}"' for event in WebhookEvent)


class CreatePrediction(Struct, frozen=True, kw_only=True):
    body: bytes
    input: Raw
    secret: str = ""  # where secret values lie in the input, as in the record
    version: str | None = None
    destination: str | None = None
    webhook: str | None = None
    webhook_events_filter: tuple[WebhookEvent, ...] | None = None
    # Calls of OpenAI's API have these. The input is their whole body, and the model server checks it.
    endpoint: str = ""
    once_shown: bool = False
    lane: str = ""
    affinity: str = ""  # a digest

    @property
    def events(self) -> str:
        """Return the events that the webhook is called for, as the record has them."""
        return ",".join(self.webhook_events_filter or WebhookEvent) if self.webhook else ""


NO_EFFECT: Final = Meta(description="Has no effect.", extra_json_schema={"deprecated": True})


# The next types are for the OpenAPI document. Bodies are read member by member, and never decoded into these types.


class PredictionRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request to run. No filter means every webhook event."""

    input: dict[str, Any]
    # without a default in the document: generators of types take a member with one for required
    webhook: Annotated[str, Meta(description="An http or https URL.")] | UnsetType | None = UNSET
    webhook_events_filter: Annotated[list[WebhookEvent], Meta(max_length=MAX_FILTER)] | UnsetType | None = UNSET
    stream: Annotated[bool | None, NO_EFFECT] | UnsetType = UNSET
    webhook_completed: Annotated[str | None, NO_EFFECT] | UnsetType = UNSET


class VersionPredictionRequest(PredictionRequest, kw_only=True, forbid_unknown_fields=True):
    """A request to run a version: `owner/name`, `owner/name:<64 hex digits>` or the 64 digits alone."""

    version: str


class TrainingRequest(PredictionRequest, kw_only=True, forbid_unknown_fields=True):
    """A training, and the model `owner/name` that it makes a version of."""

    destination: str


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Up to a thousand bodies of predictions, each judged by itself."""

    predictions: Annotated[list[VersionPredictionRequest], Meta(min_length=1, max_length=1_000)]


async def read_create(request: Request, *, version: bool = False, destination: bool = False) -> CreatePrediction:
    body = await read_body(request, max_bytes=request.services.settings.max_body_bytes, refusal=input_too_large)
    return parse_create(body, version=version, destination=destination)


def parse_create(body: bytes, *, version: bool, destination: bool = False) -> CreatePrediction:
    """Read the body of a create request. `version`, `destination`: whether this route takes and needs that member. An
    empty filter counts as no filter: a caller that gives a webhook wants it called.
    """
    members = Members(body)
    given_version = members.text("version", required=True) if version else None
    given_destination = members.text("destination", required=True) if destination else None
    given_input = members.take("input", "object", required=True)
    webhook = members.text("webhook")
    if webhook is not None and (fault := parse_webhook_url(webhook)):
        members.fault("format", "webhook", fault)
    events = _events(members)
    taken = {name for name, takes in (("version", version), ("destination", destination)) if takes}
    members.refuse_unknown(KNOWN_KEYS | taken, headers=IN_HEADERS)
    if members.faults or given_input is None:
        raise invalid_input(members.faults)
    return CreatePrediction(
        body=body,
        input=given_input,
        version=given_version,
        destination=given_destination,
        webhook=webhook,
        webhook_events_filter=events,
    )


def parse_batch(body: bytes, *, most: int) -> list[Raw]:
    """Return the bodies of a batch, `{"predictions": [...]}`, unread. Raises a 422 for an empty or too long batch."""
    members = Members(body)
    value = members.take("predictions", "array", required=True)
    bodies = [] if value is None else msgspec.json.decode(value, type=list[Raw])
    if value is not None and not bodies:
        members.fault("array_min_items", "predictions", "Array must have at least 1 items")
    if len(bodies) > most:
        members.fault("array_max_items", "predictions", f"Array must have at most {most} items")
    members.refuse_unknown(frozenset({"predictions"}))
    if members.faults:
        raise invalid_input(members.faults)
    return bodies


def parse_version(text: str) -> VersionRef:
    """Read `owner/name`, `owner/name:<64 hex digits>` or the 64 digits alone. Raises the 422 of an unknown version."""
    if VERSION.fullmatch(text):
        return VersionRef(version=text)
    model, pinned, version = text.partition(":")
    if not MODEL.fullmatch(model) or (pinned and not VERSION.fullmatch(version)):
        raise invalid_version()
    return VersionRef(model=model, version=version or None)


def parse_model(owner: str, name: str) -> str:
    model = f"{owner}/{name}"
    if not MODEL.fullmatch(model):
        raise not_found()
    return model


def _events(members: Members) -> tuple[WebhookEvent, ...] | None:
    value = members.take("webhook_events_filter", "array")
    if value is None:
        return None
    given_events = msgspec.json.decode(value, type=list[Raw])
    if len(given_events) > MAX_FILTER:
        members.fault("array_max_items", "webhook_events_filter", f"Array must have at most {MAX_FILTER} items")
        return None
    events: dict[WebhookEvent, None] = {}  # a dict as a set that keeps the order
    for place, item in enumerate(given_events):
        field = f"webhook_events_filter.{place}"
        if (given := type_of(bytes(item))) != "string":
            members.faults.append(wrong_type(field, "string", given))
            continue
        try:
            events[msgspec.json.decode(item, type=WebhookEvent)] = None
        except msgspec.ValidationError:
            members.fault("enum", field, f"{field} must be one of the following: {EVENTS}")
    return tuple(events) or None


# The headers that say how to run. An invalid Prefer is never an error: it is ignored.

LONGEST_WAIT_S: Final = 60.0
SHORTEST_LIFE_S: Final = 5
LONGEST_LIFE_S: Final = 24 * 60 * 60
SHORTEST_START_S: Final = 1
LONGEST_PLAN_S: Final = 7 * 24 * 60 * 60
SMALLEST_COST: Final = 0.001
LARGEST_COST: Final = 1_000_000
LONGEST_AFFINITY: Final = 255
AFFINITY_DIGITS: Final = 16
# possessive and with an optional end, so that no text causes backtracking
QUOTED: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"?', re.DOTALL)
SEPARATORS: Final = re.compile(r"[,;=]")
SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
COST: Final = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?")
WHOLE_SECONDS: Final = re.compile(r"[0-9]{1,6}")
UNITS_S: Final = (3600, 60, 1, 1)  # seconds in each group of DURATION
MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
DURATION: Final = re.compile(r"(?=.)(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?|([0-9]{1,6})")


def preference(prefer: Iterable[str]) -> tuple[float, str] | None:
    """Return how long to hold the response, from all Prefer headers, and what was applied; None to answer at once. The
    most is a minute, which a plain `wait` means. `wait=0` and other values are ignored, and the first wait counts (RFC
    7240).
    """
    asked = _read_wait(prefer)
    if asked == "":
        return LONGEST_WAIT_S, "wait"
    if asked is None or not SECONDS.fullmatch(asked):
        return None
    seconds = min(float(asked), LONGEST_WAIT_S)
    return (seconds, f"wait={seconds:g}") if seconds else None


def cancel_after_seconds(text: str) -> int:
    """Read seconds (`30`), or hours, minutes and seconds (`90s`, `1h30m45s`). 422 unless from 5 s to 24 h."""
    match = DURATION.fullmatch(text.strip())
    if match:
        total = sum(int(count or 0) * unit for count, unit in zip(match.groups(), UNITS_S, strict=True))
        if SHORTEST_LIFE_S <= total <= LONGEST_LIFE_S:
            return total
    raise invalid_header("Cancel-After", "a duration such as 90s, 5m or 1h30m, from 5 seconds to 24 hours")


def start_by_seconds(text: str) -> int:
    """Read a whole number of seconds, from 1 to a day. Raises a 422 for anything else."""
    asked = text.strip()
    if WHOLE_SECONDS.fullmatch(asked) and SHORTEST_START_S <= int(asked) <= LONGEST_LIFE_S:
        return int(asked)
    raise invalid_header("X-Start-By", f"a whole number of seconds from {SHORTEST_START_S} to {LONGEST_LIFE_S}")


def start_after_ms(text: str, now_ms: int) -> int:
    """Read a duration from now as in Cancel-After (`8h`, `30`), or a time of RFC 3339, which may be over. Raises a 422
    for anything else, and beyond a week.
    """
    asked = text.strip()
    at_ms: float = math.inf
    if match := DURATION.fullmatch(asked):
        total = sum(int(count or 0) * unit for count, unit in zip(match.groups(), UNITS_S, strict=True))
        at_ms = now_ms + total * 1000
    elif MOMENT.fullmatch(asked):
        with contextlib.suppress(ValueError, OverflowError):  # no such day or hour
            at_ms = math.ceil(datetime.fromisoformat(asked.upper()).timestamp() * 1000)
    if at_ms <= now_ms + LONGEST_PLAN_S * 1000:
        return int(at_ms)
    raise invalid_header("X-Start-After", "a duration such as 8h or a time such as 2027-01-31T22:00:00Z, within 7 days")


def cost_units(text: str) -> float:
    """Read the cost relative to other predictions of the model. Raises a 422 unless from 0.001 to 1,000,000."""
    asked = text.strip()
    if COST.fullmatch(asked) and SMALLEST_COST <= float(asked) <= LARGEST_COST:
        return float(asked)
    raise invalid_header("X-Cost", f"a number from {SMALLEST_COST} to {LARGEST_COST:,}")


def affinity_digest(text: str) -> str:
    """Return a digest of the caller's key: equal digests prefer the same server. Raises a 422 for an invalid key."""
    if not 0 < len(text) <= LONGEST_AFFINITY or not text.isprintable():
        raise invalid_header("X-Affinity-Key", f"a text of 1 to {LONGEST_AFFINITY} printable characters")
    return digest_of(text)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:AFFINITY_DIGITS]


def _read_wait(prefer: Iterable[str]) -> str | None:
    for header in prefer:
        plain = QUOTED.sub(lambda quoted: SEPARATORS.sub("_", quoted[1]), header) if '"' in header else header
        for preference in plain.split(","):
            name, _, value = preference.partition(";")[0].partition("=")
            if name.strip().lower() == "wait":
                return value.strip()
    return None


# How a route that creates is declared.

# 404: the prediction that an Idempotency-Key names is gone. 500: the model's schema is unusable.
CREATE: Final = frozenset({402, 404, 500})
MADE: Final = ("Location", "Preference-Applied", "Idempotency-Replayed")
CREATED: Final = {
    200: Answer(
        "Accepted, with its events as they happen: for `Accept: text/event-stream`.",
        StreamEvent,
        STREAM["Content-Type"],
        headers=("Location", "Idempotency-Replayed"),
    ),
    201: Answer("Accepted; where it was waited for, it has ended.", Prediction, headers=MADE),
    202: Answer("Accepted, and has not ended in the time that it was waited for.", Prediction, headers=MADE),
}
creates: Final = partial(changes, "POST", bucket="create", answers=CREATED, refusals=CREATE)
WAIT: Final = Parameter(
    "Prefer", "`wait` or `wait=n` holds the response until the end, or for n seconds, at most 60.", place="header"
)
# How to run a prediction. All but WAIT apply to each prediction of a batch
HOW: Final = (
    Parameter(
        "Cancel-After",
        "A duration such as 90s or 1h30m, from 5 s to 24 h. A prediction that has not ended by then is ended.",
        place="header",
    ),
    Parameter(
        "X-Start-By", f"1 to {LONGEST_LIFE_S} seconds. A prediction that has not begun by then fails.", place="header"
    ),
    Parameter(
        "X-Start-After",
        "A duration such as 8h, or a time such as 2027-01-31T22:00:00Z, within 7 days. It does not start before.",
        place="header",
    ),
    Parameter("X-Priority", "The lane. The token must be allowed to use it.", one_of(*ALL_LANES), "header"),
    Parameter("X-Site", "The name of one of several sites. It has no effect with one site.", place="header"),
    Parameter(
        "X-Cost",
        f"The cost compared with other predictions of the model, from {SMALLEST_COST} to {LARGEST_COST}. Default: 1.",
        place="header",
    ),
    Parameter(
        "X-Affinity-Key",
        "Predictions with the same key prefer the same model server, which is warm for them.",
        Annotated[str, Meta(min_length=1, max_length=LONGEST_AFFINITY)],
        "header",
    ),
    Parameter(
        "Idempotency-Key",
        "For a day, the same request with the same key makes no second prediction.",
        Annotated[str, Meta(min_length=1, max_length=255)],
        "header",
    ),
)


# A prediction as the client that asks understands it.

# Replicate's clients that do not know `aborted`: wait() of JavaScript's polls for ever, a list fails in Python's
WITHOUT_ABORTED: Final = re.compile(r"replicate-(?:javascript/(?:0|1\.[0-4])|python/[01])\.")


def show_to(request: Request, stored: Stored) -> Prediction:
    return show_as_known(request, view(stored))


def show_as_known(request: Request, prediction: Prediction) -> Prediction:
    """Return it with `canceled` in place of `aborted` for a client that does not know that word. Event streams and
    webhooks cannot know who reads: the former say `canceled` anyway.
    """
    if prediction.status is Status.ABORTED and WITHOUT_ABORTED.match(request.headers.get("user-agent", "")):
        return replace(prediction, status=Status.CANCELED)
    return prediction
