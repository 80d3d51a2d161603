"""Test `director serve` as a newcomer uses it: a folder with a predict.py never seen before, real parts, and the
printed commands pasted back.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import replicate
from standardwebhooks import Webhook

from director.lab.chaos.wire import Answer, Request, listening
from director.local.launcher.processes import is_alive, mark
from tests.integration.local.test_up import DIRECTOR, PATIENCE_S, Started, director, environment, until
from tests.support.eventually import eventually

pytestmark = [pytest.mark.cog, pytest.mark.faults]

MODEL = "acme/painter"
SOURCE = """
import tempfile
import time
from typing import Iterator

from cog import BasePredictor, Input, Path, streaming


class Painter(BasePredictor):
    @streaming
    def predict(
        self,
        text: str = Input(description="What to paint."),
        mode: str = Input(choices=["words", "file"], default="words"),
        pause: float = Input(default=0, ge=0, le=60),
    ) -> Iterator[str]:
        if text == "boom":
            raise ValueError("no booms here")
        for word in text.split():
            time.sleep(pause)  # the model's own time
            yield word
"""
FILES = """
import tempfile
from cog import Path


def predict(text: str, colour: str = "red") -> Path:
    place = Path(tempfile.mkdtemp()) / "picture.svg"
    place.write_text(f"<svg fill='{colour}'>{text}</svg>")
    return place
