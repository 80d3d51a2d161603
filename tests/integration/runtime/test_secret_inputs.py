"""Test that a secret input reaches the model and appears nowhere else, and that Redis has forgotten it after the end.

The whole service runs as processes at log level debug, with a real Cog server whose model takes `cog.Secret`.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
import replicate
from anyio import to_thread
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.redis_client import client
from director.local.launcher.processes import free_port
from director.store.accounts import SCOPES, Accounts
from tests.integration.runtime.test_secrets_stay_out import REGISTERED, Processes, answers
from tests.support.clients import javascript_client, run_script
from tests.support.cog import cog_schema, cog_server, write_model
from tests.support.eventually import eventually
from tests.support.keyspace import holders
from tests.support.servers import redis_server
from tests.support.sink import Sink, sink

pytestmark = pytest.mark.cog

HUSH: Final = "planted-hush-value"
NEXT: Final = f"{HUSH}-of-a-list"
DIGEST: Final = hashlib.sha256(f"{HUSH}{NEXT}".encode()).hexdigest()
HIDDEN: Final = "[REDACTED]"
GIVEN: Final = {"text": "hi", "token": HUSH, "keys": [NEXT]}
SHOWN: Final = {"text": "hi", "token": HIDDEN, "keys": [HIDDEN]}
STAYS_OPEN_S: Final = 2
MODEL: Final = "acme/keeper"
VERSION: Final = "d4" * 32
SOURCE: Final = """
    import hashlib, os
    from typing import Iterator
    from cog import BasePredictor, Secret

    def revealed(given):  # coglet gives the members of a list as text
        return given if isinstance(given, str) else given.get_secret_value()

    class Predictor(BasePredictor):
        def predict(self, token: Secret, keys: list[Secret] = [], text: str = "", gate: str = "") -> Iterator[str]:
            print(token)
            yield text
            wait_for(gate)
            if text == "raise":
                raise ValueError(f"{revealed(token)} is not a token")
            if text == "exit":
                os._exit(1)
            yield hashlib.sha256("".join(map(revealed, [token, *keys])).encode()).hexdigest()
