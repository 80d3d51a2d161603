"""Test a director's reports about its servers and itself, which tell callers and operators the state until its exit."""

import signal
from typing import Any

import pytest
from msgspec import Raw
from redis.asyncio import Redis

from director import __version__
from director.broker import keys
from director.broker.redis_client import texts
from director.core.ids import queue_name, version_id
from director.core.policy import Policy
from director.store.catalog import Catalog
from director.store.directors import DirectorFound, Directors
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, director_process, live_director
from tests.support.queue_driver import MODEL, VERSION
from tests.support.scripted_cog import HEALTHY, ScriptedCog, answer, scripted_cog
from tests.support.servers import RedisServer

pytestmark = pytest.mark.usefixtures("hurried")


def is_now(cog: ScriptedCog, status: str) -> None:
    cog.on("GET", "/health-check", answer(200, {**HEALTHY, "status": status}))


async def reason(caller: Caller, waiting: Any, wanted: str) -> None:
    await eventually(
        lambda: caller.get(waiting), f"the reason is {wanted}", until=lambda shown: shown["queue"]["reason"] == wanted
    )


async def test_waiting_caller_sees_starting_servers_failed_setups_and_missing_directors(
    caller: Caller, server: RedisServer
) -> None:
    async with scripted_cog() as cog:
        is_now(cog, "STARTING")
        waiting = await caller.submit()
        await reason(caller, waiting, "no_director")
        async with director_process(server.url, cog.url) as director:
            await reason(caller, waiting, "servers_starting")
            is_now(cog, "SETUP_FAILED")
            await reason(caller, waiting, "setup_failed")
            assert not director.said("model registered"), "it never had a server that is ready"
            director.send(signal.SIGTERM)
            assert await director.exit_code() == 0
        assert (await caller.get(waiting))["queue"]["reason"] == "no_director"


async def test_slots_count_from_readiness_to_the_start_of_the_drain(caller: Caller, server: RedisServer) -> None:
    async def slots() -> int:
        return (await caller.scripts.stats(caller.queue)).slots

    async with scripted_cog() as cog, scripted_cog() as other:
        is_now(other, "STARTING")
        async with live_director(server.url, cog.url, other.url, concurrent_predictions=4) as director:
            await eventually(slots, "one is ready", until=(4).__eq__)
            is_now(other, "READY")
            await eventually(slots, "both are", until=(8).__eq__)
            await director.drain()
            assert await slots() == 0


async def test_server_with_a_failed_setup_has_a_queue_without_a_configured_version(
    caller: Caller, catalog: Catalog, server: RedisServer
) -> None:
    async with scripted_cog() as cog:
        schema = b'{"openapi":"3.0.2","paths":{}}'
        cog.on("GET", "/openapi.json", answer(200, schema))
        is_now(cog, "SETUP_FAILED")
        version = version_id(MODEL, Raw(schema), b"")
        caller.queue = await catalog.register(MODEL, version, schema=Raw(schema), server="", policy=Policy())
        waiting = await caller.submit()
        async with live_director(server.url, cog.url, version=""):
            await reason(caller, waiting, "setup_failed")


async def test_queue_registered_meanwhile_by_another_director_is_found(
    catalog: Catalog, redis: Redis, server: RedisServer, caller: Caller
) -> None:
    version = "b2" * 32
    async with scripted_cog() as cog, scripted_cog() as broken:
        is_now(broken, "SETUP_FAILED")
        async with live_director(server.url, broken.url, version=version) as director:
            await eventually(lambda: director.servers.standing.state, "it failed", until="setup_failed".__eq__)
            assert await catalog.version(MODEL, version) is None, "a version that never ran is not listed"
            async with live_director(server.url, cog.url, version=version):
                known = await eventually(lambda: catalog.version(MODEL, version), "it is registered")
                told = keys.slots(known.queue)
                await eventually(
                    lambda: redis.hvals(told),
                    "both are known",
                    until=lambda found: set(found) == {b"0 setup_failed", b"1 ready"},
                )


async def test_operators_queue_settings_are_registered(caller: Caller, redis: Redis, server: RedisServer) -> None:
    given: dict[str, Any] = {"breaker_after": 7, "breaker_cool_s": 2.5, "breaker_mode": "fail", "lifetime_s": 90}
    wanted = {"breaker_after": "7", "breaker_cool_ms": "2500", "breaker_mode": "fail", "lifetime_ms": "90000"}

    async def policy() -> dict[str, str]:
        meta = texts(await redis.hgetall(keys.meta(caller.queue)))
        return {name: meta[name] for name in wanted}

    assert await policy() == {
        "breaker_after": "5",
        "breaker_cool_ms": "30000",
        "breaker_mode": "hold",
        "lifetime_ms": "",
    }
    async with scripted_cog() as cog, live_director(server.url, cog.url, **given):
        await eventually(policy, "it is registered", until=wanted.__eq__)


async def test_director_registers_again_what_a_deletion_removed(
    caller: Caller, server: RedisServer, redis: Redis, catalog: Catalog
) -> None:
    async def is_registered() -> bool:
        return await catalog.is_registered(caller.model, caller.version, caller.queue)

    async with scripted_cog() as cog, live_director(server.url, cog.url):
        await eventually(is_registered, "it is registered")
        await eventually(lambda: redis.zcard(keys.directors(caller.queue)), "it beats")
        # the remains of a deletion that began before the director registered the version, and ended after that
        await redis.srem(keys.queues(), caller.queue)  # type: ignore[misc]
        await redis.hdel(keys.versions(), caller.version)  # type: ignore[misc]
        await redis.delete(keys.version(caller.model, caller.version))
        assert not await is_registered()
        await eventually(is_registered, "it is registered again")
    assert await catalog.version(caller.model, caller.version) is not None


@pytest.mark.cog
async def test_heartbeat_reports_what_operators_need(caller: Caller, live: Live, cog_url: str, gate: Gate) -> None:
    async def found() -> DirectorFound | None:
        return next(iter(await Directors(caller.redis).of([queue_name(MODEL, VERSION)])), None)

    async with live.director(lease_s=0.6) as director:
        held = await caller.submit(n=1, gate=str(gate))
        one = await eventually(found, "it tells what it holds", until=lambda one: one is not None and one.held == 1)
        about = one.last.about
        assert (one.name, one.is_alive, one.last.state, about.version) == (director.name, True, "ready", __version__)
        [shown] = about.servers
        assert (shown.url, shown.state, shown.slots, shown.detail) == (cog_url, "ready", 1, "")
        assert about.since_ms <= shown.since_ms
        gate.open()
        assert (await caller.ended(held))["status"] == "succeeded"
