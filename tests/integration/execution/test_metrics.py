"""Test a director's /metrics after real runs on a real server: the figures are true and contain nothing of a caller."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.support.cog import free_port
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, live_director
from tests.support.queue_driver import MODEL
from tests.support.scrape import Scrape, scrape
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.cog]


@asynccontextmanager
async def directing(redis_url: str, *servers: str, **given: object) -> AsyncGenerator[httpx.AsyncClient]:
    """Run a director in this loop. Yield it with a client of its health port."""
    port = free_port()
    async with (
        live_director(redis_url, *servers, health_port=port, **given),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):
        yield http


async def shows(http: httpx.AsyncClient, name: str, value: float, **labels: str) -> Scrape:
    """Wait for the scrape in which this series has this value."""
    return await eventually(
        lambda: scrape(http), f"{name} is {value}", until=lambda shown: shown.value(name, **labels) == value
    )


async def test_runs_are_counted_by_outcome_and_timed(
    caller: Caller, server: RedisServer, cog_url: str, gate: Gate
) -> None:
    queue = caller.queue
    async with directing(server.url, cog_url, concurrent_predictions=1) as http:
        held = await caller.submit(n=1, gate=str(gate))
        await caller.shows(held, status="processing")
        busy = await shows(http, "director_permits_used", 1, queue=queue)
        assert busy.value("director_permits", queue=queue) == 1
        assert busy.value("director_held_claims", queue=queue) == 1
        assert busy.value("director_servers", queue=queue, state="ready") == 1
        full = await eventually(
            lambda: scrape(http),
            "every slot is taken",
            until=lambda shown: (shown.value("director_full_seconds_total", queue=queue) or 0) > 0,
        )
        assert full.value("director_total_seconds_count", queue=queue) == 0
        gate.open()
        await caller.ended(held)
        assert (await caller.ended(await caller.submit(n=2)))["status"] == "succeeded"
        assert (await caller.ended(await caller.submit(n=1, then="raise")))["status"] == "failed"
        shown = await shows(http, "director_held_claims", 0, queue=queue)
    assert shown.value("director_claims_total", queue=queue) == 3
    assert shown.value("director_starts_total", queue=queue, attempt="1") == 3
    assert shown.value("director_ends_total", queue=queue, status="succeeded", error="none") == 2
    assert shown.value("director_ends_total", queue=queue, status="failed", error="model_failed") == 1
    for name in ("director_run_seconds", "director_total_seconds", "director_setup_wait_seconds"):
        assert shown.value(f"{name}_count", queue=queue) == 3
    assert shown.value("director_queue_seconds_count", queue=queue, lane="normal") == 3
    assert shown.value("director_first_output_seconds_count", queue=queue) == 3
    in_all, of_run = (shown.value(f"director_{name}_seconds_sum", queue=queue) or 0 for name in ("total", "run"))
    assert in_all >= of_run > 0
    assert shown.value("director_redis_call_seconds_count", script="finish") == 3
    assert shown.value("director_redis_up") == 1
    assert shown.total("director_loop_lag_seconds_count") > 0
    for private in (held, "went wrong", "http", "127.0.0.1", str(gate)):
        assert private not in shown.text.replace("HTTP", "")


async def test_unavailable_server_is_reported_with_its_model(server: RedisServer, caller: Caller) -> None:
    async with directing(server.url, f"http://127.0.0.1:{free_port()}", version="") as http:
        shown = await shows(http, "director_servers", 1, queue=MODEL, state="unreachable")
        assert shown.value("director_permits", queue=MODEL) == 0
