import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from api.predictions.validation import InputSchema
from api.web.errors import Problem
from director.store.catalog import OPEN_SCHEMA, Version
from tests.support.queue_driver import MODEL, VERSION

FILE = {"type": "string", "format": "uri"}
NO_URI = "Must be an http, https or data URI"


def schema(given_input: object, **others: object) -> InputSchema:
    return InputSchema.from_openapi(json.dumps({"components": {"schemas": {"Input": given_input, **others}}}).encode())


def of_properties(**properties: object) -> InputSchema:
    return schema({"type": "object", "properties": properties})


def faults(checked: InputSchema, value: object) -> list[tuple[str, str, str]]:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return [(fault.type, fault.field, fault.description) for fault in checked.check(text)]


@pytest.mark.parametrize(
    ("says", "value", "kind", "description"),
    [
        ({"type": "string"}, 5, "invalid_type", "Invalid type. Expected: string, given: integer"),
        ({"type": "integer"}, 1.5, "invalid_type", "Invalid type. Expected: integer, given: number"),
        ({"type": ["string", "integer"]}, [], "invalid_type", "Invalid type. Expected: [integer,string], given: array"),
        ({"type": "boolean"}, None, "invalid_type", "Invalid type. Expected: boolean, given: null"),
        ({"minimum": 1}, 0, "number_gte", "Must be greater than or equal to 1"),
        ({"minimum": 0.5}, 0, "number_gte", "Must be greater than or equal to 0.5"),
        ({"maximum": 4.0}, 5, "number_lte", "Must be less than or equal to 4"),
        ({"exclusiveMinimum": 1}, 1, "number_gt", "Must be greater than 1"),
        ({"exclusiveMaximum": 1}, 1, "number_lt", "Must be less than 1"),
        ({"multipleOf": 8}, 9, "multiple_of", "Must be a multiple of 8"),
        ({"enum": ["a", 1]}, "b", "enum", 'input.x must be one of the following: "a", 1'),
        ({"const": "a"}, "b", "const", 'input.x does not match: "a"'),
        ({"minLength": 2}, "é", "string_gte", "String length must be greater than or equal to 2"),
        ({"maxLength": 2}, "abc", "string_lte", "String length must be less than or equal to 2"),
        ({"pattern": "^[a-z]+$"}, "A", "pattern", "Does not match pattern '^[a-z]+$'"),
        ({"minItems": 1}, [], "array_min_items", "Array must have at least 1 items"),
        ({"maxItems": 1}, [1, 2], "array_max_items", "Array must have at most 1 items"),
        ({"uniqueItems": True}, [1, 1], "unique", "Array items must be unique"),
        ({"minProperties": 1}, {}, "array_min_properties", "Must have at least 1 properties"),
        ({"maxProperties": 0}, {"a": 1}, "array_max_properties", "Must have at most 0 properties"),
        ({"required": ["a"]}, {}, "required", "a is required"),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            [],
            "number_any_of",
            "Must validate at least one schema (anyOf)",
        ),
    ],
)
def test_each_fault_has_gojsonschemas_name_and_words(says: object, value: object, kind: str, description: str) -> None:
    assert faults(of_properties(x=says), {"x": value}) == [(kind, "input.x", description)]


