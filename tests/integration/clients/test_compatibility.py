"""Try clients and versions of Cog of several ages with the whole service, and keep docs/compatibility.md true."""

import json
import ssl
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from anyio import to_thread
from msgspec import Struct

from tests.integration.clients.conftest import Caller, Service
from tests.support.clients import javascript_client, python_2_client, python_with, run_script
from tests.support.cog import cog_process, cog_schema, write_model
from tests.support.compatibility import CLIENTS, COGS, LIBRARIES, YES, Table, compare_or_keep, last_run
from tests.support.eventually import eventually
from tests.support.live_director import Gate, live_director
from tests.support.models import CAPTIONER
from tests.support.runner_conformance import HOSTLESS
from tests.support.sink import Sink

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # everything comes from package registries

SCRIPTS: Final = Path(__file__).parent / "matrix"
LIMIT_S: Final = 120.0

Check = Callable[[str, Mapping[str, str]], None]


async def installed(table: Table, row: str, install: Callable[[], Any]) -> Any:
    try:
        return await to_thread.run_sync(install)
    except pytest.skip.Exception as exc:
        pytest.skip(f"{exc.msg}; the page shows its run of {last_run(table, row)}")


def http_of(caller: Caller) -> httpx.AsyncClient:
    context = ssl.create_default_context(cafile=str(caller.authority))
    headers = {"Authorization": f"Bearer {caller.token}"}
    return httpx.AsyncClient(base_url=caller.url, headers=headers, verify=context, trust_env=False, timeout=60)


@pytest.fixture
async def prepared(caller: Caller) -> Caller:
    """Give the caller a model to train and a deployment, which old clients cannot make."""
    async with http_of(caller) as http:
        model = {"owner": caller.account, "name": "tuned", "visibility": "private", "hardware": "cpu"}
        named = {"name": "captions", "model": CAPTIONER.name, "version": CAPTIONER.version, "hardware": "cpu"}
        assert (await http.post("/v1/models", json=model)).status_code == 201
        made = await http.post("/v1/deployments", json={**named, "min_instances": 0, "max_instances": 1})
        assert made.status_code == 200
    return caller


@pytest.mark.parametrize("row", CLIENTS.rows)
async def test_client_does_what_the_page_says(row: str, prepared: Caller, gate: Gate, cache: Path, keeps: bool) -> None:
    registry, package, version = row.split(" ")
    env = {
        "GIVEN": prepared.as_json(gate),
        **prepared.of_python(f"{prepared.url}/v1" if version.startswith("2.") else prepared.url),
        "REPLICATE_API_BASE_URL": prepared.url,
        "REQUESTS_CA_BUNDLE": str(prepared.authority),
        "NODE_EXTRA_CA_CERTS": str(prepared.authority),
    }
    if registry == "npm":
        env = {**await installed(CLIENTS, row, partial(javascript_client, cache, f"{package}@{version}")), **env}
        command = ["node", str(SCRIPTS / "javascript.cjs")]
    elif version.startswith("2."):
        env = {**await installed(CLIENTS, row, partial(python_2_client, cache)), **env}
        command = [sys.executable, str(SCRIPTS / "python_2.py")]
    else:
        python = await installed(CLIENTS, row, partial(python_with, cache, f"{package}=={version}"))
        command = [str(python), str(SCRIPTS / "python_0_1.py")]
    seen = await to_thread.run_sync(partial(run_script, command, env=env, limit_s=LIMIT_S))
    compare_or_keep(CLIENTS, row, seen, keeps=keeps)


@pytest.mark.parametrize("row", LIBRARIES.rows)
async def test_library_does_what_the_page_says(row: str, caller: Caller, gate: Gate, cache: Path, keeps: bool) -> None:
    _, package, version = row.split(" ")
    install = partial(python_with, cache, f"{package}=={version}", "replicate==1.0.7")
    python = await installed(LIBRARIES, row, install)
    env = {"GIVEN": caller.as_json(gate), **caller.of_python(caller.url)}
    command = [str(python), str(SCRIPTS / "python_libraries.py"), package]
    seen = await to_thread.run_sync(partial(run_script, command, env=env, limit_s=LIMIT_S))
    compare_or_keep(LIBRARIES, row, seen, keeps=keeps)


# One service with real Cog servers of one version. Each feature is a check that raises if it fails.

