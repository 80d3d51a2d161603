"""The contract that is served names every route, and nothing that is not there."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from api.openapi.document import OPERATIONS, encoded
from api.routes import ROUTES

DOCUMENT = msgspec.json.decode(encoded("https://api.example.com"))


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_route_is_documented_and_nothing_else_is() -> None:
    assert set(OPERATIONS) == {(method, path) for method, path, _ in ROUTES}
    written = {
        (name.removeprefix("x-").upper(), path) for path, methods in DOCUMENT["paths"].items() for name in methods
    }
    assert written == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_a_path_takes_is_what_is_described(method: str, path: str) -> None:
    described = [each.name for each in OPERATIONS[method, path].parameters if each.place == "path"]
    assert described == re.findall(r"{(\w+)}", path)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_whoever_asks_for_a_token_may_refuse_it(method: str, path: str) -> None:
    operation = OPERATIONS[method, path]
    assert ({401, 403, 429} <= operation.refusals) is bool(operation.scopes)
    assert not operation.refusals & set(operation.answers)
    assert ({400, 408, 413} <= operation.refusals) is (operation.body is not None)


def test_operations_have_names_of_their_own() -> None:
    names = [operation.name for operation in OPERATIONS.values()]
    assert len(set(names)) == len(names)


def test_all_that_is_referred_to_is_there() -> None:
    found = set(references(DOCUMENT))
    assert "#/components/schemas/ProblemDocument" in found
    for reference in found:
        node = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def test_the_address_is_the_public_one() -> None:
    assert DOCUMENT["servers"] == [{"url": "https://api.example.com/v1"}]
