import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.predictions.bodies import parse_create, parse_model, parse_version
from api.services.lookups import VersionRef
from api.web.errors import Problem
from director.core.states import WebhookEvent

HEX = "9dcd6d78e7c6560c340d916fe32e9f24aabfa331e5cce95fe31f77fb03121426"


def body(**members: object) -> bytes:
    return json.dumps(members).encode()


def faults(text: bytes, *, version: bool = True) -> list[tuple[str, str, str]]:
    with pytest.raises(Problem) as refused:
        parse_create(text, version=version)
    assert refused.value.status == 422
    return [(field.type, field.field, field.description) for field in refused.value.document.invalid_fields]


class TestAGoodBody:
    def test_is_read_whole(self) -> None:
        asked = parse_create(
            body(
                version=HEX,
                input={"prompt": "hi"},
                webhook="https://example.com/hook?id=1",
                webhook_events_filter=["completed", "start", "completed"],
            ),
            version=True,
        )
        assert asked.version == HEX
        assert asked.webhook == "https://example.com/hook?id=1"
        assert asked.webhook_events_filter == (WebhookEvent.COMPLETED, WebhookEvent.START)

    def test_keeps_the_bytes_of_the_input(self) -> None:
        given_input = b'{"seed": 12345678901234567890123, "x": 0.10000000000000000001, "empty": [ ], "\\u0061": 1}'
        assert bytes(parse_create(b'{"input": ' + given_input + b"}", version=False).input) == given_input

    def test_may_leave_out_or_null_what_is_optional(self) -> None:
        for asked in (body(input={}), body(input={}, webhook=None, webhook_events_filter=None)):
            parsed = parse_create(asked, version=False)
            assert (parsed.version, parsed.webhook, parsed.webhook_events_filter) == (None, None, None)

    def test_with_an_empty_filter_asks_for_every_event(self) -> None:
        assert parse_create(body(input={}, webhook_events_filter=[]), version=False).webhook_events_filter is None


class TestABadBody:
    def test_has_all_its_faults_told_at_once(self) -> None:
        assert faults(body(version=5, inptu={}, webhook=[], webhook_events_filter=["end", 3])) == [
            ("invalid_type", "version", "Invalid type. Expected: string, given: number"),
            ("required", "", "input is required"),
            ("invalid_type", "webhook", "Invalid type. Expected: string, given: array"),
            (
                "enum",
                "webhook_events_filter.0",
                'webhook_events_filter.0 must be one of the following: "start", "output", "logs", "completed"',
            ),
            ("invalid_type", "webhook_events_filter.1", "Invalid type. Expected: string, given: number"),
            ("additional_property_not_allowed", "", "Additional property inptu is not allowed"),
        ]

    @pytest.mark.parametrize(
        ("text", "given_type"),
        [(b"[]", "array"), (b'"x"', "string"), (b"1", "number"), (b" true", "boolean"), (b"null", "null")],
    )
    def test_is_one_that_is_no_object(self, text: bytes, given_type: str) -> None:
        assert faults(text) == [("invalid_type", "", f"Invalid type. Expected: object, given: {given_type}")]

    @pytest.mark.parametrize(
        "url", ["", "example.com", "ftp://example.com", "https://a b", "https://user:pw@example.com"]
    )
    def test_is_one_whose_webhook_is_no_url(self, url: str) -> None:
        [(kind, field, description)] = faults(body(input={}, webhook=url), version=False)
        assert (kind, field) == ("format", "webhook")
        assert "pw" not in description

    def test_is_one_with_a_filter_of_a_million(self) -> None:
        assert faults(body(input={}, webhook_events_filter=["start"] * 1_000_000), version=False) == [
            ("array_max_items", "webhook_events_filter", "Array must have at most 20 items")
        ]

    def test_with_many_unknown_keys_has_the_first_of_them_told_and_shortened(self) -> None:
        told = faults(body(input={}, **{"k" * 300 + str(n): n for n in range(1_000)}), version=False)
        assert len(told) == 20
        assert all(len(description) < 150 for _, _, description in told)


MEMBERS = st.dictionaries(
    st.sampled_from(["version", "input", "webhook", "webhook_events_filter", "stream", "x"]),
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text() | st.none()) | st.just({}),
)


@given(st.binary() | MEMBERS.map(lambda members: json.dumps(members).encode()))
def test_nothing_but_a_problem_is_ever_raised(text: bytes) -> None:
    try:
        parsed = parse_create(text, version=True)
    except Problem:
        return
    assert json.loads(bytes(parsed.input)) == json.loads(text)["input"]


class TestAVersion:
    @pytest.mark.parametrize(
        ("text", "reference"),
        [
            ("owner/name", VersionRef(model="owner/name")),
            (f"owner/name:{HEX}", VersionRef(model="owner/name", version=HEX)),
            (HEX, VersionRef(version=HEX)),
            ("o1.x_y-z/flux-1.1-pro", VersionRef(model="o1.x_y-z/flux-1.1-pro")),
        ],
    )
    def test_has_three_forms(self, text: str, reference: VersionRef) -> None:
        assert parse_version(text) == reference

    @pytest.mark.parametrize(
        "text",
        [
            *("", "name", "owner/", "/name", "Owner/name", "a/b/c", "../name", "owner/name:", "owner/name:latest"),
            *(HEX.upper(), HEX[:-1], f"{HEX}\n", "owner/name\n", f"owner/{'n' * 65}", "owner/na me", "owner/näme"),
        ],
    )
    def test_of_any_other_form_does_not_exist(self, text: str) -> None:
        with pytest.raises(Problem, match="The specified version does not exist") as refused:
            parse_version(text)
        assert refused.value.status == 422

    @given(st.text())
    def test_is_named_or_refused(self, text: str) -> None:
        try:
            reference = parse_version(text)
        except Problem:
            return
        assert reference.model or reference.version


def test_a_model_is_named_by_two_parts_of_a_path() -> None:
    assert parse_model("owner", "name") == "owner/name"


@pytest.mark.parametrize(
    ("owner", "name"), [("Owner", "name"), ("owner", "na/me"), ("..", "x"), ("owner", ""), ("o", "n\n")]
)
def test_a_model_of_another_form_is_not_found(owner: str, name: str) -> None:
    with pytest.raises(Problem) as refused:
        parse_model(owner, name)
    assert refused.value.status == 404
