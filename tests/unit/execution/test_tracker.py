from collections.abc import AsyncGenerator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from director.core.ids import PredictionId, QueueName
from director.core.schema import Record
from director.core.states import Status, WebhookEvent
from director.execution import tracker as tracker_module
from director.execution.tracker import (
    DRAINED,
    FAULTS,
    REFUSED_AGAIN,
    RULES,
    STOPS,
    VERDICTS,
    Effect,
    ErrorClass,
    Finish,
    GiveBack,
    Halt,
    Judged,
    Limits,
    Stop,
    Tell,
    Tracker,
    Verdict,
    Write,
)
from director.execution.uploads import Upload, Uploaded
from director.servers.runners.runner import (
    Began,
    Counted,
    Ended,
    Logged,
    Measured,
    Outcome,
    Produced,
    Received,
    Restarted,
    RunEvent,
    ServerFile,
)

RECORD = Record(
    id=PredictionId("a" * 26),
    account="acme",
    model="acme/echo",
    version="a1" * 32,
    queue=QueueName("acme/echo:a1a1a1a1a1a1"),
    lane="normal",
    status=Status.STARTING,
    created=0,
    attempt=1,
)
STARTED = Write((("started", b""),))
ENDED_BY_ITSELF = Ended(outcome=Outcome.SUCCEEDED, output=Raw(b'"done"'), logs="said\n")


# Outcomes after which the same run would end the same, and those after which it may end otherwise.
LASTING = [outcome for outcome in Outcome if outcome not in FAULTS or not RULES[FAULTS[outcome].kind].again]
PASSING = [outcome for outcome in Outcome if outcome not in LASTING]


def tracker(*, output: int = 1000, logs: int = 1000, is_moderated: bool = False, **limits: int) -> Tracker:
    return Tracker(RECORD, Limits(output=output, logs=logs, **limits), is_moderated=is_moderated)


def storing(*, output: int = 1000, is_moderated: bool = False) -> Tracker:
    return tracker(output=output, inline=100, is_moderated=is_moderated)


def follow(run: Tracker, *events: RunEvent) -> list[Effect]:
    return [effect for event in events for effect in run.apply(event, at=0.0)]


def written(effects: Sequence[Effect], kind: str) -> list[bytes]:
    """The data of the events of this kind that were asked to be written."""
    events = [event for effect in effects if isinstance(effect, Write) for event in effect.events]
    return [data for name, data in events if name == kind]


def finish(run: Tracker, *events: RunEvent) -> Finish:
    *_, end = follow(run, *events)
    assert isinstance(end, Finish)
    return end


def give_back(run: Tracker, *events: RunEvent) -> GiveBack:
    *_, end = follow(run, *events)
    assert isinstance(end, GiveBack)
    return end


def test_output_logs_and_metrics_are_written_and_told_of_as_they_come() -> None:
    effects = follow(tracker(), Began(), Produced(Raw(b'"a"'), 0), Logged("b\n"), Measured("tokens", Raw(b"2")))
    assert effects == [
        STARTED,
        Tell(WebhookEvent.START),
        Write((("output", b'"a"'),)),
        Tell(WebhookEvent.OUTPUT),
        Write((("logs", b'"b\\n"'),)),
        Tell(WebhookEvent.LOGS),
        Write((("metric", msgspec.json.encode(Measured("tokens", Raw(b"2")))),)),
    ]


@pytest.mark.parametrize("outcome", LASTING)
def test_a_run_whose_end_would_be_the_same_again_is_finished(outcome: Outcome) -> None:
    end = finish(tracker(), Ended(outcome=outcome, error="because"))
    if outcome is Outcome.SUCCEEDED:
        assert (end.status, end.code, end.error) == ("succeeded", "", "")
    else:
        assert (end.status, end.code, end.error) == ("failed", FAULTS[outcome].code, "because")


@pytest.mark.parametrize("outcome", PASSING)
def test_a_run_that_did_not_end_by_itself_may_run_again(outcome: Outcome) -> None:
    fault = FAULTS[outcome]
    end = give_back(tracker(), Ended(outcome=outcome, error="reset", retry_after_s=7))
    assert end == GiveBack(fault=fault.kind, error=f"{fault.error} (reset)", code=fault.code, asked_s=7)


