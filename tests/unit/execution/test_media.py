import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from director.core.data_uri import DataUri, read_data_uri
from director.execution.uploads import fill_addresses, find

PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG, nearly").decode()
URL = "http://director.test/v1/outputs/a?b=c&d=é"


def raw(value: Any, **options: Any) -> Raw:
    return Raw(json.dumps(value, **options).encode())


def stored(value: Any, *, inline: int = 100, **options: Any) -> Any:
    """The output with an address for each of its files."""
    output = raw(value, **options)
    found = find(output, inline=inline)
    return value if found is None else json.loads(bytes(fill_addresses(output, found, [URL] * len(found.files))))


def test_what_is_no_file_stays_byte_for_byte() -> None:
    output = Raw(b'[ 1.50, "data" , {"k":"\\u00e9", "f": "%s"}, 12345678901234567890 ]' % PNG.encode())
    found = find(output, inline=0)
    assert found is not None
    assert bytes(fill_addresses(output, found, [None])) == bytes(output)
    assert bytes(fill_addresses(output, found, ["u"])) == bytes(output).replace(PNG.encode(), b"u")


@pytest.mark.parametrize(
    "text",
    [
        "data:",
        "data: three things, and more",
        "data:,hello",
        "data:hello;base64",
        "data:not a type/really;base64,AAAA",
        "see data:image/png;base64,AAAA",
        'he said "data:image/png;base64,AAAA"',
        '"data:image/png;base64,AAAA',
        "data:text/plain;base64,aGk=",
    ],
)
def test_a_text_that_looks_a_little_like_one_is_left_alone(text: str) -> None:
    assert stored([text, PNG]) == [text, URL]


BYTES = bytes(range(256)) + b"?>"
PLAIN = base64.b64encode(BYTES).decode()
BROKEN = "\r\n".join(PLAIN[at : at + 76] for at in range(0, len(PLAIN), 76))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"DATA:IMAGE/PNG;BASE64,{PLAIN}", "image/png"),
        (f"Data:image/png;Base64,{PLAIN}", "image/png"),
        (f"data:image/png;base64,{BROKEN}", "image/png"),
        (f"data:image/png;base64,{BROKEN.replace(chr(13), '%0D').replace(chr(10), '%0A')}", "image/png"),
        (f"data:image/png;base64,{base64.urlsafe_b64encode(BYTES).decode()}", "image/png"),
        (f"data:image/png;base64,{PLAIN.rstrip('=')}", "image/png"),
        (f"data:image/png;base64,{PLAIN.replace('+', '%2B').replace('/', '%2F').replace('=', '%3D')}", "image/png"),
        (f"data: image/png; base64,{PLAIN}", "image/png"),
        (f'data:image/png;name="a;b,c.png";base64,{PLAIN}', "image/png"),
        (f"data:text/csv;charset=UTF-8;header=present;base64,{PLAIN}", "text/csv; charset=utf-8"),
        (f'data:text/csv;charset="utf-8";base64,{PLAIN}', "text/csv; charset=utf-8"),
        (f"data:;base64,{PLAIN}", "text/plain"),
        (
            f"data:application/vnd.openxmlformats-officedocument.presentationml.slideshow.x{'y' * 40};base64,{PLAIN}",
            None,
        ),
    ],
)
def test_data_uri_is_decoded_however_it_is_written(text: str, kind: str | None) -> None:
    found = find(raw({"file": text}), inline=0)
    assert found is not None
    [file] = found.files
    assert isinstance(file, DataUri)
    assert file.decode() == BYTES
    assert kind is None or file.content_type == kind


@pytest.mark.parametrize("body", ["A", "AAAA*", "AAAA=AAAA", "é"])
def test_invalid_base64_is_refused(body: str) -> None:
    found = read_data_uri(f"data:image/png;base64,{body}".encode())
    assert found is not None
    with pytest.raises(ValueError, match=r"."):
        found.decode()


def test_the_name_of_a_member_is_no_file() -> None:
    assert stored({PNG: PNG}) == {PNG: URL}
    assert stored({"a": PNG}, separators=(" ,  ", " : ")) == {"a": URL}
    assert stored({PNG: 1}, separators=(",", " : ")) == {PNG: 1}


def test_text_becomes_a_file_once_it_is_long() -> None:
    short, long = "data:text/plain;base64,aGk=", "data:text/plain;charset=UTF-8;base64," + "aGk=" * 50
    empty = "data:text/plain;base64,"
    assert stored([empty, short, long], inline=20) == [empty, short, URL]
    assert stored([empty, short, long], inline=0) == [URL, URL, URL]
    found = find(raw(long), inline=20)
    assert found is not None
    assert found.files[0].content_type == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("uri", "kind", "data"),
    [
        ("data:image/png;base64,iVBORw==", "image/png", b"\x89PNG"),
        ("data:image/png;base64,iVBORw", "image/png", b"\x89PNG"),
        ("data:IMAGE/SVG+xml,%3Csvg/%3E", "image/svg+xml", b"<svg/>"),
        ("data:audio/x-wav;rate=16000;base64,UklGRg==", "audio/x-wav", b"RIFF"),
        ("data:application/octet-stream;base64,", "application/octet-stream", b""),
    ],
)
def test_a_file_is_read_as_its_head_says(uri: str, kind: str, data: bytes) -> None:
    for output in (raw(uri), Raw(json.dumps(uri).replace("/", "\\/").encode())):
        found = find(output, inline=0)
        assert found is not None
        [file] = found.files
        assert (file.content_type, file.decode()) == (kind, data)


def test_what_is_not_base64_though_it_says_so_cannot_be_decoded() -> None:
    found = find(raw("data:image/png;base64,*** no ***"), inline=0)
    assert found is not None
    with pytest.raises(ValueError):
        found.files[0].decode()


texts = st.text(max_size=20) | st.sampled_from(
    [PNG, "data:", '"data:', "\\", '\\"data:image/png;base64,AA', "data:a/b,"]
)
outputs = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def expected(value: Any) -> Any:
    match value:
        case str():
            return URL if value in (PNG, "data:a/b,") else value
        case list():
            return [expected(each) for each in value]
        case dict():
            return {name: expected(each) for name, each in value.items()}
        case _:
            return value


@given(value=outputs, is_ascii=st.booleans())
def test_in_any_output_files_and_only_files_get_addresses(value: Any, is_ascii: bool) -> None:
    assert stored(value, inline=0, ensure_ascii=is_ascii) == expected(value)
