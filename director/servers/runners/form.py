"""Write an input as the body of a form (multipart/form-data): texts, and files that come as data URIs. Pure."""

import base64
import mimetypes
import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw

from director.servers.runners.answers import NULL

DATA_URI: Final = re.compile(r"data:(?P<kind>[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+)?(?P<more>(?:;[^,;]*)*),", re.IGNORECASE)
PLAIN: Final = "application/octet-stream"


class NotAFile(ValueError):
    """The input of a file has no file. The message is for the caller."""


def content_type(boundary: str) -> str:
    return f"multipart/form-data; boundary={boundary}"


def encoded(filled: bytes, *, files: Sequence[str], boundary: str) -> bytes:
    """Return the body for an object of JSON: a field per member, or per item of a list. Members named in `files` are
    files. Raises NotAFile.
    """
    parts = []
    for name, value in msgspec.json.decode(filled, type=dict[str, Raw]).items():
        parts += [_file(name, each) if name in files else (_disposition(name), _text(each)) for each in _each(value)]
    line = b"--" + boundary.encode()
    body = b"".join(b"%b\r\n%b\r\n\r\n%b\r\n" % (line, head, content) for head, content in parts)
    return body + line + b"--\r\n"


def _each(value: Raw) -> Iterator[Raw]:
    if value == NULL:
        return
    if bytes(value).lstrip()[:1] == b"[":
        yield from (each for each in msgspec.json.decode(value, type=list[Raw]) if each != NULL)
    else:
        yield value


def _text(value: Raw) -> bytes:
    return msgspec.json.decode(value, type=str).encode() if bytes(value).lstrip()[:1] == b'"' else bytes(value)


def _file(name: str, value: Raw) -> tuple[bytes, bytes]:
    said = _text(value).decode()
    found = DATA_URI.match(said)
    if found is None:
        raise NotAFile(f"{name} has to be a file: a data URI, or the address of a file that you uploaded to /v1/files")
    kind, data = (found["kind"] or PLAIN).lower(), unquote_to_bytes(said[found.end() :])
    if ";base64" in found["more"].lower():
        try:
            is_safe = b"-" in data or b"_" in data
            data = base64.b64decode(b"".join(data.split()), altchars=b"-_" if is_safe else None, validate=True)
        except ValueError as exc:
            raise NotAFile(f"{name} is a data URI whose base64 cannot be read") from exc
    ending = mimetypes.guess_extension(kind) or f".{kind.rpartition('/')[2].removeprefix('x-')}"
    file = f"{name}{ending}"
    return _disposition(name, file) + b"\r\ncontent-type: " + kind.encode(), data


def _disposition(name: str, file: str = "") -> bytes:
    # as browsers escape them
    shown = [each.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A") for each in (name, file)]
    said = f'content-disposition: form-data; name="{shown[0]}"' + (f'; filename="{shown[1]}"' if file else "")
    return said.encode()
