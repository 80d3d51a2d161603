"""Test that an outage leaves no cycles of objects. An API process once made 8,000 of them at each restart of Redis, and
grew from 66 to 81 MB in 125 restarts.
"""

import asyncio
from contextlib import suppress

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError

from director.broker import keys
from director.broker.gatherer import Call, Gatherer
from director.broker.redis_client import ask, client
from director.core.errors import BackendUnavailable
from director.core.ids import lowest_id_at
from director.local.launcher.processes import free_port
from tests.support.eventually import turns
from tests.support.garbage import alive, uncollected
from tests.support.servers import RedisServer

pytestmark = pytest.mark.faults

NO_ID = lowest_id_at(0)


async def assert_that_calls_fail_and_leave_nothing(gatherer: Gatherer) -> None:
    with uncollected():
        calls = (gatherer.call("get", [keys.record(NO_ID)], [NO_ID]) for _ in range(10))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [BackendUnavailable] * 10
        del answers
        await gatherer.aclose()
        await gatherer.redis.aclose()
        await turns()  # the loop still holds what woke this task
        assert alive(Call, BackendUnavailable, RedisConnectionError) == 0


async def test_failed_calls_leave_nothing_to_the_garbage_collector(mortal: RedisServer) -> None:
    gatherer = Gatherer(client(mortal.url))
    mortal.kill()
    await assert_that_calls_fail_and_leave_nothing(gatherer)


async def test_cluster_that_is_away_leaves_nothing_to_the_garbage_collector() -> None:
    await assert_that_calls_fail_and_leave_nothing(Gatherer(client(f"redis+cluster://127.0.0.1:{free_port()}")))


async def test_missing_script_leaves_nothing_to_the_garbage_collector(mortal: RedisServer) -> None:
    gatherer = Gatherer(client(mortal.url))
    with uncollected():
        await gatherer.call("get", [keys.record(NO_ID)], [NO_ID])
        await gatherer.aclose()
        await gatherer.redis.aclose()
        assert alive(Call, NoScriptError) == 0


async def test_failed_command_leaves_nothing_to_the_garbage_collector(mortal: RedisServer) -> None:
    redis = client(mortal.url)
    mortal.kill()
    with uncollected():
        with suppress(BackendUnavailable):
            await ask(lambda: redis.get("some"))
        await redis.aclose()
        await turns()  # the loop still holds what woke this task
        assert alive(BackendUnavailable, RedisConnectionError) == 0
