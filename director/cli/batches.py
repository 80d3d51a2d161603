"""Commands for batches, through the API: `director batches`, and the rows of `director predict --batch`."""

import argparse
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Raw, Struct

from director.cli.arguments import JSON, SERVICE, arg, command, flag, group, whole
from director.cli.client import Client, ask_again, read, service
from director.cli.inputs import FileFault, check_output, open_file, read_inputs
from director.cli.output import harmless
from director.cli.rows import Reader, Rows, write_requests, write_results
from director.cli.tables import Answer, progress, tabulate
from director.core.errors import DirectorError, SettingsError
from director.core.ids import ALL_LANES
from director.core.words import several, span

LOOK_S: Final = 1.0
AWAY_S: Final = 3600.0  # a batch goes on while no API answers
MOST_LISTED: Final = 20
REPLICATE: Final = "/v1/predictions"  # a batch of it takes all routes of Replicate's that create a prediction
ENDED: Final = ("completed", "failed", "expired", "cancelled")
EXAMPLE: Final = "batch_06gzx0rcvbz008pmq2tvpfvnvc"
ID: Final = arg("id ID", "id of the batch")
HOURS: Final = arg("--hours HOURS", "when lines of a batch start: '22:00-06:00 Europe/Berlin', or idle (any time)")


class Counts(Struct, frozen=True):
    total: int
    completed: int
    failed: int


class LineFault(Struct, frozen=True):
    message: str
    line: int | None = None


class LineFaults(Struct, frozen=True):
    data: list[LineFault]


class Cause(Struct, frozen=True):
    code: str
    lines: int


class Wait(Struct, frozen=True):
    detail: str


class Progress(Struct, frozen=True, kw_only=True):
    lines_per_second: float | None = None
    ends_at: int | None = None
    causes: list[Cause] = []
    open_hours: str | None = None
    opens_at: int | None = None
    waits: Wait | None = None


class BatchAnswer(Struct, frozen=True, kw_only=True):
    """A batch. Times are in seconds since 1970."""

    id: str
    endpoint: str
    status: str
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: Counts
    progress: Progress = Progress()
    errors: LineFaults | None = None
    metadata: dict[str, str] | None = None

    @property
    def is_over(self) -> bool:
        return self.status in ENDED

    @property
    def done(self) -> int:
        return self.request_counts.completed + self.request_counts.failed

    @property
    def has_succeeded(self) -> bool:
        return self.status == "completed" and not self.request_counts.failed


def read_batch(body: Raw) -> BatchAnswer:
    return read(body, BatchAnswer)


group("batches", "list", about="Run files of requests: each line is a prediction of any model, in the lane low.")


@command(
    "batches submit",
    JSON,
    *SERVICE,
    arg("file FILE", "JSON lines with custom_id, method, url and body", type=Path),
    arg("--endpoint PATH", "what the lines call (the url of the first line)", default=""),
    arg("--priority", "the lane: high, normal, low or idle (low)", choices=ALL_LANES),
    HOURS,
    arg("--webhook URL", "the address that gets a POST at the end"),
    flag("--wait", "show progress until the end; the code is 1 unless all lines succeeded"),
    examples=("requests.jsonl", "requests.jsonl --endpoint /v1/chat/completions --wait"),
)
def _submit(given: argparse.Namespace) -> int:
    """Upload a file of requests, and start a batch of it. All lines are checked before any runs."""
    with open_file(given.file) as file, Client(service(given)) as client:
        endpoint = given.endpoint or _endpoint_of(file.readline(1 << 24), given.file)
        batch = _create(client, file, given, endpoint, {"file": given.file.name})
        batch_id = read_batch(batch).id
        if not given.wait:
            return Answer(batch, batch_id).show(is_json=given.json)
        with _coming_back(f"See `director batches show {batch_id}`."):
            batch = _follow(client, batch)
    return _print(batch, given, 0 if read_batch(batch).has_succeeded else 1)


