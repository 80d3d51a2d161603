"""Read the inputs of a command line by the model's schema, and save the files of an output."""

import argparse
import base64
import mimetypes
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from director.core.data_uri import is_data_uri, read_data_uri
from director.core.errors import DirectorError, SettingsError

FETCHED: Final = ("http://", "https://")
FETCH_S: Final = 60.0
DEEPEST: Final = 8
LONGEST_DEFAULT: Final = 60
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


class Files(Struct, frozen=True):
    """The files of a folder, for an input that takes a list."""

    uris: Sequence[str]


class Described(Struct, frozen=True):
    """A model's inputs and its output, as its OpenAPI document has them. Empty if it has none."""

    inputs: Mapping[str, Any] = {}
    output: Mapping[str, Any] = {}
    schemas: Mapping[str, Any] = {}
    required: Sequence[str] = ()

    @classmethod
    def of(cls, document: Any) -> "Described":
        """Raises KeyError, TypeError or AttributeError for a document without inputs."""
        schemas = document["components"]["schemas"]
        given = schemas["Input"]
        first = (given.get("anyOf") or [{}])[0]  # of inputs that stand for each other
        required = [*(given.get("required") or ()), *(first.get("required") or ())]
        return cls(dict(given["properties"]), dict(schemas.get("Output") or {}), schemas, list(map(str, required)))


def show_inputs(known: Described) -> Iterator[tuple[str, str, str]]:
    """Yield each input for a person: its name, what it takes, and what it is for."""

    def order(name: str) -> Any:
        place = known.inputs[name].get("x-order") if isinstance(known.inputs[name], dict) else None
        return place if isinstance(place, int) else len(known.inputs)

    for name in sorted(known.inputs, key=order):
        schema = known.inputs[name] if isinstance(known.inputs[name], dict) else {}
        facts = [show_kind(schema, known.schemas) or "anything"]
        if "default" in schema:
            facts.append(f"({msgspec.json.encode(schema['default']).decode()[:LONGEST_DEFAULT]})")
        elif name in known.required:
            facts.append("required")
        facts += [f"{word} {schema[key]}" for word, key in (("from", "minimum"), ("to", "maximum")) if key in schema]
        yield name, " ".join(facts), str(schema.get("description") or "").replace("\n", " ")


def show_kind(schema: Any, schemas: Mapping[str, Any]) -> str:
    """Return the types that a schema takes, with its format: "string (uri)", "list of string"."""
    if not isinstance(schema, dict):
        return ""
    kinds = sorted(kinds_of(schema, schemas))
    if kinds == ["array"]:
        return f"list of {show_kind(schema.get('items'), schemas) or 'anything'}"
    form = schema.get("format")
    return " or ".join(kinds) + (f" ({form})" if kinds and isinstance(form, str) else "")


def parse_input(text: str) -> tuple[str, Any]:
    """Split one `-i`. A file becomes a data URI at once; what was typed stays a `Text`. Raises FileFault."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not an input: give name=value, or name=@file")
    if value.startswith("@"):
        file = Path(value[1:])
        return name, Files(data_uris(file)) if file.is_dir() else data_uri(file)
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not in UTF-8: give the bytes in a file, as name=@file") from exc
    return name, Text(value)


def read_inputs(given: Sequence[tuple[str, Any]], known: Described | None) -> dict[str, Any]:
    """Return the input that was typed, each value as the schema of its name has it. An input that takes a list gets
    each of its values, and each file of a folder. Raises SettingsError for another one that is typed twice.
    """
    known = known or Described()
    counts, found = Counter(name for name, _ in given), dict[str, Any]()
    for name, value in given:
        schema = known.inputs.get(name)
        kinds = kinds_of(schema, known.schemas)
        is_file = not isinstance(value, Text | Files)
        if "array" in kinds and (counts[name] > 1 or isinstance(value, Files) or (is_file and "string" not in kinds)):
            found[name] = [*found.get(name, ()), *_items_of(value, schema, known.schemas)]
        elif name in found:
            raise SettingsError(f"-i {name} is given twice, and {name} takes one value.")
        elif isinstance(value, Files):
            raise SettingsError(f"-i {name} is a folder, and {name} takes no list of files.")
        else:
            found[name] = value_of(value.typed, schema, known.schemas) if isinstance(value, Text) else value
    return found


def _items_of(value: Any, schema: Any, schemas: Mapping[str, Any]) -> Sequence[Any]:
    """Return the items that one `-i` adds to a list: a file, those of a folder, or what was typed."""
    if isinstance(value, Files):
        return value.uris
    if not isinstance(value, Text):
        return [value]
    typed = value_of(value.typed, schema, schemas)
    return typed if isinstance(typed, list) else [value_of(value.typed, schema.get("items"), schemas)]


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


def data_uris(folder: Path) -> list[str]:
    """Return the files of a folder by their names, without hidden ones. Raises FileFault."""
    try:
        files = sorted(one for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))
    except OSError as exc:
        raise FileFault(f"cannot read {folder}: {exc.strerror}. Check the path after the @.") from exc
    if not files:
        raise FileFault(f"{folder} has no files. Check the path after the @.")
    return list(map(data_uri, files))