def test_each_outcome_except_success_has_a_code_and_a_rule() -> None:
    assert set(FAULTS) == set(Outcome) - {Outcome.SUCCEEDED}
    assert set(RULES) == {fault.kind for fault in (*FAULTS.values(), REFUSED_AGAIN)} == set(ErrorClass)
    assert set(STOPS) | {Stop.DRAIN} == set(Stop)
    assert set(VERDICTS) | {Verdict.ALLOWED} == set(Verdict)


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("why", STOPS)
def test_stopped_run_ends_by_its_reason_whatever_the_server_says(why: Stop, outcome: Outcome) -> None:
    run = tracker()
    follow(run, Began())
    assert run.stop(why)
    end = finish(run, Ended(outcome=outcome, error="the server's own words"))
    assert (end.status, end.code, end.error) == STOPS[why]


@pytest.mark.parametrize("outcome", PASSING)
def test_a_deadline_before_the_run_began_is_left_to_the_record(outcome: Outcome) -> None:
    run = tracker()
    run.stop(Stop.DEADLINE)
    assert give_back(run, Ended(outcome=outcome)) == GiveBack(fault=None, error="", code="deadline_exceeded")


@pytest.mark.parametrize("outcome", Outcome)
def test_a_drained_run_is_given_back_unspent_unless_it_ended_by_itself(outcome: Outcome) -> None:
    run = tracker()
    follow(run, Began())
    assert run.stop(Stop.DRAIN)
    *_, end = follow(run, Ended(outcome=outcome, error="x"))
    if outcome in LASTING:
        assert isinstance(end, Finish)
    else:
        assert end == DRAINED


@pytest.mark.parametrize("why", STOPS)
def test_any_reason_replaces_a_drain_and_then_stands(why: Stop) -> None:
    run = tracker()
    assert run.stop(Stop.DRAIN)
    assert run.stop(why)
    assert not any(run.stop(later) for later in Stop)
    assert run.stopped is why


@pytest.mark.parametrize(
    ("ended", "output", "logs"),
    [
        (ENDED_BY_ITSELF, b'"done"', "said\n"),
        (Ended(outcome=Outcome.FAILED, error="x"), b"[1]", "early\n"),
        (Ended(outcome=Outcome.SUCCEEDED, output=Raw(b"null")), b"", "early\n"),
    ],
    ids=["all at the end", "nothing at the end", "null"],
)
def test_the_end_replaces_what_progress_showed(ended: Ended, output: bytes, logs: str) -> None:
    end = finish(tracker(), Produced(Raw(b"1"), 0), Logged("early\n"), ended)
    assert (end.output, end.logs) == (output, logs)


def test_output_beyond_its_limit_halts_the_run_once_and_fails_it() -> None:
    run = tracker(output=10)
    effects = follow(run, Produced(Raw(b'"123456"'), 0), Produced(Raw(b"1"), 1), Produced(Raw(b"1"), 1))
    assert effects.count(Halt(Stop.TOO_LARGE)) == 1
    end = finish(run, Ended(outcome=Outcome.CANCELED))
    assert (end.status, end.code, end.output) == (Status.FAILED, "output_too_large", b'["123456"]')


@pytest.mark.parametrize(("size", "status"), [(10, Status.SUCCEEDED), (11, Status.FAILED)])
def test_the_limit_is_the_largest_output_that_is_kept(size: int, status: Status) -> None:
    at_once = b'"%s"' % (b"x" * (size - 2))
    end = finish(tracker(output=10), Ended(outcome=Outcome.SUCCEEDED, output=Raw(at_once)))
    assert (end.status, end.output) == (status, at_once if status is Status.SUCCEEDED else b"")
    in_parts = tracker(output=10)
    follow(in_parts, Produced(Raw(b"1234"), 0), Produced(Raw(b"9" * (size - 7)), 1))
    assert in_parts.stopped == (None if status is Status.SUCCEEDED else Stop.TOO_LARGE)


@pytest.mark.parametrize(
    ("outcome", "code", "error"),
    [
        (Outcome.SUCCEEDED, "output_too_large", "The output has 1,500 bytes: more than the 1,000 that are kept."),
        (Outcome.FAILED, "model_failed", "mine"),
    ],
)
def test_output_too_large_at_the_end_says_how_large(outcome: Outcome, code: str, error: str) -> None:
    end = finish(tracker(), Ended(outcome=outcome, error="mine", output=Raw(b"1" * 1500)))
    assert (end.code, end.error, end.output) == (code, error, b"")