def test_a_missing_property_is_told_of_its_parent() -> None:
    checked = schema({"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}})
    assert faults(checked, {}) == [("required", "input", "prompt is required")]


def test_all_faults_are_told_with_their_paths() -> None:
    checked = schema(
        {
            "required": ["prompt", "image"],
            "properties": {
                "steps": {"type": "integer", "maximum": 4},
                "loras": {"type": "array", "items": {"type": "object", "properties": {"scale": {"type": "number"}}}},
            },
        }
    )
    found = faults(checked, {"steps": 5, "loras": [{"scale": 1}, {"scale": "x"}]})
    assert [field for _, field, _ in found] == ["input", "input", "input.steps", "input.loras.1.scale"]


def test_at_most_twenty_faults_are_told() -> None:
    assert len(faults(of_properties(x={"items": {"type": "string"}}), {"x": [1] * 100})) == 20


@pytest.mark.parametrize(
    ("says", "text"),
    [
        *(({"type": "integer"}, number) for number in (b"1" + b"0" * 40, b"-9223372036854775809", b"2.0")),
        ({"patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": {"type": "string"}}, b'{"n":1}'),
    ],
    ids=["large", "negative", "whole", "pattern of keys"],
)
def test_what_only_looks_odd_is_no_fault(says: object, text: bytes) -> None:
    checked = schema({"type": "object", "properties": {"x": says}, "additionalProperties": False})
    assert faults(checked, b'{"x":' + text + b',"unknown":1}') == []


def test_a_dictionary_has_its_values_checked() -> None:
    checked = of_properties(x={"type": "object", "additionalProperties": {"type": "string"}})
    assert [field for _, field, _ in faults(checked, {"x": {"a": "b", "c": 1}})] == ["input.x.c"]


@pytest.mark.parametrize("value", [[], "text", None, 5])
def test_an_input_that_is_no_object_is_refused(value: object) -> None:
    [(kind, field, _)] = faults(schema({}), value)
    assert (kind, field) == ("invalid_type", "input")


@pytest.mark.parametrize("text", [b"{", b'{"a": 1e999}', b'{"a": "\xff"}'])
def test_unreadable_input_is_refused_even_by_an_open_model(text: bytes) -> None:
    with pytest.raises(Problem) as refused:
        schema({}).check(text)
    assert refused.value.status == 400


@pytest.mark.parametrize("document", [b"{}", b'{"components": {"schemas": {}}}', b'{"components": []}'])
def test_a_model_without_a_schema_takes_every_object(document: bytes) -> None:
    assert InputSchema.from_openapi(document).check(b'{"anything": [1, null, "/etc/passwd"]}') == []


class TestFileInputs:
    @pytest.mark.parametrize("uri", ["https://x/y.png", "http://x", "HTTPS://x", "data:image/png;base64,AAAA"])
    def test_are_fetched_or_carried(self, uri: str) -> None:
        many, maybe = {"type": "array", "items": FILE}, {"anyOf": [FILE, {"type": "null"}]}
        given = {"x": uri, "many": [uri], "maybe": None}
        assert faults(of_properties(x=FILE, many=many, maybe=maybe), given) == []

    @pytest.mark.parametrize(
        "uri",
        [
            *("/etc/hostname", "file:///etc/hostname", "etc/hostname", "", "ftp://x", "gopher://x", "s3://b/k"),
            *(" https://x", "\nhttp://x", "http:/x", "javascript:1", "DATA"),
        ],
    )
    def test_are_never_a_path(self, uri: str) -> None:
        assert faults(of_properties(x=FILE), {"x": uri}) == [("format", "input.x", NO_URI)]

    @pytest.mark.parametrize(
        ("says", "value"),
        [
            ({"type": "array", "items": FILE}, ["https://x", "/etc/hostname"]),
            ({"anyOf": [FILE, {"type": "null"}]}, "file:///etc/hostname"),
            ({"type": "array", "items": {"$ref": "#/components/schemas/File"}}, ["/etc/hostname"]),
            ({"$ref": "#/components/schemas/File"}, "/etc/hostname"),
            ({"allOf": [{"$ref": "#/components/schemas/File"}], "title": "File"}, "/etc/hostname"),
            ({"allOf": [{"type": "string"}, {"$ref": "#/components/schemas/File"}]}, "/etc/hostname"),
            ({"anyOf": [FILE, {"type": "null"}]}, "/etc/hostname"),
            ({"oneOf": [{"$ref": "#/components/schemas/File"}, {"type": "integer"}]}, "/etc/hostname"),
            ({**FILE, "nullable": True}, "/etc/hostname"),
            ({"type": "object", "additionalProperties": FILE}, {"a": "/etc/hostname"}),
            ({"type": "array", "prefixItems": [FILE]}, ["/etc/hostname"]),
            ({"type": "array", "items": [FILE]}, ["/etc/hostname"]),
        ],
    )
    def test_are_found_wherever_they_are(self, says: object, value: object) -> None:
        assert faults(schema({"properties": {"x": says}}, File=FILE), {"x": value})

    def test_are_found_in_an_array_of_many(self) -> None:
        checked = of_properties(x={"type": "array", "items": FILE})
        assert faults(checked, {"x": ["https://x"] * 5_000 + ["/etc/hostname"]}) == [("format", "input.x.5000", NO_URI)]


@pytest.mark.parametrize(
    "says",
    [
        {"type": "string", "nullable": True},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"type": "null"}, {"type": "string"}]},
        {"type": ["string", "null"]},
        {"allOf": [{"$ref": "#/components/schemas/Colour"}], "nullable": True},
        {"anyOf": [{"type": "string"}, {"type": "boolean"}], "nullable": True},
    ],
)
def test_every_way_to_say_or_null_is_understood(says: object) -> None:
    checked = schema({"properties": {"x": says}}, Colour={"type": "string", "enum": ["red"]})
    assert faults(checked, {"x": None}) == []
    assert faults(checked, {"x": "red"}) == []
    assert faults(checked, {"x": 5})


