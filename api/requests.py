"""Read what a caller asks for: the body that creates a prediction, and the names of models and versions.

Says everything that is wrong with the body itself at once, in gojsonschema's words. Never looks inside `input`: that
is `validation`'s part, and the bytes stay the caller's.
"""

import re
from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw, Struct

from api.body import decode_json
from api.problems import MAX_INVALID_FIELDS, InvalidField, invalid_input, invalid_version, not_found, shown
from director.core.ids import MODEL_NAME, VERSION_ID
from director.core.states import WebhookEvent
from director.core.webhook_url import parse_webhook_url

__all__ = ("CreatePrediction", "VersionRef", "parse_create", "parse_model", "parse_version")

MODEL: Final = re.compile(MODEL_NAME)
VERSION: Final = re.compile(VERSION_ID)

# old official clients still send the last two; they have no effect
KNOWN_KEYS: Final = frozenset({"input", "webhook", "webhook_events_filter", "stream", "webhook_completed"})

# the first byte of a JSON value says what it is
TYPES: Final = {
    ord("{"): "object",
    ord("["): "array",
    ord('"'): "string",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("n"): "null",
}
MAX_FILTER: Final = 20
EVENTS: Final = ", ".join(f'"{event}"' for event in WebhookEvent)


class CreatePrediction(Struct, frozen=True, kw_only=True):
    """What a caller wants run. No filter means every webhook event."""

    input: Raw
    version: str | None = None
    webhook: str | None = None
    webhook_events_filter: tuple[WebhookEvent, ...] | None = None


class VersionRef(Struct, frozen=True, kw_only=True):
    """What a `version` names: a model's latest, a model's pinned one, or a version by its id alone."""

    model: str | None = None
    version: str | None = None


def parse_create(body: bytes, *, version: bool) -> CreatePrediction:
    """The body of a create request. `version`: does this route take one? (If it does, it must be there.)

    An empty filter is as good as none: nobody gives a webhook in order not to be called.
    """
    members = _Members(body)
    given_version = members.text("version", required=True) if version else None
    given_input = members.take("input", "object", required=True)
    webhook = members.text("webhook")
    if webhook is not None and (fault := parse_webhook_url(webhook)):
        members.fault("format", "webhook", fault)
    events = _events(members)
    members.refuse_unknown(KNOWN_KEYS | {"version"} if version else KNOWN_KEYS)
    if members.faults or given_input is None:
        raise invalid_input(members.faults)
    return CreatePrediction(input=given_input, version=given_version, webhook=webhook, webhook_events_filter=events)


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


class _Members:
    """The members of the body's object, and what was found wrong with them so far."""

    def __init__(self, body: bytes) -> None:
        self.faults: list[InvalidField] = []
        if (given := _type_of(body)) != "object":
            decode_json(body, Raw)  # what is no JSON at all is malformed, not of a wrong type
            raise invalid_input([_wrong_type("", "object", given)])
        self._members: Mapping[str, Raw] = decode_json(body, dict[str, Raw])

    def fault(self, kind: str, field: str, description: str) -> None:
        self.faults.append(InvalidField(kind, field, description))

    def take(self, name: str, expected: str, *, required: bool = False) -> Raw | None:
        """A member of the type expected, or None; an optional one may be null."""
        value = self._members.get(name)
        if value is None:
            if required:
                self.fault("required", "", f"{name} is required")
            return None
        given = _type_of(bytes(value))
        if given == expected:
            return value
        if required or given != "null":
            self.faults.append(_wrong_type(name, expected, given))
        return None

    def text(self, name: str, *, required: bool = False) -> str | None:
        value = self.take(name, "string", required=required)
        return None if value is None else msgspec.json.decode(value, type=str)

    def refuse_unknown(self, known: frozenset[str]) -> None:
        for name in islice((name for name in self._members if name not in known), MAX_INVALID_FIELDS):
            self.fault("additional_property_not_allowed", "", f"Additional property {shown(name)} is not allowed")


def _events(members: _Members) -> tuple[WebhookEvent, ...] | None:
    value = members.take("webhook_events_filter", "array")
    given_events = msgspec.json.decode(value, type=list[Raw]) if value is not None else []
    if len(given_events) > MAX_FILTER:
        members.fault("array_max_items", "webhook_events_filter", f"Array must have at most {MAX_FILTER} items")
        return None
    events: dict[WebhookEvent, None] = {}  # a set that keeps the order
    for place, item in enumerate(given_events):
        field = f"webhook_events_filter.{place}"
        if (given := _type_of(bytes(item))) != "string":
            members.faults.append(_wrong_type(field, "string", given))
            continue
        try:
            events[msgspec.json.decode(item, type=WebhookEvent)] = None
        except msgspec.ValidationError:
            members.fault("enum", field, f"{field} must be one of the following: {EVENTS}")
    return tuple(events) or None


def _type_of(value: bytes) -> str:
    text = value.lstrip(b" \t\r\n")[:1]
    return TYPES.get(text[0], "number") if text else "null"


def _wrong_type(field: str, expected: str, given: str) -> InvalidField:
    return InvalidField("invalid_type", field, f"Invalid type. Expected: {expected}, given: {given}")
