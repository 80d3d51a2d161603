from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from api.services.stream_events import Frames, Mark
from director.core.ids import PredictionId, QueueName
from director.core.schema import Event, Record, Stored
from director.core.states import Status
from director.core.view import LINES_DROPPED
from tests.support.event_stream import Comment, Told, take_apart

PAGE = 1 << 20


def log(*events: tuple[str, bytes]) -> list[Event]:
    return [Event(seq, kind, 0, data) for seq, (kind, data) in enumerate(events, start=1)]


def read(frames: bytes) -> list[Told | Comment]:
    assert frames == b"" or frames.endswith(b"\n\n")
    return [take_apart(block) for block in frames.decode().split("\n\n")[:-1]]


def told(frames: bytes) -> list[Told]:
    return [one for one in read(frames) if isinstance(one, Told)]


def whole(
    stream: Frames,
    events: list[Event],
    *,
    output: bytes = b"",
    logs: str = "",
    status: Status = Status.SUCCEEDED,
    error: str = "",
) -> bytes:
    frames = stream.events([event for event in events if event.seq > stream.mark.seq])
    rest, is_all = stream.rest(Raw(output) if output else None, logs, most_bytes=PAGE)
    assert is_all
    return frames + rest + stream.end(ended(status, error))


def ended(status: Status, error: str) -> Stored:
    record = Record(
        id=PredictionId("a" * 26),
        account="a",
        model="a/b",
        version="c",
        queue=QueueName("a/b:c"),
        created=1,
        status=status,
        error=error,
    )
    return Stored(record=record, input=None)


def data_of(item: bytes) -> bytes:
    return Frames(Mark()).events(log(("output", item)))


STREAMED = log(
    ("created", b""),
    ("started", b""),
    ("output", b'"a"'),
    ("logs", b'"one\\n"'),
    ("metric", b"{}"),
    ("output", b'"b"'),
    ("completed", b"succeeded"),
    ("webhook", b"completed delivered 200 1"),
)


def test_a_whole_run_is_told_to_the_letter() -> None:
    assert whole(Frames(Mark()), STREAMED, output=b'["a","b"]', logs="one\n").decode() == (
        "event: output\nid: 3:1:0\ndata: a\n\n"
        "event: logs\nid: 4:1:4\ndata: one\ndata: \n\n"
        "event: output\nid: 6:2:4\ndata: b\n\n"
        "event: done\nid: 6:2:4:done\ndata: {}\n\n"
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["data: "]),
        ("one", ["data: one"]),
        (" one", ["data:  one"]),
        ("one\n", ["data: one", "data: "]),
        ("\n", ["data: ", "data: "]),
        ("one\ntwo", ["data: one", "data: two"]),
        ("one\r\ntwo", ["data: one", "data: two"]),
        ("10%\r20%\r", ["data: 10%", "data: 20%", "data: "]),
        ("a\u2028b\u0085c\x0b", ["data: a\u2028b\u0085c\x0b"]),
        ("data: x", ["data: data: x"]),
        ("é \U0001f600", ["data: é \U0001f600"]),
    ],
)
def test_each_line_of_a_text_is_a_line_of_data(text: str, lines: list[str]) -> None:
    frames = data_of(msgspec.json.encode(text)).decode()
    assert frames == "\n".join(["event: output", "id: 1:1:0", *lines, "", ""])


@pytest.mark.parametrize(
    ("item", "data"),
    [
        (b'"text"', "text"),
        (b'{"a":[1.0,12345678901234567890]}', '{"a":[1.0,12345678901234567890]}'),
        (b"null", "null"),
        (b"7", "7"),
        (b'"half \\ud83d"', '"half \\ud83d"'),
    ],
)
def test_text_is_sent_as_text_and_other_output_as_json(item: bytes, data: str) -> None:
    [output] = told(data_of(item))
    assert output.data == data


def test_retry_is_announced_and_resets_the_counts_but_not_the_ids() -> None:
    lost = [("output", b'"lost"'), ("logs", b'"lost"')]
    again = [("retried", b"director_lost d1 1"), ("started", b""), ("output", b'"a"'), ("completed", b"")]
    frames = read(whole(Frames(Mark()), log(("created", b""), *lost, *again), output=b'["a"]'))
    assert [one.id if isinstance(one, Told) else one for one in frames] == [
        *("2:1:0", "3:1:4", Comment("retried"), "6:1:0", "6:1:0:done")
    ]


