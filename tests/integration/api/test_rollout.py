"""Test the verbs of a release over HTTP: try a version with a share of the calls, promote it, take it back."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec
import pytest
from httpx import AsyncClient, Response
from msgspec import Raw
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, queue_name
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.core.split import MOST_RUNS
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


async def call(api: AsyncClient, key: str = "", **given: Any) -> dict[str, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    answer = await api.post(f"{FRONT}/predictions", json={"input": given}, headers=headers)
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


async def test_call_that_the_tried_version_refuses_runs_the_old_one(api: AsyncClient, scripts: Scripts) -> None:
    await try_it(api, 99)
    await scripts.bound(queue_name(MODEL, NEW), mode="bounded", max_queued=1)
    assert (await call_many(api, 20))[VERSION] >= 19
    first = [await call(api, key) for key in "abcdef"]
    assert [(await call(api, key))["id"] for key in "abcdef"] == [one["id"] for one in first]


async def test_call_that_both_versions_refuse_gives_its_token_back(
    settings: ApiSettings, redis: Redis, scripts: Scripts, api: AsyncClient, token: str
) -> None:
    await try_it(api, 99)
    await Accounts(redis).set_limits(ACCOUNT, {"rate": "0.001", "burst": "3"})
    for version, most in ((NEW, 0), (VERSION, 1)):
        await scripts.bound(queue_name(MODEL, version), mode="bounded", max_queued=most)
    async with api_client(settings, token=token) as limited:
        codes = [(await limited.post(f"{FRONT}/predictions", json={"input": {}})) for _ in range(6)]
        await scripts.bound(queue_name(MODEL, VERSION), mode="bounded", max_queued=100)
        codes += [(await limited.post(f"{FRONT}/predictions", json={"input": {}})) for _ in range(3)]
    found = [(one.status_code, one.json().get("code", "")) for one in codes]
    assert found == [(201, ""), *[(429, "queue_full")] * 5, (201, ""), (201, ""), (429, "rate_limited")]


@pytest.mark.parametrize("is_known", [True, False])
async def test_repeat_after_another_version_counts_against_the_rate(
    settings: ApiSettings, redis: Redis, api: AsyncClient, hiding: str, token: str, is_known: bool
) -> None:
    await call(api, "k", pin="s3cr3t")
    await api.patch(FRONT, json={"version": hiding})
    await Accounts(redis).set_limits(ACCOUNT, {"rate": "0.001", "burst": "2"})
    given = {"pin": "s3cr3t" if is_known else "other"}
    async with api_client(settings, token=token) as limited:
        sent = [
            await limited.post(f"{FRONT}/predictions", json={"input": given}, headers={"Idempotency-Key": "k"})
            for _ in range(3)
        ]
    assert [one.status_code for one in sent] == ([201, 201, 429] if is_known else [422] * 3)


async def test_repeat_with_a_key_gets_the_same_prediction(api: AsyncClient) -> None:
    await try_it(api)
    first = {key: await call(api, key) for key in map(str, range(20))}
    again = {key: await call(api, key) for key in first}
    assert {key: one["id"] for key, one in again.items()} == {key: one["id"] for key, one in first.items()}


async def test_key_draws_the_same_version_after_its_prediction_is_forgotten(api: AsyncClient, redis: Redis) -> None:
    await try_it(api)
    first = {key: (await call(api, key))["version"] for key in map(str, range(20))}
    assert set(first.values()) == {VERSION, NEW}
    for key in first:
        digest = hashlib.sha256(key.encode()).hexdigest()
        assert await redis.delete(keys.idempotency(account=ACCOUNT, model=MODEL, digest=digest))
    assert {key: (await call(api, key))["version"] for key in first} == first


async def test_repeat_after_a_promotion_gets_the_same_prediction(api: AsyncClient) -> None:
    await try_it(api, 1)
    first = await call(api, "k")
    assert (await api.post(f"{FRONT}/promote")).status_code == 200
    assert (await call(api, "k"))["id"] == first["id"]


async def test_explain_says_which_version_and_why(api: AsyncClient) -> None:
    since = (await try_it(api))["split"]["since"]
    made = {one["version"]: one["id"] for one in [await call(api) for _ in range(30)]}
    told = {version: (await api.get(f"/v1/predictions/{name}/explain")).json() for version, name in made.items()}
    assert told[NEW]["version_because"] == f"because 50 % of {NAME} go to it since {since}, to try it"
    assert told[VERSION]["version_because"].startswith(f"because 50 % of {NAME} stay with it since {since},")
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
        ({"version": NEW, "share": -1}, "share"),
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


@pytest.mark.parametrize(("field", "most"), [("share", 99), ("least", MOST_RUNS)])
@pytest.mark.parametrize("number", [-1, 0])
async def test_number_below_the_least_is_refused_with_both_bounds(
    api: AsyncClient, field: str, most: int, number: int
) -> None:
    answer = await api.post(f"{FRONT}/split", json={"version": NEW, "share": 10, field: number})
    [fault] = answer.json()["invalid_fields"]
    assert (fault["type"], fault["description"]) == ("number_gte", f"Must be between 1 and {most}")


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


async def test_another_version_by_the_release_before_ends_the_split(api: AsyncClient, redis: Redis) -> None:
    """Release 0.3.0 writes a deployment without looking at its split."""
    await try_it(api, 99)
    was = await redis.get(keys.deployment(ACCOUNT, "front"))
    await redis.set(keys.deployment(ACCOUNT, "front"), was.replace(VERSION.encode(), THIRD.encode()))
    assert await call_many(api, 10) == {THIRD: 10}
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
            await deployments.release(was, replace(was.release, hardware="gpu"), by=ACCOUNT)
        return await write(self, was, **asked)

    monkeypatch.setattr(Deployments, "share", share)
    assert (await try_it(api, 99))["split"]["share"] == 99
    deployed = (await api.get(FRONT)).json()
    assert (deployed["current_release"]["number"], deployed["split"]["share"]) == (2, 99)


@pytest.fixture
def deployments(redis: Redis, scripts: Scripts) -> Deployments:
    return Deployments(redis, scripts, SystemClock())


def before(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], Awaitable[Any]]) -> None:
    """Let another caller act once between what a call of this name has read and what it writes."""
    real, acts = getattr(Deployments, name), iter([act])

    async def overtaken(self: Deployments, *given: Any, **named: Any) -> Any:
        for first in acts:
            await first()
        return await real(self, *given, **named)

    monkeypatch.setattr(Deployments, name, overtaken)


async def stop(deployments: Deployments) -> None:
    found = await deployments.get(*NAME.split("/"))
    assert found is not None
    assert await deployments.stop(found, by="keeper", why="it fails") == "written"


async def test_release_of_other_hardware_reverts_no_rollback(api: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await try_it(api)
    before(monkeypatch, "release", lambda: api.post(f"{FRONT}/rollback"))
    await api.patch(FRONT, json={"max_instances": 9})
    assert "tried" not in (await api.get(f"{FRONT}/split")).json()


async def test_release_of_other_hardware_reverts_no_stop(
    api: AsyncClient, deployments: Deployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    await try_it(api)
    before(monkeypatch, "release", lambda: stop(deployments))
    await api.patch(FRONT, json={"max_instances": 9})
    assert (await api.get(f"{FRONT}/split")).json()["split"]["stopped_why"] == "it fails"


@pytest.mark.parametrize("what", ["rollback", "stop", "another trial"])
async def test_promotion_that_another_change_overtook_releases_nothing(
    api: AsyncClient, deployments: Deployments, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    await try_it(api)
    acts: dict[str, Callable[[], Awaitable[Any]]] = {
        "rollback": lambda: api.post(f"{FRONT}/rollback"),
        "stop": lambda: stop(deployments),
        "another trial": lambda: try_it(api, 10, THIRD, force=True),
    }
    before(monkeypatch, "release", acts[what])
    assert (await api.post(f"{FRONT}/promote")).status_code == 422
    assert (await api.get(FRONT)).json()["current_release"]["version"] == VERSION


async def test_stopped_version_can_still_be_promoted(api: AsyncClient, deployments: Deployments) -> None:
    await try_it(api)
    await stop(deployments)
    assert (await api.post(f"{FRONT}/promote")).json()["current_release"]["version"] == NEW


async def test_repeated_promotion_gets_the_same_answer(api: AsyncClient) -> None:
    await try_it(api)
    first = await api.post(f"{FRONT}/promote")
    again = await api.post(f"{FRONT}/promote")
    assert (again.status_code, again.json()) == (200, first.json())


@pytest.fixture
async def half(api: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis is lost after the first of a promotion's two steps."""

    async def lose() -> None:
        raise BackendUnavailable("lost")

    await try_it(api)
    before(monkeypatch, "_release", lose)
    assert (await api.post(f"{FRONT}/promote")).status_code == 503
    assert await call_many(api, 5) == {VERSION: 5}


