"""Check an input against its model's schema before it is queued, and report errors in gojsonschema's words. The queued
bytes stay the caller's. Unknown keys are no errors. The cost is bounded by the input's size, however wrong it is and
however many alternatives the schema has.
"""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Final
from urllib.parse import unquote

from jsonschema_rs import RegexOptions, ValidationError, validator_for
from msgspec import Raw

from api.predictions.secrets import Secrets
from api.web.errors import MAX_INVALID_FIELDS, InvalidField, Problem, make_printable, unusable_schema
from api.web.http import decode_json
from director.core.ids import Kind
from director.store.catalog import Version

# A model's OpenAPI document is untrusted: it may be huge, point at other hosts, loop, or hold slow patterns. So only
# the keywords below are copied, and references are replaced by their targets. A keyword that is left out makes the
# check more lenient, never stricter: the model server checks the rest.

Schema = dict[str, Any] | bool
MAX_DOCUMENT_BYTES: Final = 1_048_576
MAX_NODES: Final = 2_000  # of the schema with its references expanded: references that double each other grow fast
MAX_DEPTH: Final = 40
MAX_PATTERNS: Final = 64
# the linear-time engine, by its bound on the memory of one pattern in bytes, the smallest first
PATTERN_OPTIONS: Final = {1 << n: RegexOptions(size_limit=1 << n, dfa_size_limit=1 << 18) for n in range(10, 17)}
# Characters × patterns of one input × bytes of the largest pattern; with more to match, the model server checks the
# patterns. Linear is still slow where a text keeps many states of a pattern alive. A character takes 0.2 µs with a
# pattern of 2 KiB, and 7 µs with a pattern of 64 KiB
MOST_MATCHED: Final = 4_096 * 1_024
SCHEMA_TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
NULL: Final[Schema] = {"type": ["null"]}
ANYTHING: Final[tuple[Schema, ...]] = (True, {})


def _document(document: bytes) -> dict[str, Any]:
    if len(document) > MAX_DOCUMENT_BYTES:
        raise unusable_schema(reason=f"is larger than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        return decode_json(document, dict[str, Any])
    except Problem as exc:
        raise unusable_schema(reason="is not a JSON object that can be read") from exc


def can_stream(document: Mapping[str, Any]) -> bool:
    """Return whether the model gives its output piece by piece. A model that does not declare its output may do so."""
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
    # the one format that is a protection: some servers open a file input that is no URL as a local file
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
    def __init__(self, document: dict[str, Any], *, most_patterns: int, has_nullable: bool = True) -> None:
        self._document = document
        self._has_nullable = has_nullable
        self._most_patterns = most_patterns
        self._nodes = 0
        self._patterns = 0
        self.pattern_bytes = 0  # of the largest

    def reduce(self, schema: object, *, depth: int, within: tuple[str, ...]) -> Schema:
        """Return a copy with the allowed keywords only. `within`: the references that are being expanded around it."""
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise unusable_schema(reason="is too large once its references are written out")
        if not isinstance(schema, dict):
            return schema is not False
        reduced = {word: schema[word] for word, fits in CARRIED.items() if word in schema and fits(schema[word])}
        if types := _schema_types(schema.get("type")):
            reduced["type"] = types
        if self._is_linear(schema.get("pattern")):
            reduced["pattern"] = schema["pattern"]

        def below(part: object) -> Schema:
            return self.reduce(part, depth=depth + 1, within=within)

        reduced |= _containers(schema, below)
        parts = [below(part) for part in _list(schema, "allOf")]
        # oneOf becomes anyOf: once its members are more lenient, two of them may match
        parts += [_any_of([below(part) for part in _list(schema, word)]) for word in ("anyOf", "oneOf")]
        parts.append(self._resolve(schema.get("$ref"), depth=depth, within=within))
        whole = _all_of(reduced, parts)
        return _or_null(whole) if self._has_nullable and schema.get("nullable") is True else whole

    def _resolve(self, reference: object, *, depth: int, within: tuple[str, ...]) -> Schema:
        if not isinstance(reference, str) or reference in within:  # a schema inside itself: one level is checked
            return True
        if not reference.startswith("#/"):
            raise unusable_schema(reason="refers to something outside itself")
        steps = (unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/"))
        target = _follow(self._document, steps)
        if target is None:
            raise unusable_schema(reason="has a reference that leads nowhere")
        return self.reduce(target, depth=depth + 1, within=(*within, reference))

    def _is_linear(self, pattern: object) -> bool:
        """Return whether the linear engine accepts the pattern, and note its size. That engine has no look-around and
        no back-references.
        """
        if not isinstance(pattern, str) or self._patterns >= self._most_patterns:
            return False
        self._patterns += 1
        for size, options in PATTERN_OPTIONS.items():
            with suppress(ValidationError):
                validator_for({"pattern": pattern}, pattern_options=options, offline=True)
                self.pattern_bytes = max(self.pattern_bytes, size)
                return True
        return False


def _containers(schema: Mapping[str, Any], below: Callable[[object], Schema]) -> dict[str, Any]:
    reduced: dict[str, Any] = {}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        reduced["properties"] = {name: below(part) for name, part in properties.items()}
    # false is left out: an unknown key is no error. With patternProperties it would apply to the rest only
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


def _schema_types(given: object) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) and name in SCHEMA_TYPES for name in names):
        return []
    return list(dict.fromkeys(names))


