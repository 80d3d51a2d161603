"""Write an input as the body of a form (multipart/form-data): texts, and files that come as data URIs. Pure."""

import mimetypes
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Raw

from director.core.data_uri import read_data_uri
from director.servers.runners.answers import NULL


class FormFault(ValueError):
    """The input cannot be sent as a form. The message is for the caller."""


def content_type(boundary: str) -> str:
    return f"multipart/form-data; boundary={boundary}"


def encode(filled: bytes, *, files: Sequence[str], boundary: str) -> bytes:
    """Return the body for an object of JSON: a field per member, or per item of a list. Members named in `files` are
    files. Raises FormFault.
    """
    parts = []
    for name, value in msgspec.json.decode(filled, type=dict[str, Raw]).items():
        parts += [_file(name, each) if name in files else (_disposition(name), _text(each)) for each in _each(value)]
    line = b"--" + boundary.encode()
    if any(line in each for part in parts for each in part):
        # a server may have shown it. A caller could end a part with it, and add fields that the model does not offer
        raise FormFault("the input has the text that separates the parts of the form to the model server")
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
    uri = read_data_uri(_text(value))
    if uri is None:
        raise FormFault(f"{name} has to be a file: a data URI, or the address of a file that you uploaded to /v1/files")
    try:
        data = uri.decode()
    except ValueError as exc:
        raise FormFault(f"{name} is a data URI whose base64 cannot be read") from exc
    kind = uri.content_type.partition(";")[0]
    ending = mimetypes.guess_extension(kind) or f".{kind.rpartition('/')[2].removeprefix('x-')}"
    file = f"{name}{ending}"
    return _disposition(name, file) + b"\r\ncontent-type: " + uri.content_type.encode(), data


def _disposition(name: str, file: str = "") -> bytes:
    # as browsers escape them
    shown = [each.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A") for each in (name, file)]
    said = f'content-disposition: form-data; name="{shown[0]}"' + (f'; filename="{shown[1]}"' if file else "")
    return said.encode()