def test_a_reference_may_be_escaped() -> None:
    checked = schema({"properties": {"x": {"$ref": "#/components/schemas/a~1b%20~0"}}}, **{"a/b ~": {"type": "string"}})
    assert faults(checked, {"x": "text"}) == []
    assert [field for _, field, _ in faults(checked, {"x": 1})] == ["input.x"]


@pytest.mark.parametrize(("nullable", "allowed"), [(False, '"a", "b"'), (True, '"a", "b", null')])
def test_a_choice_by_reference_is_told_as_a_choice(*, nullable: bool, allowed: str) -> None:
    checked = schema(
        {"properties": {"x": {"allOf": [{"$ref": "#/components/schemas/x"}], "default": "a", "nullable": nullable}}},
        x={"enum": ["a", "b"]},
    )
    assert faults(checked, {"x": "c"}) == [("enum", "input.x", f"input.x must be one of the following: {allowed}")]


class TestAHostileSchema:
    @pytest.mark.parametrize(
        "reference", ["http://127.0.0.1:1/s.json", "file:///etc/passwd", "other.json#/a", "//host/x", "#", "#anchor"]
    )
    def test_cannot_refer_outside_itself(self, reference: str) -> None:
        with pytest.raises(Problem, match="refers to something outside itself") as refused:
            of_properties(x={"$ref": reference})
        assert refused.value.document.code == "unusable_schema"

    def test_cannot_refer_to_nothing(self) -> None:
        with pytest.raises(Problem, match="leads nowhere"):
            of_properties(x={"$ref": "#/components/schemas/Missing"})

    @pytest.mark.parametrize("word", ["$id", "id", "$schema", "$dynamicRef", "$recursiveRef", "$anchor"])
    def test_cannot_change_where_or_what_it_is(self, word: str) -> None:
        checked = schema({word: "http://127.0.0.1:1/s.json", "properties": {"x": {"type": "string"}}})
        assert [field for _, field, _ in faults(checked, {"x": 1})] == ["input.x"]

    def test_inside_itself_is_checked_for_one_round(self) -> None:
        tree = {
            "type": "object",
            "properties": {"child": {"$ref": "#/components/schemas/Tree"}, "n": {"type": "integer"}},
        }
        checked = schema({"properties": {"tree": {"$ref": "#/components/schemas/Tree"}}}, Tree=tree)
        assert faults(checked, {"tree": {"child": {"n": 1}}}) == []
        assert [field for _, field, _ in faults(checked, {"tree": {"n": "x"}})] == ["input.tree.n"]

    def test_that_is_deep_or_doubles_itself_is_refused(self) -> None:
        deep: dict[str, Any] = {}
        for _ in range(45):
            deep = {"items": deep}
        doubles = {f"A{n}": {"allOf": [{"$ref": f"#/components/schemas/A{n + 1}"}] * 2} for n in range(60)}
        for says in (deep, {"$ref": "#/components/schemas/A0"}):
            with pytest.raises(Problem, match="too large"):
                schema(says, **doubles)

    @pytest.mark.parametrize("document", [b"", b"null", b"[", b"[" * 1_000, b'{"a": "' + b"x" * 1_048_576 + b'"}'])
    def test_that_is_no_document_is_refused(self, document: bytes) -> None:
        with pytest.raises(Problem) as refused:
            InputSchema.from_openapi(document)
        assert refused.value.document.code == "unusable_schema"

    @pytest.mark.parametrize("pattern", ["^(?=.*a)", r"(a)\1", "(a{1000}){1000}", "(", "[z-a]"])
    def test_leaves_patterns_without_linear_time_to_the_model(self, pattern: str) -> None:
        checked = of_properties(x={"pattern": pattern, "maxLength": 3})
        assert [kind for kind, _, _ in faults(checked, {"x": "bbbb"})] == ["string_lte"]

    def test_leaves_patterns_to_the_model_where_matching_would_hold_others_up(self) -> None:
        slow = {"type": "string", "pattern": "^(a|b)*a(a|b){100}c"}
        checked = of_properties(x=slow, y={"type": "string"}, z={"type": "array", "items": slow})
        assert [field for _, field, _ in faults(checked, {"x": "ab" * 100})] == ["input.x"]
        assert faults(checked, {"x": "ab" * 50_000}) == []
        assert faults(checked, {"z": ["ab" * 100] * 500}) == []
        assert [field for _, field, _ in faults(checked, {"x": "ab", "y": "a" * 100_000})] == ["input.x"]
        assert [field for _, field, _ in faults(checked, {"x": 5, "z": ["ab" * 100] * 500})] == ["input.x"]

    def test_leaves_sooner_to_the_model_what_a_larger_pattern_costs(self) -> None:
        """A text of 4,096 characters held the loop for 72 to 94 ms with the second pattern."""
        for pattern, judged, left in (("^[ab]{8}c", 4_000, 4_100), ("(a|b)*a(a|b){400}c", 60, 70)):
            checked = of_properties(x={"type": "string", "pattern": pattern})
            assert [field for _, field, _ in faults(checked, {"x": "a" * judged})] == ["input.x"]
            assert faults(checked, {"x": "a" * left}) == []

    def test_cannot_hold_more_patterns_than_memory_is_spent_on(self) -> None:
        checked = of_properties(**{f"x{n}": {"pattern": f"^a{n}"} for n in range(200)})
        assert [field for _, field, _ in faults(checked, {"x0": "b", "x199": "b"})] == ["input.x0"]

    def test_with_keywords_of_the_wrong_kind_has_them_ignored(self) -> None:
        odd = {"type": "wat", "enum": [], "minLength": -1, "maxLength": True, "required": 3, "properties": []}
        odd |= {"multipleOf": 0, "exclusiveMinimum": True, "pattern": 5, "$ref": 5, "items": 5, "uniqueItems": "yes"}
        odd |= {"anyOf": {}}
        assert faults(of_properties(x=odd), {"x": "anything"}) == []

    def test_may_hold_numbers_of_any_size(self) -> None:
        checked = of_properties(x={"enum": [10**30]}, y={"maximum": 10**30})
        assert [description for _, _, description in faults(checked, {"x": 1, "y": 10**31})] == [
            f"input.x must be one of the following: {10**30}",
            f"Must be less than or equal to {10**30}",
        ]