def _any_of(parts: list[Schema]) -> Schema:
    if not parts or any(part in ANYTHING for part in parts):
        return True
    wanted = [part for part in parts if part != NULL]
    if len(wanted) < len(parts) and len(wanted) == 1:
        return _or_null(wanted[0])
    return {"anyOf": parts}


def _all_of(reduced: dict[str, Any], parts: Iterable[Schema]) -> Schema:
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


COGLET: Final = "coglet"  # as a director names the servers of Cog 0.17 and later
MAX_CACHED: Final = 64
# finding an error costs about 20 µs, and a long array can have a million errors, in each alternative
MANY_ERRORS: Final = 1_000
FETCHABLE: Final = re.compile(r"https?://|data:", re.IGNORECASE)

# keyword → gojsonschema's name and message
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

# keyword, path from `input`, and facts of the error
Fault = tuple[str, list[str], Mapping[str, Any]]

# kind → the name of its input schema in the document
INPUTS: Final[Mapping[Kind, str]] = {"": "Input", "training": "TrainingInput", "procedure": "Input"}
_compiled: OrderedDict[bytes, "InputSchema"] = OrderedDict()
_of_versions: OrderedDict[tuple[str, str, Kind, bool], tuple[Raw, "InputSchema"]] = OrderedDict()