SOURCE: Final = """
    import tempfile, time
    from typing import Iterator
    from cog import BaseModel, BasePredictor, Path

    def file(name, data):
        path = Path(tempfile.mkdtemp()) / name
        path.write_bytes(data)
        return path

    class Words(BasePredictor):
        def predict(self, text: str = "a", n: int = 3, gate: str = "", then: str = "") -> Iterator[str]:
            for number in range(n):
                print(f"word {number}")
                yield f"{text}{number}"
            wait_for(gate)
            if then == "raise":
                raise ValueError("it went wrong")

    class Files(BasePredictor):
        def predict(self, n: int = 3) -> Iterator[Path]:
            for number in range(n):
                yield file("a.bin", bytes([number, 255]))
                time.sleep(0.1)  # a model that takes its time between two files

    class Weights(BaseModel):
        weights: Path

    def train(data: str = "", gate: str = "", then: str = "") -> Weights:
        print(f"reading {data}")
        wait_for(gate)
        if then == "raise":
            raise ValueError("it went wrong")
        return Weights(weights=file("weights.bin", data.encode()))
"""
WORDS: Final = {"text": "string", "n": "integer", "gate": "string", "then": "string"}
TEXTS: Final = ["a0", "a1", "a2"]
FILES: Final = {"type": "array", "x-cog-array-type": "iterator", "items": {"type": "string", "format": "uri"}}
SCHEMAS: Final = {"Words": cog_schema(WORDS), "Files": cog_schema({"n": "integer"}, FILES)}
VERSIONS: Final = {"Words": "1a" * 32, "Files": "2b" * 32, "train": "3c" * 32}
TERMINAL: Final = ("succeeded", "failed", "canceled", "aborted")


