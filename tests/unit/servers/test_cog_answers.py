import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from director.core.nesting import MOST_LEVELS
from director.servers.runners.answers import Answer
from director.servers.runners.cog_answers import Again, read_answer
from director.servers.runners.runner import Ended, Outcome

ID = "a" * 26


def read(status: int, body: object, *, retry_after: str | None = None, coglet: bool = True) -> Ended | Again:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    headers = {"retry-after": retry_after, "date": "Wed, 21 Oct 2026 07:28:00 GMT"} if retry_after else {}
    return read_answer(Answer(status=status, body=raw, headers=headers), prediction_id=ID, coglet=coglet)


def ended(status: int, body: object, *, retry_after: str | None = None, coglet: bool = True) -> Ended:
    answer = read(status, body, retry_after=retry_after, coglet=coglet)
    assert isinstance(answer, Ended)
    return answer


def failed(error: str, **more: object) -> dict[str, object]:
    return {"id": ID, "status": "failed", "error": error, "logs": "", "metrics": {"predict_time": 0.1}} | more


def test_a_success_keeps_its_output_and_metrics_byte_for_byte() -> None:
    body = b'{"id":"%s","logs":"hi\\n","metrics":{"predict_time":0.30},"output":[1.0, {"a":[]}],"status":"succeeded"}'
    assert ended(200, body % ID.encode()) == Ended(
        outcome=Outcome.SUCCEEDED,
        output=Raw(b'[1.0, {"a":[]}]'),
        logs="hi\n",
        metrics={"predict_time": Raw(b"0.30")},
    )


@pytest.mark.parametrize("body", [{"status": "succeeded"}, {"status": "succeeded", "output": None, "metrics": None}])
def test_a_success_without_output_has_null(body: object) -> None:
    assert ended(200, body) == Ended(outcome=Outcome.SUCCEEDED, output=Raw(b"null"), logs="")


@pytest.mark.parametrize(
    ("body", "coglet", "error", "logs", "output"),
    [
        (failed("Prediction failed: Prediction failed: ValueError: no"), True, "ValueError: no", None, None),
        (failed("no", logs="Traceback\n", output=["a"]), False, "no", "Traceback\n", Raw(b'["a"]')),
        (failed(""), True, "The model failed without saying why", None, None),
        (failed("Prediction failed: " * 1_000_000 + "x"), True, "x", None, None),
    ],
    ids=["prefixes of coglet", "Python server", "no message", "a million prefixes"],
)
def test_model_failure_keeps_what_the_model_said(
    body: object, coglet: bool, error: str, logs: str | None, output: Raw | None
) -> None:
    metrics = {"predict_time": Raw(b"0.1")}
    failure = Ended(outcome=Outcome.FAILED, error=error, logs=logs, output=output, metrics=metrics)
    assert ended(200, body, coglet=coglet) == failure


@pytest.mark.parametrize(
    "error",
    [
        "Worker crashed",
        "Failed to send request: Failed to send on slot socket: Broken pipe (os error 32)",
        "Failed to create output dir: File name too long (os error 36)",
        "Slot socket error: closed",
        "Slot dropped unexpectedly",
        "Internal error: x",
        "prediction task lost",
    ],
)
class TestServerFaults:
    def test_a_fault_of_coglet_itself_is_lost_and_the_server_is_dead(self, error: str) -> None:
        told = ended(200, failed(error))
        assert (told.outcome, told.error, told.server_is_dead) == (Outcome.LOST, error, True)

    def test_a_model_that_raises_the_same_words_only_fails(self, error: str) -> None:
        told = ended(200, failed(f"Prediction failed: {error}"))
        assert (told.outcome, told.server_is_dead) == (Outcome.FAILED, False)

    def test_on_a_python_server_they_can_only_be_the_model_s(self, error: str) -> None:
        assert ended(200, failed(error), coglet=False).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("status", "again"), [(202, Again.RUNNING), (406, Again.NO_STREAM), (409, Again.NO_SLOT)], ids=str
)
def test_run_that_has_not_begun_is_put_again(status: int, again: Again) -> None:
    assert read(status, {"error": "whatever", "status": "failed"}) is again


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (
            422,
            {"detail": [{"loc": ["body", "input", "text"], "msg": '5 is not of type "string"', "type": "value_error"}]},
            'text: 5 is not of type "string"',
        ),
        (
            422,
            {"detail": [{"loc": ["body", "input", "a"], "msg": "x"}, {"loc": ["body", "input", "b", 0], "msg": "y"}]},
            "a: x; b.0: y",
        ),
        (422, {"detail": [{"loc": ["body", "input"], "msg": "Field required"}]}, "Field required"),
        (422, {"detail": [{"loc": ["body", "input", "input"], "msg": "no"}]}, "input: no"),
        (422, {"detail": "ids differ"}, "ids differ"),
        (422, {"error": "refused"}, "refused"),
        (422, b"Failed to deserialize the JSON body", "Failed to deserialize the JSON body"),
        (422, {"detail": {"odd": 1}}, '{"detail":{"odd":1}}'),
        (422, b"", "The model server answered 422"),
        (400, b"Failed to parse the request body\n as JSON", "Failed to parse the request body as JSON"),
        (413, b"length limit exceeded", "length limit exceeded"),
        (415, b"Expected request with `Content-Type: application/json`", "Expected request with `Content-Type: "),
    ],
)
def test_refused_input_is_invalid_with_a_readable_error(status: int, body: object, error: str) -> None:
    told = ended(status, body)
    assert told.outcome is Outcome.INVALID
    assert told.error is not None
    assert told.error.startswith(error)
    assert told.error == error or status == 415


