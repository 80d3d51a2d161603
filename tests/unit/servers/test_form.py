"""Test how an input is written as the body of a form."""

import msgspec
import pytest

from director.servers.runners.form import FormFault, encode


def part(uri: str) -> list[bytes]:
    """Return the lines of the form that has one file."""
    return encode(msgspec.json.encode({"f": uri}), files=("f",), boundary="B").split(b"\r\n")[1:-2]


@pytest.mark.parametrize(
    ("uri", "file", "kind", "data"),
    [
        ("data:text/plain;base64,aGk", "f.txt", "text/plain", b"hi"),
        ("data: image/png;base64,aGk=", "f.png", "image/png", b"hi"),
        ("data:application/x_y;base64,a_-=", "f.x_y", "application/x_y", b"k\xff"),
        ("data:text/plain;charset=UTF-8,%68i", "f.txt", "text/plain; charset=utf-8", b"hi"),
    ],
)
def test_every_data_uri_that_director_reads_is_a_file(uri: str, file: str, kind: str, data: bytes) -> None:
    head, of_kind, _, content = part(uri)
    assert head == f'content-disposition: form-data; name="f"; filename="{file}"'.encode()
    assert (of_kind, content) == (f"content-type: {kind}".encode(), data)


@pytest.mark.parametrize("text", ["", "hi", "data:image/png;base64,a", '{"a": 1}'])
def test_text_that_is_no_file_is_refused(text: str) -> None:
    with pytest.raises(FormFault, match=r"^f "):
        part(text)


@pytest.mark.parametrize(
    "filled",
    [
        {"f": 'data:text/plain,a\r\n--B\r\ncontent-disposition: form-data; name="admin"\r\n\r\n1'},
        {"f": "data:text/plain;base64,LS1C"},
        {"text": "--B--"},
        {"--B": "name"},
    ],
)
def test_input_with_the_boundary_adds_no_field(filled: dict[str, str]) -> None:
    with pytest.raises(FormFault, match="separates"):
        encode(msgspec.json.encode(filled), files=("f",), boundary="B")
