"""Reduce what a model says of its input to a schema that is safe and cheap to check against.

A model's OpenAPI document is a stranger's: it may be huge, point at other hosts, loop, or hold patterns that take for
ever. Only the keywords of the tables below are carried over, with every reference written out, so that what reaches
the validator refers to nothing. Each keyword left behind makes the check more lenient, never stricter: what is not
checked here, the model server checks itself. Never fetches anything, and never recurses deeper than its limit.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from jsonschema_rs import RegexOptions, ValidationError, validator_for

from api.body import decode_json
from api.problems import Problem
from api.refusals import unusable_schema

__all__ = ("PATTERN_OPTIONS", "Schema", "can_stream", "input_schema", "read_document")

Schema = dict[str, Any] | bool

MAX_DOCUMENT_BYTES: Final = 1_048_576
MAX_NODES: Final = 2_000  # references written out, so that a few that double each other stay a few
MAX_DEPTH: Final = 40
MAX_PATTERNS: Final = 64

# the linear-time engine, bounded also in the memory that one pattern may take
PATTERN_OPTIONS: Final = RegexOptions(size_limit=1 << 18, dfa_size_limit=1 << 18)

TYPE_NAMES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
NULL: Final[Schema] = {"type": ["null"]}
ANYTHING: Final[tuple[Schema, ...]] = (True, {})


def read_document(document: bytes) -> dict[str, Any]:
    """A model's OpenAPI document. One that is too large or cannot be read is a Problem that tells the operator."""
    if len(document) > MAX_DOCUMENT_BYTES:
        raise unusable_schema(f"is larger than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        return decode_json(document, dict[str, Any])
    except Problem as exc:
        raise unusable_schema("is not a JSON object that can be read") from exc


def input_schema(document: dict[str, Any], name: str = "Input") -> dict[str, Any]:
    """The schema of an `input` in a model's OpenAPI document, reduced. A document that has none is open: {}."""
    schema = _follow(document, ("components", "schemas", name))
    reduced = _Reduction(document).reduce(schema, depth=0, within=())
    return reduced if isinstance(reduced, dict) else {}


def can_stream(document: Mapping[str, Any]) -> bool:
    """Does the model give its output piece by piece? One that does not say what its output is may well do so."""
    output = _follow(document, ("components", "schemas", "Output"))
    if not isinstance(output, dict):
        return True
    streaming = _follow(document, ("paths", "/predictions", "post", "x-cog-streaming"))
    return streaming is True or output.get("x-cog-array-type") == "iterator"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


CARRIED: Final[Mapping[str, Callable[[Any], bool]]] = {
    "const": lambda _: True,
    "enum": lambda options: isinstance(options, list) and bool(options),
    "exclusiveMaximum": _is_number,
    "exclusiveMinimum": _is_number,
    # the one format that protects somebody: a file input that is no URL is opened as a local file by some servers
    "format": lambda name: name == "uri",
    "maxItems": _is_count,
    "maxLength": _is_count,
    "maxProperties": _is_count,
    "maximum": _is_number,
    "minItems": _is_count,
    "minLength": _is_count,
    "minProperties": _is_count,
    "minimum": _is_number,
    "multipleOf": lambda step: _is_number(step) and step > 0,
    "required": _are_names,
    "uniqueItems": lambda value: isinstance(value, bool),
}


class _Reduction:
    """One document's reduction, and how much of its allowance is used up."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._nodes = 0
        self._patterns = 0

    def reduce(self, schema: object, *, depth: int, within: tuple[str, ...]) -> Schema:
        """A copy with the carried keywords only. `within` are the references being written out around it."""
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise unusable_schema("is too large once its references are written out")
        if not isinstance(schema, dict):
            return schema is not False
        reduced = {word: schema[word] for word, fits in CARRIED.items() if word in schema and fits(schema[word])}
        if types := _types(schema.get("type")):
            reduced["type"] = types
        if self._is_linear(schema.get("pattern")):
            reduced["pattern"] = schema["pattern"]

        def below(part: object) -> Schema:
            return self.reduce(part, depth=depth + 1, within=within)

        reduced |= _containers(schema, below)
        parts = [below(part) for part in _list(schema, "allOf")]
        # oneOf is carried as anyOf: once its members are more lenient, two of them may match
        parts += [_any_of([below(part) for part in _list(schema, word)]) for word in ("anyOf", "oneOf")]
        parts.append(self._referred(schema.get("$ref"), depth=depth, within=within))
        whole = _all_of(reduced, parts)
        return _or_null(whole) if schema.get("nullable") is True else whole

    def _referred(self, reference: object, *, depth: int, within: tuple[str, ...]) -> Schema:
        if not isinstance(reference, str) or reference in within:  # a schema inside itself: one round is checked
            return True
        if not reference.startswith("#/"):
            raise unusable_schema("refers to something outside itself")
        steps = (unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/"))
        target = _follow(self._document, steps)
        if target is None:
            raise unusable_schema("has a reference that leads nowhere")
        return self.reduce(target, depth=depth + 1, within=(*within, reference))

    def _is_linear(self, pattern: object) -> bool:
        """Can the linear engine take it? It knows no look-around and no back-references."""
        if not isinstance(pattern, str) or self._patterns >= MAX_PATTERNS:
            return False
        self._patterns += 1
        try:
            validator_for({"pattern": pattern}, pattern_options=PATTERN_OPTIONS, offline=True)
        except ValidationError:
            return False
        return True


def _containers(schema: Mapping[str, Any], below: Callable[[object], Schema]) -> dict[str, Any]:
    """The keywords that speak of what is inside an object or an array."""
    reduced: dict[str, Any] = {}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        reduced["properties"] = {name: below(part) for name, part in properties.items()}
    # false is not carried: a key that a model does not know is no error. Beside patterns it speaks of the rest only
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict) and "patternProperties" not in schema:
        reduced["additionalProperties"] = below(additional)
    items = schema.get("items")
    first = items if isinstance(items, list) else schema.get("prefixItems")
    if isinstance(first, list) and first:
        reduced["prefixItems"] = [below(part) for part in first]
    if isinstance(items, dict):
        reduced["items"] = below(items)
    return reduced


def _list(schema: Mapping[str, Any], word: str) -> list[Any]:
    value = schema.get(word)
    return value if isinstance(value, list) else []


def _types(given: object) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) and name in TYPE_NAMES for name in names):
        return []
    return list(dict.fromkeys(names))


def _any_of(parts: list[Schema]) -> Schema:
    """One of these. The usual way to say 'or null' becomes a type, so that its errors stay readable."""
    if not parts or any(part in ANYTHING for part in parts):
        return True
    wanted = [part for part in parts if part != NULL]
    if len(wanted) < len(parts) and len(wanted) == 1:
        return _or_null(wanted[0])
    return {"anyOf": parts}


def _all_of(reduced: dict[str, Any], parts: Iterable[Schema]) -> Schema:
    """Itself and all of these, in the plainest form."""
    telling = [part for part in parts if part not in ANYTHING]
    if not telling:
        return reduced
    if not reduced and len(telling) == 1:
        return telling[0]
    return {**reduced, "allOf": telling}


def _or_null(schema: Schema) -> Schema:
    if not isinstance(schema, dict):
        return schema or NULL
    if {"allOf", "anyOf", "const"} & schema.keys():
        return {"anyOf": [schema, NULL]}
    widened = dict(schema)
    if "type" in schema:
        widened["type"] = list(dict.fromkeys([*schema["type"], "null"]))
    if "enum" in schema:
        widened["enum"] = [*schema["enum"], None]
    return widened


def _follow(document: Mapping[str, Any], steps: Iterable[str]) -> object:
    place: object = document
    for step in steps:
        if not isinstance(place, dict):
            return None
        place = place.get(step)
    return place
