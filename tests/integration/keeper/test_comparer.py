"""A keeper counts the runs of both versions of a split, and stops a new version that fails more than the old one."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.core.clock import SystemClock
from director.core.ids import PredictionId, QueueName, queue_name
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.core.states import Status
from director.keeper.comparer import SETTLED_MS, WAITS_MS, Compared, Comparer
from director.operate.overview import Overview
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.logs import AuditLog, Cursor
from director.store.services import Services
from tests.support.api import api_client
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.live_director import live_director
from tests.support.model_server import model_server
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.runner_conformance import CONFIGS
from tests.support.servers import RedisServer

NEW: Final = "c3" * 32
NEW_QUEUE: Final = queue_name(MODEL, NEW)
NAME: Final = f"{ACCOUNT}/front"
FRONT: Final = f"/v1/deployments/{NAME}"
FAILS: Final[dict[str, Any]] = {"status": Status.FAILED, "error": "No.", "code": "model_failed"}
Driven = dict[str, QueueDriver]


@pytest.fixture
async def api(server: RedisServer, redis: Redis, queue: QueueName) -> AsyncIterator[AsyncClient]:
    token = await Accounts(redis).create_token(ACCOUNT)
    async with api_client(ApiSettings(redis_url=server.url, cancel_wait_s=0), token=token) as client:
        yield client


@pytest.fixture
async def driven(driver: QueueDriver, catalog: Catalog, api: AsyncClient) -> Driven:
    """Drivers of both versions, by version, at the time of the server. A deployment stands for the old one."""
    await catalog.register(MODEL, NEW, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    new = QueueDriver(driver.redis, driver.scripts, NEW_QUEUE)
    driver.now_ms = new.now_ms = SystemClock().now_ms()
    await make_front(api)
    return {VERSION: driver, NEW: new}


@pytest.fixture
async def services(redis: Redis) -> AsyncIterator[Services]:
    services = Services(redis)
    yield services
    await services.gatherer.aclose()


@pytest.fixture
def comparer(services: Services) -> Comparer:
    return comparer_after(services, 0)


def comparer_after(services: Services, ms: int) -> Comparer:
    """Return a keeper's role that acts so much later than now."""
    return Comparer(services.deployments, services.queues, FakeClock(now_ms=SystemClock().now_ms() + ms))


async def make_front(api: AsyncClient) -> None:
    front = {
        "name": "front", "model": MODEL, "version": VERSION, "hardware": "cpu", "min_instances": 0, "max_instances": 3,
    }  # fmt: skip
    assert (await api.post("/v1/deployments", json=front)).status_code == 200


