"""The members of a body's object, one by one, and everything that is wrong with them, in gojsonschema's words.

Knows of no route: which members there are, and what they mean, is their reader's part.
"""

import re
from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw

from api.body import decode_json
from api.problems import MAX_INVALID_FIELDS, InvalidField, shown
from api.refusals import invalid_input

__all__ = ("Members", "type_of", "wrong_type")

# the first byte of a JSON value says what it is
TYPES: Final = {
    ord("{"): "object",
    ord("["): "array",
    ord('"'): "string",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("n"): "null",
}


class Members:
    """The members of the body's object, and what was found wrong with them so far; 422 where it is no object."""

    def __init__(self, body: bytes) -> None:
        self.faults: list[InvalidField] = []
        if (given := type_of(body)) != "object":
            decode_json(body, Raw)  # what is no JSON at all is malformed, not of a wrong type
            raise invalid_input([wrong_type("", "object", given)])
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
        given = type_of(bytes(value))
        if given == expected:
            return value
        if required or given != "null":
            self.faults.append(wrong_type(name, expected, given))
        return None

    def text(self, name: str, *, required: bool = False) -> str | None:
        value = self.take(name, "string", required=required)
        return None if value is None else msgspec.json.decode(value, type=str)

    def matching(self, name: str, pattern: re.Pattern[str], *, required: bool = False) -> str | None:
        """A text that is all as the pattern has it."""
        value = self.text(name, required=required)
        if value is None or pattern.fullmatch(value):
            return value
        self.fault("pattern", name, f"Does not match pattern '{pattern.pattern}'")
        return None

    def integer(self, name: str, *, most: int, required: bool = False) -> int | None:
        """A whole number from 0 on."""
        value = self.take(name, "number", required=required)
        if value is None:
            return None
        try:
            number = msgspec.json.decode(value, type=int)
        except msgspec.ValidationError:
            self.faults.append(wrong_type(name, "integer", "number"))
            return None
        if 0 <= number <= most:
            return number
        self.fault("number_gte" if number < 0 else "number_lte", name, f"Must be between 0 and {most}")
        return None

    def refuse_unknown(self, known: frozenset[str]) -> None:
        for name in islice((name for name in self._members if name not in known), MAX_INVALID_FIELDS):
            self.fault("additional_property_not_allowed", "", f"Additional property {shown(name)} is not allowed")


def type_of(value: bytes) -> str:
    """What a JSON value is, by its first byte."""
    text = value.lstrip(b" \t\r\n")[:1]
    return TYPES.get(text[0], "number") if text else "null"


def wrong_type(field: str, expected: str, given: str) -> InvalidField:
    """A member that is not of the type expected."""
    return InvalidField("invalid_type", field, f"Invalid type. Expected: {expected}, given: {given}")