def _endpoint_of(line: bytes, file: Path) -> str:
    try:
        url = msgspec.json.decode(line, type=dict[str, Any])["url"]
    except (msgspec.DecodeError, KeyError) as exc:
        raise FileFault(f"line 1 of {file} is no request: give JSON with custom_id, method, url and body.") from exc
    return REPLICATE if str(url).startswith(("/v1/models/", "/v1/deployments/")) else str(url)


def _create(
    client: Client, file: BinaryIO, given: argparse.Namespace, endpoint: str, metadata: Mapping[str, str]
) -> Raw:
    file.seek(0)
    body = {
        "input_file_id": client.upload(file, metadata["file"]),
        "endpoint": endpoint,
        "completion_window": "24h",
        "metadata": metadata,
        **({"webhook": given.webhook} if given.webhook else {}),
    }
    # with a key it is safe to ask again
    asked = {"X-Priority": given.priority, "X-Open-Hours": given.hours}
    headers = {"Idempotency-Key": secrets.token_hex(16), **{name: value for name, value in asked.items() if value}}
    return ask_again(lambda: client.create_batch(body, headers), _tell, away_s=60, pause_s=LOOK_S)


@command(
    "batches list",
    JSON,
    *SERVICE,
    arg("-n COUNT", f"list at most this many ({MOST_LISTED})", type=whole(2000), default=MOST_LISTED, dest="n"),
    examples=("", "-n 100 --json"),
)
def _list(given: argparse.Namespace) -> int:
    """List batches of this token's account, newest first."""
    with Client(service(given)) as client:
        found = list(islice(client.batches(), given.n))

    def text() -> str:
        rows = []
        for one in msgspec.convert(found, list[BatchAnswer]):
            counts, age = one.request_counts, span(max(0.0, time.time() - one.created_at))
            what = (one.metadata or {}).get("file", one.endpoint)
            rows.append([one.id, one.status, f"{counts.total:,}", f"{one.done:,}", f"{counts.failed:,}", age, what])
        names = ("id", "status", "lines", "done", "failed", "age", "file")
        empty = "no batches: `director batches submit FILE` starts one"
        return tabulate(names, rows, words=("id", "status", "file"), empty=empty)

    return Answer(found, text).show(is_json=given.json)


@command("batches show", JSON, *SERVICE, ID, examples=(EXAMPLE,))
def _show(given: argparse.Namespace) -> int:
    """Show how far a batch is, when it will end, and what is wrong with its lines."""
    with Client(service(given)) as client:
        return _print(client.batch(given.id), given)


@command("batches cancel", JSON, *SERVICE, ID, examples=(EXAMPLE,))
def _cancel(given: argparse.Namespace) -> int:
    """Cancel a batch. The lines that have ended stay in its files."""
    with Client(service(given)) as client:
        return _print(client.batch(given.id, "/cancel", method="POST"), given)


@command(
    "batches download",
    JSON,
    *SERVICE,
    ID,
    arg("-o --output FILE", "write to this file, and not to stdout", type=Path),
    flag("--errors", "the lines that did not succeed, and not those that did", section="either"),
    arg(
        "--csv FILE",
        "the rows of this CSV, which `director predict --batch` sent, with results",
        section="either",
        type=Path,
    ),
    examples=(f"{EXAMPLE} > output.jsonl", f"{EXAMPLE} --errors", f"{EXAMPLE} --csv texts.csv -o texts.results.csv"),
)
def _download(given: argparse.Namespace) -> int:
    """Download the lines that succeeded, or those that did not, once a batch has ended."""
    if given.json and not given.output:
        raise SettingsError("--json needs --output: without it the lines themselves are printed.")
    if given.output:
        check_output(str(given.output), None)
    if given.output and given.csv:
        _apart(given.output, given.csv)
    with Client(service(given)) as client:
        batch = read_batch(client.batch(given.id))
        if not batch.is_over:
            raise DirectorError(f"the files of a batch come at its end. It is {_how_far(batch, time.time())}.")
        with _writing(given.output) as to:
            if given.csv:
                _write_rows(client, batch, Rows(given.csv), to)
            else:
                _copy(client, batch.error_file_id if given.errors else batch.output_file_id, to)
    return Answer({"file": str(given.output)}, str(given.output)).show(is_json=given.json) if given.output else 0


