"""Secret values of an input are found by its schema, and hidden by their places in the stored text."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from api.predictions.secrets import DEEPEST, MOST_LOOKED_AT, MOST_PARTS, MOST_SCHEMAS, MOST_VALUES, Secrets
from api.predictions.validation import InputSchema
from api.web.errors import Problem
from director.core.view import redact

SECRET = {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}
HIDDEN = "[REDACTED]"


def schema(properties: dict[str, Any], **others: Any) -> InputSchema:
    schemas = {"Input": {"type": "object", "properties": properties}, **others}
    return InputSchema.from_openapi(msgspec.json.encode({"components": {"schemas": schemas}}))


def secrets(properties: dict[str, Any], **others: Any) -> Secrets:
    found = schema(properties, **others).secrets
    assert found is not None
    return found


def shown(found: Secrets, given: Any) -> Any:
    marked = found.mark(Raw(msgspec.json.encode(given)))
    assert msgspec.json.decode(marked.input) == given, "the model gets what was sent"
    return msgspec.json.decode(redact(marked.input, marked.secret))


@pytest.mark.parametrize("word", [{"x-cog-secret": True}, {"writeOnly": True}, {"format": "password"}])
def test_each_word_alone_marks_a_value(word: dict[str, Any]) -> None:
    found = secrets({"token": {"type": "string", **word}, "text": {"type": "string"}})
    assert shown(found, {"text": "é", "token": "hush", "other": 1}) == {"text": "é", "token": HIDDEN, "other": 1}


def test_an_input_without_secrets_costs_nothing() -> None:
    assert schema({"text": {"type": "string", "format": "uri", "writeOnly": False}}).secrets is None


@pytest.mark.parametrize(
    ("part", "given", "hidden"),
    [
        pytest.param({"$ref": "#/components/schemas/Key"}, "hush", HIDDEN, id="reference"),
        pytest.param({"allOf": [{"$ref": "#/components/schemas/Key"}], "title": "A"}, "hush", HIDDEN, id="allOf"),
        pytest.param({"anyOf": [SECRET, {"type": "null"}]}, "hush", HIDDEN, id="anyOf"),
        pytest.param({"anyOf": [SECRET, {"type": "null"}]}, None, None, id="null"),
        pytest.param({"oneOf": [{}, SECRET]}, "hush", HIDDEN, id="oneOf"),
        pytest.param({"type": "array", "items": SECRET}, ["hush", "hush too"], [HIDDEN, HIDDEN], id="array"),
        pytest.param({"type": "array", "items": SECRET}, [], [], id="empty array"),
        pytest.param({"type": "array", "prefixItems": [{}, SECRET]}, ["a", "hush"], [HIDDEN, HIDDEN], id="tuple"),
        pytest.param({"additionalProperties": SECRET}, {"a": "hush", "b": "c"}, {"a": HIDDEN, "b": HIDDEN}, id="map"),
        pytest.param({"patternProperties": {"^k": SECRET}}, {"key": "hush"}, {"key": HIDDEN}, id="pattern"),
        pytest.param({"$ref": "#/components/schemas/Tree"}, {"key": "hush"}, {"key": HIDDEN}, id="object"),
        pytest.param(
            {"$ref": "#/components/schemas/Tree"},
            {"below": [{"below": [{"key": "hush", "name": "a"}]}], "name": "b"},
            {"below": [{"below": [{"key": HIDDEN, "name": "a"}]}], "name": "b"},
            id="a schema inside itself",
        ),
        pytest.param({"writeOnly": True, "type": "object"}, {"hush": [1]}, HIDDEN, id="a whole object"),
        pytest.param({"writeOnly": True, "type": "integer"}, 1234, HIDDEN, id="number"),
        pytest.param(SECRET, "", HIDDEN, id="empty"),
        pytest.param(SECRET, "h" * 1000, HIDDEN, id="long"),
        pytest.param(SECRET, 'a "quoted" \\ word', HIDDEN, id="escaped"),
    ],
)
def test_secrets_are_hidden_wherever_they_lie(part: dict[str, Any], given: Any, hidden: Any) -> None:
    tree = {
        "type": "object",
        "properties": {
            "key": {"$ref": "#/components/schemas/Key"},
            "name": {"type": "string"},
            "below": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}},
        },
    }
    found = secrets({"part": part, "text": {"type": "string"}}, Key=SECRET, Tree=tree)
    assert shown(found, {"text": "a", "part": given, "z": {}}) == {"text": "a", "part": hidden, "z": {}}


def test_a_member_that_comes_twice_hides_both_values() -> None:
    marked = secrets({"token": SECRET}).mark(Raw(b'{"token": "hush", "token":"hush too"}'))
    assert msgspec.json.decode(redact(marked.input, marked.secret)) == {"token": HIDDEN}
    assert b'"hush"' not in marked.input


def test_the_stored_text_hides_how_long_a_short_value_is() -> None:
    found = secrets({"token": SECRET})
    sizes = {len(found.mark(Raw(msgspec.json.encode({"token": "h" * size}))).input) for size in range(60)}
    assert len(sizes) == 1


def test_deep_nesting_is_hidden_as_a_whole() -> None:
    tree = {"properties": {"key": SECRET}, "additionalProperties": {"$ref": "#/components/schemas/Tree"}}
    found = secrets({"part": {"$ref": "#/components/schemas/Tree"}}, Tree=tree)
    given: Any = {"key": "hush"}
    for _ in range(200):
        given = {"a": given}
    assert "hush" not in str(shown(found, {"part": given}))


def test_too_many_secret_values_are_refused() -> None:
    found = secrets({"keys": {"type": "array", "items": SECRET}})
    shown(found, {"keys": ["hush"] * MOST_VALUES})
    with pytest.raises(Problem, match="secret values"):
        shown(found, {"keys": ["hush"] * (MOST_VALUES + 1)})


def test_faults_do_not_show_the_keys_of_a_secret_object() -> None:
    found = schema({"creds": {"type": "object", "writeOnly": True, "additionalProperties": {"type": "integer"}}})
    [fault] = {fault.field for fault in found.check(b'{"creds": {"hush": "hush"}}')}
    assert fault == "input.creds"


def test_training_inputs_have_their_own_secrets() -> None:
    schemas = {"Input": {"properties": {}}, "TrainingInput": {"properties": {"token": SECRET}}}
    document = msgspec.json.encode({"components": {"schemas": schemas}})
    assert InputSchema.from_openapi(document).secrets is None
    assert InputSchema.from_openapi(document, "training").secrets is not None


def test_root_that_is_secret_hides_each_member() -> None:
    assert shown(Secrets({}, {"writeOnly": True}), {"a": "hush", "b": [1]}) == {"a": HIDDEN, "b": HIDDEN}


def test_input_that_is_gone_is_shown_as_an_empty_object() -> None:
    assert redact(b"{}", "10 74") == b"{}"


def test_too_many_values_that_may_be_secret_are_refused() -> None:
    found = secrets({"keys": {"type": "array", "items": {"anyOf": [SECRET, {"type": "null"}]}}})
    with pytest.raises(Problem, match="may be secret"):
        found.mark(Raw(msgspec.json.encode({"keys": [None] * MOST_LOOKED_AT})))


def test_a_schema_with_too_many_references_hides_every_value() -> None:
    chain: Any = {f"S{number}": {"allOf": [{"$ref": f"#/S{number + 1}"}]} for number in range(MOST_SCHEMAS)}
    document = {**chain, f"S{MOST_SCHEMAS}": SECRET}
    assert shown(Secrets(document, {"properties": {"a": {"$ref": "#/S0"}}}), {"b": 1}) == {"b": HIDDEN}


def test_parts_of_a_hostile_schema_are_bounded() -> None:
    """Which schemas apply depends on the last twelve names: 4,096 sets of them."""
    schemas: Any = {f"S{number}": {"additionalProperties": {"$ref": f"#/S{number + 1}"}} for number in range(1, 12)}
    schemas["S12"] = {"properties": {"z": SECRET}}
    schemas["S0"] = {
        "properties": {"a": {"allOf": [{"$ref": "#/S0"}, {"$ref": "#/S1"}]}, "b": {"$ref": "#/S0"}},
    }
    found = Secrets(schemas, schemas["S0"])
    for number in range(1 << DEEPEST):
        given: Any = {"z": "hush"}
        for place in range(DEEPEST):
            given = {"ab"[number >> place & 1]: given}
        found.mark(Raw(msgspec.json.encode(given)))
    assert len(found._parts) == MOST_PARTS
