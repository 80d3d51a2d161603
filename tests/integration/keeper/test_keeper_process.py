"""Check the keeper as a process: it outlives its server, says what it waits for, and ends on a signal."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from director.broker import keys
from director.core.errors import SettingsError, UnsafeBackend
from director.core.ids import partition_of
from director.core.settings import KeeperSettings
from director.keeper import keeper
from director.store.accounts import Accounts
from tests.integration.keeper.conftest import keeper_at
from tests.support.eventually import eventually
from tests.support.queue_driver import ACCOUNT, driving
from tests.support.servers import RedisServer, redis_server
from tests.support.sink import Answer, sink

PROGRAM = "from director.core.settings import *; from director.keeper.keeper import serve; serve(load(KeeperSettings))"
LIMIT_S = 20


@asynccontextmanager
async def keeper_process(server: RedisServer, **variables: str) -> AsyncGenerator[Process]:
    process = await anyio.open_process(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"DIRECTOR_REDIS_URL": server.url} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()


class Log:
    """The log lines of a process, in order. `until` waits for a message and returns its line."""

    def __init__(self, process: Process) -> None:
        self._text = TextReceiveStream(process.stderr)
        self._rest = ""

    async def until(self, message: str) -> dict[str, Any]:
        with anyio.fail_after(LIMIT_S):
            while True:
                line, ended, self._rest = self._rest.partition("\n")
                if not ended:
                    self._rest = line + await self._text.receive()
                elif (said := json.loads(line))["message"] == message:
                    return dict(said)


async def ready(http: httpx.AsyncClient, *, status: int) -> dict[str, Any]:
    found = await eventually(lambda: http.get("/readyz"), "it is", until=lambda found: found.status_code == status)
    return dict(found.json())


@pytest.mark.faults
async def test_keeper_outlives_its_server_and_continues() -> None:
    with redis_server() as server:
        async with driving(server.url) as driver, keeper_process(server, DIRECTOR_LEASE_S="1") as process:
            log = Log(process)
            port = (await log.until("health is served"))["port"]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
                assert await ready(http, status=200) == {"status": "ready", "durability": "always", "missing": {}}
                driver.now_ms = time.time_ns() // 1_000_000 - 60_000
                await driver.submit()
                lost = await driver.claim_one()
                assert (await log.until("claim recovered"))["prediction"] == lost.id
                server.kill()
                assert "redis" in (await ready(http, status=503))["missing"]
                assert (await http.get("/livez")).status_code == 200
                server.start()
                await ready(http, status=200)
                again = await driver.claim_one()
                assert (await log.until("claim recovered"))["prediction"] == again.id
            process.send_signal(signal.SIGTERM)
            await log.until("keeper ended")
            with anyio.fail_after(LIMIT_S):
                assert await process.wait() == 0


async def test_second_signal_ends_the_keeper_at_once() -> None:
    with redis_server() as server:
        async with (
            sink() as silent,
            driving(server.url) as driver,
            keeper_process(server, DIRECTOR_WEBHOOK_ALLOW="loopback") as process,
        ):
            silent.answer = Answer(delay_s=60)
            await Accounts(driver.redis).create_token(ACCOUNT)
            driver.now_ms = time.time_ns() // 1_000_000 - 60_000
            await driver.submit(webhook=silent.url, webhook_events="completed")
            told = await driver.claim_one()
            assert await driver.finish(told)
            log = Log(process)
            port = (await log.until("health is served"))["port"]
            await silent.arrived(1)
            process.send_signal(signal.SIGTERM)
            await log.until("draining")
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
                assert (await ready(http, status=503))["missing"] == {"keeper": "draining"}
            process.send_signal(signal.SIGTERM)
            await log.until("drain cut short")
            await log.until("keeper ended")
            with anyio.fail_after(LIMIT_S):
                assert await process.wait() == 0
            assert await driver.members(keys.owed(partition_of(told.id)))


async def test_unsafe_server_ends_the_keeper_with_one_line() -> None:
    with redis_server(config={"appendonly": "no"}) as server:
        async with keeper_process(server) as process:
            with anyio.fail_after(LIMIT_S):
                assert await process.wait() == 1
            *before, said = (await process.stderr.receive()).decode().splitlines()
    assert [json.loads(line)["level"] for line in before] == ["info"] * len(before)  # so there is no traceback
    assert said.startswith("director keeper: The server's durability is memory")


async def test_keeper_waits_for_an_absent_redis_and_says_so() -> None:
    with redis_server() as server:
        server.kill()
        async with keeper_at(server.url) as http:
            missing = (await ready(http, status=503))["missing"]
            assert missing["durability"] == "not looked at yet"
            assert missing["redis"].startswith("Redis is away")
            server.start()
            assert (await ready(http, status=200))["durability"] == "always"


async def test_too_weak_durability_is_refused_by_name() -> None:
    with (
        redis_server(config={"appendfsync": "everysec"}) as server,
        pytest.raises(UnsafeBackend, match="DIRECTOR_DURABILITY=everysec"),
    ):
        await keeper.run(KeeperSettings(redis_url=server.url), started=lambda _: None)


async def test_taken_port_is_one_error_line(server: RedisServer) -> None:
    async def take(port: int) -> None:
        with pytest.raises(SettingsError, match=f"Cannot listen on 127.0.0.1 port {port}"):
            await keeper.run(KeeperSettings(redis_url=server.url, port=port), started=lambda _: None)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        settings = KeeperSettings(redis_url=server.url)
        tasks.start_soon(lambda: keeper.run(settings, started=lambda port: tasks.start_soon(take, port)))