def predict_rows(given: argparse.Namespace) -> int:
    """Run each row of a CSV with one model, and write another CSV with the results. Returns the exit code."""
    if given.stream or given.timeout is not None or given.idempotency_key:
        raise SettingsError("--batch does not go with --stream, --timeout or --idempotency-key: leave them out.")
    results = _place(given)
    with Client(service(given)) as client, tempfile.TemporaryFile() as requests:
        rows, known = Rows(given.batch), client.find(given.model)
        reader = Reader(rows, given.model, known, read_inputs(given.input, known))
        metadata = {"file": given.batch.name, "model": given.model, "sha256": rows.digest()}
        numbers = write_requests(rows, reader, given.model, requests)
        body = _create(client, requests, given, REPLICATE, metadata)
        batch_id = read_batch(body).id
        if given.detach:
            return Answer(body, batch_id).show(is_json=given.json)
        _tell(f"{several(len(numbers), 'row')} sent as {batch_id}. Ctrl-C leaves the batch running")
        again = shlex.join(["director", "batches", "download", batch_id, "--csv", str(rows.file), "-o", str(results)])
        with _coming_back(f"`director batches show {batch_id}` says how far it is.\n`{again}` writes the results."):
            batch = read_batch(body := _follow(client, body))
        if batch.errors and not batch.done:
            raise DirectorError("\n".join(["no row was run:", *_fault_lines(batch, numbers)]))
        with _coming_back(f"`{again}` writes the results."), _writing(results) as to:
            failed = _write_rows(client, batch, rows, to)
    said = f"{len(numbers) - failed:,} of {several(len(numbers), 'row')} succeeded: {results}"
    Answer(body, said).show(is_json=given.json)
    return 1 if failed else 0


def _place(given: argparse.Namespace) -> Path:
    """Return where the results go. Raises FileFault if they cannot."""
    place: Path = given.batch.with_name(f"{given.batch.stem}.results.csv")
    check_output(given.output or str(place), None)
    if given.output:
        place = Path(given.output) / place.name if Path(given.output).is_dir() else Path(given.output)
        return _apart(place, given.batch)
    if place.exists() and not given.detach:
        raise FileFault(f"{place} is already there. Move it, or choose another --output.")
    return place


def _apart(place: Path, source: Path) -> Path:
    """Return the place. Raises FileFault if it is the file that the rows come from."""
    if place.exists() and source.exists() and place.samefile(source):
        raise FileFault(f"{place} has the rows. Results would replace them: choose another --output.")
    return place


def _write_rows(client: Client, batch: BatchAnswer, rows: Rows, to: BinaryIO) -> int:
    """Write the rows with their results, and return how many did not succeed."""
    facts = batch.metadata or {}
    if facts.get("sha256") != rows.digest():
        raise FileFault(
            f"{rows.file} is not what batch {batch.id} ran, or has changed since. "
            f"`director batches download {batch.id}` writes the results without its columns."
        )
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        for file, file_id in ((output, batch.output_file_id), (errors, batch.error_file_id)):
            _copy(client, file_id, file)
            file.seek(0)
        return write_results(rows, (output, errors), client.describe(facts.get("model", "")), to)


def _copy(client: Client, file_id: str | None, to: BinaryIO) -> None:
    for block in client.content(file_id) if file_id else ():
        to.write(block)