class TestAnInputThatIsWrongAMillionTimes:
    """Each fault takes longer to describe than its element took to read, so only the first is."""

    def test_has_its_first_fault_told(self) -> None:
        checked = of_properties(x={"type": "array", "items": {"type": "string"}})
        assert faults(checked, {"x": [1] * 1_000_000}) == [
            ("invalid_type", "input.x.0", "Invalid type. Expected: string, given: integer")
        ]

    def test_has_only_its_property_told_where_there_are_alternatives(self) -> None:
        checked = of_properties(x={"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "boolean"}}]})
        assert faults(checked, {"x": [1] * 1_000_000}) == [
            ("invalid", "input.x", "Does not match the schema of the model")
        ]


class TestAnInputThatIsWrongInManyWays:
    """An element that fits none of three hundred alternatives costs three hundred errors before the first is known."""

    @pytest.mark.parametrize(
        "says",
        [
            {"anyOf": [{"type": "object", "required": [f"a{n}"]} for n in range(300)]},
            {"anyOf": [{"type": "object", "required": [f"a{n}" for n in range(300)]}, {"type": "string"}]},
            {"anyOf": [{"anyOf": [{"type": "string"}] * 10}] * 30},
        ],
        ids=["alternatives", "names", "alternatives of alternatives"],
    )
    def test_has_only_its_property_told(self, says: object) -> None:
        checked = of_properties(x={"type": "array", "items": says}, y={"type": "string"})
        assert faults(checked, {"x": [{}] * 490, "y": 1}) == [
            ("invalid", "input.x", "Does not match the schema of the model"),
            ("invalid_type", "input.y", "Invalid type. Expected: string, given: integer"),
        ]

    def test_has_each_fault_told_where_they_are_few(self) -> None:
        checked = of_properties(x={"anyOf": [{"type": "string"}, {"type": "integer"}]}, y={"type": "string"})
        told = ("number_any_of", "input.x", "Must validate at least one schema (anyOf)")
        assert faults(checked, {"x": True, "y": ", " * 5_000}) == [told]


def test_a_schema_is_compiled_once() -> None:
    document = b'{"components": {"schemas": {"Input": {"title": "compiled once"}}}}'
    assert InputSchema.from_openapi(document) is InputSchema.from_openapi(bytes(bytearray(document)))


def test_only_recently_used_schemas_are_kept() -> None:
    kept, dropped = (f'{{"x": {n}}}'.encode() for n in (1, 2))
    first_kept, first_dropped = InputSchema.from_openapi(kept), InputSchema.from_openapi(dropped)
    for n in range(100, 163):
        InputSchema.from_openapi(kept)
        InputSchema.from_openapi(f'{{"x": {n}}}'.encode())
    assert InputSchema.from_openapi(kept) is first_kept
    assert InputSchema.from_openapi(dropped) is not first_dropped


ITERATOR = {"type": "array", "items": {"type": "string"}, "x-cog-array-type": "iterator"}
STREAMING = {"/predictions": {"post": {"x-cog-streaming": True}}}


@pytest.mark.parametrize(
    ("document", "can_stream"),
    [
        ({"components": {"schemas": {"Output": ITERATOR}}}, True),
        ({"components": {"schemas": {"Output": {"type": "string"}}}, "paths": STREAMING}, True),
        ({}, True),
        ({"components": {"schemas": {"Input": {}}}}, True),
        ({"components": {"schemas": {"Output": {"type": "string"}}}, "paths": {"/predictions": {"post": {}}}}, False),
        ({"components": {"schemas": {"Output": {"type": "array"}}}, "paths": ["/predictions"]}, False),
        ({"components": {"schemas": {"Output": {"x-cog-array-type": ["iterator"]}}}}, False),
    ],
    ids=["iterator", "streaming", "open", "no output", "one text", "a list", "nonsense"],
)
def test_a_model_can_stream_where_its_document_says_so_or_says_nothing(document: object, can_stream: bool) -> None:
    told = json.dumps(document).encode()
    assert InputSchema.from_openapi(told).can_stream is can_stream
    assert InputSchema.from_openapi(told, "procedure").can_stream is can_stream
    assert InputSchema.from_openapi(told, "training").can_stream is False


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
KEYWORDS = st.sampled_from(
    [
        *("type", "enum", "const", "minimum", "maxLength", "pattern", "format", "required", "properties", "items"),
        *("anyOf", "allOf", "oneOf", "$ref", "nullable", "additionalProperties", "prefixItems", "multipleOf", "$id"),
    ]
)
SCHEMAS = st.recursive(
    st.booleans() | JSON | st.sampled_from(["string", "#/components/schemas/Input", "uri"]),
    lambda inner: (
        st.dictionaries(KEYWORDS, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "$ref"]), inner, max_size=3)
        | st.lists(inner, max_size=3)
    ),
    max_leaves=15,
)


