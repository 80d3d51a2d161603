"""Serve model servers that others wrote by the documented command, and try each capability. What is not "yes" has its
reason in tests/support/real_servers.py, and a change fails here, for the better too. The table of
docs/how-to/model-servers.md is what a run with KEEP_REAL_SERVERS=1 found.
"""

import os
import signal
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.integration.local.test_serve import serving
from tests.integration.local.test_up import PATIENCE_S, Started, started
from tests.support.eventually import eventually
from tests.support.real_servers import CAPABILITIES, NOT_TRIED, SERVERS, RealServer, keep, options, python_with

pytestmark = pytest.mark.real_servers
SLOTS = 4
# No hub is asked for weights, and no usage is reported
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "BENTOML_DO_NOT_TRACK": "True",
    "GRADIO_ANALYTICS_ENABLED": "False",
}
OFFLINE |= {"RAY_USAGE_STATS_ENABLED": "0"}
LONGEST_S = 300  # a run, with one start of the server in it
ENDED = ("succeeded", "failed", "canceled", "aborted")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[Started, None, None]:
    with started(tmp_path_factory.mktemp("home"), "--no-example") as running:
        yield running


@pytest.fixture
async def api(up: Started) -> AsyncGenerator[httpx.AsyncClient, None]:
    headers = {"Authorization": f"Bearer {up.state['token']}"}
    async with httpx.AsyncClient(
        base_url=up.state["url"] + "/v1", headers=headers, trust_env=False, timeout=PATIENCE_S
    ) as client:
        yield client


class Caller:
    def __init__(self, api: httpx.AsyncClient, model: str) -> None:
        self._api = api
        self._model = model

    async def create(self, given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        answer = await self._api.post(f"/models/{self._model}/predictions", json={"input": given, **more})
        assert answer.status_code in (200, 201, 202), answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def get(self, made: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = (await self._api.get(f"/predictions/{made['id']}")).json()
        return found

    async def ended(self, made: Mapping[str, Any]) -> dict[str, Any]:
        return await eventually(
            lambda: self.get(made), "it ended", until=lambda found: found["status"] in ENDED, limit_s=LONGEST_S
        )

    async def running(self, made: Mapping[str, Any]) -> None:
        await eventually(
            lambda: self.get(made), "it runs", until=lambda found: found["status"] != "starting", limit_s=PATIENCE_S
        )

    async def cancel(self, made: Mapping[str, Any]) -> None:
        await self._api.post(f"/predictions/{made['id']}/cancel")


async def runs(server: RealServer, caller: Caller) -> str:
    ended = await caller.ended(await caller.create(server.quick))
    return "yes" if ended["status"] == "succeeded" and ended["output"] else f"no: {ended['status']}: {ended['error']}"


async def streams(server: RealServer, caller: Caller) -> str:
    assert server.streams is not None
    made = await caller.create(server.streams[1], stream=True)
    seen = set()

    async def look() -> dict[str, Any]:
        found = await caller.get(made)
        seen.add(len(found["output"] or []))
        return found

    found = await eventually(look, "it ended", until=lambda found: found["status"] in ENDED, limit_s=LONGEST_S)
    is_seen_early = any(0 < count < len(found["output"] or []) for count in seen)
    return "yes" if found["status"] == "succeeded" and is_seen_early else f"no: {found['status']}: {found['error']}"


async def cancel(server: RealServer, caller: Caller) -> str:
    """Cancel a slow run: a quick one after it does not wait for what is left of it. One run goes at a time."""
    one = await caller.ended(await caller.create(server.quick))
    usual_s = one["metrics"]["run_time"]
    slow = await caller.create(server.slow)
    await caller.running(slow)
    await anyio.sleep(0.3)  # so that the server is at it, which most cannot say
    await caller.cancel(slow)
    assert (await caller.ended(slow))["status"] == "canceled"
    again = await caller.ended(await caller.create(server.quick))
    assert again["status"] == "succeeded"
    return "yes" if again["metrics"]["run_time"] < usual_s + 1.5 else "no: the next one waits for it"


async def errors(server: RealServer, caller: Caller) -> str:
    ended = await caller.ended(await caller.create(server.wrong))
    assert ended["status"] == "failed", ended
    return "yes" if server.own_words.lower() in ended["error"].lower() else f"no: {ended['error']}"


async def overload(server: RealServer, caller: Caller) -> str:
    made = [await caller.create(server.quick) for _ in range(24)]
    ends = [await caller.ended(each) for each in made]
    return "yes" if all(end["status"] == "succeeded" for end in ends) else f"no: {ends[-1]['error']}"


async def death(server: RealServer, caller: Caller, pid: int) -> str:
    """Kill the server, with all that it started, in the middle of a run: the run is tried again on the next one."""
    slow = await caller.create(server.slow)
    await caller.running(slow)
    await anyio.sleep(0.3)  # so that the server is at it, which most cannot say
    os.killpg(pid, signal.SIGKILL)
    ended = await caller.ended(slow)
    return "yes" if ended["status"] == "succeeded" else f"no: {ended['status']}: {ended['error']}"


@pytest.mark.parametrize(
    "server", [pytest.param(each, marks=[pytest.mark.heavy] * each.is_heavy) for each in SERVERS], ids=lambda s: s.name
)
async def test_real_server_does_what_the_table_says(
    server: RealServer, up: Started, api: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    python = await anyio.to_thread.run_sync(python_with, server.name, tuple(server.packages))
    if server.prepare:
        line = options(server.prepare.split(), python, tmp_path)
        await anyio.run_process(line)
    found = dict.fromkeys(CAPABILITIES, NOT_TRIED)
    label = server.name.lower().replace(" ", "-")
    began = time.monotonic()
    line = ["--model", f"acme/{label}", *options(server.serve, python, tmp_path)]
    with serving(
        up.home, *line, out=f"{label}.txt", ready=f"acme/{label} is ready", patience_s=server.ready_s
    ) as served:
        found["ready"] = f"yes, {time.monotonic() - began:.0f} s"
        caller = Caller(api, f"acme/{label}")
        found["runs"] = await runs(server, caller)
        found["cancel"] = await cancel(server, caller)
        found["errors"] = await errors(server, caller)
        if server.streams is not None and not server.streams[0]:
            found["streams"] = await streams(server, caller)
    if server.streams is not None and server.streams[0]:
        line = ["--model", f"acme/{label}-words", *options(server.streams[0], python, tmp_path)]
        with serving(
            up.home, *line, out=f"{label}-words.txt", ready=f"acme/{label}-words is ready", patience_s=server.ready_s
        ):
            found["streams"] = await streams(server, Caller(api, f"acme/{label}-words"))
    line = ["--model", f"acme/{label}", *options(server.serve, python, tmp_path), "--slots", str(SLOTS)]
    with serving(
        up.home, *line, out=f"{label}-slots.txt", ready=f"acme/{label} is ready", patience_s=server.ready_s
    ) as served:
        found["overload"] = await overload(server, caller)
        found["death"] = await death(server, caller, _pid_of_server(served, label))
    changed = {name: value for name, value in found.items() if value.startswith("no") != (name in server.knows)}
    assert changed == {}
    keep(server, {name: server.knows[name] if value.startswith("no") else value for name, value in found.items()})


def _pid_of_server(served: Started, label: str) -> int:
    """Return the process of the model server that this `serve` started: the child that runs its command."""
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    for child in children:
        words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if not any(word.startswith(b"DIRECTOR_MODEL=") for word in words) and any(
            w.startswith(b"PORT=") for w in words
        ):
            return int(child)
    raise AssertionError(f"{label} has no server among {children}")