"""
READY = f"{MODEL} is ready"


@contextmanager
def serving(
    home: Path, *line: str, out: str = "serve.txt", ready: str = READY, patience_s: float = PATIENCE_S
) -> Generator[Started, None, None]:
    """Run `director serve` and wait until its model is ready."""
    home.mkdir(exist_ok=True)
    with (home / out).open("wb") as file:
        process = subprocess.Popen(
            [*DIRECTOR, "serve", *line, "--home", str(home)], stdout=file, stderr=subprocess.STDOUT, env=environment()
        )
    try:
        started = Started(process, home, home / out)
        started.wait_for(ready, patience_s)
        yield started
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def written(folder: Path, source: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "predict.py").write_text(source)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("models") / "painter", SOURCE)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Generator[Started, None, None]:
    home = tmp_path_factory.mktemp("home")
    with serving(home, str(folder), "--model", MODEL, "--port", "0", "--watch") as one:
        yield one
    director("down", home=home)


@pytest.fixture
async def api(served: Started) -> AsyncGenerator[httpx.AsyncClient, None]:
    headers = {"Authorization": f"Bearer {served.state['token']}"}
    async with httpx.AsyncClient(
        base_url=served.state["url"], headers=headers, trust_env=False, timeout=PATIENCE_S
    ) as client:
        yield client


async def run(api: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    body = {"input": asked.pop("input"), **asked}
    answer = await api.post(f"/v1/models/{MODEL}/predictions", json=body, headers={"Prefer": "wait=60"})
    found: dict[str, Any] = answer.json()
    return found


def test_printed_curl_line_of_the_model_gives_its_output(served: Started) -> None:
    [line] = [line for line in served.said.splitlines() if line.startswith("  curl ")]
    answer = subprocess.run(shlex.split(line), capture_output=True, check=True, env=environment())
    assert json.loads(answer.stdout)["output"] == ["hello"]


def test_printed_python_of_the_model_gives_its_output(served: Started) -> None:
    lines = served.said.splitlines()
    program = "\n".join(line.strip() for line in lines[lines.index("  import replicate") :][:3])
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environment())
    assert said.stdout == b"hello\n"


async def test_wrong_input_is_refused_and_an_error_of_the_model_is_shown(api: httpx.AsyncClient) -> None:
    assert "mode" in json.dumps(await run(api, input={"text": "a", "mode": "nonsense"}))
    failed = await run(api, input={"text": "boom"})
    assert failed["status"] == "failed"
    assert failed["error"].endswith("ValueError: no booms here")


def test_official_client_reads_the_stream_while_the_model_runs(served: Started) -> None:
    client = replicate.Client(api_token=served.state["token"], base_url=served.state["url"])
    events = client.stream(MODEL, input={"text": "one two three", "pause": 0.2})
    assert [str(event) for event in events if event.event.value == "output"] == ["one", "two", "three"]


async def test_webhook_of_an_own_model_reaches_this_machine_and_verifies(api: httpx.AsyncClient) -> None:
    secret = (await api.get("/v1/webhooks/default/secret")).json()["key"]
    heard: list[dict[str, Any]] = []

    async def receive(request: Request) -> Any:
        heard.append(Webhook(secret).verify(request.body, dict(request.headers)))
        return Answer(200)

    async with listening(receive) as port:
        asked = {"webhook": f"http://127.0.0.1:{port}/", "webhook_events_filter": ["completed"]}
        made = await run(api, input={"text": "hook"}, **asked)
        until_heard = 200
        while not heard and until_heard:
            until_heard -= 1
            await api.get(f"/v1/predictions/{made['id']}")
    assert [(each["id"], each["status"]) for each in heard] == [(made["id"], "succeeded")]


async def test_dead_model_server_is_started_again(served: Started, api: httpx.AsyncClient) -> None:
    before = served.processes["model-painter"]
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: served.processes.get("model-painter") not in (None, before), lambda: served.said)
    assert (await run(api, input={"text": "back again"}))["output"] == ["back", "again"]


async def test_second_model_is_served_beside_with_files_in_the_store(served: Started, tmp_path: Path) -> None:
    folder = written(tmp_path / "files", FILES)
    line = (str(folder), "--model", "acme/files")
    with serving(served.home, *line, out="files.txt", ready="acme/files is ready") as beside:
        assert "serving beside the service" in beside.said
        assert served.state["url"] in beside.said
        answer = director("predict", "acme/files", "-i", "text=<hi>", home=served.home)
        address = answer.stdout.strip()
        assert address.startswith(f"{served.state['url']}/"), answer
        async with httpx.AsyncClient(trust_env=False) as client:
            found = await client.get(address)
        assert found.text == "<svg fill='red'><hi></svg>"
        refused = director("serve", *line, "--port", "1", home=served.home)
        assert (refused.returncode, "leave --port out" in refused.stderr) == (1, True)
    assert beside.process.returncode == 0
    assert is_alive(served.processes["api"])


async def test_changed_file_reloads_the_model_as_a_new_version(
    served: Started, folder: Path, api: httpx.AsyncClient
) -> None:
    async def versions() -> dict[str, Any]:
        found = (await api.get(f"/v1/models/{MODEL}/versions")).json()["results"]
        return {each["id"]: each["openapi_schema"]["components"]["schemas"]["Input"] for each in found}

    again = f"{MODEL} is ready again"
    said = served.said.count(again)
    [(old, schema)] = (await versions()).items()
    written(folder, "def predict(text:")
    until(lambda: "The server goes on as it was" in served.said, lambda: served.said)
    assert (await run(api, input={"text": "as before"}))["output"] == ["as", "before"]

    written(folder, SOURCE.replace("le=60", "le=30"))
    until(lambda: served.said.count(again) > said, lambda: served.said)
    now = await versions()
    assert now[old] == schema
    assert len(now) == 2

    async def answer() -> httpx.Response:  # an API process knows the new version within DIRECTOR_CACHE_S
        return await api.post(f"/v1/models/{MODEL}/predictions", json={"input": {"text": "a", "pause": 31}})

    refused = await eventually(answer, "the new version refuses it", until=lambda answer: answer.status_code == 422)
    assert "30" in refused.text
    assert (await run(api, input={"text": "as before"}))["output"] == ["as", "before"]


def test_failed_setup_is_told_with_its_reason(served: Started, tmp_path: Path) -> None:
    source = "class Predictor:\n    def setup(self): raise OSError('no weights')\n    def predict(self) -> str: ..."
    folder = written(tmp_path / "broken", source)
    line = (str(folder), "--model", "acme/broken")
    with serving(served.home, *line, out="broken.txt", ready="setup_failed") as beside:
        assert "no weights" in beside.said


def test_run_with_a_home_needs_no_other_address(served: Started, tmp_path: Path) -> None:
    """The line that the banner prints, for a server that runs already."""
    out = tmp_path / "run.txt"
    with out.open("wb") as file:
        url = served.state["servers"][MODEL]
        line = [*DIRECTOR, "run", "--model", "acme/other", "--server", url, "--home", str(served.home)]
        process = subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT, env=environment())
    try:
        until(lambda: "model registered" in out.read_text(), out.read_text)
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_schema_command_prints_what_the_server_shows(served: Started, folder: Path) -> None:
    said = subprocess.run([*DIRECTOR, "schema", str(folder)], capture_output=True, check=True, env=environment())
    shown = httpx.get(f"{served.state['servers'][MODEL]}/openapi.json", trust_env=False)
    assert json.loads(said.stdout) == shown.json()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_import_of_a_model_ends_with_the_command_that_needs_it(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    source = f"import os, signal\nopen({str(begun)!r}, 'w').write(f'{{os.getpid()}}\\n')\nsignal.pause()"
    folder = written(tmp_path / "slow", f"{source}\ndef predict() -> str: ...")
    making = subprocess.Popen([*DIRECTOR, "schema", str(folder)], stdout=subprocess.DEVNULL, env=environment())
    until(lambda: begun.exists() and begun.read_text().endswith("\n"), lambda: "the import has not begun")
    importing = mark(int(begun.read_text()))
    making.kill()
    making.wait(PATIENCE_S)
    assert importing is not None
    until(lambda: not is_alive(importing), lambda: "the import goes on")
