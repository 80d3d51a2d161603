"""Test that only an unused version is deleted, and that a deletion never removes accepted work."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from httpx import AsyncClient
from msgspec import Raw
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import QueueName, partition_of, queue_name
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.keeper.registry import Registry
from director.store import deployments
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.deployments import Deployments
from director.store.removal import Removal
from tests.support.api import PlayedDirector, api_client
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import RedisServer

pytestmark = pytest.mark.usefixtures("painter")

MODEL = f"{ACCOUNT}/painter"
OLD, NEW = "a" * 64, "b" * 64


@pytest.fixture
def settings(settings: ApiSettings) -> ApiSettings:
    return ApiSettings(redis_url=settings.redis_url, cache_s=0)


@pytest.fixture
async def painter(api: AsyncClient, redis: Redis, scripts: Scripts) -> QueueName:
    await api.post("/v1/models", json={"owner": ACCOUNT, "name": "painter", "visibility": "private", "hardware": "cpu"})
    clock = FakeClock()
    for version in (OLD, NEW):
        clock.pass_time(1)
        catalog = Catalog(redis, scripts, clock)
        await catalog.register(MODEL, version, schema=OPEN_SCHEMA, server="cog", policy=Policy())
    return queue_name(MODEL, NEW)


async def delete(api: AsyncClient, version: str = NEW) -> httpx.Response:
    return await api.delete(f"/v1/models/{MODEL}/versions/{version}")


async def model(api: AsyncClient) -> Any:
    return (await api.get(f"/v1/models/{MODEL}")).json()


async def test_newest_remaining_version_becomes_latest_and_runs_stay_counted(
    api: AsyncClient, painter: QueueName, scripts: Scripts, redis: Redis
) -> None:
    await api.post("/v1/predictions", json={"version": NEW, "input": {}})
    director = PlayedDirector(scripts, painter)
    await director.finish(await director.claim(), output=b"1")
    gone = await delete(api)
    assert (gone.status_code, gone.content) == (202, b"")
    assert (await model(api))["latest_version"]["id"] == OLD
    assert (await model(api))["run_count"] == 1
    assert (await api.get(f"/v1/models/{MODEL}/versions/{NEW}")).status_code == 404
    versions = (await api.get(f"/v1/models/{MODEL}/versions")).json()["results"]
    assert [version["id"] for version in versions] == [OLD]
    for named in (NEW, f"{MODEL}:{NEW}"):
        assert (await api.post("/v1/predictions", json={"version": named, "input": {}})).status_code == 422
    assert (await delete(api)).status_code == 404
    assert not [name for name in await redis.keys("*") if NEW[:12].encode() in name]


async def test_version_in_use_is_kept_and_the_reason_given(
    api: AsyncClient, painter: QueueName, scripts: Scripts
) -> None:
    made = (await api.post("/v1/predictions", json={"version": NEW, "input": {}})).json()
    waits = await delete(api)
    assert (waits.status_code, waits.json()["code"]) == (422, "in_use")
    assert "wait or run" in waits.json()["detail"]
    await api.post(f"/v1/predictions/{made['id']}/cancel")

    release = {"model": MODEL, "version": NEW, "hardware": "cpu", "min_instances": 0, "max_instances": 1}
    assert (await api.post("/v1/deployments", json={"name": "live", **release})).status_code == 200
    assert "deployment" in (await delete(api)).json()["detail"]
    await api.delete(f"/v1/deployments/{ACCOUNT}/live")

    await scripts.extend(painter, consumer="d1", claims=[], lease_s=15)
    assert "director" in (await delete(api)).json()["detail"]
    assert (await model(api))["latest_version"]["id"] == NEW


async def test_version_whose_deletion_was_refused_can_still_be_trained(
    api: AsyncClient, redis: Redis, catalog: Catalog
) -> None:
    await catalog.register_kind(MODEL, NEW, "training", schema=OPEN_SCHEMA, server="cog", policy=Policy())
    made = (await api.post("/v1/predictions", json={"version": NEW, "input": {}})).json()
    assert (await delete(api)).status_code == 422
    asked = {"destination": MODEL, "input": {}}
    training = await api.post(f"/v1/models/{MODEL}/versions/{NEW}/trainings", json=asked)
    assert training.status_code == 201
    for path in (f"trainings/{training.json()['id']}", f"predictions/{made['id']}"):
        await api.post(f"/v1/{path}/cancel")
    assert (await delete(api)).status_code == 202
    assert not [name for name in await redis.keys("*") if b":q:" in name and NEW[:12].encode() in name]


async def test_only_operators_delete_versions_of_public_models(api: AsyncClient, redis: Redis) -> None:
    await redis.hset(keys.model(MODEL), "visibility", "public")
    assert (await delete(api)).status_code == 403


async def test_version_with_only_a_queue_left_can_be_deleted(
    api: AsyncClient, painter: QueueName, redis: Redis
) -> None:
    # a deletion and a registration ran at once, and both the API and the director died before they checked again
    await redis.delete(keys.version(MODEL, NEW))
    await redis.srem(keys.queues(), painter)  # type: ignore[misc]
    assert (await delete(api)).status_code == 202
    assert not await redis.exists(keys.meta(painter))
    assert (await delete(api)).status_code == 404
    assert (await delete(api, OLD[:12] + "e" * 52)).status_code == 404, "the queue is another version's"
    assert (await model(api))["latest_version"]["id"] == OLD


async def test_repeating_an_interrupted_deletion_completes_it_and_counts_runs(
    api: AsyncClient, painter: QueueName, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.post("/v1/predictions", json={"version": NEW, "input": {}})
    director = PlayedDirector(scripts, painter)
    await director.finish(await director.claim(), output=b"1")
    with monkeypatch.context() as cut:
        cut.setattr(Removal, "_forget", AsyncMock(side_effect=BackendUnavailable("and then the API ended")))
        assert (await delete(api)).status_code == 503
    assert (await delete(api)).status_code == 202
    shown = await model(api)
    assert (shown["run_count"], shown["latest_version"]["id"]) == (1, OLD)


async def test_deletions_through_several_processes_leave_no_version_behind(
    api: AsyncClient, server: RedisServer, token: str, painter: QueueName, scripts: Scripts
) -> None:
    await api.post("/v1/predictions", json={"version": NEW, "input": {}})
    director = PlayedDirector(scripts, painter)
    await director.finish(await director.claim(), output=b"1")
    async with api_client(ApiSettings(redis_url=server.url, cache_s=60), token=token) as another:
        assert (await model(another))["latest_version"]["id"] == NEW
        assert (await delete(api, NEW)).status_code == 202
        assert (await delete(another, OLD)).status_code == 202, "though it still takes the other one for the latest"
    assert (await model(api))["run_count"] == 1
    assert (await model(api))["latest_version"] is None
    assert (await api.delete(f"/v1/models/{MODEL}")).status_code == 204


async def test_owed_webhook_is_delivered_after_its_last_version_is_deleted(
    api: AsyncClient, painter: QueueName, scripts: Scripts, redis: Redis, catalog: Catalog
) -> None:
    asked = {"version": NEW, "input": {}, "webhook": "https://example.com", "webhook_events_filter": ["completed"]}
    made = (await api.post("/v1/predictions", json=asked)).json()
    director = PlayedDirector(scripts, painter)
    await director.finish(await director.claim(), output=b"1")
    assert [(await delete(api, version)).status_code for version in (NEW, OLD)] == [202, 202]
    assert (await api.delete(f"/v1/models/{MODEL}")).status_code == 204
    assert partition_of(made["id"]) in await Registry(redis, catalog, SystemClock()).owing()
    assert await scripts.deliver(made["id"], outcome="delivered", delay_s=None)


async def test_returning_director_restores_its_version(api: AsyncClient, catalog: Catalog) -> None:
    await delete(api)
    await catalog.register(MODEL, NEW, schema=OPEN_SCHEMA, server="cog", policy=Policy())
    assert ((await model(api))["latest_version"]["id"], (await model(api))["visibility"]) == (NEW, "private")
    assert (await api.post("/v1/predictions", json={"version": NEW, "input": {}})).status_code == 201


async def test_create_during_a_deletion_keeps_the_version_or_is_refused(
    api: AsyncClient, settings: ApiSettings, token: str
) -> None:
    async with api_client(settings, token=token) as another:
        creates = [another.post("/v1/predictions", json={"version": NEW, "input": {}}) for _ in range(20)]
        gone, *made = await asyncio.gather(delete(api), *creates)
    accepted = [answer.json()["id"] for answer in made if answer.status_code == 201]
    assert {answer.status_code for answer in made} <= {201, 422}
    assert (gone.status_code == 202) == (not accepted)
    for prediction_id in accepted:
        assert (await api.get(f"/v1/predictions/{prediction_id}")).json()["status"] == "starting"


async def test_heavy_pages_of_versions_continue_while_versions_are_deleted(
    api: AsyncClient, redis: Redis, scripts: Scripts
) -> None:
    clock = FakeClock()
    clock.pass_time(9)
    catalog = Catalog(redis, scripts, clock)
    large = Raw(b'{"openapi":"3.0.2","info":{"title":"%b","version":"1"},"paths":{}}' % (b"x" * 1_500_000))
    for digit in "cdef":
        clock.pass_time(1)
        await catalog.register(MODEL, digit * 64, schema=large, server="cog", policy=Policy())
    newest = (await api.get(f"/v1/models/{MODEL}/versions")).json()
    assert [version["id"][0] for version in newest["results"]] == ["f", "e"]
    assert newest["previous"] is None
    assert (await delete(api, "e" * 64)).status_code == 202, "the one that the next page begins after"
    then = (await api.get(newest["next"])).json()
    assert [version["id"][0] for version in then["results"]] == ["d", "c", "b", "a"]
    assert then["next"] is None
    assert [version["id"][0] for version in (await api.get(then["previous"])).json()["results"]] == ["f"]


async def test_deployments_of_a_thousand_accounts_are_searched_in_few_calls(
    redis: Redis, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Deployments(redis, scripts, SystemClock())
    owners = [f"account{number}" for number in range(1_000)]
    for owner in owners[::250]:
        await made.create(owner, "live", model=MODEL, version=OLD, hardware="cpu", min_instances=0, max_instances=1)
    asked = Mock(side_effect=deployments.ask)
    monkeypatch.setattr(deployments, "ask", asked)
    assert await made.one_of(owners, model=MODEL, version=NEW) is None
    assert asked.call_count <= 20
    assert await made.one_of(owners[1:], model=MODEL, version=OLD) == "account250/live"