def test_long_refusal_is_cut() -> None:
    assert len(ended(422, {"detail": "x" * 1_000_000}).error or "") <= 500
    assert len(ended(422, b"x" * 1_000_000).error or "") <= 500


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        ("1.5", 1.5),
        ("999999999999", 3600.0),
        ("-1", None),
        ("30s", None),
        ("²", None),
        ("Wed, 21 Oct", None),
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
    ],
)
def test_not_ready_is_refused_with_retry_after(header: str | None, seconds: float | None) -> None:
    told = ended(503, {"error": "Setup has not finished yet.", "status": "failed"}, retry_after=header)
    error = "The model server answered 503: Setup has not finished yet."
    # in whatever form: a server that says when to come again does not mean this input
    assert told == Ended(outcome=Outcome.REFUSED, error=error, retry_after_s=seconds, in_doubt=not header)


@pytest.mark.parametrize("status", [301, 404, 405, 418, 500, 999])
def test_health_decides_what_an_unknown_answer_means(status: int) -> None:
    error = f"The model server answered {status}: what?"
    assert ended(status, b"what?") == Ended(outcome=Outcome.FAILED, error=error, in_doubt=True)


def test_proxy_that_waited_in_vain_loses_the_run_but_not_the_server() -> None:
    assert ended(502, b"what?") == Ended(outcome=Outcome.LOST, error="The model server answered 502: what?")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "empty"),
        (b"<html>", "not JSON: JSON is malformed: invalid character (byte 0): <html>"),
        (b"[]", "not of the expected shape"),
        (b'{"output":1}', "not of the expected shape"),
        (b'{"status":["succeeded"]}', "not of the expected shape"),
        (b'{"status":"succeeded","output":"\xff"}', "not JSON"),
        (b'{"status":"succeeded","output":NaN}', "not JSON"),
        (b'{"status":"succeeded","output":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"status":"succeeded","output":' + b"[" * MOST_LEVELS + b"]" * MOST_LEVELS + b"}", "nested too deeply"),
        (b'{"status":"succeeded","id":"someone else"}', "about another prediction"),
        (b'{"status":"succeeded","id":5}', "about another prediction"),
        (b'{"status":"processing"}', "before the run had ended: it is 'processing'"),
        (b'{"status":"exploded"}', "before the run had ended: it is 'exploded'"),
    ],
)
def test_200_that_makes_no_sense_fails_with_a_clear_error(body: bytes, error: str) -> None:
    told = ended(200, body)
    assert (told.outcome, told.server_is_dead) == (Outcome.FAILED, False)
    assert error in (told.error or "")
    assert "someone" not in (told.error or "")  # another caller's prediction


def test_answer_may_nest_to_the_same_depth_on_each_python() -> None:
    inside = MOST_LEVELS - 1  # the answer is a level too
    told = ended(200, b'{"status":"succeeded","output":' + b"[" * inside + b"]" * inside + b"}")
    assert (told.outcome, len(bytes(told.output or b""))) == (Outcome.SUCCEEDED, 2 * inside)


@pytest.mark.parametrize(
    ("field", "value"), [("logs", 5), ("metrics", []), ("error", {}), ("metrics", "x"), ("logs", ["a"])]
)
def test_field_of_another_type_costs_no_output(field: str, value: object) -> None:
    told = ended(200, {"status": "succeeded", "output": "ok", field: value})
    assert (told.outcome, told.output) == (Outcome.SUCCEEDED, Raw(b'"ok"'))


def test_error_of_another_type_is_shown_as_it_is() -> None:
    told = ended(200, {"status": "failed", "error": {"why": "no"}})
    assert (told.outcome, told.error) == (Outcome.FAILED, '{"why":"no"}')


@given(status=st.integers(100, 999), body=st.binary(max_size=200), header=st.none() | st.text(max_size=20))
def test_every_status_has_a_meaning(status: int, body: bytes, header: str | None) -> None:
    told = read_answer(
        Answer(status=status, body=body, headers={"retry-after": header} if header else {}), prediction_id=ID
    )
    assert isinstance(told, Again) or told.error or told.outcome in (Outcome.SUCCEEDED, Outcome.CANCELED)
