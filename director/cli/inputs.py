"""Read the inputs of a command line by the model's schema, and save the files of an output."""

import argparse
import base64
import mimetypes
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from director.core.data_uri import is_data_uri, read_data_uri
from director.core.errors import DirectorError

FETCHED: Final = ("http://", "https://")
FETCH_S: Final = 60.0
DEEPEST: Final = 8
OCTETS: Final = "application/octet-stream"
NO_FILE: Final = "the output of this model is not a file. Leave --output out to see it."
KINDS: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
# as Python and spreadsheets spell them
SPELLED: Final[Mapping[str, bool]] = {"True": True, "False": False, "TRUE": True, "FALSE": False}


class FileFault(DirectorError):
    """A file named on the command line cannot be read or written. Correct its path."""


class Text(Struct, frozen=True):
    """A value as it was typed. The schema of its input decides what it is."""

    typed: str


class Described(Struct, frozen=True):
    """A model's inputs and its output, as its OpenAPI document has them. Empty if it has none."""

    inputs: Mapping[str, Any] = {}
    output: Mapping[str, Any] = {}
    schemas: Mapping[str, Any] = {}

    @classmethod
    def of(cls, document: Any) -> "Described":
        """Raises KeyError, TypeError or AttributeError for a document without inputs."""
        schemas = document["components"]["schemas"]
        return cls(dict(schemas["Input"]["properties"]), dict(schemas.get("Output") or {}), schemas)


def parse_input(text: str) -> tuple[str, Any]:
    """Split one `-i`. A file becomes a data URI at once; what was typed stays a `Text`. Raises FileFault."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not an input: give name=value, or name=@file")
    if value.startswith("@"):
        return name, data_uri(Path(value[1:]))
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not in UTF-8: give the bytes in a file, as name=@file") from exc
    return name, Text(value)


def read_inputs(given: Sequence[tuple[str, Any]], known: Described | None) -> dict[str, Any]:
    """Return the input that was typed, each value as the schema of its name has it."""
    known = known or Described()
    return {
        name: value_of(value.typed, known.inputs.get(name), known.schemas) if isinstance(value, Text) else value
        for name, value in given
    }


def value_of(typed: str, schema: Any, schemas: Mapping[str, Any]) -> Any:
    """Return text for an input that takes text, and JSON for others. Without a schema it is JSON if it parses."""
    kinds = kinds_of(schema, schemas)
    if "string" not in kinds and "boolean" in kinds and typed in SPELLED:
        return SPELLED[typed]
    try:
        value = msgspec.json.decode(typed.encode())
    except (msgspec.DecodeError, RecursionError):
        return typed
    if isinstance(value, float) and value.is_integer() and "integer" in kinds and "number" not in kinds:
        value = int(value)
    if "string" not in kinds:
        return value
    kind = KINDS[type(value)]
    is_meant = kind in kinds or (kind == "integer" and "number" in kinds)
    return value if is_meant and kind not in ("string", "null") else typed


def kinds_of(schema: Any, schemas: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema takes. Empty if it does not say."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return frozenset()
    said = schema.get("type")
    found = frozenset([said] if isinstance(said, str) else said if isinstance(said, list) else ())
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if not found and isinstance(options, list):
        found = frozenset(KINDS.get(type(option), "") for option in options)
    if not found:
        reference = schema.get("$ref")
        parts = [schemas.get(reference.rpartition("/")[2])] if isinstance(reference, str) else []
        parts += [part for word in ("allOf", "anyOf", "oneOf") for part in schema.get(word) or ()]
        found = frozenset(kind for part in parts for kind in kinds_of(part, schemas, depth + 1))
    return found | {"null"} if found and schema.get("nullable") is True else found


def check_output(file: str, known: Described | None) -> None:
    """Raise FileFault, before anything runs, if an output could not be saved there."""
    if known is not None and not _may_be_files(known.output, known.schemas):
        raise FileFault(NO_FILE)
    place = Path(file)
    folder = place if _is_folder(file) else place.parent
    if _is_folder(file):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise FileFault(f"cannot make {folder}: {exc.strerror}. Choose another --output.") from exc
    if not folder.is_dir():
        raise FileFault(f"cannot write {file}: there is no folder {folder}. Make it, or choose another --output.")
    if not os.access(place if place.is_file() else folder, os.W_OK):
        raise FileFault(f"cannot write {file}: Permission denied. Choose another --output.")


def _may_be_files(schema: Any, schemas: Mapping[str, Any]) -> bool:
    """Return whether an output may have files: text may be the address of one, unless its pieces are joined."""
    kinds = kinds_of(schema, schemas)
    return schema.get("x-cog-array-display") != "concatenate" and not kinds & {"integer", "number", "boolean"}


def save_output(output: Any, file: str) -> list[str]:
    """Write the files of an output, each a data URI or an address, and return where. One file gets the given name, the
    files of a list `x-0.png`, `x-1.png` …, and in a folder each has a name of its own. Raises FileFault.
    """
    found = list(_files(output))
    if not found:
        raise FileFault(NO_FILE)
    saved = []
    for path, text in found:
        data, kind = _fetch(text) if text.startswith(FETCHED) else _decode(text)
        place = _place(file, path, mimetypes.guess_extension(kind) or Path(urlsplit(text).path[-64:]).suffix)
        try:
            place.write_bytes(data)
        except OSError as exc:
            raise FileFault(f"cannot write {place}: {exc.strerror}. Choose another --output.") from exc
        saved.append(str(place))
    return saved


def _is_folder(file: str) -> bool:
    return file.endswith(os.sep) or Path(file).is_dir()


def _files(output: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each file of an output with the names and numbers that lead to it."""
    if isinstance(output, str) and (output.startswith(FETCHED) or is_data_uri(output[:5].encode())):
        yield path, output
    elif isinstance(output, list | dict) and len(path) < DEEPEST:
        parts = enumerate(output) if isinstance(output, list) else output.items()
        for name, part in parts:
            yield from _files(part, (*path, str(name)))


def _place(file: str, path: tuple[str, ...], ending: str) -> Path:
    # the names come from a model, and must not lead to another folder
    names = ["".join(letter if letter.isalnum() or letter in "_." else "_" for letter in name) for name in path]
    if _is_folder(file):
        return Path(file) / ("-".join(names or ["output"]) + ending)
    place = Path(file)
    return place.with_name("-".join([place.stem, *names]) + place.suffix) if names else place


def _fetch(url: str) -> tuple[bytes, str]:
    import httpx

    try:
        # the token is not sent: the address is enough, and other hosts serve some files
        answer = httpx.get(url, timeout=FETCH_S, trust_env=False)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise FileFault(f"cannot fetch the output: {exc}. Leave --output out to see its address.") from exc
    return answer.content, answer.headers.get("content-type", "").partition(";")[0]


def _decode(text: str) -> tuple[bytes, str]:
    if (uri := read_data_uri(text.encode())) is None:
        raise FileFault(NO_FILE)
    try:
        return uri.decode(), uri.content_type.partition(";")[0]
    except ValueError as exc:
        raise FileFault(f"the output is no valid data URI ({exc}). Leave --output out to see it.") from exc


def open_file(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as exc:
        raise FileFault(f"cannot read {file}: {exc.strerror}. Check the path.") from exc


def data_uri(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as exc:
        raise FileFault(f"cannot read {file}: {exc.strerror}. Check the path after the @.") from exc
    kind = mimetypes.guess_type(file.name)[0] or OCTETS
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
