"""Find the schemas of one path in the OpenAPI document of a model server, and write them as Cog servers do.

The document is untrusted: it is bounded, and one that cannot be used gives none. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from director.servers.runners.answers import Unreadable, read_json

MOST_BYTES: Final = 1 << 20
MOST_SCHEMAS: Final = 256
MOST_DEPTH: Final = 32
MOST_NODES: Final = 1_500  # with references written out; the API refuses a model whose schema has more than 2,000
LOCAL: Final = "#/components/schemas/"
INPUT: Final = "Input"
OUTPUT: Final = "Output"
ANYTHING: Final[dict[str, Any]] = {"title": "Output"}
# Media types of a body that is sent as JSON, and of one that is sent as a form
JSON: Final = ("application/json", "*/*")
FORM: Final = ("multipart/form-data", "application/x-www-form-urlencoded")
# A file in a form. Callers give its address, or a data URI
BYTES: Final = {"type": "string", "format": "uri"}


class _Unusable(Exception):
    """The document says nothing of the input that can be used."""


def document(given: dict[str, Any] | None, output: dict[str, Any] | None, *, title: str) -> Raw | None:
    """Return an OpenAPI document as Cog servers have it, made of configured schemas. None without an input schema."""
    return None if given is None else _write(title, {INPUT: given, OUTPUT: output or ANYTHING})


def read_schema(body: bytes, path: str, *, is_form: bool, title: str) -> Raw | None:
    """Return the same, made of what a server's own document says of a POST to `path`. None if that is not usable."""
    try:
        found = read_json(body, dict[str, Any])
        operation = _operation(found, path)
        schemas = _dict(_dict(found.get("components")).get("schemas"))
        if any(_dict(each).get("required") and _dict(each).get("in") == "query" for each in _parameters(operation)):
            return None  # nothing is sent there
        asked = _content(_dict(operation.get("requestBody")), FORM if is_form else JSON)
        answered = next((each for status, each in _responses(operation) if status.startswith("2")), {})
        return _write(title, _close(_resolve(asked, schemas), _content(answered, JSON), schemas))
    except (Unreadable, _Unusable, RecursionError):
        return None


def _write(title: str, schemas: Mapping[str, Any]) -> Raw:
    info = {"title": title, "version": "0.1.0"}
    return Raw(
        msgspec.json.encode({"openapi": "3.0.2", "info": info, "paths": {}, "components": {"schemas": dict(schemas)}})
    )


def _operation(found: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return what is said of a POST to a path, by its own name or by a template such as `/models/{name}/infer`."""
    paths = _dict(found.get("paths"))
    if path in paths:
        return _dict(_dict(paths[path]).get("post"))
    steps = path.split("/")
    for template, each in paths.items():
        parts = template.split("/")
        if len(parts) == len(steps) and all(map(_is_step, parts, steps)):
            return _dict(_dict(each).get("post"))
    raise _Unusable


def _is_step(part: str, step: str) -> bool:
    return part == step or (part.startswith("{") and part.endswith("}"))


def _parameters(operation: Mapping[str, Any]) -> list[Any]:
    found = operation.get("parameters")
    return found if isinstance(found, list) else []


def _responses(operation: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(status, _dict(each)) for status, each in _dict(operation.get("responses")).items()]


def _content(body: Mapping[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    content = _dict(body.get("content"))
    return next((_dict(_dict(content[kind]).get("schema")) for kind in kinds if kind in content), {})


def _resolve(schema: dict[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Follow the reference that a schema is. Raises _Unusable if it is not the schema of an object."""
    for _ in range(MOST_DEPTH):
        named = schema.get("$ref")
        if isinstance(several := schema.get("allOf"), list) and len(several) == 1:
            named = _dict(several[0]).get("$ref")
        if not isinstance(named, str):
            break
        schema = _dict(schemas.get(named.removeprefix(LOCAL)))
    if schema.get("type") != "object" and not isinstance(schema.get("properties"), dict):
        raise _Unusable
    return schema


def _close(asked: dict[str, Any], answered: dict[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the two schemas as Input and Output, with all that they refer to. Raises _Unusable if that is too much."""
    renamed: dict[str, str] = {}
    waiting: list[str] = []

    def name_of(named: str) -> str:
        if named not in renamed:
            if named not in schemas or len(renamed) >= MOST_SCHEMAS:
                raise _Unusable
            new = named
            while new in (INPUT, OUTPUT, *renamed.values()):
                new = f"Server{new}"
            renamed[named] = new
            waiting.append(named)
        return renamed[named]

    def copy_of(value: Any, depth: int = 0) -> Any:
        if depth > MOST_DEPTH:
            raise _Unusable
        if isinstance(value, list):
            return [copy_of(each, depth + 1) for each in value]
        if not isinstance(value, dict):
            return value
        copy = {key: copy_of(each, depth + 1) for key, each in value.items()}
        match copy:
            case {"$ref": str(named)}:
                if not named.startswith(LOCAL):
                    raise _Unusable
                return {**copy, "$ref": LOCAL + name_of(named.removeprefix(LOCAL))}
            case {"type": "string", "format": "binary"} | {"type": "string", "contentMediaType": _}:
                rest = {key: each for key, each in copy.items() if key not in ("contentMediaType", "contentEncoding")}
                return rest | BYTES
            case _:
                return copy

    own = {"title": INPUT, **copy_of(asked)}
    if isinstance(properties := own.get("properties"), dict):
        own["properties"] = dict(_in_order(properties))
    found: dict[str, Any] = {INPUT: own, OUTPUT: {"title": OUTPUT, **copy_of(answered)}}
    while waiting:
        named = waiting.pop()
        found[renamed[named]] = copy_of(schemas[named])
    if _nodes(own, found, (), MOST_NODES) <= 0:
        raise _Unusable
    return found


def _nodes(value: Any, schemas: Mapping[str, Any], within: tuple[str, ...], left: int) -> int:
    """Return how many of `left` nodes remain after a schema with its references written out; 0 if it is too large."""
    left -= 1
    if left <= 0 or len(within) > MOST_DEPTH:
        return 0
    if isinstance(value, list):
        for each in value:
            left = _nodes(each, schemas, within, left)
    elif isinstance(value, dict):
        for each in value.values():
            if isinstance(each, dict | list):
                left = _nodes(each, schemas, within, left)
        named = value.get("$ref")
        if isinstance(named, str) and named not in within:
            left = _nodes(schemas[named.removeprefix(LOCAL)], schemas, (*within, named), left)
    return max(0, left)


def _in_order(properties: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Number the inputs as Cog does, so that a form shows them in the server's order."""
    for order, (name, each) in enumerate(properties.items()):
        yield name, {"x-order": order, **each} if isinstance(each, dict) else each


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
