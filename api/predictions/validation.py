"""Check an input against its model's schema before it is queued, and say what is wrong in gojsonschema's words.

Never changes the input: it is decoded to be looked at, and the bytes that are queued stay the caller's. Keys that the
model does not know are no errors. Its cost is bounded by the input's size, however wrong the input is and however many
alternatives the schema has.
"""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

from jsonschema_rs import ValidationError, validator_for
from msgspec import Raw

from api.body import decode_json
from api.predictions.model_schema import PATTERN_OPTIONS, Schema, can_stream, input_schema, read_document
from api.problems import MAX_INVALID_FIELDS, InvalidField, shown
from api.refusals import unusable_schema
from director.core.ids import Kind
from director.store.catalog import Version

__all__ = ("InputSchema",)

MAX_CACHED: Final = 64

# finding an error costs about 20 µs, and one long array can hold a million of them, each in every alternative
MANY_ERRORS: Final = 1_000

FETCHABLE: Final = re.compile(r"https?://|data:", re.IGNORECASE)

# keyword → the name and the words that gojsonschema has for it
WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "anyOf": ("number_any_of", "Must validate at least one schema (anyOf)"),
    "const": ("const", "{field} does not match: {expected_value}"),
    "enum": ("enum", "{field} must be one of the following: {options}"),
    "exclusiveMaximum": ("number_lt", "Must be less than {limit}"),
    "exclusiveMinimum": ("number_gt", "Must be greater than {limit}"),
    "format": ("format", "Must be an http, https or data URI"),
    "maxItems": ("array_max_items", "Array must have at most {limit} items"),
    "maxLength": ("string_lte", "String length must be less than or equal to {limit}"),
    "maxProperties": ("array_max_properties", "Must have at most {limit} properties"),
    "maximum": ("number_lte", "Must be less than or equal to {limit}"),
    "minItems": ("array_min_items", "Array must have at least {limit} items"),
    "minLength": ("string_gte", "String length must be greater than or equal to {limit}"),
    "minProperties": ("array_min_properties", "Must have at least {limit} properties"),
    "minimum": ("number_gte", "Must be greater than or equal to {limit}"),
    "multipleOf": ("multiple_of", "Must be a multiple of {multiple_of}"),
    "pattern": ("pattern", "Does not match pattern '{pattern}'"),
    "required": ("required", "{property} is required"),
    "type": ("invalid_type", "Invalid type. Expected: {types}, given: {given}"),
    "uniqueItems": ("unique", "Array items must be unique"),
}
OTHERWISE: Final = ("invalid", "Does not match the schema of the model")

TYPE_NAMES: Final[Mapping[type, str]] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    type(None): "null",
}

# what the schema of a run's input is called in the document
INPUTS: Final[Mapping[Kind, str]] = {"": "Input", "training": "TrainingInput", "procedure": "Input"}

_compiled: OrderedDict[bytes, "InputSchema"] = OrderedDict()
_of_versions: OrderedDict[tuple[str, str, Kind], tuple[Raw, "InputSchema"]] = OrderedDict()


