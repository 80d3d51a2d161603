import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from api.app import ROUTES
from api.files.outputs import Bytes
from api.web.examples import OF_OPERATIONS, OF_TYPES
from api.web.openapi import REFUSALS, encode_document
from api.web.route import Route

DOCUMENT = msgspec.json.decode(encode_document("https://api.example.com", ROUTES))
# probes, pages for people, and what our own directors ask
PLAIN = {
    "/docs",
    *("/livez", "/readyz", "/metrics", "/", "/session", "/session/link", "/p/{id}", "/dashboard/{path:path}"),
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


def operation_of(route: Route) -> dict[str, Any]:
    return DOCUMENT["paths"][route.path][route.method.lower() if route.method != "QUERY" else "x-query"]


@each_documented
def test_each_operation_says_what_it_does_in_short_sentences(route: Route) -> None:
    about = operation_of(route)["description"]
    assert about.endswith(".")
    assert about not in (route.summary, f"{route.summary}.")
    assert all(len(sentence.split()) <= 30 for sentence in about.split(". ")), about
    assert all(each.what.endswith(".") for each in route.all_parameters)
    assert all(each.example for each in route.all_parameters if each.place == "path")


def examples_of(route: Route) -> Iterator[tuple[str, Any]]:
    """Yield what it is the example of, and the content in the document."""
    operation = operation_of(route)
    if route.body is not None:
        yield "body", operation["requestBody"]["content"][route.body.media_type]
    for status, answer in route.answers.items():
        if answer.type is not None and answer.type is not Bytes:
            yield str(status), operation["responses"][str(status)]["content"][answer.media_type]


# as the document has them, and closed: an example has no field that is unknown
CLOSED = {
    name: {**schema, "additionalProperties": False} if "properties" in schema else schema
    for name, schema in DOCUMENT["components"]["schemas"].items()
}


@each_documented
def test_examples_follow_their_schemas(route: Route) -> None:
    for _, content in examples_of(route):
        schema = {**content["schema"], "components": {"schemas": CLOSED}}
        jsonschema_rs.validator_for(schema).validate(content["example"])


def test_no_example_is_left_over() -> None:
    """A type or an operation that is gone leaves its example behind."""
    names = set(DOCUMENT["components"]["schemas"])
    assert {name for name in OF_TYPES if name not in names} <= {"Raw"}
    known = {f"{route.name} {what}" for route in DOCUMENTED for what, _ in examples_of(route)}
    assert {name for name in OF_OPERATIONS if not name.isdecimal()} <= known


def test_refusals_have_examples_of_their_own_status() -> None:
    for status in REFUSALS:
        response = DOCUMENT["components"]["responses"][HTTPStatus(status).phrase.replace(" ", "")]
        assert response["content"]["application/problem+json"].get("example", {}).get("status", status) == status