def test_logs_that_are_too_long_lose_their_beginning_by_whole_lines() -> None:
    lines = [f"line {number}\n" for number in range(1000)]
    end = finish(tracker(logs=100), *map(Logged, lines), Ended(outcome=Outcome.FAILED, error="x"))
    first, *rest = end.logs.splitlines(keepends=True)
    assert first == "… earlier lines were dropped …\n"
    assert rest == lines[-len(rest) :]
    assert 80 < len(end.logs.encode()) <= 100


def test_one_endless_line_of_logs_keeps_its_end() -> None:
    end = finish(
        tracker(logs=10_000), Ended(outcome=Outcome.SUCCEEDED, output=Raw(b"1"), logs="x" * 30_000 + "the end\n")
    )
    assert end.logs.endswith("xthe end\n")
    assert len(end.logs.encode()) == 10_000


@given(text=st.text("aé€😀\n", min_size=200), is_told_at_the_end=st.booleans())
def test_limit_of_logs_counts_bytes_and_splits_no_character(text: str, is_told_at_the_end: bool) -> None:
    events = [Ended(outcome=Outcome.SUCCEEDED, output=Raw(b"1"), logs=text if is_told_at_the_end else None)]
    shown = [] if is_told_at_the_end else [Logged(text[at : at + 7]) for at in range(0, len(text), 7)]
    logs = finish(tracker(logs=150), *shown, *events).logs
    assert len(logs.encode()) <= 150
    first, _, kept = logs.partition("\n")
    assert text.endswith(kept if first == "… earlier lines were dropped …" else logs)


def test_logs_never_take_much_more_than_twice_their_limit() -> None:
    run = tracker(logs=1000)
    for _ in range(500):
        follow(run, Logged("é" * 50))
        assert len(run.logs.encode()) <= 2100


def test_an_error_as_long_as_the_model_likes_is_cut() -> None:
    end = finish(tracker(), Ended(outcome=Outcome.FAILED, error="why " * 100_000))
    assert end.error.startswith("why why")
    assert len(end.error) < 20_000
    assert len(give_back(tracker(), Ended(outcome=Outcome.LOST, error="why " * 100_000)).error) < 20_000


def test_metrics_that_are_too_large_are_dropped() -> None:
    assert finish(tracker(), Ended(outcome=Outcome.SUCCEEDED, metrics={"n": Raw(b"1")})).metrics == b'{"n":1}'
    large = {"n": Raw(b"1" * 100_000)}
    assert finish(tracker(), Ended(outcome=Outcome.SUCCEEDED, metrics=large)).metrics == b""


def test_beyond_so_many_events_progress_is_told_but_no_longer_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "MOST_EVENTS", 3)
    run = tracker()
    effects = follow(run, *(Produced(Raw(b"%d" % number), number) for number in range(5)))
    assert written(effects, "output") == [b"0", b"1", b"2"]
    assert effects.count(Tell(WebhookEvent.OUTPUT)) == 5
    assert finish(run, Ended(outcome=Outcome.SUCCEEDED)).output == b"[0,1,2,3,4]"


def test_beyond_so_many_bytes_progress_is_no_longer_written() -> None:
    effects = follow(tracker(output=100, logs=100), *(Logged("x" * 48) for _ in range(20)))
    assert len(written(effects, "logs")) == 4


def call(*, output: int = 1000, webhook: str = "", **options: bool) -> Tracker:
    """Return a tracker of a call of OpenAI's API, whose outputs are chunks."""
    record = replace(RECORD, endpoint="chat", webhook=webhook)
    return Tracker(record, Limits(output=output, logs=1000, inline=10), **options)


CHUNK = b'{"choices":[{"delta":{"content":"a"}}],"x":"data:image/png;base64,iVBORw=="}'


def test_each_chunk_of_a_call_is_written_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "MOST_EVENTS", 3)
    run = call()
    effects = follow(run, *(Produced(Raw(CHUNK), number, 1) for number in range(20)))
    assert written(effects, "output") == [CHUNK] * 20, "more bytes than an output may have, and more than other events"
    assert (run.shown_bytes, run.count_usage(0.0).output_tokens) == (0, 20)
    end = finish(run, Ended(outcome=Outcome.SUCCEEDED, output=Raw(b'{"whole":1}')))
    assert (end.status, end.output) == ("succeeded", b'{"whole":1}')