class InputSchema:
    """What one version of a model takes as input. `can_stream`: it gives its output piece by piece, or may do so."""

    def __init__(self, schema: dict[str, Any], *, can_stream: bool) -> None:
        self.can_stream = can_stream
        self._all = _Validator(schema)
        properties: dict[str, Schema] = schema.get("properties", {})
        self._required: list[str] = schema.get("required", [])
        self._fields = {name: _Validator(part) for name, part in properties.items()}
        # what is left speaks of the object as a whole; it must still know which keys are not additional
        rest = {word: value for word, value in schema.items() if word != "required"}
        self._whole = _Validator({**rest, "properties": dict.fromkeys(properties, True)})

    @classmethod
    def of(cls, version: Version) -> "InputSchema":
        """That of a version as the catalogue has it. A document that is the very one of lately is not even hashed."""
        place = (version.model, version.id, version.kind)
        known = _of_versions.get(place)
        if known is None or known[0] is not version.schema:
            known = _of_versions[place] = version.schema, cls.from_openapi(bytes(version.schema), version.kind)
            if len(_of_versions) > MAX_CACHED:
                _of_versions.popitem(last=False)
        return known[1]

    @classmethod
    def from_openapi(cls, document: bytes, kind: Kind = "") -> "InputSchema":
        """The input schema of a model's OpenAPI document for runs of a kind; one seen lately is not compiled again.

        A document without one takes every object. One that cannot be used is a Problem that tells the operator.
        """
        digest = hashlib.sha256(document).digest() + INPUTS[kind].encode()
        known = _compiled.get(digest)
        if known is None:
            whole = read_document(document)
            streams = kind != "training" and can_stream(whole)
            known = _compiled[digest] = cls(input_schema(whole, INPUTS[kind]), can_stream=streams)
            if len(_compiled) > MAX_CACHED:
                _compiled.popitem(last=False)
        _compiled.move_to_end(digest)
        return known

    def check(self, given: Raw | bytes) -> list[InvalidField]:
        """What is wrong with an input, at most twenty entries; nothing if it is good. Not JSON at all: a Problem."""
        text = bytes(given)
        value = decode_json(text, object)
        if not isinstance(value, dict):
            return [_invalid("type", ["input"], {"types": ["object"], "given": value})]
        if self._all.takes(value):
            return []
        # each has its comma or its opening; those in strings are counted too, which is none the less a bound
        elements = sum(map(text.count, (b",", b"[", b"{")))
        return list(islice(self._faults(value, elements=elements), MAX_INVALID_FIELDS))

    def _faults(self, value: dict[str, Any], *, elements: int) -> Iterator[InvalidField]:
        for name in self._required:
            if name not in value:
                yield _invalid("required", ["input"], {"property": name})
        parts = ((["input", name], validator, value[name]) for name, validator in self._fields.items() if name in value)
        for path, validator, part in chain(parts, [(["input"], self._whole, value)]):
            yield from validator.faults(part, path, elements=elements if isinstance(part, list | dict) else 1)


class _Validator:
    """One compiled schema, and a way to ask it for errors that does not cost more than the answer is worth."""

    def __init__(self, schema: Schema) -> None:
        try:
            self._validator = validator_for(
                schema,
                formats={"uri": _is_fetchable},
                validate_formats=True,
                pattern_options=PATTERN_OPTIONS,
                offline=True,
            )
        except ValidationError as exc:
            raise unusable_schema("is not a valid JSON Schema") from exc
        # the first error of an alternative is found only after all errors of all its branches
        self._has_alternatives = '"anyOf"' in _json(schema)
        self._errors_each = _size(schema) if self._has_alternatives else 1

    def takes(self, value: Any) -> bool:
        """Is there nothing wrong with it?"""
        return self._validator.is_valid(value)

    def faults(self, value: Any, path: list[str], *, elements: int) -> Iterator[InvalidField]:
        """What is wrong with a value of at most so many `elements`."""
        if self.takes(value):
            return
        if elements * self._errors_each <= MANY_ERRORS:
            yield from (_described(error, path) for error in self._validator.iter_errors(value))
        elif self._has_alternatives:
            yield _invalid("", path, {})
        else:
            try:
                self._validator.validate(value)
            except ValidationError as error:
                yield _described(error, path)


def _size(schema: object) -> int:
    """How many errors one element can have at most: each keyword, and each name or option in one, may be one."""
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return sum(1 + _size(part) for part in parts)


def _is_fetchable(uri: str) -> bool:
    return FETCHABLE.match(uri) is not None


def _described(error: ValidationError, path: list[str]) -> InvalidField:
    facts = error.kind.as_dict()
    return _invalid(error.kind.name, [*path, *map(str, error.instance_path)], {**facts, "given": error.instance})


def _invalid(keyword: str, path: list[str], facts: Mapping[str, Any]) -> InvalidField:
    kind, words = WORDS.get(keyword, OTHERWISE)
    field = ".".join(map(shown, path))
    # only what is told: an alternative's facts hold every error of every branch
    told = {name: SAID.get(name, _json)(fact) for name, fact in facts.items() if f"{{{name}}}" in words}
    return InvalidField(kind, field, words.format(**{**told, "field": field}))


def _json(value: object) -> str:
    # not msgspec's: a schema may hold integers of more than 64 bits
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """As people write it: 4.0 is 4."""
    return str(int(value)) if value == int(value) else str(value)


def _types(names: list[str]) -> str:
    said = [name for name in names if name != "null"] or names
    return said[0] if len(said) == 1 else f"[{','.join(said)}]"


SAID: Final[Mapping[str, Any]] = {
    "given": lambda value: TYPE_NAMES.get(type(value), "number"),
    "limit": _number,
    "multiple_of": _number,
    "options": lambda options: ", ".join(map(_json, options)),
    "pattern": str,
    "property": shown,
    "types": _types,
}