@contextmanager
def _writing(place: Path | None) -> Generator[BinaryIO]:
    """Yield a file that is at its place, or on stdout, only once it is whole."""
    if place is None:
        with tempfile.TemporaryFile() as whole:
            yield whole
            whole.seek(0)
            sys.stdout.writelines(harmless(line.decode(errors="replace"), sys.stdout) for line in whole)
        return
    part = place.with_name(f"{place.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as to:
            yield to
        part.replace(place)
    except OSError as exc:
        raise FileFault(f"cannot write {place}: {exc.strerror}. Choose another --output.") from exc
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _coming_back(hint: str) -> Generator[None]:
    """Say how to come back to a batch that continues without this command."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nthe batch goes on without this command. {hint}", file=sys.stderr)
        raise
    except DirectorError as exc:
        raise DirectorError(f"{exc}\n{hint}") from exc


def _follow(client: Client, body: Raw) -> Raw:
    """Return the batch once it has ended. Until then a terminal shows its progress."""
    with progress() as show:
        while not (batch := read_batch(body)).is_over:
            show(_how_far(batch, time.time()))
            time.sleep(LOOK_S)
            body = ask_again(partial(client.batch, batch.id), show, away_s=AWAY_S, pause_s=LOOK_S)
    _tell(_how_far(batch, time.time()))
    return body


def _how_far(batch: BatchAnswer, now_s: float) -> str:
    counts = batch.request_counts
    if not counts.total or batch.errors:
        return batch.status
    words = [f"{batch.status}: {batch.done:,} of {several(counts.total, 'line')}", f"{counts.failed:,} failed"]
    progress = batch.progress
    if progress.lines_per_second is not None:
        words.append(f"{progress.lines_per_second:g} lines/s")
    if progress.ends_at is not None:
        words.append(f"ends in about {span(max(1.0, progress.ends_at - now_s))}")
    return ", ".join(words)


def _print(body: Raw, given: argparse.Namespace, code: int = 0) -> int:
    return Answer(body, lambda: _describe(read_batch(body), time.time()), code).show(is_json=given.json)


def _describe(batch: BatchAnswer, now_s: float) -> str:
    until = time.strftime("%a %H:%M", time.localtime(batch.expires_at))
    is_late = (batch.progress.ends_at or 0) > batch.expires_at
    facts = {
        "id": batch.id,
        "file": (batch.metadata or {}).get("file"),
        "endpoint": batch.endpoint,
        "status": _how_far(batch, now_s),
        "waits": batch.progress.waits and batch.progress.waits.detail,
        "hours": _show_hours(batch.progress),
        "until": None if batch.is_over else f"{until}: the last lines would expire" if is_late else until,
        "output": batch.output_file_id and f"`director batches download {batch.id}`",
        "errors": batch.error_file_id and f"`director batches download {batch.id} --errors`",
    }
    lines = [f"{name:<10} {value}" for name, value in facts.items() if value]
    lines += [f"  {several(cause.lines, 'line')} failed: {cause.code}" for cause in batch.progress.causes]
    return "\n".join(harmless(line, sys.stdout) for line in [*lines, *_fault_lines(batch)])


def _show_hours(progress: Progress) -> str | None:
    """Return when lines start, and the next time where they wait for it."""
    said = [progress.open_hours or ""]
    if progress.opens_at is not None:
        said.append(f"it goes on {time.strftime('%a %H:%M', time.localtime(progress.opens_at))}")
    return ": ".join(filter(None, said)) or None


def _fault_lines(batch: BatchAnswer, rows: list[int] | None = None) -> list[str]:
    """Return what is wrong with the lines of a batch. `rows`: the row of each line, if they come from a CSV."""
    said = []
    for fault in batch.errors.data if batch.errors else ():
        place = "" if fault.line is None else f"row {rows[fault.line - 1]}: " if rows else f"line {fault.line}: "
        said.append(f"  {place}{fault.message}")
    return said


def _tell(text: str) -> None:
    print(harmless(f"» {text}", sys.stderr), file=sys.stderr, flush=True)
