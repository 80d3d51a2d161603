"""Test `director batches` and `director predict --batch` with an API, a keeper's engine and a played model."""

import json
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from anyio import to_thread
from msgspec import Raw
from redis.asyncio import Redis

from api.batches.engine import Engine
from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.policy import Policy
from director.core.schema import Claim
from director.core.settings import ApiSettings
from director.core.states import Status
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support import batches
from tests.support.api import PlayedDirector, live_api
from tests.support.eventually import EVERY_S, LIMIT_S, eventually
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer
from tests.support.typed import Typed, typed

INPUT = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "n": {"type": "integer", "minimum": 1}},
    "required": ["text"],
}
SCHEMA = Raw(json.dumps({"components": {"schemas": {"Input": INPUT, "Output": {"type": "string"}}}}).encode())
ROWS = 'text,n\nhello,2\nbad,\n"two\nlines",1\n'

Types = Callable[..., Awaitable[Typed]]


def pauses_with(patch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Let only these commands sleep so: the rest of the process has the time as it is."""
    patch.setattr("director.cli.batches.time", SimpleNamespace(**{**vars(time), "sleep": sleep}))


@pytest.fixture
async def types(
    server: RedisServer,
    redis: Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Types]:
    """A caller who types commands in a folder of her own."""
    monkeypatch.chdir(tmp_path)
    give_up = time.monotonic() + LIMIT_S

    def pause(_: float) -> None:
        # the command is in a thread, which a failed engine or model does not end
        assert time.monotonic() < give_up, "the batch does not end"
        time.sleep(EVERY_S)

    pauses_with(monkeypatch, pause)
    token = await Accounts(redis).create_token(ACCOUNT)
    env = {"DIRECTOR_OPENAI": "true", "DIRECTOR_FILES_DIR": str(tmp_path / "files"), "DIRECTOR_CACHE_S": "0"}
    async with live_api(server.url, env=env) as api:

        async def types(*line: str) -> Typed:
            words = [*line, "--url", api.url, "--token", token]
            return await to_thread.run_sync(lambda: typed(capsys, *words))

        yield types


@pytest.fixture
async def queue(catalog: Catalog) -> QueueName:
    return await catalog.register(MODEL, VERSION, schema=SCHEMA, server="played", policy=Policy())


@pytest.fixture
async def engine(server: RedisServer, tmp_path: Path) -> AsyncIterator[Engine]:
    settings = ApiSettings(redis_url=server.url, files_dir=str(tmp_path / "files"), openai=True, cache_s=0)
    async with batches.engine(settings) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        yield engine
        tasks.cancel_scope.cancel()


@pytest.fixture
async def model(scripts: Scripts, queue: QueueName) -> AsyncIterator[None]:
    """Answers with the text as often as `n` says, and fails for `bad`."""
    director = PlayedDirector(scripts, queue)

    async def run() -> None:
        while True:
            claim: Claim = await director.claim()
            given: dict[str, Any] = msgspec.json.decode(claim.input)
            await director.begin(claim)
            if given["text"] == "bad":
                await director.finish(claim, Status.FAILED, error="it broke")
            else:
                await director.finish(claim, output=json.dumps(given["text"] * given.get("n", 1)).encode())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield
        tasks.cancel_scope.cancel()


async def shows(types: Types, batch_id: str, text: str) -> None:
    await eventually(lambda: types("batches", "show", batch_id), text, until=lambda ended: text in ended.stdout)


async def test_rows_of_a_csv_come_back_with_their_results(types: Types, engine: Engine, model: None) -> None:
    Path("in.csv").write_text(ROWS)
    ended = await types("predict", MODEL, "--batch", "in.csv")
    assert (ended.returncode, ended.stdout) == (1, "2 of 3 rows succeeded: in.results.csv\n"), ended.stderr
    found = Path("in.results.csv").read_bytes().decode()
    head, *rest = found.split("\r\n")
    assert head == "text,n,status,output,error,id"
    assert rest[0].startswith("hello,2,succeeded,hellohello,,")
    assert rest[1].startswith("bad,,failed,,it broke,")
    assert '"two\nlines",1,succeeded,"two\nlines",,' in found.replace("\r\n", "|")
    # a second run does not overwrite the results, and a changed file is not taken for that of the batch
    assert "already there" in (await types("predict", MODEL, "--batch", "in.csv")).stderr
    [shown] = json.loads((await types("batches", "list", "--json")).stdout)["results"]
    Path("in.csv").write_text(ROWS.replace("hello", "hullo"))
    again = await types("batches", "download", shown["id"], "--csv", "in.csv", "-o", "again.csv")
    assert (again.returncode, Path("again.csv").exists()) == (1, False)
    assert "has changed since" in again.stderr
    Path("in.csv").write_text(ROWS)
    assert (await types("batches", "download", shown["id"], "--csv", "in.csv", "-o", "again.csv")).returncode == 0
    assert Path("again.csv").read_bytes().decode() == found


@pytest.mark.parametrize(
    ("name", "rows", "says"),
    [
        (MODEL, "text,n\na,1\nb,x\n", "row 3: n:"),
        (MODEL, "text,m\na,1\n", "column m of"),
        ("acme/eco", "a\n1\n", MODEL),
    ],
    ids=["bad row", "unknown column", "unknown model"],
)
async def test_nothing_is_sent_if_a_row_is_wrong(
    types: Types, queue: QueueName, name: str, rows: str, says: str
) -> None:
    Path("in.csv").write_text(rows)
    ended = await types("predict", name, "--batch", "in.csv")
    assert (ended.returncode, Path("in.results.csv").exists()) == (1, False)
    assert says in ended.stderr
    assert (await types("batches", "list")).stdout.startswith("no batches")
    assert not list(Path("files").rglob("*.jsonl"))


async def test_results_never_replace_the_rows_they_come_from(types: Types, queue: QueueName) -> None:
    Path("in.csv").write_text(ROWS)
    Path("link.csv").symlink_to("in.csv")
    for command in (
        ("predict", MODEL, "--batch", "in.csv", "-o", "in.csv"),
        ("predict", MODEL, "--batch", "link.csv", "-o", "./in.csv"),
        ("batches", "download", "batch_1", "--csv", "in.csv", "-o", "link.csv"),
    ):
        ended = await types(*command)
        assert (ended.returncode, "has the rows. Results would replace them" in ended.stderr) == (1, True), ended.stderr
    assert Path("in.csv").read_text() == ROWS
    assert (await types("batches", "list")).stdout.startswith("no batches")


async def test_hours_of_a_batch_are_given_and_shown(types: Types, engine: Engine, queue: QueueName) -> None:
    begins = datetime.now(UTC) + timedelta(hours=2)
    hours = f"{begins:%H:%M}-{begins + timedelta(hours=1):%H:%M} UTC"
    Path("in.jsonl").write_text(line("a", "one"))
    batch_id = (await types("batches", "submit", "in.jsonl", "--hours", hours)).stdout.strip()
    said = (await types("batches", "show", batch_id)).stdout
    goes_on = time.strftime("%a %H:%M", time.localtime(begins.timestamp()))
    assert f"hours      {hours}: it goes on {goes_on}" in said
    refused = await types("predict", MODEL, "-i", "text=a", "--hours", hours)
    assert "--hours goes with --batch" in refused.stderr
    refused = await types("batches", "submit", "in.jsonl", "--hours", "night")
    assert (refused.returncode, "X-Open-Hours must be idle, or open hours" in refused.stderr) == (1, True)


async def test_interrupted_wait_leaves_the_batch_and_says_how_to_return(
    types: Types, engine: Engine, queue: QueueName, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("in.csv").write_text("text\nhi\n")

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        pauses_with(patched, interrupt)
        ended = await types("predict", MODEL, "--batch", "in.csv")
    assert ended.returncode == 130
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("`director batches download")]
    director = PlayedDirector(scripts, queue)
    claim = await director.claim()
    batch_id = shlex.split(line.split("`")[1])[3]
    early = await types("batches", "download", batch_id)
    assert "come at its end" in early.stderr
    await director.begin(claim)
    await director.finish(claim, output=b'"HI"')
    await shows(types, batch_id, "completed:")
    assert (await types(*shlex.split(line.split("`")[1])[1:])).returncode == 0
    assert Path("in.results.csv").read_text().splitlines()[1].startswith("hi,succeeded,HI,,")


def line(name: str, text: Any, model: str = MODEL) -> str:
    url = f"/v1/models/{model}/predictions"
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {"input": {"text": text}}}) + "\n"


async def test_file_of_requests_is_submitted_shown_and_downloaded(types: Types, engine: Engine, model: None) -> None:
    Path("in.jsonl").write_text(line("a", "one") + line("b", "bad") + line("c", 7))
    ended = await types("batches", "submit", "in.jsonl", "--wait", "--json")
    shown = json.loads(ended.stdout)
    assert (ended.returncode, shown["status"], shown["endpoint"]) == (1, "completed", "/v1/predictions")
    said = (await types("batches", "show", shown["id"])).stdout
    assert "completed: 3 of 3 lines, 2 failed" in said
    assert (await types("batches", "list")).stdout.splitlines()[1].split()[:5] == [
        shown["id"],
        "completed",
        "3",
        "3",
        "2",
    ]
    await types("batches", "download", shown["id"], "-o", "out.jsonl")
    await types("batches", "download", shown["id"], "-o", "errors.jsonl", "--errors")
    [good] = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert (good["custom_id"], good["response"]["body"]["output"]) == ("a", "one")
    assert sorted(json.loads(each)["custom_id"] for each in Path("errors.jsonl").read_text().splitlines()) == ["b", "c"]
    assert sorted(each.name for each in Path().iterdir()) == ["errors.jsonl", "files", "in.jsonl", "out.jsonl"]


async def test_bad_lines_are_named_and_a_batch_can_be_cancelled(types: Types, engine: Engine, queue: QueueName) -> None:
    Path("in.jsonl").write_text(line("a", "one") + line("a", "two"))
    ended = await types("batches", "submit", "in.jsonl", "--wait")
    assert (ended.returncode, "  line 2: Another line has this custom_id." in ended.stdout) == (1, True)
    Path("in.jsonl").write_text(line("a", "one"))
    batch_id = (await types("batches", "submit", "in.jsonl")).stdout.strip()
    assert (await types("batches", "cancel", batch_id)).returncode == 0
    await shows(types, batch_id, "cancelled")
    missing = await types("batches", "show", "batch_none")
    assert "there is no batch batch_none for this token" in missing.stderr
