"""Turn the rows of a CSV file into the requests of a batch, and its results into another CSV. A row has the number that
a spreadsheet shows: the header is row 1. One row is in memory, and for results the place of each one.
"""

import codecs
import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from jsonschema_rs import ValidationError, Validator, validator_for
from msgspec import Raw, Struct

from director.cli.arguments import did_you_mean
from director.cli.client import PredictionAnswer
from director.cli.inputs import Described, FileFault, data_uri, open_file, value_of
from director.cli.output import as_cell
from director.core.words import several

MOST_LINES: Final = 50_000
MOST_BYTES: Final = 200 << 20
LONGEST_CELL: Final = 16 << 20
MOST_FAULTS: Final = 10  # that one error names
LONGEST_FAULT: Final = 200
DELIMITERS: Final = (b",", b";", b"\t")
RESULTS: Final = ("status", "output", "error", "id")
ENDED_AS: Final = {"batch_expired": "expired", "batch_cancelled": "canceled"}


class Rows:
    """A CSV file in UTF-8. Its header decides between comma, semicolon and tab. Raises FileFault."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with open_file(file) as opened:
            first = opened.readline(LONGEST_CELL)
        self.encoding = "utf-8-sig" if first.startswith(codecs.BOM_UTF8) else "utf-8"
        self.delimiter = max(DELIMITERS, key=first.count).decode()
        self.header = next((cells for _, cells in self._read()), [])
        for at, name in enumerate(self.header, start=1):
            if not name.strip():
                raise FileFault(f"{file}: column {at} has no name. Name it in row 1, or remove it.")
            if self.header.index(name) != at - 1:
                raise FileFault(f"{file}: two columns are named {name}. Rename or remove one.")
        if not self.header:
            raise FileFault(f"{file} is empty: row 1 names the columns.")

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """Yield number and cells of each row that is not blank."""
        rows = self._read()
        next(rows)
        yield from ((number, cells) for number, cells in rows if any(cells))

    def digest(self) -> str:
        with self.file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()

    def _read(self) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(LONGEST_CELL)
        number = 0
        with self.file.open(encoding=self.encoding, newline="") as opened:
            try:
                for number, cells in enumerate(csv.reader(opened, delimiter=self.delimiter, strict=True), start=1):
                    yield number, cells
            except csv.Error as exc:
                raise FileFault(f"{self.file}, row {number + 1}: this is no CSV ({exc}). Check its quotes.") from exc
            except UnicodeDecodeError as exc:
                raise FileFault(
                    f"{self.file}, row {number + 1} or later is not in UTF-8. Save it as CSV UTF-8."
                ) from exc


class Reader:
    """Reads the cells of a row as inputs of a model, by its schema."""

    def __init__(self, rows: Rows, model: str, known: Described | None, same: Mapping[str, Any]) -> None:
        self._header = rows.header
        self._known = known or Described()
        self._same = same
        for name in (*rows.header, *same):
            if known is not None and name not in known.inputs:
                hint = did_you_mean(name, known.inputs) or f"it has {', '.join(known.inputs) or 'none'}."
                where = f"column {name} of {rows.file}" if name in rows.header else f"-i {name}"
                raise FileFault(f"{where}: {model} has no input {name}: {hint}")
            if name in rows.header and name in same:
                raise FileFault(f"{name} is a column of {rows.file} and an -i. Give one of them.")
        self._validator = _validator(self._known)

    def read(self, cells: Sequence[str]) -> dict[str, Any]:
        """Return the inputs of a row. An empty cell is left out. Raises ValueError with what is wrong."""
        if len(cells) > len(self._header):
            raise ValueError(f"it has {several(len(cells), 'cell')}, and the header has {len(self._header)}")
        values = {name: self._value(name, cell) for name, cell in zip(self._header, cells, strict=False) if cell}
        given = {**self._same, **values}
        checked = {name: value for name, value in given.items() if value is not None}  # a schema may call it nullable
        fault = next(self._validator.iter_errors(checked), None) if self._validator else None
        if fault is not None:
            raise ValueError(f"{'.'.join(map(str, fault.instance_path)) or 'input'}: {_shorten(fault.message)}")
        return given

    def _value(self, name: str, cell: str) -> Any:
        schema = self._known.inputs.get(name)
        if cell.startswith("@") and isinstance(schema, dict) and schema.get("format") == "uri":
            try:
                return data_uri(Path(cell[1:]))
            except FileFault as exc:
                raise ValueError(f"{name}: {exc}") from exc
        return value_of(cell, schema, self._known.schemas)


def _validator(known: Described) -> Validator | None:
    """Return what checks an input, or None without a schema that can be read. The service checks it again."""
    schema = {"$ref": "#/components/schemas/Input", "components": {"schemas": known.schemas}}
    try:
        return validator_for(schema, offline=True) if "Input" in known.schemas else None
    except (ValidationError, ValueError):
        return None  # written for another version of JSON Schema


def _shorten(fault: str) -> str:
    """Return what is wrong without the middle: it begins with the value, which may be a whole file."""
    return fault if len(fault) <= LONGEST_FAULT else f"{fault[:60]}…{fault[60 - LONGEST_FAULT :]}"


def write_requests(rows: Rows, reader: Reader, model: str, to: BinaryIO) -> list[int]:
    """Write the request of each row, and return the rows' numbers. Raises FileFault with the rows that are wrong."""
    name, pinned, _ = model.partition(":")
    url, more = ("/v1/predictions", {"version": model}) if pinned else (f"/v1/models/{name}/predictions", {})
    numbers: list[int] = []
    faults: list[str] = []
    for number, cells in rows:
        try:
            body = {**more, "input": reader.read(cells)}
        except ValueError as exc:
            faults.append(f"  row {number}: {exc}")
            if len(faults) == MOST_FAULTS:
                break
        if not faults:
            line = {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}
            to.write(msgspec.json.encode(line) + b"\n")
        numbers.append(number)
        if len(numbers) > MOST_LINES or to.tell() > MOST_BYTES:
            raise FileFault(
                f"row {number} of {rows.file} is beyond {MOST_LINES:,} rows or {MOST_BYTES >> 20} MiB. Split the file."
            )
    if faults:
        raise FileFault("\n".join([f"nothing was sent. Correct {rows.file}:", *faults]))
    if not numbers:
        raise FileFault(f"{rows.file} has a header and no rows.")
    return numbers


