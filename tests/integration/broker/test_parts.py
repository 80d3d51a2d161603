"""Run a whole service of real processes, each as its own user of Redis. Nothing that it does is refused there."""

import json
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from director.broker import keys
from director.broker.rights import PARTS
from director.core.ids import queue_name
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from tests.support.api import live_api
from tests.support.eventually import eventually
from tests.support.live_director import DirectorProcess, Gate, director_process, keeper_process
from tests.support.model_server import model_server
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer
from tests.support.sink import Answer, Sink, sink

pytestmark = [pytest.mark.faults]

QUEUE = queue_name(MODEL, VERSION)
LIMITS = {"compute_s_per_day": 10_000, "compute_s_total": 10_000, "rate": 100, "max_files_bytes": 1 << 20}
SECRET = "m" * 20
RUNNER = {"path": "/predict", "input": {"args": {"$input": ""}}, "output": "/result/items"}
DRIVEN: dict[str, Any] = {
    **{"runner": "http", "runner_config": json.dumps(RUNNER), "webhook_allow": "loopback", "lease_s": 1},
    **{"attempts": 2, "backoff_s": 0.1, "health_port": 0},
}


class Callers:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(self, method: str, path: str, *, status: int = 200, **given: Any) -> Any:
        answer = await self.http.request(method, path, **given)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.headers.get("content-type", "").endswith("json") else answer.text

    async def create(self, webhook: str = "", **given: Any) -> str:
        body = {"version": VERSION, "input": given, **({"webhook": webhook} if webhook else {})}
        return str((await self.ask("POST", "/v1/predictions", status=201, json=body))["id"])

    async def shows(self, prediction: str, status: str) -> Any:
        async def shown() -> Any:
            return await self.ask("GET", f"/v1/predictions/{prediction}")

        return await eventually(shown, f"{prediction} is {status}", until=lambda it: it["status"] == status, limit_s=30)


async def plain_work(callers: Callers, receiver: Sink) -> None:
    """A file goes in, a webhook comes out; one prediction is canceled, one is retried, one is followed."""
    file = await callers.ask("POST", "/v1/files", status=201, files={"content": ("a.txt", b"hi", "text/plain")})
    done = await callers.create(receiver.url, n=1, text=file["urls"]["get"])
    await callers.shows(done, "succeeded")
    await receiver.arrived(1)
    running = await callers.create(gate="/nowhere/at/all")
    await callers.shows(running, "processing")
    await callers.ask("POST", f"/v1/predictions/{running}/cancel")
    await callers.shows(running, "canceled")
    body = {"version": VERSION, "input": {"n": 2}}
    held = await callers.ask("POST", "/v1/predictions", status=201, json=body, headers={"Prefer": "wait=20"})
    assert held["status"] == "succeeded"
    events = await callers.ask("GET", held["urls"]["stream"], headers={"Accept": "text/event-stream"})
    assert "event: done" in events
    for path in ("/v1/predictions", "/v1/files", "/v1/account", "/v1/models", "/v1/webhooks/default/secret"):
        await callers.ask("GET", path)
    await callers.ask("DELETE", f"/v1/files/{file['id']}", status=204)
    await callers.ask("DELETE", f"/v1/predictions/{held['id']}", status=204)


async def out_of_line(admin: Any, prediction: str) -> None:
    """Take a prediction out of all that would hand it out, as a fault would. The keeper puts it back in line."""
    for name in await admin.keys("*:q:*:backlog:*"):
        await admin.zrem(name, prediction)
    for name in await admin.keys("*:q:*:s[0-9]*"):
        for entry, fields in await admin.xrange(name):
            if fields[b"id"] == prediction.encode():
                await admin.xdel(name, entry)


async def told_by_the_keeper(callers: Callers, receiver: Sink) -> None:
    known = len(receiver.received)
    receiver.answers.append(Answer(status=500))
    await callers.shows(await callers.create(receiver.url, n=1), "succeeded")
    await receiver.arrived(known + 2)