@pytest.mark.usefixtures("half")
async def test_promotion_that_was_cut_off_goes_on_when_repeated(api: AsyncClient) -> None:
    assert (await api.post(f"{FRONT}/promote")).json()["current_release"]["version"] == NEW
    assert (await api.post(f"{FRONT}/rollback")).json()["current_release"]["version"] == VERSION


@pytest.mark.usefixtures("half")
async def test_promotion_that_was_cut_off_is_taken_back(api: AsyncClient) -> None:
    assert (await api.post(f"{FRONT}/rollback")).json()["current_release"]["version"] == VERSION
    assert (await api.post(f"{FRONT}/promote")).status_code == 422


async def test_promotion_never_undoes_a_rollback_between_its_steps(
    api: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await try_it(api)
    rolled = list[Response]()

    async def roll_back() -> None:
        rolled.append(await api.post(f"{FRONT}/rollback"))

    before(monkeypatch, "_release", roll_back)
    assert (await api.post(f"{FRONT}/promote")).status_code == 422
    assert rolled[0].status_code == 200
    assert await call_many(api, 5) == {VERSION: 5}


async def test_naming_the_version_of_now_ends_the_trial(api: AsyncClient) -> None:
    await try_it(api, 99)
    changed = (await api.patch(FRONT, json={"version": VERSION})).json()
    assert ("split" in changed, changed["current_release"]["number"]) == (False, 1)
    assert await call_many(api, 5) == {VERSION: 5}


async def test_split_of_a_later_release_is_changed_and_ended(api: AsyncClient, redis: Redis) -> None:
    await try_it(api)
    kept = await redis.get(keys.split(NAME))
    await redis.set(keys.split(NAME), kept.replace(b"{", b'{"later":1,', 1))
    assert (await try_it(api, 60))["tried"]["share"] == 60
    await redis.set(keys.split(NAME), kept.replace(b"{", b'{"later":1,', 1))
    assert (await api.post(f"{FRONT}/rollback")).status_code == 200
    assert not await redis.exists(keys.split(NAME))


async def test_rollback_of_a_second_trial_leaves_the_way_back_of_the_first(api: AsyncClient) -> None:
    await try_it(api)
    await api.post(f"{FRONT}/promote")
    await try_it(api, 10, THIRD, force=True)
    await try_it(api, 20, THIRD, force=True)
    assert (await api.post(f"{FRONT}/rollback")).json()["current_release"]["version"] == NEW
    assert (await api.post(f"{FRONT}/rollback")).json()["current_release"]["version"] == VERSION


async def test_second_try_after_a_stop_keeps_margin_and_least(api: AsyncClient, deployments: Deployments) -> None:
    await try_it(api, margin=0, least=70)
    await stop(deployments)
    again = (await try_it(api))["split"]
    assert (again["margin"], again["least"], again.get("stopped_why")) == (0, 70, None)


async def test_deployment_whose_deletion_was_cut_off_has_no_split(
    api: AsyncClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose() -> None:
        raise BackendUnavailable("lost")

    await try_it(api)
    await api.post(f"{FRONT}/promote")
    before(monkeypatch, "_write", lose)
    assert (await api.delete(FRONT)).status_code == 503
    assert not await redis.exists(keys.split(NAME))
    assert (await api.delete(FRONT)).status_code == 204


def schema_of(**given: Any) -> Raw:
    document = {"openapi": "3.0.2", "info": {"title": "t", "version": "1"}, "paths": {}}
    return Raw(msgspec.json.encode({**document, "components": {"schemas": {"Input": {"type": "object", **given}}}}))


@pytest.fixture
async def strict(catalog: Catalog, scripts: Scripts) -> str:
    """A version that needs what the others do not."""
    version = "e5" * 32
    schema = schema_of(properties={"text": {"type": "string"}}, required=["text"])
    await catalog.register(MODEL, version, schema=schema, server="echo", policy=Policy())
    await be_ready(scripts, version)
    return version


async def test_version_that_refuses_inputs_of_now_is_tried_only_by_force(api: AsyncClient, strict: str) -> None:
    refused = await api.post(f"{FRONT}/split", json={"version": strict, "share": 10})
    assert (refused.status_code, "it needs text" in refused.json()["detail"]) == (422, True)
    await try_it(api, 10, strict, force=True)


async def test_repeat_that_draws_a_version_with_other_inputs_gets_its_prediction(api: AsyncClient, strict: str) -> None:
    made = {key: await call(api, key) for key in map(str, range(9))}
    await try_it(api, 99, strict, force=True)
    for key, one in made.items():
        assert (await call(api, key))["id"] == one["id"]


async def test_repeat_with_a_secret_gets_its_prediction_where_another_version_refuses_it(
    api: AsyncClient, catalog: Catalog, scripts: Scripts
) -> None:
    lenient, strict, secret = "e5" * 32, "f6" * 32, {"pin": {"type": "string", "format": "password"}}
    for version, required in ((lenient, []), (strict, ["text"])):
        schema = schema_of(properties={**secret, "text": {"type": "string"}}, required=required)
        await catalog.register(MODEL, version, schema=schema, server="echo", policy=Policy())
        await be_ready(scripts, version)
    await api.patch(FRONT, json={"version": lenient})
    given = {"pin": "s3cr3t"}
    made = {key: await call(api, key, **given) for key in map(str, range(9))}
    await try_it(api, 99, strict, force=True)
    for key, one in made.items():
        assert (await call(api, key, **given))["id"] == one["id"]


@pytest.fixture
async def hiding(catalog: Catalog, scripts: Scripts) -> str:
    """A version that takes the pin for a secret, which the others do not."""
    version = "e5" * 32
    schema = schema_of(properties={"pin": {"type": "string", "format": "password"}})
    await catalog.register(MODEL, version, schema=schema, server="echo", policy=Policy())
    await be_ready(scripts, version)
    return version


@pytest.mark.parametrize("how", ["tried", "taken back", "released"])
async def test_repeat_gets_its_prediction_where_one_version_alone_hides_an_input(
    api: AsyncClient, hiding: str, how: str
) -> None:
    given = {"pin": "s3cr3t", "text": "hi"}
    if how == "taken back":
        await try_it(api, 99, hiding, force=True)
    made = {key: await call(api, key, **given) for key in map(str, range(9))}
    if how == "tried":
        await try_it(api, 99, hiding, force=True)
    else:
        wanted = VERSION if how == "taken back" else hiding
        assert (await api.patch(FRONT, json={"version": wanted})).status_code == 200
    again = {key: await call(api, key, **given) for key in made}
    assert {key: one["id"] for key, one in again.items()} == {key: one["id"] for key, one in made.items()}
    assert (await call(api, **given))["version"] != made["0"]["version"]


async def test_repeat_with_another_secret_is_the_same_request_only_of_a_version_that_hides_it(
    api: AsyncClient, hiding: str
) -> None:
    async def repeat(key: str, **given: Any) -> int:
        sent = await api.post(f"{FRONT}/predictions", json={"input": given}, headers={"Idempotency-Key": key})
        return sent.status_code

    await call(api, "plain", pin="one", text="hi")
    await api.patch(FRONT, json={"version": hiding})
    await call(api, "hidden", pin="one", text="hi")
    assert await repeat("plain", pin="two", text="hi") == 422
    assert await repeat("plain", pin="one", text="ho") == 422
    await api.patch(FRONT, json={"version": VERSION})
    assert await repeat("hidden", pin="two", text="hi") == 201
    assert await repeat("hidden", pin="two", text="ho") == 422


async def test_version_without_openais_api_is_tried_only_by_force(
    api: AsyncClient, catalog: Catalog, scripts: Scripts
) -> None:
    speaks, lacks = "e5" * 32, "f6" * 32
    for version, server in ((speaks, "openai 1"), (lacks, "http 1")):
        await catalog.register(MODEL, version, schema=OPEN_SCHEMA, server=server, policy=Policy())
        await be_ready(scripts, version)
    await api.patch(FRONT, json={"version": speaks})
    refused = await api.post(f"{FRONT}/split", json={"version": lacks, "share": 10})
    assert (refused.status_code, "no API of OpenAI" in refused.json()["detail"]) == (422, True)
    await try_it(api, 10, lacks, force=True)
