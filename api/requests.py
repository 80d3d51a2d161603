"""Read what a caller asks for: the body that creates a prediction, and the names of models and versions.

Says everything that is wrong with the body itself at once, in gojsonschema's words. Never looks inside `input`: that
is `validation`'s part, and the bytes stay the caller's.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw, Struct

from api.members import Members, type_of, wrong_type
from api.refusals import invalid_input, invalid_version, not_found
from director.core.ids import MODEL_NAME, VERSION_ID
from director.core.states import WebhookEvent
from director.core.webhook_url import parse_webhook_url

__all__ = (
    "MODEL",
    "VERSION",
    "CreatePrediction",
    "VersionRef",
    "parse_batch",
    "parse_create",
    "parse_model",
    "parse_version",
)

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
