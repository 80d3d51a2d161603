"""Start and end the references: the model server, the prototype and the bare handler."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Final

import httpx
import msgspec

from director.lab.bench.load import Load
from director.local.launcher.processes import free_port
from tests.bench.processes import Child, child
from tests.bench.sides.ours import INPUT, SLOTS, answers
from tests.bench.sides.prototype.gathered import Gathered
from tests.bench.sides.prototype.steps import ENQUEUE, STREAM, make_group, record
from tests.bench.sides.servers import OwnRedis

AT_ONCE: Final = 200


class ModelServer:
    def __init__(self, url: str, http: httpx.AsyncClient, process: Child) -> None:
        self.url = url
        self.process = process
        self._http = http

    async def count(self) -> int:
        return int((await self._http.get(f"{self.url}/count")).text)

    async def times(self) -> list[float]:
        """Return and forget the start of each run, by the monotonic clock."""
        times: list[float] = (await self._http.delete(f"{self.url}/times")).json()
        return times


@asynccontextmanager
async def model_server(port: int = 0) -> AsyncIterator[ModelServer]:
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    with child("model", [sys.executable, "-m", "tests.bench.sides.model", str(port)]) as process:
        await answers(f"{url}/count", process)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            yield ModelServer(url, http, process)


class Prototype:
    def __init__(self, server: OwnRedis) -> None:
        self.server = server

    async def preload(self, many: int) -> None:
        calls = Gathered(self.server.redis)
        enqueue = await self.server.redis.script_load(ENQUEUE)
        given = msgspec.json.encode(INPUT)
        for first in range(0, many, AT_ONCE):
            ids = [f"preloaded{number}" for number in range(first, min(many, first + AT_ONCE))]
            await asyncio.gather(
                *(calls.call("EVALSHA", enqueue, 2, record(made), STREAM, made, given, "") for made in ids)
            )

    def asks(self, url: str, **how: Any) -> Load:
        body = msgspec.json.encode({"version": "x", "input": INPUT}).decode()
        given = {"headers": {"prefer": "wait"}, "wanted": '"status":"succeeded"', **how}
        return Load(url=f"{url}/predictions", body=body, **given)

    def director(self, model_url: str, *, slots: int = SLOTS) -> AbstractContextManager[Child]:
        module = "tests.bench.sides.prototype.director"
        return child("prototype", [sys.executable, "-m", module, self.server.url, model_url, str(slots)])

    def api(self) -> AbstractAsyncContextManager[tuple[str, Child]]:
        return _served("tests.bench.sides.prototype.api", self.server.url)


async def prototype(server: OwnRedis) -> Prototype:
    await server.flush()
    await make_group(server.redis)
    return Prototype(server)


def bare(server: OwnRedis) -> AbstractAsyncContextManager[tuple[str, Child]]:
    return _served("tests.bench.sides.bare", server.url)


@asynccontextmanager
async def _served(module: str, redis_url: str) -> AsyncIterator[tuple[str, Child]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with child(module.rpartition(".")[2], [sys.executable, "-m", module, redis_url, str(port)]) as process:
        await answers(f"{url}/", process)
        yield url, process
