"""Test the health routes of a process on a real port."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route

from director.broker.redis_client import client
from director.runtime import process as health
from director.runtime.process import Health, redis_check, serve_http

pytestmark = pytest.mark.anyio


async def nothing() -> str:
    return ""


@asynccontextmanager
async def served(health: Health, routes: Sequence[BaseRoute] = ()) -> AsyncGenerator[httpx.AsyncClient]:
    bound = anyio.Event()
    ports: list[int] = []

    def started(port: int) -> None:
        ports.append(port)
        bound.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve_http(health.app(routes), host="127.0.0.1", port=0, started=started))
        await bound.wait()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[0]}", trust_env=False) as http:
            yield http
        tasks.cancel_scope.cancel()


async def test_process_without_a_check_is_alive_and_ready() -> None:
    async with served(Health()) as http:
        assert (await http.get("/livez")).json() == {"status": "alive"}
        assert (await http.get("/readyz")).json() == {"status": "ready", "missing": {}}


async def test_readyz_names_what_is_missing_while_livez_is_fine() -> None:
    health = Health()

    async def no_server() -> str:
        return "no model server is ready"

    health.checks = {"redis": nothing, "servers": no_server}
    health.facts["durability"] = "always"
    health.figures = lambda: {"batch_fill": "0.500"}
    async with served(health) as http:
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {
            "status": "not ready",
            "durability": "always",
            "batch_fill": "0.500",
            "missing": {"servers": "no model server is ready"},
        }
        assert (await http.get("/livez")).status_code == 200
        health.checks["servers"] = nothing
        assert (await http.get("/readyz")).status_code == 200


async def test_hanging_check_is_reported_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHECK_S", 0.05)
    hanging = Health()

    async def hang() -> str:
        await anyio.sleep_forever()
        return ""

    hanging.checks["redis"] = hang
    assert await hanging.missing() == {"redis": "no answer within 0.05 s"}


async def test_unreachable_redis_is_missing() -> None:
    redis = client("unix:///nowhere/at/all")
    try:
        assert (await redis_check(redis)()).startswith("Redis is away")
    finally:
        await redis.aclose()


async def test_routes_of_the_process_are_served_too() -> None:
    async def inbox(_: Request) -> PlainTextResponse:
        return PlainTextResponse("taken")

    async with served(Health(), [Route("/inbox", inbox, methods=["POST"])]) as http:
        assert (await http.post("/inbox")).text == "taken"
        assert (await http.get("/livez")).status_code == 200


async def test_cancellation_frees_the_port() -> None:
    async with served(Health()) as http:
        url = str(http.base_url)
        await http.get("/livez")
    async with httpx.AsyncClient(trust_env=False) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{url}/livez")


async def test_check_added_during_a_request_counts_from_the_next() -> None:
    health = Health()

    async def learns_more() -> str:
        health.checks["servers"] = nothing
        return "redis is away"

    health.checks = {"redis": learns_more}
    assert await health.missing() == {"redis": "redis is away"}
