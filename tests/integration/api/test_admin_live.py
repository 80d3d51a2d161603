"""Test the live feed for operators: all watchers share one reader, and nothing is buffered for a slow watcher."""

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from httpx import AsyncClient
from msgspec.structs import replace
from redis.asyncio import Redis

from api.services.watching import Watching
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.operate.overview import CloserLook, Overview
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from director.store.directors import Directors
from director.store.owed import Owed
from director.store.queues import Queues
from tests.support.api import api_client
from tests.support.eventually import eventually
from tests.support.queue_driver import QueueDriver

LIVE = "/v1/admin/live"


class CountedQueues(Queues):
    looks = 0
    is_away = False

    async def all(self) -> list[QueueName]:
        self.looks += 1
        if self.is_away:
            raise BackendUnavailable("Redis is away: ConnectionError")
        return await super().all()


@pytest.fixture
def queues(redis: Redis, catalog: Catalog, scripts: Scripts) -> CountedQueues:
    return CountedQueues(redis, catalog, scripts)


@pytest.fixture
def overview(queues: CountedQueues, redis: Redis, catalog: Catalog) -> Overview:
    clock = SystemClock()
    owed = Owed(redis, catalog)
    return Overview(queues, Directors(redis), owed, CloserLook(redis, owed), clock)


@pytest.fixture
def watching(overview: Overview) -> Watching:
    return Watching(overview, SystemClock())


def events(text: str) -> Sequence[tuple[str, Any]]:
    found = []
    for block in filter(None, text.split("\n\n")):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))))
    return found


async def test_snapshot_has_every_queue_and_every_director(admin: AsyncClient, driver: QueueDriver) -> None:
    await driver.submit(lane="high", webhook="https://receiver.example/hook", webhook_events="completed")
    await driver.submit()
    await driver.scripts.extend(driver.queue, consumer="host-1-aa", lease_s=15, claims=[], slots=4)
    answer = await admin.get(LIVE, params={"snapshots": 2})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    (name, first), (_, second) = events(answer.text)
    assert (name, first["more_queues"], first["owed"]) == ("snapshot", 0, {"count": 0, "late": 0})
    [queue] = first["queues"]
    assert (queue["name"], queue["waiting"]) == (driver.queue, {"high": 1, "normal": 1, "low": 0})
    assert (queue["state"], queue["slots"], queue["directors"]) == ("serving", 4, 1)
    [director] = first["directors"]
    assert (director["name"], director["alive"], director["slots"]) == ("host-1-aa", True, 4)
    assert second["at"] > first["at"]


async def test_all_watchers_share_one_reader(watching: Watching, queues: CountedQueues) -> None:
    await anyio.lowlevel.checkpoint()
    assert queues.looks == 0
    with watching.watcher(), watching.watcher(), watching.watcher():
        told = await asyncio.gather(*(watching.after(0) for _ in range(3)))
        assert queues.looks == 1
        assert len({each.number for each in told}) == 1
    looks = queues.looks
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    assert queues.looks == looks


async def test_returning_watcher_gets_a_new_snapshot(watching: Watching, queues: CountedQueues) -> None:
    with watching.watcher():
        await watching.after(0)
    with watching.watcher():
        await watching.after(0)
        assert queues.looks == 2


async def test_slow_watcher_gets_only_the_newest_snapshot(watching: Watching, driver: QueueDriver) -> None:
    for _ in range(3):
        await driver.submit()
        await watching.run_once()
    told = await watching.after(1)
    assert told.number == 3
    [(_, snapshot)] = events(told.data.decode())
    assert snapshot["queues"][0]["live"] == 3


async def test_outage_of_redis_is_reported_to_watchers(watching: Watching, queues: CountedQueues) -> None:
    queues.is_away = True
    assert await watching.run_once() == 1.0
    [(name, away)] = events((await watching.after(0)).data.decode())
    assert (name, away["reason"]) == ("away", "Redis is away: ConnectionError")
    assert [finding["code"] for finding in away["findings"]] == ["redis_away"]


async def test_pause_follows_the_read_times_within_bounds(watching: Watching, overview: Overview) -> None:
    rests = [await watching.run_once() for _ in range(3)]
    assert all(1.0 <= rest_s <= 5.0 for rest_s in rests)
    overview._took.clear()
    overview._took.extend([0.03, 0.9])
    assert await watching.run_once() <= 3.0


async def test_revoked_token_ends_the_watch(admin: AsyncClient, redis: Redis, operator: str) -> None:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                assert (await admin.get(LIVE)).status_code == 200
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await eventually(lambda: admin.get("/readyz"), "it is", until=lambda found: found.json()["load"]["streams"])
            tokens = Accounts(redis).tokens
            found = await tokens.find(operator)
            assert found is not None
            await tokens.remove(found)
            await anyio.sleep_forever()


async def test_watchers_have_the_same_bound_as_stream_readers(settings: ApiSettings, operator: str) -> None:
    async with (
        api_client(replace(settings, max_streams=1), token=operator) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(client.get, LIVE)
        await eventually(lambda: client.get("/readyz"), "one is", until=lambda found: found.json()["load"]["streams"])
        answer = await client.get(LIVE, params={"snapshots": 1})
        assert (answer.status_code, answer.json()["code"]) == (503, "too_many_streams")
        tasks.cancel_scope.cancel()


async def test_head_request_ends_at_once(admin: AsyncClient) -> None:
    assert (await admin.head(LIVE)).status_code == 200
    assert (await admin.get(LIVE, params={"snapshots": 0})).status_code == 422