@pytest.mark.parametrize("kind", ["retried", "released"])
def test_claim_released_before_any_progress_is_not_announced(kind: str) -> None:
    assert Frames(Mark()).events(log(("created", b""), ("started", b""), (kind, b""), ("started", b""))) == b""


def test_restarted_log_is_sent_from_its_beginning() -> None:
    stream = Frames(Mark(seq=90, items=40, chars=7))
    retried, output = read(stream.events(log(("revived", b""), ("output", b'"a"'))))
    assert retried == Comment("retried")
    assert getattr(output, "id", "") == "2:1:0"


@pytest.mark.parametrize(
    ("output", "items"),
    [(b'["x","y"]', ["x", "y"]), (b'"text"', ["text"]), (b'{"a":1}', ['{"a":1}']), (b"[]", []), (b"null", [])],
)
def test_output_without_progress_is_sent_at_the_end(output: bytes, items: list[str]) -> None:
    events = log(("created", b""), ("started", b""), ("completed", b""))
    logs, *outputs, done = told(whole(Frames(Mark()), events, output=output, logs="one\ntwo"))
    assert (logs.event, logs.data) == ("logs", "one\ntwo")
    assert [one.data for one in outputs] == items
    assert done.event == "done"


@pytest.mark.parametrize(
    ("events", "output", "logs", "sent"),
    [
        ([("output", b'"a"'), ("logs", b'"on"')], b'["a","b",3]', "one", ["a", "on", "e", "b", "3"]),
        ([("output", b'"a"')], b'"ab"', "", ["a"]),
        ([("logs", b'"one\\n"')], b"", f"{LINES_DROPPED}two\n", ["one\n"]),
    ],
    ids=["missing from a full log", "other output", "logs without their beginning"],
)
def test_the_end_completes_only_what_progress_began(
    events: list[tuple[str, bytes]], output: bytes, logs: str, sent: list[str]
) -> None:
    frames = whole(Frames(Mark()), log(*events, ("completed", b"")), output=output, logs=logs)
    assert [one.data for one in told(frames)] == [*sent, "{}"]


def test_the_rest_is_told_in_pieces_that_follow_each_other() -> None:
    stream, frames = Frames(Mark()), []
    while True:
        rest, is_all = stream.rest(Raw(b'["aaaa","bbbb","cccc"]'), "x" * 40_000, most_bytes=20)
        frames += told(rest)
        if is_all:
            break
        assert len(told(rest)) == 1
    assert "".join(one.data for one in frames if one.event == "logs") == "x" * 40_000
    assert [one.data for one in frames if one.event == "output"] == ["aaaa", "bbbb", "cccc"]


@pytest.mark.parametrize("text", ["", "7", "1:2", "1:2:3:end", "-1:2:3", "a:b:c", "1:2:3 ", "1690212292:0", "٣:1:1"])
def test_foreign_id_means_the_beginning(text: str) -> None:
    assert Mark.parse(text) == Mark()


@given(
    st.builds(Mark, *[st.integers(0, 9_999_999_999)] * 3, st.sampled_from(["", "error", "done"])),
)
def test_an_id_names_its_place(mark: Mark) -> None:
    assert Mark.parse(str(mark)) == mark


KINDS = st.sampled_from(["output", "logs", "metric", "started", "retried", "released", "webhook"])


@given(
    st.lists(KINDS, max_size=12),
    st.integers(0, 3),
    st.text(max_size=3),
    st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.CANCELED]),
    st.data(),
)
def test_returning_reader_continues(
    kinds: list[str], unshown: int, unlogged: str, status: Status, data: st.DataObject
) -> None:
    bodies = {"output": b'"item"', "logs": b'"line"'}
    events = log(("created", b""), *((kind, bodies.get(kind, b"")) for kind in kinds), ("completed", b""))
    attempt = kinds[max((at + 1 for at, kind in enumerate(kinds) if kind in ("retried", "released")), default=0) :]
    end = {
        "output": msgspec.json.encode(["item"] * attempt.count("output") + ["rest"] * unshown),
        "logs": "line" * attempt.count("logs") + unlogged,
        "status": status,
        "error": "it broke",
    }
    frames = told(whole(Frames(Mark()), events, **end))
    ids = [one.id for one in frames]
    assert len(set(ids)) == len(ids)
    places = [one.place for one in frames]
    assert all(before < after for before, after in pairwise(places))

    cut = data.draw(st.integers(0, len(frames) - 1))
    again = told(whole(Frames(Mark.parse(ids[cut])), events, **end))
    if cut < len(frames) - 1:  # who was told that it is done, is not told again: see the handler
        assert again == frames[cut + 1 :]