def test_chunks_beyond_their_limit_end_a_call_with_words() -> None:
    run = call(output=100)
    events = [Produced(Raw(CHUNK), number) for number in range(9)]
    effects = follow(run, *events)
    assert len(written(effects, "output")) == 3
    assert effects[-1] == Halt(Stop.TOO_LARGE)
    end = finish(run, Ended(outcome=Outcome.CANCELED, output=Raw(b'{"whole":1}')))
    assert (end.status, end.code, end.output) == ("failed", "output_too_large", b'{"whole":1}')
    assert end.error


def test_answer_of_a_call_beyond_the_limit_fails_with_words() -> None:
    end = finish(call(output=10), Ended(outcome=Outcome.SUCCEEDED, output=Raw(b'"0123456789"')))
    assert (end.status, end.code, end.output) == ("failed", "output_too_large", b"")
    assert "12 bytes" in end.error


@pytest.mark.parametrize("webhook", ["", "http://receiver.test"])
def test_chunks_are_kept_only_for_webhooks_and_never_joined_at_the_end(webhook: str) -> None:
    run = call(webhook=webhook)
    follow(run, Produced(Raw(CHUNK), 0), Produced(Raw(CHUNK), 0), Produced(Raw(CHUNK), 1))
    assert run.output == (Raw(b"[%b,%b]" % (CHUNK, CHUNK)) if webhook else None)
    assert finish(run, Ended(outcome=Outcome.FAILED, error="no")).output == b""


def test_chunks_of_a_moderated_call_are_not_written() -> None:
    run = call(is_moderated=True)
    assert written(follow(run, Produced(Raw(CHUNK), 0)), "output") == []


def test_tokens_that_nothing_shows_count_until_the_server_reports_its_own() -> None:
    run = tracker()
    effects = follow(run, Counted(1), Produced(Raw(b'"a"'), 0, 1), Counted(2))
    assert written(effects, "output") == [b'"a"']
    assert run.count_usage(0.0).output_tokens == 4
    finish(run, Ended(outcome=Outcome.SUCCEEDED, metrics={"output_tokens": Raw(b"7")}))
    assert run.count_usage(0.0).output_tokens == 7


PNG = Raw(b'"data:image/png;base64,iVBORw=="')
URL = "http://director.test/v1/outputs/a.png"
FILE = Raw(b'"%b"' % URL.encode())


def uploads(effects: Sequence[Effect]) -> list[Upload]:
    return [effect for effect in effects if isinstance(effect, Upload)]


def only(effects: Sequence[Effect]) -> Upload:
    [upload] = uploads(effects)
    return upload


def test_outputs_keep_their_order_and_logs_wait_for_no_file() -> None:
    run = storing()
    effects = follow(
        run, Produced(Raw(b"1"), 0), Produced(PNG, 1), Produced(Raw(b"2"), 2), Logged("hi"), Produced(PNG, 3)
    )
    assert written(effects, "output") == [b"1"]
    assert len(written(effects, "logs")) == 1
    assert run.apply(Uploaded(1, (URL,)), 0.0) == []
    assert written(run.apply(Uploaded(0, (URL,)), 0.0), "output") == [bytes(FILE), b"2", bytes(FILE)]


async def contents() -> AsyncGenerator[bytes, None]:
    yield b"of a file"


NAME = "director-file:" + "0" * 32
NAMED = Raw(b'"%b"' % NAME.encode())
RECEIVED = ServerFile(content_type="image/png", size=9, digest="0" * 64, blocks=contents)


def test_name_without_a_file_stays_text() -> None:
    effects = follow(storing(), Received(NAME[:-1] + "1", RECEIVED), Produced(NAMED, 0))
    assert written(effects, "output") == [bytes(NAMED)]


def test_files_that_came_beside_the_output_count_as_any_other() -> None:
    large = replace(RECEIVED, size=4000)
    effects = follow(filing(10_000), Received(NAME, large), *(Produced(NAMED, number) for number in range(3)))
    assert effects[-1] == Halt(Stop.TOO_LARGE)


LARGE = Raw(b'"data:image/png;base64,%b"' % (b"AAAA" * 2000))


def filing(most: int) -> Tracker:
    return Tracker(RECORD, Limits(inline=100, files=most))


