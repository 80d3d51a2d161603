"""Test the verbs of a release over HTTP: try a version with a share of the calls, promote it, take it back."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import pytest
from httpx import AsyncClient
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId, queue_name
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.deployments import Deployments
from tests.support.api import api_client
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver

NEW: Final = "c3" * 32
THIRD: Final = "d4" * 32
FRONT: Final = f"/v1/deployments/{ACCOUNT}/front"
NAME: Final = f"{ACCOUNT}/front"
MADE: Final[dict[str, Any]] = {
    "name": "front", "model": MODEL, "version": VERSION, "hardware": "cpu", "min_instances": 0, "max_instances": 3,
}  # fmt: skip


@pytest.fixture(autouse=True)
async def versions(catalog: Catalog, scripts: Scripts, queue: str) -> None:
    """Three versions; a director of the second one is ready."""
    for version in (NEW, THIRD):
        await catalog.register(MODEL, version, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await be_ready(scripts, NEW)


@pytest.fixture(autouse=True)
async def front(api: AsyncClient) -> None:
    assert (await api.post("/v1/deployments", json=MADE)).status_code == 200


async def be_ready(scripts: Scripts, version: str) -> None:
    await scripts.extend(queue_name(MODEL, version), consumer=version[:4], lease_s=60, claims=[], slots=2)


async def try_it(api: AsyncClient, share: int = 50, version: str = NEW, **more: Any) -> dict[str, Any]:
    answer = await api.post(f"{FRONT}/split", json={"version": version, "share": share, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def call(api: AsyncClient, key: str = "") -> dict[str, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    answer = await api.post(f"{FRONT}/predictions", json={"input": {}}, headers=headers)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def call_many(api: AsyncClient, count: int = 60) -> Counter[str]:
    return Counter([(await call(api))["version"] for _ in range(count)])


async def test_calls_are_split_between_both_versions(api: AsyncClient) -> None:
    shown = await try_it(api)
    assert (shown["current"]["version"], shown["current"]["share"]) == (VERSION, 50)
    assert (shown["tried"]["version"], shown["tried"]["share"]) == (NEW, 50)
    assert (shown["split"]["margin"], shown["split"]["least"], shown["split"]["by"]) == (5, 50, ACCOUNT)
    found = await call_many(api)
    assert set(found) == {VERSION, NEW}
    assert 12 <= found[NEW] <= 48
    deployed = (await api.get(FRONT)).json()
    assert (deployed["current_release"]["version"], deployed["split"]["version"]) == (VERSION, NEW)
    assert (await api.get("/v1/deployments")).json()["results"] == [deployed]


async def test_repeat_with_a_key_gets_the_same_prediction(api: AsyncClient) -> None:
    await try_it(api)
    first = {key: await call(api, key) for key in map(str, range(20))}
    again = {key: await call(api, key) for key in first}
    assert {key: one["id"] for key, one in again.items()} == {key: one["id"] for key, one in first.items()}
    assert {one["version"] for one in first.values()} == {VERSION, NEW}


async def test_repeat_after_a_promotion_gets_the_same_prediction(api: AsyncClient) -> None:
    await try_it(api, 1)
    first = await call(api, "k")
    assert (await api.post(f"{FRONT}/promote")).status_code == 200
    assert (await call(api, "k"))["id"] == first["id"]


async def test_explain_says_which_version_and_why(api: AsyncClient) -> None:
    since = (await try_it(api))["split"]["since"]
    made = {one["version"]: one["id"] for one in [await call(api) for _ in range(30)]}
    told = {version: (await api.get(f"/v1/predictions/{name}/explain")).json() for version, name in made.items()}
    assert told[NEW]["version_because"] == f"because 50 % of {NAME} go to it since {since}; it was not promoted then"
    assert told[VERSION]["version_because"].startswith(f"because 50 % of {NAME} stay with it since {since};")
    await api.post(f"{FRONT}/rollback")
    plain = await call(api)
    assert "version_because" not in (await api.get(f"/v1/predictions/{plain['id']}/explain")).json()


async def test_promotion_gives_all_calls_to_the_new_version(api: AsyncClient) -> None:
    await try_it(api)
    promoted = (await api.post(f"{FRONT}/promote")).json()
    release = promoted["current_release"]
    assert (release["number"], release["version"], release["configuration"]["max_instances"]) == (2, NEW, 3)
    assert "split" not in promoted
    assert await call_many(api, 10) == {NEW: 10}
    assert (await api.get(f"{FRONT}/split")).json()["former"] == VERSION


async def test_rollback_ends_a_split_without_a_release(api: AsyncClient, redis: Redis) -> None:
    await try_it(api)
    rolled = (await api.post(f"{FRONT}/rollback")).json()
    assert (rolled["current_release"]["number"], rolled["current_release"]["version"]) == (1, VERSION)
    assert await call_many(api, 10) == {VERSION: 10}
    assert not await redis.exists(keys.split(NAME), keys.split_runs(NAME))


@pytest.mark.parametrize("how", ["promote", "patch"])
async def test_rollback_after_a_release_brings_the_version_before_back_once(api: AsyncClient, how: str) -> None:
    if how == "promote":
        await try_it(api)
        await api.post(f"{FRONT}/promote")
    else:
        await api.patch(FRONT, json={"version": NEW})
    rolled = (await api.post(f"{FRONT}/rollback")).json()
    assert (rolled["current_release"]["number"], rolled["current_release"]["version"]) == (3, VERSION)
    again = await api.post(f"{FRONT}/rollback")
    assert again.status_code == 422, "it does not go forth and back"
    assert await call_many(api, 5) == {VERSION: 5}


async def test_nothing_is_lost_while_versions_change(api: AsyncClient, driver: QueueDriver) -> None:
    made: list[dict[str, Any]] = []
    done = asyncio.Event()

    async def keep_calling() -> None:
        while not done.is_set():
            made.append(await call(api))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(keep_calling())
        for _ in range(4):
            await try_it(api, 30)
            await try_it(api, 70)
            assert (await api.post(f"{FRONT}/promote")).status_code == 200
            assert (await api.post(f"{FRONT}/rollback")).status_code == 200
        done.set()
    for one in made:
        record = await driver.record(PredictionId(one["id"]))
        assert (record.version, record.status) == (one["version"], "starting")
        assert record.queue == queue_name(MODEL, one["version"])
        assert await driver.redis.zscore(keys.live(record.queue), one["id"]) is not None
    assert {one["version"] for one in made} == {VERSION, NEW}


async def test_other_processes_see_a_change_at_once(api: AsyncClient, settings: ApiSettings, token: str) -> None:
    async with api_client(settings, token=token) as second, api_client(settings, token=token) as third:
        for one in (second, third):
            await call(one)
        await try_it(api, 99)
        assert set(await call_many(second, 8) + await call_many(third, 8)) >= {NEW}
        await api.post(f"{FRONT}/promote")
        assert await call_many(second, 3) + await call_many(third, 3) == {NEW: 6}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"version": NEW, "share": 0}, "share"),
        ({"version": NEW, "share": 100}, "share"),
        ({"version": NEW, "share": 1.5}, "share"),
        ({"version": NEW}, ""),
        ({"share": 10}, ""),
        ({"version": "latest", "share": 10}, "version"),
        ({"version": VERSION, "share": 10}, "version"),
        ({"version": NEW, "share": 10, "margin": 101}, "margin"),
        ({"version": NEW, "share": 10, "least": 0}, "least"),
        ({"version": NEW, "share": 10, "force": "yes"}, "force"),
        ({"version": NEW, "share": 10, "weight": 1}, ""),
    ],
)
async def test_wrong_splits_are_refused_by_name(api: AsyncClient, asked: dict[str, Any], field: str) -> None:
    answer = await api.post(f"{FRONT}/split", json={"force": True, **asked})
    assert answer.status_code == 422
    assert answer.json()["invalid_fields"][0]["field"] == field
    assert "split" not in (await api.get(FRONT)).json()


async def test_version_without_a_ready_server_is_tried_only_by_force(api: AsyncClient) -> None:
    asked = {"version": THIRD, "share": 10}
    refused = await api.post(f"{FRONT}/split", json=asked)
    assert (refused.status_code, "set force" in refused.json()["detail"]) == (422, True)
    assert (await api.post(f"{FRONT}/split", json={**asked, "force": True})).status_code == 200
    unknown = await api.post(f"{FRONT}/split", json={"version": "e5" * 32, "share": 10, "force": True})
    assert unknown.status_code == 422


async def test_nothing_tried_is_nothing_to_promote_or_take_back(api: AsyncClient) -> None:
    for verb in ("promote", "rollback"):
        answer = await api.post(f"{FRONT}/{verb}")
        assert answer.status_code == 422
    shown = (await api.get(f"{FRONT}/split")).json()
    assert (shown["current"]["version"], shown["current"]["share"]) == (VERSION, 100)
    assert "tried" not in shown


async def test_another_share_keeps_the_figures_and_another_version_does_not(
    api: AsyncClient, redis: Redis, scripts: Scripts
) -> None:
    await try_it(api, 10, least=70)
    began = await stored(redis)
    assert (await try_it(api, 20))["split"]["least"] == 70
    grown = await stored(redis)
    assert (grown["began_ms"], grown["share"]) == (began["began_ms"], 20)
    await be_ready(scripts, THIRD)
    await asyncio.sleep(0.002)
    await try_it(api, 20, THIRD)
    assert (await stored(redis))["began_ms"] > began["began_ms"]


async def stored(redis: Redis) -> dict[str, Any]:
    return dict(msgspec.json.decode(await redis.get(keys.split(NAME))))


async def test_release_of_other_hardware_goes_on_with_the_split(api: AsyncClient) -> None:
    await try_it(api, 99)
    changed = (await api.patch(FRONT, json={"max_instances": 9})).json()
    assert (changed["current_release"]["number"], changed["split"]["share"]) == (2, 99)
    assert NEW in await call_many(api, 5)


async def test_release_of_a_third_version_ends_the_split(api: AsyncClient) -> None:
    await try_it(api)
    changed = (await api.patch(FRONT, json={"version": THIRD})).json()
    assert "split" not in changed
    assert await call_many(api, 5) == {THIRD: 5}


async def test_disabled_deployment_tries_nothing(api: AsyncClient) -> None:
    await api.patch(FRONT, json={"max_instances": 0})
    answer = await api.post(f"{FRONT}/split", json={"version": NEW, "share": 10})
    assert (answer.status_code, answer.json()["code"]) == (422, "deployment_disabled")


async def test_version_that_is_tried_cannot_be_deleted(api: AsyncClient, settings: ApiSettings, redis: Redis) -> None:
    await try_it(api, 10, THIRD, force=True)
    token = await Accounts(redis).create_token("ops", scopes=("run", "admin"))
    async with api_client(settings, token=token) as operator:
        answer = await operator.delete(f"/v1/models/{MODEL}/versions/{THIRD}")
    assert (answer.status_code, answer.json().get("code")) == (422, "in_use"), answer.text


async def test_deleted_deployment_leaves_no_split(api: AsyncClient, redis: Redis) -> None:
    await try_it(api)
    assert (await api.delete(FRONT)).status_code == 204
    assert not await redis.exists(keys.split(NAME), keys.split_runs(NAME), keys.splits())
    assert (await api.post("/v1/deployments", json=MADE)).status_code == 200
    assert await call_many(api, 5) == {VERSION: 5}


async def test_splits_of_another_account_are_not_found(api: AsyncClient, other: AsyncClient) -> None:
    await try_it(api)
    body = {"version": NEW, "share": 10}
    answers = [await other.get(f"{FRONT}/split"), await other.post(f"{FRONT}/split", json=body)]
    answers += [await other.post(f"{FRONT}/{verb}") for verb in ("promote", "rollback")]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert (await api.get(FRONT)).json()["split"]["share"] == 50


@pytest.fixture
async def viewer(settings: ApiSettings, redis: Redis) -> AsyncIterator[AsyncClient]:
    token = await Accounts(redis).create_token("watchers", scopes=("read", "view"))
    async with api_client(replace(settings, cache_s=0), token=token) as client:
        yield client


async def test_viewer_sees_a_split_and_changes_none(api: AsyncClient, viewer: AsyncClient) -> None:
    await try_it(api)
    assert (await viewer.get(f"{FRONT}/split")).json()["tried"]["version"] == NEW
    refused = [await viewer.post(f"{FRONT}/split", json={"version": NEW, "share": 10})]
    refused += [await viewer.post(f"{FRONT}/{verb}") for verb in ("promote", "rollback")]
    assert {answer.status_code for answer in refused} <= {403, 404}


async def test_release_by_the_release_before_ends_the_split(api: AsyncClient, redis: Redis) -> None:
    """Release 0.3.0 writes a deployment without looking at its split."""
    await try_it(api, 99)
    was = await redis.get(keys.deployment(ACCOUNT, "front"))
    await redis.set(keys.deployment(ACCOUNT, "front"), was.replace(b'"number":1', b'"number":2'))
    assert await call_many(api, 10) == {VERSION: 10}
    assert "split" not in (await api.get(FRONT)).json()


async def test_deployment_has_the_form_that_the_release_before_compares(api: AsyncClient, redis: Redis) -> None:
    before = await redis.get(keys.deployment(ACCOUNT, "front"))
    await try_it(api)
    assert await redis.get(keys.deployment(ACCOUNT, "front")) == before
    await api.patch(FRONT, json={"max_instances": 9})
    assert b"split" not in await redis.get(keys.deployment(ACCOUNT, "front"))


async def test_change_that_another_release_overtook_is_made_again(
    api: AsyncClient, redis: Redis, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, deployments = Deployments.share, Deployments(redis, scripts, SystemClock())
    overtaken = iter([True])

    async def share(self: Deployments, was: Any, **asked: Any) -> Any:
        if next(overtaken, False):
            now = was.release
            hardware = {"hardware": "gpu", "min_instances": now.min_instances, "max_instances": now.max_instances}
            await deployments.release(was, by=ACCOUNT, version=now.version, **hardware)
        return await write(self, was, **asked)

    monkeypatch.setattr(Deployments, "share", share)
    assert (await try_it(api, 99))["split"]["share"] == 99
    deployed = (await api.get(FRONT)).json()
    assert (deployed["current_release"]["number"], deployed["split"]["share"]) == (2, 99)
