"""Inputs and files of the command line: what `-i name=value` and `-i name=@file` mean, and how an output is saved.

A value is JSON where it reads as JSON, else text; a file becomes a data URI, and is one or an address in an output.
"""

import base64
import mimetypes
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from director.core.errors import DirectorError

FETCHED: Final = ("http://", "https://")
FETCH_S: Final = 60.0


class FileFault(DirectorError):
    """A file named on the command line cannot be read or written. Correct its path."""


def parse(text: str) -> tuple[str, Any]:
    """One `-i`. Raises ValueError where it is not name=value, FileFault."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is no input: give name=value, or name=@file")
    if value.startswith("@"):
        return name, _data_uri(Path(value[1:]))
    try:
        return name, msgspec.json.decode(value.encode())
    except msgspec.DecodeError:
        return name, value


def save(output: Any, file: str) -> None:
    """Write the file that a model made. Raises FileFault where its output is none, or it cannot be had or written."""
    data = _fetched(output) if isinstance(output, str) and output.startswith(FETCHED) else _decoded(output)
    try:
        Path(file).write_bytes(data)
    except OSError as exc:
        raise FileFault(f"cannot write {file}: {exc.strerror}. Choose another --output.") from exc


def _fetched(url: str) -> bytes:
    try:
        # without the token: the address is enough, and not every one is ours
        answer = httpx.get(url, timeout=FETCH_S, trust_env=False)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise FileFault(f"cannot fetch the output: {exc}. Leave --output out to see its address.") from exc
    return answer.content


def _decoded(output: Any) -> bytes:
    head, comma, body = output.partition(",") if isinstance(output, str) else ("", "", "")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise FileFault("the output of this model is no file. Leave --output out to see it.")
    return base64.b64decode(body)


def _data_uri(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as exc:
        raise FileFault(f"cannot read {file}: {exc.strerror}. Check the path after the @.") from exc
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