async def try_it(api: AsyncClient, share: int = 50, **more: Any) -> dict[str, Any]:
    answer = await api.post(f"{FRONT}/split", json={"version": NEW, "share": share, "force": True, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def call_until(api: AsyncClient, **wanted: int) -> dict[str, int]:
    """Call until each version has so many calls at least. Returns how many each has."""
    found = {"old": 0, "new": 0}
    while any(found[side] < count for side, count in wanted.items()):
        made = (await api.post(f"{FRONT}/predictions", json={"input": {"n": 1}})).json()
        found["new" if made["version"] == NEW else "old"] += 1
    return found


async def end_all(one: QueueDriver, *, failing: int = 0) -> None:
    for number, claim in enumerate(await one.claim_all()):
        ended = FAILS if number < failing else {}
        assert await one.finish(claim, ran_ms=1000, **ended)


async def shown(api: AsyncClient) -> dict[str, Any]:
    return dict((await api.get(f"{FRONT}/split")).json())


async def test_new_version_on_a_failing_server_is_stopped_in_one_round(
    api: AsyncClient, server: RedisServer, driven: Driven, comparer: Comparer, services: Services
) -> None:
    def director(version: str, url: str, **changed: Any) -> Any:
        config = json.dumps({**CONFIGS["http"], **changed})
        return live_director(server.url, url, version=version, runner="http", runner_config=config)

    async with model_server() as model:
        raises = {"input": {"args": {"n": 1, "then": "raise"}}}
        async with director(VERSION, model.url), director(NEW, model.url, **raises):
            await try_it(api, least=10)
            made = await call_until(api, old=10, new=10)
            for queue in (queue_name(MODEL, VERSION), NEW_QUEUE):
                await eventually(
                    lambda queue=queue: services.scripts.stats(queue), f"{queue} ends", until=lambda one: one.live == 0
                )
            found = await comparer.run_once()
    assert found == Compared(sum(made.values()), (NAME,))
    after = await shown(api)
    assert (after["current"]["share"], after["tried"]["share"]) == (100, 0)
    assert (after["tried"]["failed"], after["tried"]["succeeded"]) == (made["new"], 0)
    assert (after["current"]["failed"], after["current"]["succeeded"]) == (0, made["old"])
    assert after["split"]["stopped_why"].startswith(f"{made['new']} of {made['new']} runs of the new version failed")
    assert after["current"]["p50_s"] is not None
    assert (await call_until(api, old=10))["new"] == 0


@pytest.fixture
async def stopped(api: AsyncClient, driven: Driven, comparer: Comparer) -> str:
    """Why a keeper has stopped the new version."""
    await try_it(api, least=20)
    await call_until(api, old=20, new=20)
    await end_all(driven[VERSION])
    await end_all(driven[NEW], failing=15)
    assert (await comparer.run_once()).stopped == (NAME,)
    return str((await shown(api))["split"]["stopped_why"])


async def test_stop_is_in_the_audit_log_by_the_keeper(redis: Redis, stopped: str) -> None:
    partition = keys.queue_partition(QueueName(f"{NAME}:"))
    entries = (await AuditLog(redis).read(partition, Cursor(), count=1000)).entries
    told = [entry for entry in entries if entry.kind == "split"]
    assert told[-1].detail == f"{NAME} keeper: stopped: {stopped}"
    assert (told[-1].account, told[-1].queue) == (ACCOUNT, NEW_QUEUE)


async def test_stop_is_a_finding_until_it_is_answered(api: AsyncClient, services: Services, stopped: str) -> None:
    overview = Overview.of(services)
    [found] = [one for one in (await overview.look()).findings if one.code == "split_stopped"]
    assert stopped in found.detail
    assert found.ask == f"director rollback {NAME}"
    assert (await api.post(f"{FRONT}/rollback")).status_code == 200
    assert not [one for one in (await overview.look()).findings if one.code == "split_stopped"]


@pytest.mark.usefixtures("stopped")
async def test_stopped_version_can_be_tried_again_from_zero(api: AsyncClient, comparer: Comparer) -> None:
    again = await try_it(api, 20)
    assert "stopped_why" not in again["split"]
    assert (again["tried"]["failed"], again["tried"]["succeeded"]) == (0, 0)
    assert (await comparer.run_once()).stopped == ()


async def test_difference_within_the_margin_is_no_reason_to_stop(
    api: AsyncClient, driven: Driven, comparer: Comparer
) -> None:
    await try_it(api, least=20, margin=99)
    await call_until(api, old=20, new=20)
    await end_all(driven[VERSION])
    await end_all(driven[NEW], failing=15)
    assert (await comparer.run_once()).stopped == ()
    assert (await shown(api))["tried"]["failed"] == 15


async def test_run_counts_once_however_many_keepers_look(api: AsyncClient, driven: Driven, services: Services) -> None:
    await try_it(api)
    made = await call_until(api, old=5, new=5)
    for one in driven.values():
        await end_all(one)
    keepers = [comparer_after(services, 0) for _ in range(3)]
    await asyncio.gather(*(keeper.run_once() for keeper in keepers))
    assert sum([(await keeper.run_once()).counted for keeper in keepers]) == 0
    after = await shown(api)
    assert (after["current"]["succeeded"], after["tried"]["succeeded"]) == (made["old"], made["new"])


async def test_only_runs_of_the_deployment_are_counted(api: AsyncClient, driven: Driven, comparer: Comparer) -> None:
    await try_it(api)
    for version in driven:
        for _ in range(3):
            assert (await api.post("/v1/predictions", json={"version": version, "input": {}})).status_code == 201
    for one in driven.values():
        await end_all(one)
    assert (await comparer.run_once()).counted == 0


async def test_canceled_runs_do_not_count(api: AsyncClient, driven: Driven, comparer: Comparer) -> None:
    await try_it(api)
    for one in await asyncio.gather(*(api.post(f"{FRONT}/predictions", json={"input": {}}) for _ in range(6))):
        assert (await api.post(f"/v1/predictions/{one.json()['id']}/cancel")).status_code == 200
    assert (await comparer.run_once()).counted == 0


async def test_long_log_is_counted_to_its_end(
    api: AsyncClient, driven: Driven, comparer: Comparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.store.splits.MOST_STEPS", 7)
    await try_it(api)
    made = await call_until(api, old=5, new=5)
    for one in driven.values():
        await end_all(one)
    counted = 0
    while found := (await comparer.run_once()).counted:
        counted += found
    assert counted <= sum(made.values())
    for _ in range(9):  # rounds in whose part of the log nothing ended
        counted += (await comparer.run_once()).counted
    assert counted == sum(made.values())


async def test_new_version_without_a_ready_server_is_stopped(
    api: AsyncClient, driven: Driven, comparer: Comparer
) -> None:
    await try_it(api, 99)
    driven[NEW].now_ms -= WAITS_MS + 5_000
    await driven[NEW].submit()
    assert (await comparer.run_once()).stopped == (NAME,)
    assert (await shown(api))["split"]["stopped_why"] == "no server of the new version is ready, and 1 wait for one"


async def test_split_that_a_release_ended_is_forgotten(
    api: AsyncClient, redis: Redis, services: Services, driven: Driven
) -> None:
    await try_it(api)
    deployment = keys.deployment(*NAME.split("/"))
    was = await redis.get(deployment)
    await redis.set(deployment, was.replace(b'"number":1', b'"number":2'))  # as release 0.3.0 writes it
    await comparer_after(services, 0).run_once()
    assert await redis.exists(keys.split(NAME)), "its release may just be on its way"
    await comparer_after(services, SETTLED_MS).run_once()
    assert not await redis.exists(keys.split(NAME), keys.split_runs(NAME), keys.splits())


async def test_without_splits_a_round_is_one_command(redis: Redis, services: Services) -> None:
    async def calls() -> int:
        stats = await redis.info("commandstats")
        return sum(one["calls"] for name, one in stats.items() if name != "cmdstat_info")

    before = await calls()
    await comparer_after(services, 0).run_once()
    assert await calls() - before == 1


async def test_prediction_of_a_split_keeps_its_mark(api: AsyncClient, driven: Driven) -> None:
    await try_it(api, 99)
    made = (await api.post(f"{FRONT}/predictions", json={"input": {}})).json()
    record = await driven[made["version"]].record(PredictionId(made["id"]))
    assert record.split.split(" ")[0] == ("new" if made["version"] == NEW else "old")
