"""Find the values of an input that its model's schema marks as secret, and note where they lie in the stored text.

A position is all that a view needs to hide a value, and all that a script needs to overwrite it at the end: neither
reads the schema or the JSON. The stored value is padded with spaces, so that it can be overwritten where it lies and
shows only roughly how long it was.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw, Struct

from api.errors import invalid_field

PADDED_BYTES: Final = 64  # at least as long as what replaces a value
MOST_VALUES: Final = 100  # their positions are one field of the record
DEEPEST: Final = 50  # what lies deeper beside a secret is hidden as a whole

BESIDE: Final = ("allOf", "anyOf", "oneOf")  # lists of schemas that apply to the same value
BRANCHES: Final = ("if", "then", "else")
REST: Final = ("additionalProperties", "unevaluatedProperties")
ELEMENTS: Final = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")


class Marked(Struct, frozen=True):
    """An input as it is stored, and where its secret values lie: pairs of start and end in bytes, all separated by
    spaces.
    """

    input: bytes
    secret: str


class Secrets:
    """The secret parts of one input schema. Every branch and every position of an array counts as one that may apply:
    where a schema is ambiguous, too much is hidden and never too little.
    """

    def __init__(self, document: Mapping[str, Any], schema: object) -> None:
        self._document = document
        self._parts: dict[frozenset[int], _Part] = {}
        self._whole = self._part([schema])

    def __bool__(self) -> bool:
        return self._whole.holds

    def mark(self, given: Raw) -> Marked:
        """Return the text to store. Raises a 422 for too many secret values."""
        pieces: list[bytes] = []
        places: list[int] = []
        size = 0
        for piece, is_secret in self._pieces(self._whole, given, 0):
            text = piece + b" " * (-len(piece) % PADDED_BYTES) if is_secret else piece
            pieces.append(text)
            if is_secret:
                places += (size, size + len(text))
            size += len(text)
        if len(places) > 2 * MOST_VALUES:
            raise invalid_field("array_max_items", "input", f"Must have at most {MOST_VALUES} secret values")
        return Marked(b"".join(pieces), " ".join(map(str, places)))

    def visible(self, path: Sequence[str]) -> list[str]:
        """Cut the path of a fault, which begins with `input`, where it enters a secret: its keys are secret too."""
        part = self._whole
        for depth, step in enumerate(path[1:], start=1):
            if part.is_secret:
                return list(path[:depth])
            # the path does not tell an array from an object
            part = self._part([*part.of_member(step), *part.of_element()])
        return list(path)

    def _pieces(self, part: "_Part", value: Raw, depth: int) -> Iterator[tuple[bytes, bool]]:
        text = bytes(value)
        if not part.holds or text == b"null":
            yield text, False
        elif part.is_secret or (depth > DEEPEST and text[:1] in (b"{", b"[")):
            yield text, True
        elif text[:1] == b"{":
            opening = b"{"
            for name, member in msgspec.json.decode(text, type=dict[str, Raw]).items():
                yield opening + msgspec.json.encode(name) + b":", False
                yield from self._pieces(self._part(part.of_member(name)), member, depth + 1)
                opening = b","
            yield b"{}" if opening == b"{" else b"}", False
        elif text[:1] == b"[":
            each, opening = self._part(part.of_element()), b"["
            for element in msgspec.json.decode(text, type=list[Raw]):
                yield opening, False
                yield from self._pieces(each, element, depth + 1)
                opening = b","
            yield b"[]" if opening == b"[" else b"]", False
        else:
            yield text, False

    def _part(self, schemas: Iterable[object]) -> "_Part":
        applying = self._applying(schemas)
        key = frozenset(map(id, applying))
        if key not in self._parts:
            self._parts[key] = _Part(applying, holds=self._holds(applying))
        return self._parts[key]

    def _applying(self, schemas: Iterable[object]) -> list[dict[str, Any]]:
        """Return these schemas and all others that apply to the same value."""
        found: dict[int, dict[str, Any]] = {}
        left = list(schemas)
        while left:
            schema = left.pop()
            if not isinstance(schema, dict) or id(schema) in found:
                continue
            found[id(schema)] = schema
            left += [one for word in BESIDE if isinstance(schema.get(word), list) for one in schema[word]]
            left += [schema.get(word) for word in BRANCHES]
            left += _values(schema, "dependentSchemas")
            left.append(self._target(schema.get("$ref")))
        return list(found.values())

    def _target(self, reference: object) -> object:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        place: object = self._document
        for step in reference[2:].split("/"):
            place = place.get(unquote(step).replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
        return place

    def _holds(self, schemas: list[dict[str, Any]]) -> bool:
        found: set[int] = set()
        left = list(schemas)
        while left:
            schema = left.pop()
            if id(schema) in found:
                continue
            found.add(id(schema))
            if _is_marked(schema):
                return True
            below = [*_values(schema, "properties"), *_others(schema), *_elements(schema)]
            left += self._applying([schema, *below])
        return False


class _Part:
    """One place in an input, with all schemas that apply there. `holds`: a secret is there, or below."""

    def __init__(self, schemas: list[dict[str, Any]], *, holds: bool) -> None:
        self.holds = holds
        self.is_secret = any(map(_is_marked, schemas))
        self._schemas = schemas

    def of_member(self, name: str) -> list[object]:
        return [one for schema in self._schemas for one in _members(schema, name)]

    def of_element(self) -> list[object]:
        return [one for schema in self._schemas for one in _elements(schema)]


def _is_marked(schema: Mapping[str, Any]) -> bool:
    is_password = schema.get("format") == "password"
    return is_password or schema.get("x-cog-secret") is True or schema.get("writeOnly") is True


def _members(schema: Mapping[str, Any], name: str) -> list[object]:
    properties = schema.get("properties")
    named = [properties[name]] if isinstance(properties, dict) and name in properties else []
    # a pattern is not tried: it may be slow
    return named + (_values(schema, "patternProperties") if named else _others(schema))


def _others(schema: Mapping[str, Any]) -> list[object]:
    return [*_values(schema, "patternProperties"), *(schema.get(word) for word in REST)]


def _elements(schema: Mapping[str, Any]) -> list[object]:
    given = [schema.get(word) for word in ELEMENTS]
    return [one for each in given for one in (each if isinstance(each, list) else [each])]


def _values(schema: Mapping[str, Any], word: str) -> list[object]:
    value = schema.get(word)
    return list(value.values()) if isinstance(value, dict) else []
