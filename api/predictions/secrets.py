"""Find the values of an input that its model's schema marks as secret, and note where they lie in the stored text.

A position is all that a view needs to hide a value, and all that a script needs to overwrite it at the end: neither
reads the schema or the JSON. The stored value is padded with spaces, so that it can be overwritten where it lies and
shows only roughly how long it was.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from api.predictions.bodies import CreatePrediction
from api.web.errors import invalid_field
from director.core.view import redact

PADDED_BYTES: Final = 64  # at least as long as what replaces a value
MOST_VALUES: Final = 100  # their positions are one field of the record
# Every level is read again from its text. What lies deeper beside a secret is hidden as a whole.
DEEPEST: Final = 10
MOST_LOOKED_AT: Final = 10_000  # values that may be or hold a secret: 4 µs each
# A schema is untrusted. Beyond these bounds, too much is hidden and never too little.
MOST_SCHEMAS: Final = 1_000
MOST_PARTS: Final = 200

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
        self._leading = self._leading_to_secrets(schema)
        self._hidden = _Part([{"writeOnly": True}], self._part)
        self._parts = {frozenset[int](): _Part([], self._part)}
        self._whole = self._hidden if len(self._leading) > MOST_SCHEMAS else self._part([schema])

    def __bool__(self) -> bool:
        return self._whole.holds

    def mark_request(self, asked: CreatePrediction) -> CreatePrediction:
        """Return the request with the input as it is stored, and where its secret values lie.

        The values are taken out of the body, of which the fingerprint of an idempotency key is made. It lives for a
        day, also after the end, and a reader of Redis could try guesses of a short value against a digest of the whole
        body. So the same key with another secret value is the same request.
        """
        marked = self.mark(asked.input)
        body = asked.body.replace(bytes(asked.input), redact(marked.input, marked.secret))
        return replace(asked, input=Raw(marked.input), secret=marked.secret, body=body)

    def mark(self, given: Raw) -> Marked:
        """Return the text to store. Raises a 422 for too many secret values."""
        marking = _Marking()
        marking.add(self._whole, bytes(given).strip(), 0)
        return marking.build()

    def visible(self, path: Sequence[str]) -> list[str]:
        """Cut the path of a fault, which begins with `input`, where it enters a secret: its keys are secret too."""
        parts = {self._whole}
        for depth, step in enumerate(path[1:], start=1):
            if any(part.is_secret for part in parts):
                return list(path[:depth])
            # the path does not tell an array from an object
            parts = {each for part in parts for each in (part.member(step), part.element)}
        return list(path)

    def _leading_to_secrets(self, schema: object) -> frozenset[int]:
        """Return the ids of the schemas that are marked, or below which one is. Takes linear time."""
        found: dict[int, dict[str, Any]] = {}
        above: defaultdict[int, list[int]] = defaultdict(list)
        left = [schema]
        while left:
            one = left.pop()
            if not isinstance(one, dict) or id(one) in found:
                continue
            found[id(one)] = one
            below = [*self._beside(one), *_values(one, "properties"), *_others(one), *_elements(one)]
            for each in below:
                above[id(each)].append(id(one))
            left += below
        marked = [key for key, one in found.items() if _is_marked(one)]
        leading = set(marked)
        while marked:
            more = {key for key in above[marked.pop()] if key not in leading}
            leading |= more
            marked += more
        return frozenset(leading)

    def _part(self, schemas: Iterable[object]) -> "_Part":
        """Return the part to which these schemas apply, and with them all others that apply to the same value."""
        applying: dict[int, dict[str, Any]] = {}
        left = list(schemas)
        while left:
            schema = left.pop()
            if isinstance(schema, dict) and id(schema) in self._leading and id(schema) not in applying:
                applying[id(schema)] = schema
                left += self._beside(schema)
        key = frozenset(applying)
        if key not in self._parts:
            if len(self._parts) >= MOST_PARTS:
                return self._hidden
            self._parts[key] = _Part(list(applying.values()), self._part)
        return self._parts[key]

    def _beside(self, schema: Mapping[str, Any]) -> list[object]:
        lists = [schema[word] for word in BESIDE if isinstance(schema.get(word), list)]
        found = [one for each in lists for one in each] + [schema.get(word) for word in BRANCHES]
        return [*found, *_values(schema, "dependentSchemas"), self._target(schema.get("$ref"))]

    def _target(self, reference: object) -> object:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        place: object = self._document
        for step in reference[2:].split("/"):
            place = place.get(unquote(step).replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
        return place


class _Part:
    """One place in an input, with all schemas that apply there and lead to a secret. `holds`: a secret is there, or
    below. What is below a secret is secret too.
    """

    def __init__(self, schemas: list[dict[str, Any]], part_of: Callable[[Iterable[object]], "_Part"]) -> None:
        self.holds = bool(schemas)
        self.is_secret = any(map(_is_marked, schemas))
        self._schemas = schemas
        self._part_of = part_of
        self._members: dict[str, _Part] = {}

    def member(self, name: str) -> "_Part":
        if self.is_secret:
            return self
        if name not in self._names:
            return self._others
        if name not in self._members:
            self._members[name] = self._part_of([one for schema in self._schemas for one in _members(schema, name)])
        return self._members[name]

    @cached_property
    def element(self) -> "_Part":
        if self.is_secret:
            return self
        return self._part_of([one for schema in self._schemas for one in _elements(schema)])

    @cached_property
    def _names(self) -> frozenset[str]:
        given = (schema.get("properties") for schema in self._schemas)
        return frozenset(name for properties in given if isinstance(properties, dict) for name in properties)

    @cached_property
    def _others(self) -> "_Part":
        return self._part_of([one for schema in self._schemas for one in _others(schema)])


class _Marking:
    """The text to store of one input, piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._places: list[int] = []
        self._size = 0
        self._looked_at = 0

    def build(self) -> Marked:
        return Marked(b"".join(self._pieces), " ".join(map(str, self._places)))

    def add(self, part: _Part, value: bytes, depth: int) -> None:
        """Add a value. The input as a whole is never hidden, only what is in it."""
        self._looked_at += 1
        if self._looked_at > MOST_LOOKED_AT:
            raise invalid_field("invalid", "input", f"Has more than {MOST_LOOKED_AT:,} values that may be secret")
        is_container = value[:1] in (b"{", b"[")
        if not part.holds or value == b"null":
            self._show(value)
        elif (part.is_secret and depth > 0) or (is_container and depth > DEEPEST):
            self._hide(value)
        elif not is_container:
            self._show(value)
        elif value[:1] == b"{":
            self._add_object(part, value, depth)
        else:
            self._add_array(part.element, value, depth)

    def _add_object(self, part: _Part, value: bytes, depth: int) -> None:
        opening = b"{"
        members = msgspec.json.decode(value, type=dict[str, Raw])
        for each, group in groupby(members.items(), lambda member: part.member(member[0])):
            if not each.holds:  # an input may have a million members
                self._show(opening + msgspec.json.encode(dict(group))[1:-1])
                opening = b","
                continue
            for name, member in group:
                self._show(opening + msgspec.json.encode(name) + b":")
                self.add(each, bytes(member), depth + 1)
                opening = b","
        self._show(b"}" if members else b"{}")

    def _add_array(self, element: _Part, value: bytes, depth: int) -> None:
        if not element.holds:
            self._show(value)
            return
        opening = b"["
        elements = msgspec.json.decode(value, type=list[Raw])
        for each in elements:
            self._show(opening)
            self.add(element, bytes(each), depth + 1)
            opening = b","
        self._show(b"]" if elements else b"[]")

    def _show(self, text: bytes) -> None:
        self._pieces.append(text)
        self._size += len(text)

    def _hide(self, value: bytes) -> None:
        if len(self._places) == 2 * MOST_VALUES:
            raise invalid_field("array_max_items", "input", f"Must have at most {MOST_VALUES} secret values")
        start = self._size
        self._show(value + b" " * (-len(value) % PADDED_BYTES))
        self._places += (start, self._size)


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
