"""Read what a caller asks for: the body that creates a prediction, and the names of models and versions.

Says everything that is wrong with the body itself at once, in gojsonschema's words. Never looks inside `input`: that
is `validation`'s part, and the bytes stay the caller's.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from api.errors import invalid_header, invalid_input, invalid_version, not_found
from api.request import Members, type_of, wrong_type
from director.core.ids import MODEL_NAME, VERSION_ID
from director.core.states import WebhookEvent
from director.core.webhook_url import parse_webhook_url

MODEL: Final = re.compile(MODEL_NAME)
VERSION: Final = re.compile(VERSION_ID)

# old official clients still send the last two; they have no effect
KNOWN_KEYS: Final = frozenset({"input", "webhook", "webhook_events_filter", "stream", "webhook_completed"})

MAX_FILTER: Final = 20
EVENTS: Final = ", ".join(f'"{event}"' for event in WebhookEvent)


class CreatePrediction(Struct, frozen=True, kw_only=True):
    """What a caller wants run. No filter means every webhook event."""

    input: Raw
    version: str | None = None
    destination: str | None = None
    webhook: str | None = None
    webhook_events_filter: tuple[WebhookEvent, ...] | None = None


NO_EFFECT: Final = Meta(description="Has no effect.", extra_json_schema={"deprecated": True})


# Bodies that are read member by member, as types for the document. Nothing is decoded into them.


class PredictionRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """What is to be run. No filter means every webhook event."""

    input: dict[str, Any]
    webhook: Annotated[str, Meta(description="An http or https URL.")] | None = None
    webhook_events_filter: Annotated[list[WebhookEvent], Meta(max_length=MAX_FILTER)] | None = None
    stream: Annotated[bool | None, NO_EFFECT] = None
    webhook_completed: Annotated[str | None, NO_EFFECT] = None


class VersionPredictionRequest(PredictionRequest, kw_only=True, forbid_unknown_fields=True):
    """What is to be run, and of which version: `owner/name`, `owner/name:<64 hex digits>` or the 64 digits alone."""

    version: str


class TrainingRequest(PredictionRequest, kw_only=True, forbid_unknown_fields=True):
    """A training, and the model `owner/name` that it makes a version of."""

    destination: str


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Up to a thousand bodies of predictions, each judged by itself."""

    predictions: Annotated[list[Any], Meta(min_length=1, max_length=1_000)]


class VersionRef(Struct, frozen=True, kw_only=True):
    """What a `version` names: a model's latest, a model's pinned one, or a version by its id alone."""

    model: str | None = None
    version: str | None = None


