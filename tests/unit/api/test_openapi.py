import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from api.app import ROUTES
from api.openapi import encoded
from api.route import Route

DOCUMENT = msgspec.json.decode(encoded("https://api.example.com", ROUTES))
# probes, pages for people, and what our own directors ask
PLAIN = {
    *("/livez", "/readyz", "/metrics", "/", "/p/{id}", "/dashboard/{path:path}"),
    *("/internal/files", "/internal/outputs/{name}", "/internal/predictions/{id}/outputs"),
}
DOCUMENTED = [route for route in ROUTES if route.name]

each_documented = pytest.mark.parametrize("route", DOCUMENTED, ids=lambda route: f"{route.method} {route.path}")


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_document_has_each_route_with_a_name_and_no_other() -> None:
    written = {
        (name.removeprefix("x-").upper(), path) for path, methods in DOCUMENT["paths"].items() for name in methods
    }
    assert written == {(route.method, route.path) for route in DOCUMENTED}
    assert {route.path for route in ROUTES if not route.name} == PLAIN


@each_documented
def test_each_name_in_a_path_is_described(route: Route) -> None:
    described = [each.name for each in route.all_parameters if each.place == "path"]
    assert described == re.findall(r"{(\w+)}", route.path)


@each_documented
def test_documented_answers_include_what_the_declaration_implies(route: Route) -> None:
    method = route.method.lower() if route.method != "QUERY" else "x-query"
    operation = DOCUMENT["paths"][route.path][method]
    statuses = set(operation["responses"])
    assert ({"401", "403", "429"} <= statuses) is bool(operation["security"])
    assert ({"400", "408", "413"} <= statuses) is ("requestBody" in operation)
    assert not route.refused & set(route.answers)


def test_operations_have_names_of_their_own() -> None:
    names = [route.name for route in DOCUMENTED]
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
