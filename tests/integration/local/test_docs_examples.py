"""Run the programs of docs/examples as they stand, with official clients, against `director up`."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook

from director.local.launcher.processes import free_port
from tests.integration.local.test_up import PATIENCE_S, Started, environment, started, until
from tests.support.clients import javascript_client

pytestmark = [pytest.mark.cog, pytest.mark.faults]

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
HELLO = "hello 1\nhello 2\nhello 3\n"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[Started, None, None]:
    with started(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture
def env(up: Started) -> dict[str, str]:
    state = up.state
    return environment() | {"REPLICATE_API_TOKEN": state["token"], "REPLICATE_BASE_URL": state["url"]}


def ended(*line: str, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(line, cwd=EXAMPLES, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def said(*line: str, env: Mapping[str, str]) -> str:
    run = ended(*line, env=env)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_every_program_has_a_row_on_the_page() -> None:
    page = (EXAMPLES / "index.md").read_text()
    programs = [path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".js", ".sh"}]
    assert len(programs) == 6
    assert [name for name in programs if f"[{name}]({name})" not in page] == []


@pytest.mark.parametrize("program", ["call.py", "stream.py"])
def test_python_program_prints_the_output(env: dict[str, str], program: str) -> None:
    assert said(sys.executable, program, env=env) == HELLO


def test_python_program_says_why_it_got_nothing(env: dict[str, str]) -> None:
    run = ended(sys.executable, "call.py", "example/thumbnail", env=env)
    assert run.returncode == 1
    assert "image is required" in run.stderr


def test_node_program_prints_the_output(env: dict[str, str], pytestconfig: pytest.Config) -> None:
    assert pytestconfig.cache is not None
    client = javascript_client(Path(pytestconfig.cache.mkdir("clients")))
    node = {name: client[name] for name in ("NODE_PATH", "PATH")}
    assert said("node", "call.js", env=env | node) == HELLO


def test_batch_prints_each_output_in_order(env: dict[str, str]) -> None:
    expected = "succeeded one one 1\nsucceeded two two 1\n"
    assert said(sys.executable, "batch.py", "one", "two", env=env) == expected


@contextmanager
def receiving(out: Path, secret: str) -> Generator[str, None, None]:
    """Start the receiver and yield its address."""
    port = free_port()
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, EXAMPLES / "receiver.py", str(port)],
            env=os.environ | {"WEBHOOK_SECRET": secret},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "listening" in out.read_text(), out.read_text)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def secret_of(env: Mapping[str, str]) -> str:
    headers = {"Authorization": f"Bearer {env['REPLICATE_API_TOKEN']}"}
    answer = httpx.get(f"{env['REPLICATE_BASE_URL']}/v1/webhooks/default/secret", headers=headers, trust_env=False)
    return str(answer.json()["key"])


def test_receiver_takes_the_webhook_that_the_service_signed(env: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "receiver.txt"
    with receiving(out, secret_of(env)) as address:
        said("sh", "webhook.sh", address, env=env)
        until(lambda: "succeeded ['hello 1\\n', 'hello 2\\n', 'hello 3\\n']" in out.read_text(), out.read_text)


SECRET = "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0"
BODY = '{"id": "1", "status": "succeeded", "output": null}'


def signature(secret: str, *, age_s: int = 0) -> dict[str, str]:
    at = datetime.now(UTC) - timedelta(seconds=age_s)
    signed = Webhook(secret).sign("msg_1", at, BODY)
    return {"webhook-id": "msg_1", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signed}


@pytest.mark.parametrize(
    "headers",
    [{}, signature("whsec_" + "A" * 32), signature(SECRET, age_s=600)],
    ids=["unsigned", "another secret", "too old"],
)
def test_receiver_refuses_what_the_service_did_not_sign(tmp_path: Path, headers: dict[str, str]) -> None:
    out = tmp_path / "receiver.txt"
    with receiving(out, SECRET) as address:
        answer = httpx.post(address, content=BODY, headers=headers, trust_env=False)
    assert answer.status_code == 401
    assert out.read_text().count("\n") == 1


def test_receiver_takes_a_repeated_webhook_once(tmp_path: Path) -> None:
    out = tmp_path / "receiver.txt"
    with receiving(out, SECRET) as address:
        answers = [
            httpx.post(address, content=BODY, headers=signature(SECRET, age_s=age_s), trust_env=False)
            for age_s in (2, 0)
        ]
    assert [answer.status_code for answer in answers] == [204, 204]
    assert out.read_text().count("succeeded") == 1