"""
SECRET: Final = {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}


def schema() -> dict[str, Any]:
    """Return the document as Cog writes it for this model."""
    document = cog_schema({"text": "string", "gate": "string"})
    inputs = document["components"]["schemas"]["Input"]
    inputs["properties"] |= {"token": SECRET, "keys": {"type": "array", "items": SECRET, "default": []}}
    inputs["required"] = ["token"]
    return document


class Service(Struct, frozen=True, kw_only=True):
    http: httpx.AsyncClient
    redis: Redis
    redis_url: str
    url: str
    token: str
    processes: Processes
    receiver: Sink
    audit: Path
    ports: dict[str, int]

    async def create(self, path: str = f"/v1/models/{MODEL}/predictions", **asked: Any) -> dict[str, Any]:
        headers = asked.pop("headers", {})
        webhook = f"{self.receiver.url}"
        answer = await self.http.post(path, json={"input": GIVEN, "webhook": webhook, **asked}, headers=headers)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def ended(self, made: dict[str, Any]) -> dict[str, Any]:
        path = f"/v1/predictions/{made['id']}"

        async def look() -> dict[str, Any]:
            return dict((await self.http.get(path)).json())

        return await eventually(look, path, until=lambda it: it["completed_at"] is not None, limit_s=120)


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Service]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "logs").mkdir()
    ports = {name: free_port() for name in ("api", "director", "keeper")}
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        redis = client(server.url)
        stack.push_async_callback(redis.aclose)
        token = await Accounts(redis).create_token("acme", scopes=SCOPES)
        receiver = await stack.enter_async_context(sink())
        # one ends with the prediction whose model exits
        cogs = [
            await stack.enter_async_context(cog_server(write_model(folder / "model", SOURCE, schema())))
            for _ in range(2)
        ]
        common = {"DIRECTOR_REDIS_URL": server.url, "DIRECTOR_LOG_LEVEL": "debug"}
        processes = Processes(folder / "logs", common)
        run = stack.enter_context(ExitStack()).enter_context
        url = f"http://127.0.0.1:{ports['api']}"
        run(processes.running("api", "api", port=str(ports["api"]), public_url=url))
        hooks = {"webhook_allow": "loopback"}
        given = {"model": MODEL, "version": VERSION, "servers": ",".join(cogs), "attempts": "1"}
        run(processes.running("director", "director", "run", health_port=str(ports["director"]), **given, **hooks))
        run(processes.running("keeper", "director", "keeper", port=str(ports["keeper"]), **hooks))
        audit = folder / "audit.jsonl"
        run(processes.running("audit", "director", "audit", "--to", str(audit)))
        headers = {"Authorization": f"Bearer {token}"}
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False)
        )
        await eventually(lambda: REGISTERED in processes.said("director"), "the model is registered", limit_s=120)
        await eventually(lambda: answers(url), "the API answers", limit_s=120)
        yield Service(
            http=http,
            redis=redis,
            redis_url=server.url,
            url=url,
            token=token,
            processes=processes,
            receiver=receiver,
            audit=audit,
            ports=ports,
        )


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


async def walked(service: Service, ids: Iterable[str]) -> dict[str, str]:
    """Return what every route answers to GET, for each of these predictions, and all that processes wrote."""
    document = (await service.http.get("/openapi.json")).json()
    queue = f"{MODEL}:{VERSION[:12]}"
    named = {"owner": "acme", "name": "keeper", "version": VERSION, "version_id": VERSION, "queue": queue}
    found: dict[str, str] = {}
    for path, methods in document["paths"].items():
        if "get" not in methods:
            continue
        for prediction_id in ids:
            values = {**named, "id": prediction_id, "prediction_id": prediction_id}
            filled = "".join(
                values.get(part[1:-1], prediction_id) if part.startswith("{") else part
                for part in re.split(r"(\{\w+\})", path)
            )
            at = filled if filled.startswith("/v1") else f"/v1{filled}"
            if at not in found:
                found[at] = await got(service, at)
    for name, port in service.ports.items():
        for path in ("/readyz", "/metrics"):
            found[f"{name}{path}"] = (await service.http.get(f"http://127.0.0.1:{port}{path}")).text
    found |= service.processes.logs
    found["audit.jsonl"] = service.audit.read_text() if service.audit.exists() else ""
    found["webhooks"] = "\n".join(f"{each.headers} {each.body!r}" for each in service.receiver.received)
    return found


async def changed(service: Service, prediction_id: str) -> dict[str, str]:
    """Return what every route that changes something answers, with a body of its schema that holds the secret."""
    document = (await service.http.get("/openapi.json")).json()
    one = {"version": VERSION, "input": GIVEN}
    asked = {**one, "model": MODEL, "predictions": [one], "webhook": service.receiver.url, "destination": MODEL}
    # no queue, account or version of this service: a walk over all changes must not end it
    named = {"owner": "acme", "name": "keeper", "version": "0" * 12}
    found: dict[str, str] = {}
    for path, methods in document["paths"].items():
        for method in methods.keys() - {"get", "head", "parameters"}:
            parts = re.split(r"\{(\w+)\}", path)
            parts[1::2] = [named.get(name, prediction_id) for name in parts[1::2]]
            body = {name: asked[name] for name in members_of(document, methods[method]) if name in asked}
            verb = method.removeprefix("x-").upper()
            at = "".join(parts)
            answer = await service.http.request(verb, at if at.startswith("/v1") else f"/v1{at}", json=body)
            found[f"{verb} {path}"] = f"{answer.status_code} {answer.headers}\n{answer.text}"
    return found


def members_of(document: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {})
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return list(schema.get("properties", {}))


async def got(service: Service, at: str) -> str:
    """Return an answer, or as much as came of one that stays open."""
    text = ""
    with anyio.move_on_after(STAYS_OPEN_S):
        async with service.http.stream("GET", at) as answer:
            text = f"{answer.status_code} {answer.headers}\n"
            async for part in answer.aiter_text():
                text += part
    assert text, at
    return text


async def streamed(service: Service, made: dict[str, Any]) -> str:
    return (await service.http.get(made["urls"]["stream"], headers={"Accept": "text/event-stream"})).text


def commanded(service: Service, *line: str) -> str:
    env = {**os.environ, "DIRECTOR_REDIS_URL": service.redis_url, "DIRECTOR_URL": service.url}
    ran = subprocess.run(
        [sys.executable, "-m", "director", *line],
        env=env | {"DIRECTOR_TOKEN": service.token},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ran.stdout + ran.stderr


def leaks(found: dict[str, str]) -> list[str]:
    return [f"{where}: {line[:500]}" for where, text in found.items() for line in text.splitlines() if HUSH in line]


async def test_secret_reaches_the_model_and_no_view(service: Service, gate: Path) -> None:
    running = await service.create(input={**GIVEN, "gate": str(gate)}, headers={"Idempotency-Key": "once"})
    assert {name: running["input"][name] for name in SHOWN} == SHOWN
    again = await service.create(input={**GIVEN, "gate": str(gate)}, headers={"Idempotency-Key": "once"})
    assert again["id"] == running["id"]
    await eventually(lambda: shows(service, running["id"], "processing"), "it runs", limit_s=60)
    assert await holders(service.redis, HUSH.encode()) != []
    live = await walked(service, [running["id"]])
    assert (await service.http.get(f"/v1/predictions/{running['id']}")).json()["input"] == running["input"]
    gate.touch()
    ended = await service.ended(running)
    assert (ended["status"], ended["output"]) == ("succeeded", ["hi", DIGEST]), ended
    assert "**********" in ended["logs"]
    sse = await streamed(service, running)
    assert DIGEST in sse
    assert await holders(service.redis, HUSH.encode()) == []
    events = {json.loads(each.body)["status"] for each in service.receiver.received}
    await eventually(lambda: len(service.receiver.received) >= 3, "webhooks came")
    assert events
    for each in service.receiver.received:
        assert json.loads(each.body)["input"]["token"] == HIDDEN
    await eventually(lambda: service.audit.exists() and running["id"] in service.audit.read_text(), "it is audited")
    done = await walked(service, [running["id"]])
    commands = {
        "cli": "".join(
            commanded(service, *line)
            for line in (("get", running["id"]), ("get", running["id"], "--json"), ("explain", running["id"]))
        )
    }
    assert HIDDEN in commands["cli"]
    assert HIDDEN in done[f"/v1/predictions/{running['id']}"]
    assert HIDDEN in done["/v1/predictions"]
    assert leaks({**live, **done, **commands, "sse": sse, "201": json.dumps([running, again])}) == []


async def shows(service: Service, prediction_id: str, status: str) -> bool:
    return (await service.http.get(f"/v1/predictions/{prediction_id}")).json()["status"] == status


async def test_every_way_to_create_shows_no_secret(service: Service) -> None:
    deployment = {"name": "safe", "model": MODEL, "version": VERSION, "hardware": "cpu"}
    made = await service.http.post("/v1/deployments", json={**deployment, "min_instances": 0, "max_instances": 1})
    assert made.status_code == 200, made.text
    answers = [
        await service.create("/v1/predictions", version=VERSION),
        await service.create("/v1/deployments/acme/safe/predictions"),
        await service.create(headers={"Prefer": "wait=20"}),
    ]
    batch = {"predictions": [{"version": VERSION, "input": GIVEN}] * 2}
    many = await service.http.post("/v1/predictions/batch", json=batch)
    refused = [
        await service.http.post(f"/v1/models/{MODEL}/predictions", json={"input": wrong})
        for wrong in ({**GIVEN, "keys": HUSH}, {**GIVEN, "token": [HUSH]}, {**GIVEN, "token": {HUSH: HUSH}})
    ]
    broken = await service.http.post(f"/v1/models/{MODEL}/predictions", content='{"input": {"token": "' + HUSH)
    assert [answer.status_code for answer in refused] == [422, 422, 422]
    assert broken.status_code == 400
    assert [(await service.ended(each))["output"] for each in answers] == [["hi", DIGEST]] * 3
    texts = {"made": json.dumps(answers), "many": many.text, "broken": broken.text}
    texts |= {f"refused {place}": answer.text for place, answer in enumerate(refused)}
    assert leaks({**texts, **await walked(service, [each["id"] for each in answers])}) == []
    assert HIDDEN in many.text


async def test_error_of_the_model_does_not_quote_the_secret(service: Service) -> None:
    ended = await service.ended(await service.create(input={**GIVEN, "text": "raise"}))
    assert ended["status"] == "failed"
    assert ended["error"].endswith(f"ValueError: {HIDDEN} is not a token")
    assert leaks(await walked(service, [ended["id"]])) == []


async def test_canceled_prediction_keeps_no_secret(service: Service, gate: Path) -> None:
    made = await service.create(input={**GIVEN, "gate": str(gate)})
    answer = await service.http.post(f"/v1/predictions/{made['id']}/cancel")
    await service.ended(made)
    assert leaks({"cancel": answer.text}) == []
    assert await holders(service.redis, HUSH.encode()) == []


async def test_dead_letter_keeps_no_secret_and_says_so(service: Service) -> None:
    made = await service.create(input={**GIVEN, "text": "exit"})
    await service.ended(made)
    assert await holders(service.redis, HUSH.encode()) == []
    letter = (await service.http.get(f"/v1/admin/dead/{made['id']}")).json()
    assert {name: letter["input"][name] for name in SHOWN} == {**SHOWN, "text": "exit"}
    assert leaks({**await walked(service, [made["id"]]), "cli": commanded(service, "dead", "show", made["id"])}) == []
    revived = await service.http.post(f"/v1/admin/dead/{made['id']}/revive")
    assert (revived.status_code, revived.json()["code"]) == (409, "secrets_gone")
    assert "had secret inputs" in commanded(service, "dead", "revive", made["id"])


async def test_official_python_client_sees_no_secret(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_POLL_INTERVAL", "0.05")

    def script() -> str:
        caller = replicate.Client(api_token=service.token, base_url=service.url)
        made = caller.predictions.create(version=VERSION, input=GIVEN)
        assert made.input == SHOWN
        made.wait()
        assert made.output == ["hi", DIGEST]
        assert list(caller.run(f"{MODEL}:{VERSION}", input=GIVEN)) == ["hi", DIGEST]
        listed = [each.dict() for each in caller.predictions.list()]
        caller._client.close()  # the client has no close method
        return f"{made.dict()} {listed}"

    said = await to_thread.run_sync(script)
    assert HIDDEN in said
    assert HUSH not in said


async def test_no_change_shows_the_secret(service: Service, gate: Path) -> None:
    running = await service.create(input={**GIVEN, "gate": str(gate)})
    await eventually(lambda: shows(service, running["id"], "processing"), "it runs", limit_s=60)
    live = await changed(service, running["id"])
    await service.ended(running)  # the walk has canceled it
    ended = await service.ended(await service.create())
    over = await changed(service, ended["id"])
    creating = [name for name, text in live.items() if HIDDEN in text and text[:3] in ("200", "201")]
    for name in ("POST /predictions", "POST /models/{owner}/{name}/predictions", "POST /predictions/batch"):
        assert name in creating, live[name]
    assert "POST /predictions/{id}/cancel" in creating
    assert leaks({**live, **over}) == []


@pytest.mark.heavy  # the client comes from the registry of npm
async def test_official_javascript_client_sees_no_secret(
    service: Service, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    assert pytestconfig.cache is not None
    env = await to_thread.run_sync(javascript_client, Path(pytestconfig.cache.mkdir("clients")))
    script = tmp_path / "script.js"
    script.write_text(
        """
        const Replicate = require("replicate");
        const { url, token, model, input } = JSON.parse(process.env.GIVEN);
        const replicate = new Replicate({ auth: token, baseUrl: `${url}/v1` });
        (async () => {
          const made = await replicate.predictions.create({ model, input });
          const ended = await replicate.wait(made, { interval: 50 });
          const listed = await replicate.predictions.list();
          console.log(JSON.stringify({ made, ended, listed, output: await replicate.run(model, { input }) }));
        })();
        """
    )
    given = json.dumps({"url": service.url, "token": service.token, "model": MODEL, "input": GIVEN})
    said = await to_thread.run_sync(lambda: run_script(["node", str(script)], env={**env, "GIVEN": given}))
    assert (said["made"]["input"], said["ended"]["input"], said["output"]) == (SHOWN, SHOWN, ["hi", DIGEST])
    assert HUSH not in json.dumps(said)


@pytest.fixture(autouse=True)
async def nothing_is_left(service: Service) -> AsyncIterator[None]:
    yield
    await eventually(lambda: is_idle(service), "all have ended", limit_s=60)
    assert await holders(service.redis, HUSH.encode()) == []


async def is_idle(service: Service) -> bool:
    listed = (await service.http.get("/v1/predictions")).json()["results"]
    return all(each["completed_at"] for each in listed)