class Fault(Struct, frozen=True):
    code: str
    message: str


class Response(Struct, frozen=True):
    body: Raw


class Result(Struct, frozen=True):
    """A line of an output or error file."""

    custom_id: str
    response: Response | None
    error: Fault | None


def write_results(rows: Rows, files: Sequence[BinaryIO], known: Described | None, to: BinaryIO) -> int:
    """Write a CSV with each row and its result, in the order of the rows. Return how many did not succeed."""
    places: dict[str, tuple[BinaryIO, int]] = {}
    for file in files:
        at = 0
        for line in file:
            places[msgspec.json.decode(line, type=Result).custom_id] = file, at
            at += len(line)
    joins = known is not None and known.output.get("x-cog-array-display") == "concatenate"
    width = len(rows.header)
    out = codecs.getwriter(rows.encoding)(to)
    writer = csv.writer(out, delimiter=rows.delimiter, lineterminator="\r\n")
    writer.writerow([*rows.header, *(f"result_{name}" if name in rows.header else name for name in RESULTS)])
    failed = 0
    for number, cells in rows:
        result = None
        if (place := places.get(f"row-{number}")) is not None:
            file, at = place
            file.seek(at)
            result = msgspec.json.decode(file.readline(), type=Result)
        status, *more = _cells(result, joins=joins)
        failed += status != "succeeded"
        padded = [*cells, *[""] * (width - len(cells))]
        writer.writerow([*padded, status, *map(as_cell, more)])
    return failed


def _cells(result: Result | None, *, joins: bool) -> tuple[str, Any, str | None, str]:
    """Return status, output, error and id of a row."""
    if result is None:
        return "failed", "", "it was not run: the batch ended before", ""
    if result.error is not None or result.response is None:
        fault = result.error or Fault("", "")
        return ENDED_AS.get(fault.code, "failed"), "", fault.message, ""
    try:
        ended = msgspec.json.decode(result.response.body, type=PredictionAnswer)
    except msgspec.ValidationError:  # it was refused
        refusal = msgspec.json.decode(result.response.body)
        said = refusal.get("detail") or refusal.get("title") if isinstance(refusal, dict) else refusal
        return "failed", "", str(said), ""
    return ended.status, _cell(ended.output, joins=joins), ended.error, ended.id


def _cell(output: Any, *, joins: bool) -> Any:
    """Return an output for a cell: text and numbers as they are, and all else as JSON."""
    if joins and isinstance(output, list) and all(isinstance(piece, str) for piece in output):
        return "".join(output)
    is_plain = output is None or (isinstance(output, str | int | float) and not isinstance(output, bool))
    return output if is_plain else msgspec.json.encode(output).decode()
