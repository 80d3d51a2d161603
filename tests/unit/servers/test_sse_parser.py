from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.servers.runners.answers import Frame, FrameTooLarge, SseParser

COGLET = b"""event: start
data: {"id":"s1","status":"processing"}

event: output
data: {"chunk":"a ","index":0}

: keep-alive

event: completed
data: {"id":"s1","status":"succeeded"}

"""
COGLET_FRAMES = [
    Frame("start", b'{"id":"s1","status":"processing"}'),
    Frame("output", b'{"chunk":"a ","index":0}'),
    Frame("completed", b'{"id":"s1","status":"succeeded"}'),
]


def parse(*chunks: bytes, max_bytes: int = 1000) -> list[Frame]:
    parser = SseParser(max_bytes)
    return [frame for chunk in chunks for frame in parser.feed(chunk)]


@given(cuts=st.lists(st.integers(0, len(COGLET) * 2)), newline=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_chunks_and_line_ends_do_not_change_the_events(cuts: list[int], newline: bytes) -> None:
    stream = COGLET.replace(b"\n", newline)
    edges = [0, *sorted(cuts), len(stream)]
    assert parse(*(stream[a:b] for a, b in pairwise(edges))) == COGLET_FRAMES


@pytest.mark.parametrize(
    ("stream", "frames"),
    [
        pytest.param(b"data: a\ndata: b\n\n", [Frame("message", b"a\nb")], id="several data lines are one text"),
        pytest.param(b"data:a\n\n", [Frame("message", b"a")], id="the space is optional"),
        pytest.param(b"data:  a\n\n", [Frame("message", b" a")], id="only one space is dropped"),
        pytest.param(b"data\n\n", [Frame("message", b"")], id="a field without a colon is empty"),
        pytest.param(b"event: x\n\ndata: a\n\n", [Frame("message", b"a")], id="no data, no event, no leftover name"),
        pytest.param(b"id: 1\nretry: 5\ndata: a\n\n", [Frame("message", b"a")], id="id and retry are passed over"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [Frame("message", b"a")], id="a byte order mark is dropped"),
        pytest.param(b"data: a\n", [], id="an unfinished event is dropped"),
        pytest.param(
            b"data: a\x0bb\xe2\x80\xa8c\n\n", [Frame("message", b"a\x0bb\xe2\x80\xa8c")], id="only CR and LF end"
        ),
        pytest.param(b"event: \xff\ndata: a\n\n", [Frame("�", b"a")], id="a name that is not UTF-8 is no crash"),
    ],
)
def test_the_standard_is_kept(stream: bytes, frames: list[Frame]) -> None:
    assert parse(stream) == frames


def test_endless_line_is_refused_at_the_limit() -> None:
    with pytest.raises(FrameTooLarge):
        parse(*[b"x" * 50] * 3, max_bytes=100)


def test_an_event_of_many_small_lines_is_refused_too() -> None:
    with pytest.raises(FrameTooLarge):
        parse(*[b"data: 0123456789\n"] * 20, max_bytes=100)


def test_many_small_events_are_accepted() -> None:
    assert len(parse(*[b"data: 0123456789\n\n"] * 100, max_bytes=20)) == 100