@given(SCHEMAS, st.dictionaries(st.sampled_from(["a", "b", "$ref"]), JSON))
def test_any_schema_judges_an_input_or_is_refused(says: object, value: dict[str, object]) -> None:
    try:
        checked = schema(says)
    except Problem:
        return
    for fault in checked.check(json.dumps(value).encode()):
        assert fault.field.startswith("input")
        assert fault.description


def test_schema_of_a_version_is_compiled_again_only_for_a_changed_document() -> None:
    version = Version(model=MODEL, id=VERSION, created_ms=1, server="", schema=OPEN_SCHEMA, streams=1, size=1)
    first = InputSchema.of(version)
    assert InputSchema.of(version) is first
    assert InputSchema.of(replace(version, kind="training")) is not first
    narrow = Raw(b'{"components":{"schemas":{"Input":{"required":["a"],"type":"object"}}}}')
    assert InputSchema.of(replace(version, schema=narrow)).check(b"{}")
    assert InputSchema.of(version).check(b"{}") == []


def test_null_of_an_optional_input_is_judged_as_its_server_does() -> None:
    optional = {"properties": {"n": {"type": "integer", "nullable": True}}}
    document = json.dumps({"components": {"schemas": {"Input": optional}}}).encode()
    version = Version(
        model=MODEL, id=VERSION, created_ms=1, server="cog 0.16.12", schema=Raw(document), streams=1, size=1
    )
    assert faults(InputSchema.of(version), {"n": None}) == []
    coglet = replace(version, server="coglet 0.23.1")
    words = "Invalid type. Expected: integer, given: null"
    assert faults(InputSchema.of(coglet), {"n": None}) == [("invalid_type", "input.n", words)], "it lacks `nullable`"
    assert faults(InputSchema.of(coglet), {}) == []