class InputSchema:
    """The input schema of one version. `can_stream`: the model gives its output piece by piece, or may do so.
    `secrets`: which parts of an input are secret, None without any.
    """

    def __init__(
        self,
        schema: dict[str, Any],
        *,
        can_stream: bool,
        secrets: Secrets | None = None,
        lenient: "InputSchema | None" = None,
        pattern_bytes: int = 0,
    ) -> None:
        """`lenient`: the same without its patterns, for inputs with too much text to match them. None without any.
        `pattern_bytes`: the size of the largest pattern.
        """
        self.can_stream = can_stream
        self._lenient = lenient
        self._pattern_bytes = pattern_bytes
        self.secrets = secrets
        self._schema = schema
        self._all = _Validator(schema)
        properties: dict[str, Schema] = schema.get("properties", {})
        self._required: list[str] = schema.get("required", [])
        self._fields = {name: _Validator(part) for name, part in properties.items()}
        self._either = _either(schema)
        # the rest applies to the whole object; additionalProperties still needs the names of the properties
        rest = {word: value for word, value in schema.items() if word != "required"}
        if self._either:
            rest["allOf"] = [part for part in rest["allOf"] if _names_of_choice(part) != self._either] or [True]
        self._whole = _Validator({**rest, "properties": dict.fromkeys(properties, True)})
        self._patterns = {name: found for name, part in properties.items() if (found := _patterns_in(part))}
        self._patterns_of_all = _patterns_in(schema) - sum(self._patterns.values())

    @classmethod
    def of(cls, version: Version) -> "InputSchema":
        """Return the schema of a version from the catalogue. The very same document object is not even hashed again."""
        # coglet's own check knows JSON Schema, which lacks OpenAPI's `nullable`: it refuses null for an optional input
        has_nullable = not version.server.startswith(COGLET)
        place = (version.model, version.id, version.kind, has_nullable)
        known = _of_versions.get(place)
        if known is None or known[0] is not version.schema:
            known = _of_versions[place] = (
                version.schema,
                cls.from_openapi(bytes(version.schema), version.kind, has_nullable=has_nullable),
            )
            if len(_of_versions) > MAX_CACHED:
                _of_versions.popitem(last=False)
        return known[1]

    @classmethod
    def from_openapi(cls, document: bytes, kind: Kind = "", *, has_nullable: bool = True) -> "InputSchema":
        """Return the input schema of a model's OpenAPI document for runs of a kind, compiled once while it is cached.
        Without one every object is valid. `has_nullable`: the model's server knows `nullable`. Raises a Problem, worded
        for the operator, for an unusable document.
        """
        digest = hashlib.sha256(document).digest() + f"{has_nullable:d}{INPUTS[kind]}".encode()
        known = _compiled.get(digest)
        if known is None:
            whole = _document(document)
            schema = _follow(whole, ("components", "schemas", INPUTS[kind]))
            strict, loose = (
                _Reduction(whole, most_patterns=most, has_nullable=has_nullable) for most in (MAX_PATTERNS, 0)
            )
            reduced, lenient = (each.reduce(schema, depth=0, within=()) for each in (strict, loose))
            streams = kind != "training" and can_stream(whole)
            secrets = Secrets(whole, schema) or None
            without = None if lenient == reduced else cls(_object(lenient), can_stream=streams, secrets=secrets)
            known = cls(
                _object(reduced),
                can_stream=streams,
                secrets=secrets,
                lenient=without,
                pattern_bytes=strict.pattern_bytes,
            )
            _compiled[digest] = known
            if len(_compiled) > MAX_CACHED:
                _compiled.popitem(last=False)
        _compiled.move_to_end(digest)
        return known

    def check(self, given: Raw | bytes) -> list[InvalidField]:
        """Return what is wrong with an input, at most twenty entries. Raises a Problem for text that is not JSON."""
        text = bytes(given)
        value = decode_json(text, object)
        if not isinstance(value, dict):
            return [_invalid("type", ["input"], {"types": ["object"], "given": value})]
        if self._lenient is not None and self._to_match(value, len(text)) > MOST_MATCHED:
            return self._lenient.check(given)
        if self._all.takes(value):
            return []
        # each element follows a comma or an opening bracket; those inside strings count too, so this is an upper bound
        elements = sum(map(text.count, (b",", b"[", b"{")))
        faults = islice(self._faults(value, elements=elements), MAX_INVALID_FIELDS)
        return [_invalid(keyword, self._visible(path), facts) for keyword, path, facts in faults]

    def find_refusal(self, former: "InputSchema") -> str:
        """Return why an input that another version takes may be refused here, or ''. It compares names, types and
        choices at the top of an input, and no bounds: what is found is certain, and more may differ.
        """
        known, own = (dict[str, Schema](one._schema.get("properties", {})) for one in (former, self))
        for name in self._required:
            if name not in former._required:
                return f"it needs {make_printable(name)}"
        for name in known.keys() & own.keys():
            if _is_narrower(own[name], known[name], "type"):
                return f"it takes {make_printable(name)} in another type"
            if _is_narrower(own[name], known[name], "enum"):
                return f"it takes fewer choices of {make_printable(name)}"
        return ""

    def _to_match(self, value: dict[str, Any], size: int) -> int:
        """Return an upper bound of the characters that are compared with patterns, each counted once for each pattern,
        times the size of the largest pattern.
        """
        parts = ((value[name], patterns) for name, patterns in self._patterns.items() if name in value)
        of_fields = sum(patterns * (len(part) if isinstance(part, str) else size) for part, patterns in parts)
        return (of_fields + self._patterns_of_all * size) * self._pattern_bytes

    def _visible(self, path: list[str]) -> list[str]:
        return path if self.secrets is None else self.secrets.visible(path)

    def _faults(self, value: dict[str, Any], *, elements: int) -> Iterator[Fault]:
        for name in self._required:
            if name not in value:
                yield "required", ["input"], {"property": name}
        if self._either and not any(name in value for name in self._either):
            yield "required", ["input"], {"property": " or ".join(self._either)}
        parts = ((["input", name], validator, value[name]) for name, validator in self._fields.items() if name in value)
        for path, validator, part in chain(parts, [(["input"], self._whole, value)]):
            yield from validator.faults(part, path, elements=elements if isinstance(part, list | dict) else 1)