def parse_create(body: bytes, *, version: bool, destination: bool = False) -> CreatePrediction:
    """The body of a create request. `version`, `destination`: does this route take one? (Then it must be there.)

    An empty filter is as good as none: nobody gives a webhook in order not to be called.
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
    members.refuse_unknown(KNOWN_KEYS | taken)
    if members.faults or given_input is None:
        raise invalid_input(members.faults)
    return CreatePrediction(
        input=given_input,
        version=given_version,
        destination=given_destination,
        webhook=webhook,
        webhook_events_filter=events,
    )


def parse_batch(body: bytes, *, most: int) -> list[Raw]:
    """The bodies of a batch, each to be read by itself: `{"predictions": [...]}`, one at least."""
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
    """`owner/name`, `owner/name:<64 hex digits>` or the 64 digits alone; else the 422 of an unknown version."""
    if VERSION.fullmatch(text):
        return VersionRef(version=text)
    model, pinned, version = text.partition(":")
    if not MODEL.fullmatch(model) or (pinned and not VERSION.fullmatch(version)):
        raise invalid_version()
    return VersionRef(model=model, version=version or None)


def parse_model(owner: str, name: str) -> str:
    """`owner/name` from the two parts of a path; else the 404 of an unknown model."""
    model = f"{owner}/{name}"
    if not MODEL.fullmatch(model):
        raise not_found()
    return model


def _events(members: Members) -> tuple[WebhookEvent, ...] | None:
    value = members.take("webhook_events_filter", "array")
    given_events = msgspec.json.decode(value, type=list[Raw]) if value is not None else []
    if len(given_events) > MAX_FILTER:
        members.fault("array_max_items", "webhook_events_filter", f"Array must have at most {MAX_FILTER} items")
        return None
    events: dict[WebhookEvent, None] = {}  # a set that keeps the order
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


# Read the headers that say how: Prefer (how long to hold the response), Cancel-After (how long to live), X-Start-By
# (how long to wait for a start), X-Cost (how much of a slot it takes) and X-Affinity-Key (what it likes to run
# beside).
#
# Pure. A Prefer that makes no sense is never an error: it is as if it were not there.

LONGEST_WAIT_S: Final = 60.0
SHORTEST_LIFE_S: Final = 5
LONGEST_LIFE_S: Final = 24 * 60 * 60
SHORTEST_START_S: Final = 1
SMALLEST_COST: Final = 0.001
LARGEST_COST: Final = 1_000_000
LONGEST_AFFINITY: Final = 255
AFFINITY_DIGITS: Final = 16

# possessive and with an optional end, so that no text makes it look twice at the same place
QUOTED: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"?', re.DOTALL)
SEPARATORS: Final = re.compile(r"[,;=]")
SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
COST: Final = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?")
WHOLE_SECONDS: Final = re.compile(r"[0-9]{1,6}")
UNITS_S: Final = (3600, 60, 1, 1)  # of the pattern's groups
DURATION: Final = re.compile(r"(?=.)(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?|([0-9]{1,6})")


def wait_seconds(prefer: Iterable[str], *, default: float = LONGEST_WAIT_S) -> float | None:
    """How long the response may be held, from all Prefer headers of a request; None: answer at once.

    A plain `wait` is `default`; more than a minute is a minute. `wait=0`, and a value that is not a number of
    seconds, are ignored. Other preferences are ignored too, and of several waits the first counts (RFC 7240).
    """
    asked = _asked(prefer)
    if asked is None:
        return None
    if not asked:
        return default
    if not SECONDS.fullmatch(asked):
        return None
    return min(float(asked), LONGEST_WAIT_S) or None


def applied(prefer: Iterable[str]) -> str | None:
    """The Preference-Applied header: `wait` or `wait=10`, as it was understood; None where there was no wait."""
    values = tuple(prefer)
    seconds = wait_seconds(values)
    if seconds is None:
        return None
    return f"wait={seconds:g}" if _asked(values) else "wait"


def cancel_after_seconds(text: str) -> int:
    """Seconds (`30`) or hours, minutes and seconds in that order (`90s`, `1h30m45s`), from 5 s to 24 h; else 422."""
    match = DURATION.fullmatch(text.strip())
    if match:
        total = sum(int(count or 0) * unit for count, unit in zip(match.groups(), UNITS_S, strict=True))
        if SHORTEST_LIFE_S <= total <= LONGEST_LIFE_S:
            return total
    raise invalid_header("Cancel-After", "a duration such as 90s, 5m or 1h30m, from 5 seconds to 24 hours")


def start_by_seconds(text: str) -> int:
    """Whole seconds, from 1 to those of a day; else 422."""
    asked = text.strip()
    if WHOLE_SECONDS.fullmatch(asked) and SHORTEST_START_S <= int(asked) <= LONGEST_LIFE_S:
        return int(asked)
    raise invalid_header("X-Start-By", f"a whole number of seconds from {SHORTEST_START_S} to {LONGEST_LIFE_S}")


def cost_units(text: str) -> float:
    """How much it takes, compared with others of this model: from a thousandth to a million; else 422."""
    asked = text.strip()
    if COST.fullmatch(asked) and SMALLEST_COST <= float(asked) <= LARGEST_COST:
        return float(asked)
    raise invalid_header("X-Cost", f"a number from {SMALLEST_COST} to {LARGEST_COST:,}")


def affinity_digest(text: str) -> str:
    """What stands for the caller's key: whoever sends the same one likes the same server. 422 for what is no key."""
    if not 0 < len(text) <= LONGEST_AFFINITY or not text.isprintable():
        raise invalid_header("X-Affinity-Key", f"a text of 1 to {LONGEST_AFFINITY} printable characters")
    return hashlib.sha256(text.encode()).hexdigest()[:AFFINITY_DIGITS]


def _asked(prefer: Iterable[str]) -> str | None:
    """The value of the first `wait`: empty where it has none, None where there is no `wait` at all."""
    for header in prefer:
        plain = QUOTED.sub(lambda quoted: SEPARATORS.sub("_", quoted[1]), header)
        for preference in plain.split(","):
            name, _, value = preference.partition(";")[0].partition("=")
            if name.strip().lower() == "wait":
                return value.strip()
    return None
