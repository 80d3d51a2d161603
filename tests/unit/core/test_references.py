import msgspec
import pytest
from msgspec import Raw

from director.core.schema import REFERENCE_BYTES, Reference, reference_in

REFERENCE = Reference("a0" * 16, 200_000)


def test_a_reference_is_read_as_it_was_written() -> None:
    assert len(bytes(REFERENCE)) == REFERENCE_BYTES
    assert reference_in(bytes(REFERENCE)) == reference_in(Raw(bytes(REFERENCE))) == REFERENCE


def test_no_json_is_a_reference() -> None:
    """Inputs and outputs are JSON, so no caller and no model can forge one."""
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(bytes(REFERENCE), type=Raw)
    text = bytes(REFERENCE).decode()
    for value in (text, text[1:-1], text[2:], {"a": text}, [text]):
        assert reference_in(msgspec.json.encode(value)) is None


@pytest.mark.parametrize(
    "kept",
    [
        None,
        b"",
        b"{}",
        bytes(REFERENCE)[1:] + b" ",
        bytes(REFERENCE) + b"\n",
        b'"' + bytes(REFERENCE)[1:],
        b"\0" + b"A0" * 16 + b" 0000200000",
        b"\0" + b"../" * 10 + b"ab 0000200000",
    ],
)
def test_other_bytes_are_no_reference(kept: bytes | None) -> None:
    assert reference_in(kept) is None