class Tried(Struct, frozen=True, kw_only=True):
    """A service in front of one version of Cog, as its caller sees it."""

    http: httpx.AsyncClient
    account: str
    name: str
    receiver: Sink
    gate: Gate

    async def create(self, which: str, headers: Mapping[str, str] | None = None, **given: Any) -> dict[str, Any]:
        body = {"input": given, "webhook": f"{self.receiver.url}{which}"}
        path = f"/v1/models/acme/{self.name}-{which.lower()}/predictions"
        if which == "train":
            path = f"/v1/models/acme/{self.name}-train/versions/{VERSIONS[which]}/trainings"
            body["destination"] = f"{self.account}/tuned"
        answer = await self.http.post(path, json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def get(self, made: Mapping[str, Any]) -> dict[str, Any]:
        return dict((await self.http.get(made["urls"]["get"])).json())

    async def until(self, made: Mapping[str, Any], what: str, is_so: Callable[[dict[str, Any]], bool]) -> Any:
        return await eventually(lambda: self.get(made), what, until=is_so, limit_s=30)

    async def ended(self, made: Mapping[str, Any]) -> dict[str, Any]:
        return dict(await self.until(made, "it ended", lambda seen: seen["status"] in TERMINAL))

    async def events(self, made: Mapping[str, Any]) -> list[tuple[str, str]]:
        text = (await self.http.get(made["urls"]["stream"], headers={"Accept": "text/event-stream"})).text
        parts = [dict(line.split(": ", 1) for line in part.splitlines() if ": " in line) for part in text.split("\n\n")]
        return [(part["event"], part.get("data", "")) for part in parts if part.get("event") in ("output", "done")]

    async def webhooks(self, made: Mapping[str, Any]) -> list[dict[str, Any]]:
        def came() -> list[dict[str, Any]]:
            bodies = [json.loads(each.body) for each in self.receiver.received]
            return [body for body in bodies if body["id"] == made["id"]]

        return await eventually(came, "its end is told", until=lambda them: them and them[-1]["status"] in TERMINAL)


async def predict(tried: Tried) -> None:
    done = await tried.ended(await tried.create("Words"))
    assert (done["status"], done["output"], done["error"]) == ("succeeded", TEXTS, None), done
    assert "word 0" in done["logs"]


async def failure(tried: Tried) -> None:
    done = await tried.ended(await tried.create("Words", then="raise"))
    assert done["status"] == "failed"
    assert "it went wrong" in done["error"], done["error"]  # some put more before it


async def refusal(tried: Tried) -> None:
    answer = await tried.http.post(f"/v1/models/acme/{tried.name}-words/predictions", json={"input": {"n": "three"}})
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"] == "- input.n: Invalid type. Expected: integer, given: string\n"


async def stream(tried: Tried) -> None:
    made = await tried.create("Words", gate=str(tried.gate))
    try:
        await tried.until(made, "it shows", lambda seen: seen["status"] == "processing" and seen["output"] == TEXTS)
    finally:
        tried.gate.open()
    assert await tried.events(made) == [*(("output", text) for text in TEXTS), ("done", "{}")]


async def cancel(tried: Tried) -> None:
    made = await tried.create("Words", gate=f"{tried.gate}.never")
    await tried.until(made, "it runs", lambda seen: seen["status"] == "processing")
    answer = await tried.http.post(made["urls"]["cancel"])
    assert (answer.status_code, answer.json()["status"]) == (200, "canceled"), answer.text


async def deadline(tried: Tried) -> None:
    made = await tried.create("Words", {"Cancel-After": "5s"}, gate=f"{tried.gate}.never")
    assert (await tried.ended(made))["status"] == "canceled"


async def webhooks(tried: Tried) -> None:
    told = await tried.webhooks(made := await tried.create("Words"))
    assert await tried.ended(made) == told[-1]


async def files(tried: Tried) -> None:
    made = await tried.create("Files")
    done = await tried.ended(made)
    contents = [(await tried.http.get(address)).content for address in done["output"]]
    assert contents == [bytes([number, 255]) for number in range(3)]
    told = [address for body in await tried.webhooks(made) for address in body["output"] or []]
    events = [data for kind, data in await tried.events(made) if kind == "output"] if "stream" in made["urls"] else []
    assert [address for address in (*told, *events) if not address.startswith("https:")] == []


async def training(tried: Tried) -> None:
    done = await tried.ended(made := await tried.create("train", data="poems"))
    assert (done["status"], done["logs"].split()) == ("succeeded", ["reading", "poems"]), done
    assert (await tried.http.get(done["output"]["weights"])).content == b"poems"
    assert (await tried.webhooks(made))[-1] == done
    version = done["output"]["version"].partition(":")[2]
    made_of_it = await tried.http.get(f"/v1/models/{tried.account}/tuned/versions/{version}")
    assert made_of_it.status_code == 200, made_of_it.text
    failed = await tried.ended(await tried.create("train", then="raise"))
    assert (failed["status"], failed["output"]) == ("failed", None), failed
    assert "it went wrong" in failed["error"], failed["error"]


async def training_cancel(tried: Tried) -> None:
    stopped = await tried.create("train", gate=f"{tried.gate}.never")
    await tried.until(stopped, "it trains", lambda seen: seen["status"] == "processing")
    answer = await tried.http.post(stopped["urls"]["cancel"])
    assert (answer.status_code, answer.json()["status"]) == (200, "canceled"), answer.text
    assert (await tried.webhooks(stopped))[-1]["status"] == "canceled"


CHECKS: Final[tuple[Callable[[Tried], Awaitable[None]], ...]] = (
    predict,
    failure,
    refusal,
    stream,
    cancel,
    deadline,
    webhooks,
    files,
    training,
    training_cancel,
)


@asynccontextmanager
async def tried_with(
    version: str, python: Path, folder: Path, service: Service, caller: Caller, receiver: Sink, gate: Gate
) -> AsyncGenerator[Tried]:
    name = f"cog-{version}"
    async with AsyncExitStack() as stack:
        for stub in VERSIONS:
            # Cogs in Python make their own schema
            model = write_model(folder / stub, SOURCE, SCHEMAS.get(stub) if version.startswith("0.23") else None)
            (model / "cog.yaml").write_text(f'{"train" if stub == "train" else "predict"}: "predict.py:{stub}"\n')
            cog = await stack.enter_async_context(
                cog_process(
                    model,
                    stub=f"predict.py:{stub}",
                    python=str(python),
                    env={"COG_THROTTLE_RESPONSE_INTERVAL": "0"},  # else it reports output at most twice a second
                    trains=stub == "train",
                    takes_host=version not in HOSTLESS,
                )
            )
            given = {"model": f"acme/{name}-{stub.lower()}", "version": VERSIONS[stub], **service.files}
            kind = "training" if stub == "train" else "prediction"
            director = await stack.enter_async_context(live_director(service.redis_url, cog.url, kind=kind, **given))
            await eventually(director.servers.any_ready, f"{stub} is ready", limit_s=60)
        http = await stack.enter_async_context(http_of(caller))
        for stub in VERSIONS:
            path = f"/v1/models/acme/{name}-{stub.lower()}"
            await eventually(lambda path=path: http.get(path), path, until=lambda answer: answer.status_code == 200)
        yield Tried(http=http, account=caller.account, name=name, receiver=receiver, gate=gate)


@pytest.mark.parametrize("row", COGS.rows)
async def test_cog_does_what_the_page_says(
    row: str,
    service: Service,
    prepared: Caller,
    receiver: Sink,
    gate: Gate,
    cache: Path,
    tmp_path: Path,
    keeps: bool,
) -> None:
    version = row.split(" ")[1]
    python = await installed(COGS, row, partial(python_with, cache, f"cog=={version}"))
    seen = {}
    async with tried_with(version, python, tmp_path, service, prepared, receiver, gate) as tried:
        for check in CHECKS:
            try:
                await check(tried)
            except (AssertionError, KeyError, TypeError, httpx.HTTPError) as exc:
                seen[check.__name__] = f"{type(exc).__name__}: {exc}"[:500]
            else:
                seen[check.__name__] = YES
    compare_or_keep(COGS, row, seen, keeps=keeps)
