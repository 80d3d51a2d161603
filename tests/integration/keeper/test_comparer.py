"""A keeper counts the runs of both versions of a split, and stops a new version that fails more than the old one."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
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
from director.keeper.comparer import COUNTS_ON_MS, WAITS_MS, Comparer, Comparison
from director.operate.overview import Overview
from director.store import splits
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.deployments import Deployments
from director.store.logs import AuditLog
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
    assert found == Comparison(sum(made.values()), (NAME,))
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
    found = [entry for entry in (await AuditLog(redis).read_all({})).entries if entry.kind == "split"]
    assert found[-1].detail == f"{NAME} keeper: stopped: {stopped}"
    assert (found[-1].account, found[-1].queue) == (ACCOUNT, NEW_QUEUE)


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


async def be_ready(one: QueueDriver, slots: int = 2) -> None:
    await one.scripts.extend(one.queue, consumer="d", lease_s=60, claims=[], slots=slots)


async def test_new_version_without_a_server_for_minutes_is_stopped(
    api: AsyncClient, driven: Driven, services: Services
) -> None:
    await be_ready(driven[VERSION])
    await try_it(api, 99)
    driven[NEW].now_ms -= WAITS_MS + 5_000
    await driven[NEW].submit()
    comparer = comparer_after(services, 0)
    assert (await comparer.run_once()).stopped == (), "work from before the trial says nothing"
    comparer._clock.pass_time(WAITS_MS / 1000)  # type: ignore[attr-defined]
    assert (await comparer.run_once()).stopped == (NAME,)
    assert (await shown(api))["split"]["stopped_why"] == "no server of the new version is ready, and 1 wait for one"


@pytest.mark.parametrize("why", ["both are away", "idle work", "it came back"])
async def test_silence_that_is_not_the_new_versions_stops_nothing(
    api: AsyncClient, driven: Driven, services: Services, why: str
) -> None:
    if why != "both are away":
        await be_ready(driven[VERSION])
    await try_it(api, 99)
    await driven[NEW].submit(lane="idle" if why == "idle work" else "normal")
    comparer = comparer_after(services, 0)
    for _ in range(3):
        assert (await comparer.run_once()).stopped == ()
        comparer._clock.pass_time(WAITS_MS / 2000)  # type: ignore[attr-defined]
        if why == "it came back":
            await be_ready(driven[NEW])
            await comparer.run_once()
            await be_ready(driven[NEW], slots=0)


async def test_split_that_a_release_ended_is_removed(
    api: AsyncClient, redis: Redis, comparer: Comparer, driven: Driven
) -> None:
    await try_it(api)
    deployment = keys.deployment(*NAME.split("/"))
    was = await redis.get(deployment)
    await redis.set(deployment, was.replace(VERSION.encode(), NEW.encode()))  # as release 0.3.0 writes it
    await comparer.run_once()
    assert not await redis.exists(keys.split(NAME), keys.split_runs(NAME), keys.splits())


async def test_trial_that_begins_while_a_keeper_tidies_stays_watched(
    api: AsyncClient, redis: Redis, comparer: Comparer, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    await try_it(api)
    deployment = keys.deployment(*NAME.split("/"))
    was = await redis.get(deployment)
    await redis.set(deployment, was.replace(VERSION.encode(), NEW.encode()))
    remove = Deployments.remove_void

    async def remove_late(self: Deployments, name: str, kept: bytes) -> None:
        await redis.set(deployment, was)
        await try_it(api, 20)
        await remove(self, name, kept)

    monkeypatch.setattr(Deployments, "remove_void", remove_late)
    await comparer.run_once()
    assert (await shown(api))["tried"]["share"] == 20
    assert await redis.zrange(keys.splits(), 0, -1) == [NAME.encode()]


async def test_promotion_while_a_keeper_looks_keeps_the_way_back(
    api: AsyncClient, comparer: Comparer, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    await try_it(api)
    read = splits.read_splits

    async def read_late(redis: Redis, names: Sequence[str]) -> list[bytes]:
        assert (await api.post(f"{FRONT}/promote")).status_code == 200
        return await read(redis, names)

    with monkeypatch.context() as patched:
        patched.setattr(splits, "read_splits", read_late)
        await comparer.run_once()
    answer = await api.post(f"{FRONT}/rollback")
    assert answer.status_code == 200, answer.text
    assert answer.json()["current_release"]["version"] == VERSION


async def test_split_that_cannot_be_read_delays_no_other(
    api: AsyncClient, redis: Redis, driven: Driven, comparer: Comparer
) -> None:
    other = NAME.replace("front", "a-first")
    made = {"name": "a-first", "model": MODEL, "version": VERSION, "hardware": "cpu"}
    assert (await api.post("/v1/deployments", json={**made, "min_instances": 0, "max_instances": 1})).status_code == 200
    body = {"version": NEW, "share": 50, "force": True}
    assert (await api.post(f"/v1/deployments/{other}/split", json=body)).status_code == 200
    await redis.hset(keys.split_runs(other), "new:failed", "a later release's")
    await try_it(api)
    found = await call_until(api, old=2, new=2)
    for one in driven.values():
        await end_all(one)
    assert (await comparer.run_once()).counted == sum(found.values())


async def test_revived_run_counts_with_its_first_end(api: AsyncClient, driven: Driven, comparer: Comparer) -> None:
    await try_it(api, 99)
    await call_until(api, new=1)
    new = driven[NEW]
    while await new.release(await new.claim_one(), spent=True, error="No.", code="worker_died") != "dead":
        new.pass_time(600)
    await comparer.run_once()
    before = (await shown(api))["tried"]
    assert before["failed"]
    [letter, *_] = await new.redis.zrange(keys.dead(NEW_QUEUE), 0, -1)
    assert await new.scripts.revive(PredictionId(letter.decode()))
    await end_all(new)
    await comparer.run_once()
    assert (await shown(api))["tried"] == before


async def test_log_is_read_once_for_all_splits_of_a_model(
    api: AsyncClient, redis: Redis, driven: Driven, comparer: Comparer
) -> None:
    for number in range(5):
        made = {"name": f"f{number}", "model": MODEL, "version": VERSION, "hardware": "cpu"}
        await api.post("/v1/deployments", json={**made, "min_instances": 0, "max_instances": 1})
        body = {"version": NEW, "share": 50, "force": True}
        assert (await api.post(f"/v1/deployments/{ACCOUNT}/f{number}/split", json=body)).status_code == 200
        await api.post(f"/v1/deployments/{ACCOUNT}/f{number}/predictions", json={"input": {}})
    for one in driven.values():
        await end_all(one)
    await redis.config_resetstat()
    assert (await comparer.run_once()).counted == 5
    assert (await redis.info("commandstats"))["cmdstat_xrange"]["calls"] == 1


@pytest.mark.usefixtures("stopped")
async def test_stopped_trial_is_counted_for_an_hour(redis: Redis, services: Services) -> None:
    async def reads(comparer: Comparer) -> int:
        await redis.config_resetstat()
        await comparer.run_once()
        return int((await redis.info("commandstats")).get("cmdstat_xrange", {"calls": 0})["calls"])

    assert await reads(comparer_after(services, 0)) == 1
    assert await reads(comparer_after(services, COUNTS_ON_MS + 60_000)) == 0


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
