"""Test that a run of the product's own processes with every kind of fault leaves no planted secret in any output."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
import redis as sync_redis
from msgspec import Raw

from director.broker.redis_client import client
from director.core.runner_config import HttpConfig
from director.lab.chaos import wire
from director.local.launcher.processes import free_port
from director.servers.runners import RunnerOptions
from director.servers.runners.http import HttpRunner
from director.servers.runners.runner import RunRequest
from director.store.accounts import Accounts
from tests.support.cog import cog_server, write_model
from tests.support.eventually import eventually
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import RedisServer, redis_server
from tests.support.sink import Answer, sink

REDIS: Final = "planted-redis-password"
INPUT: Final = "planted-input-of-a-caller"
OUTPUT: Final = "planted-output-of-a-model"
RAISED: Final = "planted-error-of-a-model"
PRINTED: Final = "planted-print-of-a-model"
QUERY: Final = "planted-query-of-a-webhook"
USERINFO: Final = "planted-user-of-a-webhook"
HEADER: Final = "planted-header-for-servers"
METRICS: Final = "planted-metrics-token"
SCALE: Final = "planted-scale-token"
UPLOADS: Final = "planted-upload-secret"
BAD_TOKEN: Final = "planted-token-that-is-wrong"
SETUP: Final = "planted-query-of-setup"
MODERATION: Final = "planted-query-of-moderation"
AUDIT: Final = "planted-query-of-audit"
KEY: Final = "planted-idempotency-key"
AFFINITY: Final = "planted-affinity-key"
COLLECTOR: Final = "planted-query-of-collector"
SIGNING: Final = {
    name: "whsec_" + base64.b64encode(f"planted-{name}-signing-key-0".encode()).decode()
    for name in ("setup", "moderation", "audit")
}
PLANTED: Final = (
    *(REDIS, INPUT, OUTPUT, RAISED, PRINTED, QUERY, USERINFO, HEADER, METRICS, SCALE, UPLOADS, BAD_TOKEN, SETUP),
    *(MODERATION, AUDIT, KEY, AFFINITY, COLLECTOR, *SIGNING.values()),
)

REGISTERED: Final = "model registered"
VERSIONS: Final = {"acme/painter": "a1" * 32, "acme/parrot": "b2" * 32, "acme/writer": "c3" * 32}
SOURCE: Final = f"""
    import tempfile, time
    from cog import BasePredictor, Path

    class Predictor(BasePredictor):
        def predict(self, text: str = "", then: str = "") -> Path:
            print("{PRINTED}", text)
            if then == "raise":
                raise ValueError("{RAISED}" + text)
            if then == "slow":
                for _ in range(6000):
                    time.sleep(0.01)  # the server cancels between two steps of Python
            path = Path(tempfile.mkdtemp()) / "out.txt"
            path.write_text("{OUTPUT}" + text)
            return path