def test_input_that_needs_one_of_several_names_says_which() -> None:
    either = schema({"properties": {}, "anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}]})
    assert faults(either, {}) == [("required", "input", "prompt or messages is required")]
    assert faults(either, {"messages": []}) == []


@pytest.mark.parametrize(
    ("former", "new", "why"),
    [
        ({"type": "string"}, {"type": "integer"}, "it takes size in another type"),
        ({"type": "number"}, {"type": "integer"}, "it takes size in another type"),
        ({"type": ["string", "null"]}, {"type": "string"}, "it takes size in another type"),
        ({}, {"type": "string"}, "it takes size in another type"),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, "it takes fewer choices of size"),
        ({"type": "string"}, {"type": "string", "enum": ["a"]}, "it takes fewer choices of size"),
        ({"type": "integer"}, {"type": "number"}, ""),
        ({"type": "string"}, {"type": ["string", "null"]}, ""),
        ({"type": "string", "enum": ["a"]}, {"type": "string"}, ""),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "null"]}, ""),
        ({"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, ""),
    ],
)
def test_version_with_a_narrower_input_is_found(former: object, new: object, why: str) -> None:
    assert of_properties(size=new).find_refusal(of_properties(size=former)) == why


def test_version_that_needs_another_name_is_found() -> None:
    text = {"type": "object", "properties": {"text": {"type": "string"}}}
    assert schema({**text, "required": ["text"]}).find_refusal(schema(text)) == "it needs text"
    assert schema(text).find_refusal(schema({**text, "required": ["text"]})) == ""
    assert schema({}).find_refusal(schema(text)) == ""
