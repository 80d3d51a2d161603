"""Test the record of the last setup of a version's servers, and who may see it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.broker import keys
from director.cli.queues import report
from director.core.policy import Policy
from director.core.schema import SetupRun
from director.core.settings import ApiSettings
from director.servers.runners.runner import HealthStatus
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import api_client
from tests.support.cog import cog_server
from tests.support.eventually import eventually
from tests.support.live_director import Caller, live_director
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.scripted_cog import HEALTHY, answer, scripted_cog
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.cog]


async def noted(catalog: Catalog, status: str) -> SetupRun:
    setup = await eventually(
        lambda: catalog.setup_run(MODEL, VERSION), "it is noted", until=lambda found: found and found.status == status
    )
    assert setup is not None
    return setup


async def shown(server: RedisServer, redis: Redis, path: str) -> Any:
    """Return the API's answer to an account."""
    async with api_client(ApiSettings(redis_url=server.url)) as api:
        token = await Accounts(redis).create_token(ACCOUNT)
        return (await api.get(path, headers={"authorization": f"Bearer {token}"})).json()


async def test_last_setup_is_kept_and_shown_with_the_version(
    caller: Caller, server: RedisServer, redis: Redis, catalog: Catalog, folder: Path, cog_url: str
) -> None:
    path = f"/v1/models/{MODEL}/versions"
    assert (await shown(server, redis, f"{path}/{VERSION}"))["setup_run"] is None
    async with live_director(server.url, cog_url) as director:
        good = await noted(catalog, "succeeded")
        figures = director.figures["setup_run"]
    assert good.server == cog_url
    assert good.completed_at is not None
    assert figures == {
        "status": "succeeded",
        "started_at": good.started_at,
        "completed_at": good.completed_at,
        "server": cog_url,
    }
    async with (
        cog_server(folder, stub="predict.py:Broken", until="SETUP_FAILED") as broken,
        live_director(server.url, broken),
    ):
        bad = await noted(catalog, "failed")
    assert bad.server == broken
    assert "no weights" in bad.logs
    whole = await shown(server, redis, f"{path}/{VERSION}")
    assert whole["setup_run"] == {
        "status": "failed",
        "started_at": bad.started_at,
        "completed_at": bad.completed_at,
        "logs": bad.logs,
    }
    [listed] = (await shown(server, redis, path))["results"]
    assert "setup_run" not in listed


async def test_setup_that_failed_before_registration_is_recorded_after_it(
    server: RedisServer, redis: Redis, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.fleet.PAUSES", dict.fromkeys(HealthStatus, 0.02))
    async with scripted_cog() as cog:
        cog.on("GET", "/health-check", answer(200, {**HEALTHY, "status": "SETUP_FAILED"}))
        async with live_director(server.url, cog.url) as director:
            await eventually(lambda: director.figures.get("setup_run"), "it is seen")
            assert not await redis.exists(keys.version(MODEL, VERSION))
            await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="", policy=Policy())
            await noted(catalog, "failed")


async def test_operators_see_the_setup_with_its_server(
    caller: Caller, server: RedisServer, catalog: Catalog, cog_url: str
) -> None:
    async with live_director(server.url, cog_url):
        good = await noted(catalog, "succeeded")
    assert f"  last setup succeeded at {good.completed_at} on {cog_url}" in await queues_show(server, caller.queue)
    told = json.loads("".join(await queues_show(server, caller.queue, "--json")))
    assert told["setup_run"]["server"] == cog_url


async def test_operators_see_the_last_line_of_a_failed_setup_without_control_characters(caller: Caller) -> None:
    bad = SetupRun(
        status="failed", started_at=None, completed_at=None, logs="Traceback\n\x1b[2Jno weights\n", server="u"
    )
    stats = await caller.scripts.stats(caller.queue)
    [line] = [line for line in report("q", stats, [], bad) if "last setup" in line]
    assert line == r"  last setup failed at an unknown time on u: '\x1b[2Jno weights'"


async def queues_show(server: RedisServer, *line: str) -> list[str]:
    words = [sys.executable, "-m", "director", "queues", "--redis", server.url, "show", *line]
    ended = await to_thread.run_sync(
        lambda: subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    )
    return ended.stdout.splitlines()
