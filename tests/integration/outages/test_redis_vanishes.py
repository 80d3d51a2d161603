"""Test that a service stands still while its Redis has vanished without a reset, and goes on with the same processes.

A killed server resets its connections, and a frozen one acknowledges what it is sent. This one does neither. The
kernel ends the connections one by one, with ETIMEDOUT.
"""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
from httpx import AsyncClient
from msgspec import Struct

from director.broker.redis_client import client
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from tests.support.api import live_api
from tests.support.cog import cog_schema, cog_server, write_model
from tests.support.eventually import eventually
from tests.support.far_host import FarHost
from tests.support.live_director import TERMINAL, Gate, Tally, director_process, keeper_process
from tests.support.queue_driver import ACCOUNT, VERSION, driving
from tests.support.servers import RedisServer, redis_server
from tests.support.usage import Usage

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.cog]

AWAY_S: Final = 40.0  # the kernel has given up every connection by then
GROWTH_MIB: Final = 10.0
PROCESSOR: Final = 0.05  # of one core
SLOTS: Final = 4
ANSWER_S: Final = 15.0  # of a request while Redis is away, on a busy machine
WRITER: Final = """
    import asyncio, os
    from typing import AsyncIterator
    from cog import BasePredictor

    class Predictor(BasePredictor):
        async def predict(self, tally: str, gate: str, writes: bool = False) -> AsyncIterator[str]:
            with open(tally, "a") as file:
                file.write(".")
            while not os.path.exists(gate):
                if writes:
                    yield "x" * 100
                await asyncio.sleep(0.05)  # the model's own time
            yield "end"
"""
INPUTS: Final = {"tally": "string", "gate": "string", "writes": "boolean"}


class Run(Struct, frozen=True):
    id: str
    gate: Gate
    tally: Tally


class Service(Struct, frozen=True):
    """One process of each kind, by name, beside a Redis on a machine that can vanish."""

    far: FarHost
    api: AsyncClient
    pids: dict[str, int]
    health: dict[str, str]
    folder: Path

    async def start(self, name: str, *, writes: bool = False) -> Run:
        gate, tally = Gate(self.folder / f"{name}.gate"), Tally(self.folder / f"{name}.tally")
        given = {"gate": str(gate), "tally": str(tally), "writes": writes}
        made = await self.api.post("/v1/predictions", json={"version": VERSION, "input": given})
        assert made.status_code == 201, made.text
        await eventually(lambda: tally.runs, f"{name} runs")
        return Run(made.json()["id"], gate, tally)

    def usage(self) -> dict[str, Usage]:
        return {name: Usage.of(pid) for name, pid in self.pids.items()}

    async def ended(self, run: Run) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            answer = await self.api.get(f"/v1/predictions/{run.id}")
            return dict(answer.json()) if answer.is_success else {"status": str(answer.status_code)}

        return await eventually(look, f"{run.id} ended", until=lambda seen: seen["status"] in TERMINAL, limit_s=60)


@pytest.fixture
def gone(far: FarHost) -> Iterator[RedisServer]:
    with redis_server(far=far) as started:
        yield started


@asynccontextmanager
async def served(far: FarHost, server: RedisServer, folder: Path) -> AsyncGenerator[Service]:
    model = write_model(folder / "model", WRITER, cog_schema(INPUTS))
    ports = {name: free_port() for name in ("director", "keeper")}
    async with AsyncExitStack() as stack:
        cog = await stack.enter_async_context(cog_server(model, slots=SLOTS))
        redis = client(server.url)
        stack.push_async_callback(redis.aclose)
        async with driving(server.url):
            token = await Accounts(redis).create_token(ACCOUNT)
        api = await stack.enter_async_context(live_api(server.tcp_url))
        started = [
            await stack.enter_async_context(
                director_process(server.tcp_url, cog, concurrent_predictions=SLOTS, health_port=ports["director"])
            ),
            await stack.enter_async_context(keeper_process(server.tcp_url, port=ports["keeper"])),
        ]
        http = await stack.enter_async_context(
            AsyncClient(
                base_url=api.url, trust_env=False, headers={"Authorization": f"Bearer {token}"}, timeout=ANSWER_S
            )
        )
        health = {"api": api.url, **{name: f"http://127.0.0.1:{port}" for name, port in ports.items()}}
        for name, url in health.items():
            await eventually(lambda url=url: missing(http, url), f"{name} is ready", until=lambda seen: not seen)
        pids = {"api": api.process.pid, "director": started[0].process.pid, "keeper": started[1].process.pid}
        yield Service(far, http, pids, health, folder)


async def missing(http: AsyncClient, url: str) -> str:
    """Return why a process is not ready."""
    try:
        answer = await http.get(f"{url}/readyz")
    except httpx.TransportError as exc:
        return repr(exc)
    return "" if answer.is_success else answer.text


async def test_service_without_its_redis_neither_spins_nor_grows_nor_runs_twice(
    far: FarHost, gone: RedisServer, tmp_path: Path
) -> None:
    async with served(far, gone, tmp_path) as service:
        await stands_still(service, AWAY_S)


async def stands_still(service: Service, away_s: float) -> None:
    """Let Redis vanish under three runs: one writes all the time, one ends meanwhile, one after it."""
    writing = await service.start("writing", writes=True)
    meanwhile, after = await service.start("meanwhile"), await service.start("after")
    before, began = service.usage(), time.monotonic()
    service.far.vanish()
    refused = await service.api.post("/v1/predictions", json={"version": VERSION, "input": {}})
    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    refused_s = time.monotonic() - began
    meanwhile.gate.open()
    most = before
    while (passed := time.monotonic() - began) < away_s:
        await anyio.sleep(min(5.0, away_s - passed))  # the length of the outage is what is tried
        now = service.usage()
        most = {name: max(most[name], now[name], key=lambda usage: usage.memory_mib) for name in most}
        for name, url in service.health.items():
            assert (await service.api.get(f"{url}/livez")).is_success, name
        ready = await service.api.get("/readyz")
        assert (ready.status_code, ready.json()["accepting"]) == (200, False), "it stays in its Service"
    now, passed = service.usage(), time.monotonic() - began
    grown = {name: round(most[name].memory_mib - before[name].memory_mib, 1) for name in most}
    share = {name: round((now[name].processor_s - before[name].processor_s) / passed, 3) for name in most}
    print(f"refused after {refused_s:.1f} s, away for {passed:.0f} s; grown by MiB: {grown}; of a core: {share}")
    service.far.come_back()
    back = time.monotonic()
    for run in (meanwhile, after, writing):
        run.gate.open()
        shown = await service.ended(run)
        assert (shown["status"], shown["output"][-1], run.tally.runs) == ("succeeded", "end", 1)
    print(f"all ended {time.monotonic() - back:.1f} s after it was back")
    assert max(grown.values()) < GROWTH_MIB, grown
    assert max(share.values()) < PROCESSOR, share