"""
SCHEMA: Final = {
    "openapi": "3.0.2",
    "info": {"title": "Cog", "version": "0.1.0"},
    "paths": {},
    "components": {
        "schemas": {
            "Input": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("text", "then")},
            },
            "Output": {"type": "string", "format": "uri"},
        }
    },
}


class Processes:
    def __init__(self, folder: Path, common: Mapping[str, str]) -> None:
        self._folder = folder
        self._common = common

    @contextmanager
    def running(self, name: str, *line: str, **variables: str) -> Iterator[None]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("DIRECTOR_", "OTEL_"))}
        env |= self._common | {f"DIRECTOR_{key.upper()}": value for key, value in variables.items()}
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *line], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def logs(self) -> dict[str, str]:
        return {path.stem: path.read_text() for path in sorted(self._folder.glob("*.log"))}

    def said(self, name: str) -> set[str]:
        lines = self.logs.get(name, "").splitlines(keepends=True)
        return {json.loads(line)["message"] for line in lines if line.endswith("}\n")}


async def answers(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url) as http:
        with suppress(httpx.ConnectError):
            return (await http.get("/livez")).is_success
    return False


class Parrot:
    """A model server that repeats everything it receives, with the requested status. Its health is bad at first, and it
    rejects its director once.
    """

    def __init__(self) -> None:
        self._health = iter((401, 500, 503))
        self._locked = iter((401,))

    async def __call__(self, request: wire.Request) -> wire.Answer:
        heard = json.dumps(dict(request.headers))
        if request.method == "GET":
            return _json({"detail": heard, "data": [{"id": "tiny"}]}, next(self._health, 200))
        text = request.body.decode() + heard
        status = next((code for code in (401, 422, 500) if f"answer {code}" in text), 200)
        status = next(self._locked, 200) if status == 401 else status
        return _json(f"{OUTPUT} {text}" if status == 200 else {"error": text}, status)


def _json(body: object, status: int) -> wire.Answer:
    return wire.Answer(status, json.dumps(body).encode())


@asynccontextmanager
async def parrot() -> AsyncIterator[str]:
    async with wire.listening(Parrot()) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def locked() -> Iterator[RedisServer]:
    with redis_server(loopback=True) as server:
        lock(server)
        yield server


def lock(server: RedisServer) -> None:
    with sync_redis.Redis(unix_socket_path=str(server.socket)) as redis:
        redis.config_set("requirepass", REDIS)


@pytest.mark.parametrize("status", [422, 500])
async def test_refusal_that_repeats_our_key_is_reported_without_it(status: int) -> None:
    headers = {"authorization": f"Bearer {HEADER}"}
    async with parrot() as url:
        runner = HttpRunner(HttpConfig(path="/run", health="/health"), RunnerOptions(url=url, headers=headers))
        health = [await runner.health() for _ in range(3)]
        given = Raw(json.dumps({"text": f"answer {status}"}).encode())
        *_, ended = [event async for event in runner.run(RunRequest(id="a" * 26, input=given))]
        await runner.aclose()
    assert "Bearer ***" in (ended.error or "")
    assert HEADER not in f"{ended} {health}"
    assert "Bearer ***" in health[1].detail


@pytest.mark.cog
@pytest.mark.heavy
async def test_no_secret_appears_in_a_log_or_output(locked: RedisServer, tmp_path: Path) -> None:
    url = f"redis://:{REDIS}@127.0.0.1:{locked.port}/0"
    redis = client(url)
    accounts = Accounts(redis)
    token = await accounts.create_token(ACCOUNT)
    secrets = [token, *await accounts.webhook_secrets(ACCOUNT)]
    ports = {name: free_port() for name in ("api", "painter", "parrot", "writer", "keeper")}
    (tmp_path / "files").mkdir()
    (tmp_path / "logs").mkdir()
    folder = write_model(tmp_path / "model", SOURCE, SCHEMA)
    upload = f"http://127.0.0.1:{ports['painter']}/uploads/{UPLOADS}/"
    async with sink() as receiver, parrot() as parroting, cog_server(folder, upload_url=upload) as cog:
        receiver.answers.extend([Answer(status=500, body=OUTPUT.encode())] * 25)
        common = {
            "DIRECTOR_REDIS_URL": url,
            "DIRECTOR_LOG_LEVEL": "debug",
            "DIRECTOR_FILES_DIR": str(tmp_path / "files"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}/?key={COLLECTOR}",
        }
        processes = Processes(tmp_path / "logs", common)
        hook = receiver.url
        telling = {
            "webhook_allow": "loopback",
            "setup_webhook": f"{hook}?setup={SETUP}",
            "setup_webhook_secret": SIGNING["setup"],
        }
        header = {"server_header": f"authorization: Bearer {HEADER}"}
        directors = {
            "painter": {"servers": cog, "upload_secret": UPLOADS},
            "parrot": {
                "servers": parroting,
                "runner": "http",
                "runner_config": '{"path": "/run"}',
                "moderation_url": f"{parroting}/judge?key={MODERATION}",
                "moderation_secret": SIGNING["moderation"],
                "moderation_on_failure": "release",
                **header,
            },
            "writer": {"servers": parroting, "runner": "openai", **header},
        }
        with ExitStack() as stack:
            run = stack.enter_context
            run(processes.running("api", "api", port=str(ports["api"]), metrics_token=METRICS))
            for name, given in directors.items():
                model = f"acme/{name}"
                who = {"model": model, "version": VERSIONS[model], "health_port": str(ports[name]), "attempts": "2"}
                run(processes.running(name, "director", "run", **who, **telling, **given))
            keeping = {"port": str(ports["keeper"]), "scale_token": SCALE, "webhook_allow": "loopback"}
            run(processes.running("keeper", "director", "keeper", webhook_schedule="1s,1s,1s,1s", **keeping))
            audit = ("director", "audit", "--to", f"{hook}?audit={AUDIT}")
            run(processes.running("audit", *audit, audit_secret=SIGNING["audit"], webhook_allow="loopback"))
            for name in directors:
                await eventually(lambda name=name: REGISTERED in processes.said(name), name, limit_s=120)
            await eventually(lambda: answers(f"http://127.0.0.1:{ports['api']}"), "the API answers", limit_s=120)
            secrets += await calls(f"http://127.0.0.1:{ports['api']}", token, hook)
            locked.kill()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports['api']}") as http:
                await http.get("/v1/predictions", headers={"Authorization": f"Bearer {token}"}, timeout=60)
            locked.start()
            await anyio.sleep(1)  # they return to a server that knows no password, which is reported too
            lock(locked)
            await redis.aclose()
            secrets += await calls(f"http://127.0.0.1:{ports['api']}", token, hook)
            await eventually(
                lambda: "webhook delivered" in processes.said("keeper") | processes.said("painter"),
                "a webhook came",
                limit_s=120,
            )
            shown = await shows(ports)
    logs = processes.logs
    for name in ("api", *directors, "keeper", "audit"):
        for line in logs[name].splitlines():
            json.loads(line)
    assert {"prediction accepted", "redis is safe"} <= processes.said("api")
    assert {"inference", "webhook failed", "claim given back"} <= said_by(processes, directors)
    assert "the health of a model server changed" in processes.said("parrot")
    assert len(secrets) > 6
    texts = {**logs, **shown}
    assert found_in(texts, {*PLANTED, *secrets}) == []


def said_by(processes: Processes, names: Any) -> set[str]:
    return set().union(*map(processes.said, names))


def found_in(texts: Mapping[str, str], secrets: set[str]) -> list[tuple[str, str, str]]:
    return [
        (where, secret, line[:2000])
        for where, text in texts.items()
        for line in text.splitlines()
        for secret in sorted(secrets)
        if secret in line
    ]


async def calls(base: str, token: str, hook: str) -> list[str]:
    """Make valid and invalid calls as callers do. Return the secrets that the callers received."""
    handed: list[str] = []
    async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as http:
        mine = {"Authorization": f"Bearer {token}"}
        assert (await http.get("/v1/account", headers={"Authorization": f"Bearer {BAD_TOKEN}"})).status_code == 401
        painter, parroting, writer = VERSIONS.values()
        ids = []
        asked: list[tuple[str, dict[str, Any]]] = [
            (painter, {"text": INPUT}),
            (painter, {"text": INPUT, "then": "raise"}),
            (painter, {"text": INPUT, "then": "slow"}),
            (parroting, {"text": INPUT}),
            (parroting, {"text": f"{INPUT} answer 500"}),
            (parroting, {"text": f"{INPUT} answer 422"}),
            (parroting, {"text": f"{INPUT} answer 401"}),
            (writer, {"prompt": INPUT}),
            (writer, {"prompt": f"{INPUT} answer 500"}),
        ]
        for number, (version, given) in enumerate(asked):
            body = {"version": version, "input": given, "webhook": f"{hook}?key={QUERY}"}
            special = {"Idempotency-Key": f"{KEY}-{os.urandom(4).hex()}-{number}", "X-Affinity-Key": AFFINITY}
            answer = await http.post("/v1/predictions", json=body, headers={**mine, **special})
            assert answer.status_code == 201, answer.text
            made = answer.json()
            ids.append(made["id"])
            if "stream" in made["urls"]:
                handed.append(made["urls"]["stream"].rpartition("/")[2])
        for content in (
            json.dumps({"version": painter, "input": {"text": {"a": INPUT}}}),
            json.dumps({"version": painter, "input": {"text": INPUT}, "webhook": f"http://{USERINFO}:x@127.0.0.1/"}),
            json.dumps({"version": painter, "input": {"text": INPUT}, "webhook": f"ftp://127.0.0.1/?key={QUERY}"}),
            '{"version": "' + INPUT,
        ):
            answer = await http.post("/v1/predictions", content=content, headers=mine)
            assert answer.status_code in (400, 422), answer.text
        form = {"content": ("a.txt", INPUT.encode(), "text/plain")}
        answer = await http.post("/v1/files", files=form, headers=mine)
        assert answer.status_code == 201, answer.text
        file = answer.json()
        given = {"version": painter, "input": {"text": file["urls"]["get"]}}
        await http.post("/v1/predictions", json=given, headers=mine)
        await http.post(f"/v1/predictions/{ids[2]}/cancel", headers=mine)
        for prediction_id in ids:
            ended = await eventually(
                lambda prediction_id=prediction_id: shown(http, prediction_id, mine),
                f"{prediction_id} ended",
                until=lambda it: it["completed_at"] is not None,
                limit_s=120,
            )
            output = ended["output"]
            if isinstance(output, str) and output.startswith("http"):
                handed.append(output.rpartition("?")[2] if "?" in output else output.rpartition("/")[2])
                await http.get(output, headers=mine)
            await http.get(f"/v1/predictions/{prediction_id}/explain", headers=mine)
        await http.get("/v1/predictions", headers=mine, params={"cursor": QUERY})
    return handed


async def shown(http: httpx.AsyncClient, prediction_id: str, headers: Mapping[str, str]) -> dict[str, Any]:
    return dict((await http.get(f"/v1/predictions/{prediction_id}", headers=headers)).json())


async def shows(ports: Mapping[str, int]) -> dict[str, str]:
    """Return everything that an operator sees."""
    found: dict[str, str] = {}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        for name, port in ports.items():
            for path in ("/livez", "/readyz", "/metrics"):
                for key in (METRICS, BAD_TOKEN):
                    headers = {"Authorization": f"Bearer {key}"}
                    answer = await http.get(f"http://127.0.0.1:{port}{path}", headers=headers)
                    found[f"{name}{path} {key}"] = f"{answer.headers}\n{answer.text}"
        for key in (SCALE, BAD_TOKEN):
            at = f"http://127.0.0.1:{ports['keeper']}/scale/acme/painter:{'a1' * 6}"
            found[f"scale {key}"] = (await http.get(at, headers={"Authorization": f"Bearer {key}"})).text
    return found
