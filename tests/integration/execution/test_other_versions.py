"""Test what makes a version, and what becomes of work that waits for a version that its servers no longer run."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from msgspec import Raw
from redis.asyncio import Redis

from director.core.ids import queue_name, version_id
from director.servers.fleet import PAUSES
from director.servers.runners.runner import HealthStatus
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.directors import Directors
from tests.support.eventually import eventually
from tests.support.live_director import Caller, keeping, live_director
from tests.support.queue_driver import MODEL
from tests.support.scripted_cog import HEALTHY, Exchange, Script, ScriptedCog, answer, scripted_cog, stream
from tests.support.servers import RedisServer


def schema(name: str) -> bytes:
    return json.dumps({"openapi": "3.0.2", "paths": {}, "components": {"schemas": {"Input": {"title": name}}}}).encode()


FIRST, SECOND = schema("first"), schema("second")


def version_of(shown: bytes) -> str:
    return version_id(MODEL, Raw(shown), b"")


def restarted(cog: ScriptedCog, shown: bytes | None, since: str) -> None:
    """The server was restarted, and shows this schema."""
    cog.on("GET", "/openapi.json", answer(503, b"{}") if shown is None else answer(200, shown))
    cog.on("GET", "/health-check", answer(200, {**HEALTHY, "setup": {"started_at": since}}))


def runs(cog: ScriptedCog, prediction_id: str) -> None:
    body = {"id": prediction_id, "status": "succeeded", "output": cog.url}
    cog.on("PUT", f"/predictions/{prediction_id}", answer(200, body))
    cog.on("POST", f"/predictions/{prediction_id}/cancel", answer(404, b"{}"))


async def result(caller: Caller, cog: ScriptedCog) -> dict[str, Any]:
    """Create a prediction that this server can run, and return it at its end."""
    prediction = caller.new_id()
    runs(cog, prediction)
    await caller.submit(prediction)
    return await caller.ended(prediction)


async def for_ever(exchange: Exchange) -> None:
    await anyio.sleep_forever()


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for status in (HealthStatus.READY, HealthStatus.UNHEALTHY):
        monkeypatch.setitem(PAUSES, status, 0.02)


@pytest.fixture
def caller_of(redis: Redis, caller: Caller) -> Callable[[bytes], Caller]:
    return lambda shown: Caller(redis, caller.scripts, version=version_of(shown))


async def registered(catalog: Catalog, shown: bytes) -> Any:
    return await eventually(lambda: catalog.version(MODEL, version_of(shown)), "the version is registered")


@pytest.mark.faults
async def test_server_that_shows_another_schema_is_another_version(
    catalog: Catalog, server: RedisServer, caller_of: Callable[[bytes], Caller]
) -> None:
    async with scripted_cog(streams=False, is_array=False) as cog:
        restarted(cog, FIRST, "first")
        async with live_director(server.url, cog.url, version=""):
            await registered(catalog, FIRST)
            restarted(cog, SECOND, "second")
            await registered(catalog, SECOND)
            # a version that was published stays as it was
            assert bytes((await registered(catalog, FIRST)).schema) == FIRST

            left = await caller_of(FIRST).submit()
            assert (await result(caller_of(SECOND), cog))["status"] == "succeeded"
            # what waits for the former version is not run by the new one, and not lost
            assert (await caller_of(FIRST).get(left))["status"] == "starting"

            runs(cog, left)
            restarted(cog, FIRST, "third")
            assert (await caller_of(FIRST).ended(left))["status"] == "succeeded"


async def test_server_without_a_schema_that_shows_one_later_is_another_version(
    catalog: Catalog, server: RedisServer
) -> None:
    async with scripted_cog() as cog:
        restarted(cog, None, "first")
        async with live_director(server.url, cog.url, version=""):
            await registered(catalog, bytes(OPEN_SCHEMA))
            restarted(cog, schema("later"), "second")
            await registered(catalog, schema("later"))
            assert (await registered(catalog, bytes(OPEN_SCHEMA))).schema == OPEN_SCHEMA


async def test_server_that_is_killed_before_it_shows_its_schema_is_no_other_version(
    catalog: Catalog, server: RedisServer, caller_of: Callable[[bytes], Caller]
) -> None:
    async with scripted_cog() as cog:
        cog.on("GET", "/openapi.json", *3 * [stream(whole=False)], answer(200, FIRST))
        async with live_director(server.url, cog.url, version=""):
            await registered(catalog, FIRST)
            assert await catalog.version(MODEL, version_of(bytes(OPEN_SCHEMA))) is None
            assert (await result(caller_of(FIRST), cog))["status"] == "succeeded"


@pytest.mark.faults
async def test_server_that_changes_before_redis_took_its_first_version_is_served(
    catalog: Catalog,
    redis: Redis,
    server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("director.servers.fleet.AWAY_S", 0.02)
    async with scripted_cog() as cog:
        cog.on("GET", "/health-check", answer(503, b"{}"))
        async with live_director(server.url, cog.url, version="") as director:
            await redis.config_set("maxmemory", 1)
            try:
                restarted(cog, FIRST, "first")
                await eventually(lambda: "registering a model failed" in caplog.messages, "redis is full")
                restarted(cog, SECOND, "second")
                await eventually(lambda: director.servers.all[0].since, "it was seen", until="second".__eq__)
            finally:
                await redis.config_set("maxmemory", 0)
            await registered(catalog, SECOND)
            await eventually(director.servers.any_ready, "it is served")


@pytest.mark.faults
async def test_server_of_another_version_gets_no_work_while_others_run_the_former(
    catalog: Catalog, server: RedisServer, caller_of: Callable[[bytes], Caller]
) -> None:
    async with scripted_cog(streams=False) as cog, scripted_cog(streams=False) as other:
        restarted(cog, FIRST, "first")
        restarted(other, FIRST, "first")
        async with live_director(server.url, cog.url, other.url, version="") as director:
            await eventually(lambda: all(each.can_run for each in director.servers.all), "both run")
            restarted(cog, SECOND, "second")
            held = director.servers.all[0]
            await eventually(lambda: "another schema" in held.health.detail, "it is held back")
            assert held.free == 0
            for _ in range(3):
                assert (await result(caller_of(FIRST), other))["output"] == other.url
            assert await catalog.version(MODEL, version_of(SECOND)) is None

            restarted(other, SECOND, "second")
            await registered(catalog, SECOND)
            await eventually(lambda: all(each.can_run for each in director.servers.all), "both run the new one")


@pytest.mark.faults
async def test_running_prediction_survives_a_change_of_version(
    catalog: Catalog, redis: Redis, server: RedisServer, caller_of: Callable[[bytes], Caller]
) -> None:
    async with scripted_cog(streams=False, is_array=False) as cog:
        restarted(cog, FIRST, "first")
        async with keeping(server.url), live_director(server.url, cog.url, version="", drain_s=1.0, backoff_s=0.1):
            await registered(catalog, FIRST)
            old = caller_of(FIRST)
            prediction = old.new_id()

            async def die(exchange: Exchange) -> None:  # the server restarts in the middle of the run
                restarted(cog, SECOND, "second")

            cog.on("PUT", f"/predictions/{prediction}", Script(die), answer(503, b"{}"))
            cog.on("POST", f"/predictions/{prediction}/cancel", answer(404, b"{}"))
            await old.submit(prediction)
            await registered(catalog, SECOND)
            assert await old.status(prediction) in ("starting", "processing")

            runs(cog, prediction)
            restarted(cog, FIRST, "third")
            assert (await old.ended(prediction))["status"] == "succeeded"


@pytest.mark.faults
async def test_new_version_runs_after_runs_of_the_former_were_stopped(
    catalog: Catalog, server: RedisServer, caller_of: Callable[[bytes], Caller]
) -> None:
    async with scripted_cog(streams=False, is_array=False) as cog:
        restarted(cog, FIRST, "first")
        async with live_director(server.url, cog.url, version="", drain_s=0.1) as director:
            await registered(catalog, FIRST)
            old = caller_of(FIRST)
            prediction = old.new_id()
            cog.on("PUT", f"/predictions/{prediction}", Script(for_ever))
            cog.on("POST", f"/predictions/{prediction}/cancel", answer(200, b"{}"))
            await old.submit(prediction)
            await eventually(lambda: director.claims, "it is claimed")
            restarted(cog, SECOND, "second")
            await registered(catalog, SECOND)

            new = caller_of(SECOND)
            ended = await result(new, cog)
            assert ended["status"] == "succeeded"
            assert (await new.record(ended["id"])).attempt == 1


@pytest.mark.faults
async def test_server_that_comes_back_in_a_change_of_version_gets_no_work_of_the_new_one(
    catalog: Catalog, server: RedisServer, caller_of: Callable[[bytes], Caller]
) -> None:
    is_over = anyio.Event()
    async with scripted_cog(streams=False) as cog, scripted_cog(streams=False) as other:
        restarted(cog, FIRST, "first")
        restarted(other, FIRST, "first")
        async with live_director(server.url, cog.url, other.url, version="") as director:
            changing, back = director.servers.all
            await eventually(lambda: changing.can_run and back.can_run, "both run")
            other.on("GET", "/health-check", answer(503, b"{}"))
            await eventually(lambda: not back.can_run, "the other is away")
            old = caller_of(FIRST)
            prediction = old.new_id()

            async def held(exchange: Exchange) -> None:
                await is_over.wait()

            cog.on("PUT", f"/predictions/{prediction}", Script(held), answer(503, b"{}"))
            cog.on("POST", f"/predictions/{prediction}/cancel", answer(404, b"{}"))
            await old.submit(prediction)
            await eventually(lambda: cog.asked("PUT"), "it runs")
            restarted(cog, SECOND, "second")
            await eventually(lambda: "another schema" in changing.health.detail, "the change has begun")
            restarted(other, FIRST, "second")
            await eventually(lambda: back.health.since == "second", "the other is back")
            is_over.set()
            # The server that is asked first says which version is served from now on. The other one is held back
            strange = lambda server: "another schema" in server.health.detail  # noqa: E731 - one fact
            await eventually(lambda: changing.can_run != back.can_run and strange(changing) != strange(back), "settled")
            shown, serving, held_back = (SECOND, cog, back) if changing.can_run else (FIRST, other, changing)
            await registered(catalog, shown)
            assert held_back.free == 0
            assert (await result(caller_of(shown), serving))["output"] == serving.url


async def test_director_that_drains_begins_with_no_version(
    catalog: Catalog, redis: Redis, server: RedisServer, caller_of: Callable[[bytes], Caller]
) -> None:
    shown = FIRST
    async with scripted_cog(streams=False) as cog:
        cog.on("GET", "/health-check", answer(503, b"{}"))
        async with live_director(server.url, cog.url, version="") as director:
            await director.drain()
            restarted(cog, shown, "first")
            await registered(catalog, shown)
            await eventually(director.servers.any_ready, "its server is ready")
            await anyio.wait_all_tasks_blocked()
            assert await Directors(redis).of([caller_of(shown).queue]) == []
            assert director.servers.permits.busy == 0


async def test_schema_of_a_version_that_the_operator_named_is_never_rewritten(
    catalog: Catalog, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    version = "b2" * 32
    async with scripted_cog() as cog:
        restarted(cog, FIRST, "first")
        async with live_director(server.url, cog.url, version=version) as director:
            await eventually(lambda: catalog.version(MODEL, version), "it is registered")
            restarted(cog, SECOND, "second")
            [judged] = director.servers.all
            await eventually(lambda: judged.health.since == "second", "its new start was registered")
            assert judged.can_run
            assert "the model server shows another schema than its version has" in caplog.messages
            known = await catalog.version(MODEL, version)
            assert known is not None
            assert bytes(known.schema) == FIRST


async def test_heartbeat_says_that_a_server_shows_no_schema(redis: Redis, server: RedisServer) -> None:
    async with scripted_cog() as cog:
        restarted(cog, None, "first")
        async with live_director(server.url, cog.url, version=""):
            queue = queue_name(MODEL, version_of(bytes(OPEN_SCHEMA)))

            async def shown() -> list[bool]:
                found = await Directors(redis).of([queue])
                heartbeats = [each for one in found for each in one.heartbeats]
                return [server.has_schema for each in heartbeats for server in each.about.servers]

            await eventually(shown, "it is reported", until=[False].__eq__)
