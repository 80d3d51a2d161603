import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from director.core.ids import QueueName, new_prediction_id
from director.core.schema import Event, Outlook, Record, Stored
from director.core.states import Status
from director.core.view import fold, iso, view

ID = new_prediction_id(model="acme/echo", now_ms=1_800_000_000_000)
MADE = Record(
    id=ID,
    account="acme",
    model="acme/echo",
    version="v",
    queue=QueueName("acme/echo:v"),
    lane="normal",
    status=Status.STARTING,
    created=1_800_000_000_000,
    url="https://api.example.com",
)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5)


def shown(record: Record = MADE, **parts: object) -> dict[str, object]:
    stored = msgspec.structs.replace(Stored(record=record, input=Raw(b"{}")), **parts)
    return dict(msgspec.json.decode(msgspec.json.encode(view(stored))))


def test_what_waits_looks_as_official_clients_expect() -> None:
    assert shown(input=Raw(b'{"n":1}')) == {
        "id": ID,
        "model": "acme/echo",
        "version": "v",
        "input": {"n": 1},
        "output": None,
        "logs": "",
        "error": None,
        "status": "starting",
        "created_at": "2027-01-15T08:00:00.000Z",
        "started_at": None,
        "completed_at": None,
        "data_removed": False,
        "metrics": {},
        "source": "api",
        "urls": {
            "get": f"https://api.example.com/v1/predictions/{ID}",
            "cancel": f"https://api.example.com/v1/predictions/{ID}/cancel",
            "web": f"https://api.example.com/p/{ID}",
        },
    }


@pytest.mark.parametrize("behind_ms", [-5, 0, 5])
def test_times_ascend_from_that_of_the_id_whatever_the_clocks(behind_ms: int) -> None:
    """The API's clock made the id. The clock of Redis, which made the others, may be behind it."""
    at = MADE.created - behind_ms
    seen = shown(msgspec.structs.replace(MADE, created=at, started=at, completed=at + 2))
    assert seen["created_at"] == "2027-01-15T08:00:00.000Z"
    assert [iso(max(MADE.created, ms)) for ms in (at, at + 2)] == [seen["started_at"], seen["completed_at"]]


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ("", "No server took it, for example because it was overloaded; it may start at 2027-01-15T08:00:05.000Z."),
        ("1 d 1 2 server_lost", "Its last attempt was lost; the next one may start at 2027-01-15T08:00:05.000Z."),
    ],
)
def test_refused_prediction_is_not_shown_as_lost(history: str, why: str) -> None:
    outlook = Outlook(1, 0, 5_000, 5_000, "backing_off", MADE.created + 5_000)
    queue = shown(msgspec.structs.replace(MADE, history=history), outlook=outlook)["queue"]
    assert isinstance(queue, dict)
    assert (queue["reason"], queue["detail"]) == ("backing_off", why)


def test_an_end_has_our_times_and_what_the_model_measured() -> None:
    record = msgspec.structs.replace(
        MADE,
        status=Status.SUCCEEDED,
        started=MADE.created + 1_500,
        completed=MADE.created + 4_000,
        metrics='{"tokens":7,"predict_time":99}',
    )
    seen = shown(record, output=Raw(b"[1]"), logs="x")
    assert seen["metrics"] == {"tokens": 7, "predict_time": 2.5, "total_time": 4.0}
    assert (seen["output"], seen["logs"], seen["completed_at"]) == ([1], "x", "2027-01-15T08:00:04.000Z")


def test_what_never_ran_has_no_predict_time() -> None:
    record = msgspec.structs.replace(MADE, status=Status.CANCELED, completed=MADE.created + 4_000)
    assert shown(record)["metrics"] == {"total_time": 4.0}


def test_removed_data_is_said_to_be_removed() -> None:
    seen = shown(input=None)
    assert (seen["data_removed"], seen["input"]) == (True, {})


def test_the_deadline_is_shown_to_who_asked_for_it() -> None:
    record = msgspec.structs.replace(MADE, deadline=MADE.created + 60_000)
    assert "deadline" not in shown(record)
    assert shown(msgspec.structs.replace(record, deadline_status="aborted"))["deadline"] == "2027-01-15T08:01:00.000Z"


def test_its_stream_is_shown_where_it_has_a_ticket() -> None:
    record = msgspec.structs.replace(MADE, ticket="t" * 26)
    urls = shown(record)["urls"]
    assert isinstance(urls, dict)
    assert urls["stream"] == f"https://api.example.com/v1/streams/{ID}{'t' * 26}"


def test_the_webhook_is_shown_with_its_filter() -> None:
    record = msgspec.structs.replace(MADE, webhook="https://example.com", webhook_events="start,completed")
    seen = shown(record)
    assert (seen["webhook"], seen["webhook_events_filter"]) == ("https://example.com", ["start", "completed"])


def test_a_callers_bytes_are_not_re_encoded() -> None:
    data = b'{"n":1.0,"big":12345678901234567890,"l":[]}'
    assert data in msgspec.json.encode(view(Stored(record=MADE, input=Raw(data))))


@given(st.lists(JSON, max_size=6))
def test_outputs_fold_to_the_list_of_them(values: list[object]) -> None:
    output, logs = fold([Event(i, "output", 0, msgspec.json.encode(value)) for i, value in enumerate(values)])
    assert (msgspec.json.decode(output) if output else []) == values
    assert logs == ""


@pytest.mark.parametrize(
    ("events", "output", "logs"),
    [
        ([("started", b""), ("logs", b'"a\\n"'), ("metric", b"1"), ("logs", b'"b"')], None, "a\nb"),
        *(
            ([("output", b"1"), ("logs", b'"a"'), (restart, b""), ("output", b"2")], Raw(b"[2]"), "")
            for restart in ("retried", "released")
        ),
    ],
    ids=["logs beside the rest", "retried", "released"],
)
def test_events_fold_to_the_output_and_logs_of_the_last_attempt(
    events: list[tuple[str, bytes]], output: Raw | None, logs: str
) -> None:
    assert fold([Event(seq, kind, 0, data) for seq, (kind, data) in enumerate(events, 1)]) == (output, logs)


@given(st.integers(0, 4_000_000_000_000))
def test_times_are_rfc_3339_with_milliseconds_and_z(at_ms: int) -> None:
    text = iso(at_ms)
    assert len(text) == 24
    assert text.endswith("Z")
    assert text[20:23] == f"{at_ms % 1000:03}"
