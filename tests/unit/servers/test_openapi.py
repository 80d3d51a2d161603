"""Test which schemas are taken from a model server's own OpenAPI document."""

from typing import Any

import msgspec
import pytest

from api.predictions.validation import InputSchema
from director.servers.runners.openapi import read_schema

ASK = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "text": {"type": "string", "maxLength": 5},
        "how": {"$ref": "#/components/schemas/How"},
        "more": {"type": "array", "items": {"$ref": "#/components/schemas/Output"}},
    },
}
SCHEMAS: dict[str, Any] = {
    "Ask": ASK,
    "How": {"type": "object", "properties": {"again": {"$ref": "#/components/schemas/How"}}},
    "Output": {"type": "integer", "maximum": 3},
}


def of_server(asked: Any, *, path: str = "/run", kind: str = "application/json", **operation: Any) -> bytes:
    body = {"content": {kind: {"schema": asked}}}
    answers = {"200": {"content": {kind: {"schema": {"$ref": "#/components/schemas/Output"}}}}}
    post = {"requestBody": body, "responses": answers, **operation}
    return msgspec.json.encode({"paths": {path: {"post": post}}, "components": {"schemas": SCHEMAS}})


def shown(body: bytes, path: str = "/run", *, is_form: bool = False) -> dict[str, Any] | None:
    found = read_schema(body, path, is_form=is_form, title="")
    return None if found is None else msgspec.json.decode(found)["components"]["schemas"]


@pytest.mark.parametrize("asked", [ASK, {"$ref": "#/components/schemas/Ask"}], ids=["inline", "referred to"])
def test_input_is_checked_by_the_schema_of_the_server(asked: Any) -> None:
    found = read_schema(of_server(asked), "/run", is_form=False, title="")
    assert found is not None
    schema = InputSchema.from_openapi(bytes(found))
    assert schema.check(b'{"text": "a", "more": [3], "how": {"again": {}}}') == []
    for wrong in (b"{}", b'{"text": "too long"}', b'{"text": "a", "more": [4]}', b'{"text": "a", "how": 1}'):
        assert schema.check(wrong) != [], wrong


def test_schema_of_the_server_called_output_is_not_taken_for_the_output() -> None:
    schemas = shown(of_server(ASK))
    assert schemas is not None
    assert schemas["ServerOutput"] == SCHEMAS["Output"]
    assert schemas["Output"] == {"title": "Output", "$ref": "#/components/schemas/ServerOutput"}
    assert [each["x-order"] for each in schemas["Input"]["properties"].values()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("template", "path", "fits"),
    [
        ("/v2/models/{name}/infer", "/v2/models/up/infer", True),
        ("/v2/models/{name}/infer", "/v2/models/up/versions/infer", False),
        ("/v2/models/{name}/infer", "/v2/models/infer", False),
        ("/{a}{b}{c}", "/run", True),
        ("/other", "/run", False),
    ],
)
def test_path_of_the_server_may_be_a_template(template: str, path: str, fits: bool) -> None:
    assert (shown(of_server(ASK, path=template), path) is not None) is fits


def test_file_of_a_form_is_given_by_its_address() -> None:
    form = {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}
    schemas = shown(of_server(form, kind="multipart/form-data"), is_form=True)
    assert schemas is not None
    assert schemas["Input"]["properties"]["file"] == {"x-order": 0, "type": "string", "format": "uri"}


DEEP: dict[str, Any] = {"type": "object", "properties": {}}
for _ in range(60):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
DOUBLED = {
    f"D{n}": {"type": "object", "properties": {k: {"$ref": f"#/components/schemas/D{n + 1}"} for k in "ab"}}
    for n in range(30)
}


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"paths": []}',
        b'{"paths": {"/run": {"post": 3}}}',
        of_server({"type": "array", "items": {}}),
        of_server({"$ref": "#/components/schemas/Nowhere"}),
        of_server({"$ref": "http://elsewhere/schema"}),
        of_server({"type": "object", "properties": {"a": {"$ref": "#/components/schemas/Nowhere"}}}),
        of_server({"type": "object", "properties": {"a": {"$ref": "http://elsewhere/schema"}}}),
        of_server(DEEP),
        of_server({"type": "object", "properties": {str(n): {"type": "integer"} for n in range(5_000)}}),
        of_server(ASK, parameters=[{"in": "query", "name": "text", "required": True}]),
        msgspec.json.encode(
            {
                "paths": {
                    "/run": {"post": {"requestBody": {"content": {"application/json": {"schema": DOUBLED["D0"]}}}}}
                },
                "components": {"schemas": DOUBLED | {"D30": {}}},
            }
        ),
    ],
)
def test_document_that_cannot_be_used_gives_no_schema(body: bytes) -> None:
    assert shown(body) is None


def test_what_stands_beside_a_reference_is_copied_too() -> None:
    how: dict[str, Any] = {"$ref": "#/components/schemas/How"}
    for aside in (
        {**how, "default": {"$ref": "#/components/schemas/Ask"}},
        {"type": "string", "format": "binary", "default": {"$ref": "#/components/schemas/Ask"}},
        {**how, "properties": {"deep": {"$ref": "#/components/schemas/Output"}}},
    ):
        schemas = shown(of_server({"type": "object", "properties": {"a": aside}}))
        assert schemas is not None
        named = [each for each in str(schemas).replace("'", " ").split() if each.startswith("#/")]
        assert {each.removeprefix("#/components/schemas/") for each in named} <= set(schemas)


def test_two_schemas_of_the_server_never_share_a_name() -> None:
    both = {"a": {"$ref": "#/components/schemas/Output"}, "b": {"$ref": "#/components/schemas/ServerOutput"}}
    asked = {"type": "object", "properties": both}
    given = msgspec.json.decode(of_server(asked))
    given["components"]["schemas"]["ServerOutput"] = {"type": "string"}
    schemas = shown(msgspec.json.encode(given))
    assert schemas is not None
    kinds = {
        name: schemas[each["$ref"].rpartition("/")[2]]["type"] for name, each in schemas["Input"]["properties"].items()
    }
    assert kinds == {"a": "integer", "b": "string"}