def test_files_without_end_are_not_stored_without_end() -> None:
    run = filing(20_000)
    effects = follow(run, Produced(LARGE, 0), Produced(LARGE, 1), Produced(LARGE, 2), Produced(LARGE, 3))
    assert len(uploads(effects)) == 2
    assert [effect for effect in effects if isinstance(effect, Halt)] == [Halt(Stop.TOO_LARGE)]
    end = finish(run, Ended(outcome=Outcome.CANCELED))
    assert (end.status, end.code) == (Status.FAILED, "output_too_large")


def test_the_smallest_file_takes_a_block_of_the_disk() -> None:
    run = filing(10_000)
    effects = follow(run, *(Produced(PNG, number) for number in range(5)))
    assert len(uploads(effects)) == 2


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.SUCCEEDED, ""), (Outcome.FAILED, "model_failed")])
@pytest.mark.parametrize("why", ["output_not_stored", "output_too_large"])
def test_an_end_whose_files_cannot_be_kept_is_a_failure(why: str, outcome: Outcome, code: str) -> None:
    run = filing(5000)
    output = PNG if why == "output_not_stored" else LARGE
    *_, last = follow(run, Began(), Ended(outcome=outcome, output=output, error="because"))
    end = run.apply(Uploaded(last.number, None), 0.0)[0] if isinstance(last, Upload) else last
    assert isinstance(end, Finish)
    assert (end.status, end.code, end.output) == (Status.FAILED, code or why, b"")


def test_a_file_that_the_end_names_again_counts_once() -> None:
    effects = follow(filing(10_000), Produced(LARGE, 0), Ended(outcome=Outcome.SUCCEEDED, output=LARGE))
    assert len(uploads(effects)) == 2


@pytest.mark.parametrize("outcome", PASSING)
def test_what_is_given_back_waits_for_no_file(outcome: Outcome) -> None:
    run = storing()
    follow(run, Produced(PNG, 0))
    assert isinstance(follow(run, Ended(outcome=outcome, output=PNG))[-1], GiveBack)
    assert run.apply(Uploaded(0, (URL,)), 0.0) == []


def test_cancel_while_files_are_stored_takes_effect() -> None:
    run = storing()
    follow(run, Produced(PNG, 0), Ended(outcome=Outcome.SUCCEEDED))
    assert run.stop(Stop.USER)
    *_, end = run.apply(Uploaded(0, (URL,)), 0.0)
    assert isinstance(end, Finish)
    assert end.status is Status.CANCELED


def test_run_time_ends_before_its_files_are_stored() -> None:
    run = storing()
    assert run.over_ms(1.0) == 0
    run.apply(Produced(PNG, 0), 1.0)
    run.apply(Ended(outcome=Outcome.SUCCEEDED), 3.0)
    run.apply(Uploaded(0, (URL,)), 9.0)
    assert (run.ran_ms(9.0), run.over_ms(9.0)) == (8000, 6000)


SUCCEEDED = Ended(outcome=Outcome.SUCCEEDED, output=Raw(b"[1]"), logs="said", metrics={"n": Raw(b"1")})


@pytest.mark.parametrize(("reason", "error"), [("too cheerful", "too cheerful"), ("", "The output was refused.")])
def test_a_refused_output_is_a_failure_without_it(reason: str, error: str) -> None:
    run = storing(is_moderated=True)
    follow(run, Began(), SUCCEEDED)
    [end] = run.apply(Judged(Verdict.REFUSED, reason), 0.0)
    assert end == Finish(status=Status.FAILED, code="moderation_refused", error=error, logs="said", metrics=b'{"n":1}')
    assert run.apply(Judged(Verdict.ALLOWED), 0.0) == []


def test_a_success_without_an_output_needs_no_verdict() -> None:
    ended = Ended(outcome=Outcome.SUCCEEDED, output=Raw(b"null"))
    assert finish(storing(is_moderated=True), ended).status is Status.SUCCEEDED


def test_file_from_before_a_restart_is_not_awaited() -> None:
    run = storing()
    follow(run, Produced(PNG, 0), Restarted("stream_lagged"))
    assert run.apply(Uploaded(0, (URL,)), at=0.0) == []
    assert finish(run, Produced(Raw(b"2"), 0), Ended(outcome=Outcome.SUCCEEDED)).output == b"[2]"
