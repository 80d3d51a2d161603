import pytest

from director.core.schema import Reference
from director.core.states import Status
from director.store.predictions import Ending, parse_message

WHOLE = b"p1 succeeded 5 9 0 0 7 4 3\n" + b'{"a":1}' + b'"ok"' + "é\n".encode()


def test_message_carries_the_whole_end() -> None:
    ending = Ending(
        status=Status.SUCCEEDED,
        started=5,
        completed=9,
        code="",
        error="",
        metrics='{"a":1}',
        output=b'"ok"',
        logs="é\n",
    )
    assert parse_message(WHOLE) == ("p1", ending)


def test_prediction_that_never_began_has_no_start() -> None:
    _, ending = parse_message(b"p1 failed - 9 1 4 0 0 0\ncboom")
    assert ending is not None
    assert (ending.started, ending.code, ending.error) == (None, "c", "boom")


def test_additions_of_a_newer_release_are_ignored() -> None:
    head, _, rest = WHOLE.partition(b"\n")
    assert parse_message(head + b" 4\n" + rest + b"more") == parse_message(WHOLE)


@pytest.mark.parametrize(
    "message",
    [
        b"p1",
        b"p1 \n",
        b"p1 processing 5 9 0 0 0 0 0\n",
        b"p1 vanished 5 9 0 0 0 0 0\n",
        b"p1 failed 5 x 0 0 0 0 0\n",
        b"p1 failed 5 9 0 0 0 0 1\n\xff",
        pytest.param(b"p1 succeeded 5 9 0 0 0 44 0\n" + bytes(Reference("a0" * 16, 99)), id="output in a file"),
    ],
)
def test_incomplete_message_still_gives_the_id(message: bytes) -> None:
    assert parse_message(message) == ("p1", None)