def _is_narrower(new: Schema, former: Schema, word: str) -> bool:
    """Return whether a schema certainly lists fewer values of `type` or `enum` than another one. Without a list all are
    taken, unless alternatives say otherwise.
    """
    if not isinstance(new, dict) or word not in new:
        return False
    if not isinstance(former, dict) or word not in former:
        return not isinstance(former, dict) or not former.keys() & {"anyOf", "allOf", "oneOf", "enum", "const"}
    taken = _list_values(new[word])
    return not _list_values(former[word]) <= taken | ({'"integer"'} if '"number"' in taken else set())


def _list_values(given: Any) -> set[str]:
    return {_json(one) for one in (given if isinstance(given, list) else [given])}


def _either(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of which an input needs one, as `anyOf` with `required` says it. Empty if it does not."""
    return next(filter(None, map(_names_of_choice, schema.get("allOf", ()))), [])


def _names_of_choice(schema: Schema) -> list[str]:
    parts = schema.get("anyOf", []) if isinstance(schema, dict) and schema.keys() == {"anyOf"} else []
    is_choice = all(
        isinstance(part, dict) and part.keys() == {"required"} and len(part["required"]) == 1 for part in parts
    )
    return [part["required"][0] for part in parts] if is_choice else []


def _object(schema: Schema) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {}


def _patterns_in(schema: Schema) -> int:
    return _json(schema).count('"pattern":')  # a property of that name counts too: this is an upper bound


class _Validator:
    def __init__(self, schema: Schema) -> None:
        try:
            self._validator = validator_for(
                schema,
                formats={"uri": lambda uri: FETCHABLE.match(uri) is not None},
                validate_formats=True,
                pattern_options=PATTERN_OPTIONS[max(PATTERN_OPTIONS)],
                offline=True,
            )
        except ValidationError as exc:
            raise unusable_schema(reason="is not a valid JSON Schema") from exc
        # the first error of an alternative is found only after all errors of all its branches
        self._has_alternatives = '"anyOf"' in _json(schema)
        self._errors_each = _size(schema) if self._has_alternatives else 1

    def takes(self, value: Any) -> bool:
        return self._validator.is_valid(value)

    def faults(self, value: Any, path: list[str], *, elements: int) -> Iterator[Fault]:
        """Yield what is wrong with a value of at most `elements` elements; one error where all would cost too much."""
        if elements * self._errors_each <= MANY_ERRORS:
            yield from (_describe(error, path) for error in self._validator.iter_errors(value))
        elif self.takes(value):
            return
        elif self._has_alternatives:
            yield "", path, {}
        else:
            try:
                self._validator.validate(value)
            except ValidationError as error:
                yield _describe(error, path)


def _size(schema: object) -> int:
    """Return how many errors one element can have at most: one for each keyword, and for each name or option in one."""
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return sum(1 + _size(part) for part in parts)


def _describe(error: ValidationError, path: list[str]) -> Fault:
    facts = error.kind.as_dict()
    return error.kind.name, [*path, *map(str, error.instance_path)], {**facts, "given": error.instance}


def _invalid(keyword: str, path: list[str], facts: Mapping[str, Any]) -> InvalidField:
    kind, words = WORDS.get(keyword, OTHERWISE)
    field = ".".join(map(make_printable, path))
    # only the facts in the message: those of an alternative hold every error of every branch
    texts = {name: SAID.get(name, _json)(fact) for name, fact in facts.items() if f"{{{name}}}" in words}
    return InvalidField(kind, field, words.format(**{**texts, "field": field}))


def _json(value: object) -> str:
    # not msgspec: a schema may hold integers of more than 64 bits
    return json.dumps(value, ensure_ascii=False)


def _types(names: list[str]) -> str:
    said = [name for name in names if name != "null"] or names
    return said[0] if len(said) == 1 else f"[{','.join(said)}]"


SAID: Final[Mapping[str, Any]] = {
    "given": lambda value: TYPE_NAMES.get(type(value), "number"),
    "limit": lambda value: str(int(value) if value == int(value) else value),
    "multiple_of": lambda value: str(int(value) if value == int(value) else value),
    "options": lambda options: ", ".join(map(_json, options)),
    "pattern": str,
    "property": make_printable,
    "types": _types,
}