async def suspended_and_resumed(callers: Callers, admin: Any, *, gate: str) -> None:
    await callers.ask("POST", "/v1/admin/accounts", status=201, json={"name": "tenant"})
    made = await callers.ask("POST", "/v1/admin/accounts/tenant/tokens", status=201, json={})
    body = {"version": VERSION, "input": {"gate": gate}}
    created = await callers.ask(
        "POST", "/v1/predictions", status=201, json=body, headers={"Authorization": f"Bearer {made['token']}"}
    )
    await callers.ask("POST", "/v1/admin/accounts/tenant/suspend", json={"policy": "end"})
    key = keys.record(created["id"])
    await eventually(lambda: admin.hget(key, "status"), "it is ended", until=lambda status: status == b"canceled")
    await callers.ask("POST", "/v1/admin/accounts/tenant/resume")
    await callers.ask("DELETE", f"/v1/admin/accounts/tenant/tokens/{made['id']}", status=204)


async def seen(callers: Callers, keeper: str) -> str:
    """Read what operators and autoscalers read, and return the metrics of API and keeper."""
    for path in ("queues", "directors", "owed", "audit", "accounts"):
        await callers.ask("GET", f"/v1/admin/{path}")
    scale = await callers.ask("GET", f"{keeper}/scale/{MODEL}", headers={"Authorization": f"Bearer {SECRET}"})
    assert scale["running"] == 0
    assert (await callers.ask("GET", f"{keeper}/readyz"))["missing"] == {}
    return str(await callers.ask("GET", "/metrics")) + str(await callers.ask("GET", f"{keeper}/metrics"))


async def test_parts_do_all_of_their_work_with_their_own_rights(
    guarded: RedisServer, admin: Any, tmp_path: Path
) -> None:
    token = await Accounts(admin).create_token(ACCOUNT, scopes=("read", "run", "admin"))
    files, gate, api_log = str(tmp_path / "files"), Gate(tmp_path / "gate"), tmp_path / "api.log"
    env = {"DIRECTOR_FILES_DIR": files, "DIRECTOR_WEBHOOK_ALLOW": "loopback"}
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(model_server())
        receiver = await stack.enter_async_context(sink())
        log = stack.enter_context(api_log.open("wb"))
        api = await stack.enter_async_context(live_api(guarded.url, env=env, log=log))
        http = httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=30)
        http.headers["Authorization"] = f"Bearer {token}"
        callers = Callers(await stack.enter_async_context(http))

        def director() -> AbstractAsyncContextManager[DirectorProcess]:
            return director_process(guarded.url, model.url, files_dir=files, **DRIVEN)

        await callers.ask("PATCH", f"/v1/admin/accounts/{ACCOUNT}", json={"limits": LIMITS})
        async with director() as first:
            await first.says("model registered")
            await plain_work(callers, receiver)
            logs = []
            killed = await callers.create(gate=str(gate))
            await callers.shows(killed, "processing")
            logs.append(first.log)  # and with its end the director dies
        lost = await callers.create(n=1)
        await out_of_line(admin, lost)
        metrics_port, keeping = free_port(), {"webhook_allow": "loopback", "files_dir": files, "scale_token": SECRET}
        async with keeper_process(guarded.url, lease_s=1, port=metrics_port, **keeping) as keeper:
            await callers.shows(killed, "starting")
            async with director() as second:
                await callers.shows(killed, "processing")
                logs.append(second.log)
            await callers.shows(killed, "failed")
            dead = await callers.ask("GET", "/v1/admin/dead")
            assert [letter["id"] for letter in dead["results"]] == [killed]
            async with director() as third:
                gate.open()
                await callers.ask("POST", f"/v1/admin/dead/{killed}/revive", json={})
                await callers.shows(killed, "succeeded")
                await callers.shows(lost, "succeeded")
                await told_by_the_keeper(callers, receiver)
                await suspended_and_resumed(callers, admin, gate=str(tmp_path / "never"))
                watched = await seen(callers, f"http://127.0.0.1:{metrics_port}")
                assert "director_api_requests_total" in watched
                assert "director_queue_" in watched
                logs.append(third.log)
            logs.append(keeper.log)
        for user in ("api", "director"):
            line = [sys.executable, "-m", "director", "doctor", "--json", "--redis", guarded.url_of(user)]
            found = json.loads((await anyio.run_process(line, check=False)).stdout)["checks"]
            assert [check["verdict"] for check in found if check["check"] == "rights"] == ["ok"]
        logs.append(api_log.read_text())
    refused = await admin.acl_log()
    assert [entry for entry in refused if entry["username"] in ("director", *PARTS)] == []
    assert [line for log in logs for line in log.splitlines() if "NOPERM" in line or "Traceback" in line] == []
