"""Test deployments over HTTP: an account's names for versions, their releases, and the predictions created by them."""

import asyncio
from typing import Any

import pytest
from httpx import AsyncClient
from msgspec.structs import replace
from redis.asyncio import Redis

from api.models import deployments
from api.predictions.bodies import CreatePrediction
from api.web.http import Request
from director.broker import keys
from director.broker.scripts import Scripts
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, QueueName
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.store.accounts import Accounts, Suspension
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.deployments import MOST, Deployment, Deployments
from director.store.removal import Removal
from tests.support.api import BASE, PlayedDirector, api_client
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION

LATER_VERSION = "c3" * 32
WANTED: dict[str, Any] = {
    "name": "chat",
    "model": MODEL,
    "version": VERSION,
    "hardware": "gpu-l40s",
    "min_instances": 0,
    "max_instances": 3,
}
CHAT = f"/v1/deployments/{ACCOUNT}/chat"


@pytest.fixture
async def chat(api: AsyncClient) -> dict[str, Any]:
    made = await api.post("/v1/deployments", json=WANTED)
    assert made.status_code == 200
    return dict(made.json())


@pytest.fixture
async def later(catalog: Catalog) -> str:
    await catalog.register(MODEL, LATER_VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    return LATER_VERSION


async def test_deployment_is_created_with_its_first_release(api: AsyncClient, chat: dict[str, Any]) -> None:
    release = chat["current_release"]
    assert (chat["owner"], chat["name"]) == (ACCOUNT, "chat")
    assert (release["number"], release["model"], release["version"]) == (1, MODEL, VERSION)
    assert release["configuration"] == {"hardware": "gpu-l40s", "min_instances": 0, "max_instances": 3}
    assert (release["created_by"]["username"], release["created_by"]["type"]) == (ACCOUNT, "organization")
    assert (await api.get(CHAT)).json() == chat


async def test_only_a_real_change_makes_a_release(api: AsyncClient, chat: dict[str, Any], later: str) -> None:
    for asked in ({}, {"version": VERSION}, {"min_instances": 0, "hardware": None}):
        same = await api.patch(CHAT, json=asked)
        assert (same.status_code, same.json()) == (200, chat)
    changed = await api.patch(CHAT, json={"version": later, "max_instances": 4})
    release = changed.json()["current_release"]
    assert (changed.status_code, release["number"], release["version"]) == (200, 2, later)
    assert release["configuration"] == {"hardware": "gpu-l40s", "min_instances": 0, "max_instances": 4}
    assert (await api.get(CHAT)).json() == changed.json()


async def test_concurrent_changes_become_consecutive_releases(api: AsyncClient, chat: dict[str, Any]) -> None:
    answers = await asyncio.gather(api.patch(CHAT, json={"hardware": "a"}), api.patch(CHAT, json={"max_instances": 5}))
    assert sorted(answer.json()["current_release"]["number"] for answer in answers) == [2, 3]
    last = (await api.get(CHAT)).json()["current_release"]
    assert last["configuration"] == {"hardware": "a", "min_instances": 0, "max_instances": 5}


async def test_prediction_runs_the_version_of_the_release_at_its_creation(
    api: AsyncClient, chat: dict[str, Any], later: str, director: PlayedDirector
) -> None:
    first = await api.post(f"{CHAT}/predictions", json={"input": {"text": "hi"}})
    assert (first.status_code, first.json()["deployment"]) == (201, f"{ACCOUNT}/chat")
    assert (first.json()["model"], first.json()["version"]) == (MODEL, VERSION)
    await api.patch(CHAT, json={"version": later})
    second = await api.post(f"{CHAT}/predictions", json={"input": {}})
    assert second.json()["version"] == later
    claim = await director.claim()  # in the first version's queue
    await director.finish(claim, output=b'"done"')
    ended = (await api.get(f"/v1/predictions/{first.json()['id']}")).json()
    assert (ended["deployment"], ended["output"]) == (f"{ACCOUNT}/chat", "done")


async def test_idempotency_keys_of_model_and_deployment_are_separate(api: AsyncClient, chat: dict[str, Any]) -> None:
    headers = {"Idempotency-Key": "k"}
    by_name = await api.post(f"{CHAT}/predictions", json={"input": {}}, headers=headers)
    again = await api.post(f"{CHAT}/predictions", json={"input": {}}, headers=headers)
    assert again.json()["id"] == by_name.json()["id"]
    other = await api.post(f"/v1/models/{MODEL}/predictions", json={"input": {}}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


async def test_predictions_of_a_deleted_deployment_continue(
    api: AsyncClient, chat: dict[str, Any], director: PlayedDirector, redis: Redis
) -> None:
    made = (await api.post(f"{CHAT}/predictions", json={"input": {}})).json()
    gone = await api.delete(CHAT)
    assert (gone.status_code, gone.content) == (204, b"")
    for answer in (
        await api.get(CHAT),
        await api.patch(CHAT, json={"max_instances": 1}),
        await api.delete(CHAT),
        await api.post(f"{CHAT}/predictions", json={"input": {}}),
    ):
        assert answer.status_code == 404
    assert not await redis.exists(keys.deployment(ACCOUNT, "chat"), keys.deployments(ACCOUNT))
    await director.finish(await director.claim(), output=b"1")
    assert (await api.get(f"/v1/predictions/{made['id']}")).json()["status"] == "succeeded"


async def test_list_is_newest_first_with_pages_in_both_directions(api: AsyncClient) -> None:
    for number in range(101):
        await api.post("/v1/deployments", json={**WANTED, "name": f"d.{number:03}_x"})
    first = (await api.get("/v1/deployments")).json()
    assert first["previous"] is None
    assert len(first["results"]) == 100
    assert first["next"].startswith(f"{BASE}/v1/deployments?cursor=")
    last = (await api.get(first["next"])).json()
    assert last["next"] is None
    assert (await api.get(last["previous"])).json() == first
    created = [one["current_release"]["created_at"] for one in first["results"] + last["results"]]
    assert created == sorted(created, reverse=True)
    assert len({one["name"] for one in first["results"] + last["results"]}) == 101


@pytest.mark.parametrize(
    ("change", "field", "kind"),
    [
        ({"name": "Chat Room"}, "name", "pattern"),
        ({"name": None}, "", "required"),
        ({"version": "latest"}, "version", "pattern"),
        ({"hardware": 7}, "hardware", "invalid_type"),
        ({"hardware": ""}, "hardware", "pattern"),
        ({"min_instances": 6}, "min_instances", "number_lte"),
        ({"min_instances": -1}, "min_instances", "number_gte"),
        ({"max_instances": 21}, "max_instances", "number_lte"),
        ({"max_instances": 1.5}, "max_instances", "invalid_type"),
        ({"max_instances": 10**30}, "max_instances", "number_lte"),
        ({"min_instances": 4}, "max_instances", "number_gte"),
        ({"owner": "acme"}, "", "additional_property_not_allowed"),
    ],
    ids=lambda part: str(part),
)
async def test_invalid_field_is_refused_by_name(
    api: AsyncClient, change: dict[str, Any], field: str, kind: str
) -> None:
    asked = {name: value for name, value in {**WANTED, **change}.items() if value is not None}
    refused = await api.post("/v1/deployments", json=asked)
    assert refused.status_code == 422
    assert (refused.json()["invalid_fields"][0]["field"], refused.json()["invalid_fields"][0]["type"]) == (field, kind)


async def test_version_of_another_model_is_refused(api: AsyncClient, chat: dict[str, Any], hello: str) -> None:
    made = await api.post("/v1/deployments", json={**WANTED, "name": "b", "model": "example/hello"})
    changed = await api.patch(CHAT, json={"version": "b2" * 32})
    for refused in (made, changed):
        assert (refused.status_code, refused.json()["title"]) == (422, "Invalid version or not permitted")


async def test_maximum_below_minimum_is_refused(api: AsyncClient, chat: dict[str, Any]) -> None:
    refused = await api.patch(CHAT, json={"min_instances": 4})
    assert (refused.status_code, refused.json()["invalid_fields"][0]["field"]) == (422, "max_instances")
    assert (await api.patch(CHAT, json={"name": "other"})).status_code == 422


async def test_taken_name_is_refused(api: AsyncClient, chat: dict[str, Any]) -> None:
    taken = await api.post("/v1/deployments", json={**WANTED, "max_instances": 1})
    assert (taken.status_code, taken.json()["invalid_fields"][0]["type"]) == (422, "unique")
    assert (await api.get(CHAT)).json() == chat


async def test_number_of_deployments_per_account_is_bounded(api: AsyncClient, redis: Redis) -> None:
    await redis.zadd(keys.deployments(ACCOUNT), {f"d{number}": number for number in range(MOST)})
    refused = await api.post("/v1/deployments", json=WANTED)
    assert (refused.status_code, refused.json()["invalid_fields"][0]["type"]) == (422, "array_max_items")


async def test_release_shows_the_kind_of_account_that_made_it(
    settings: ApiSettings, redis: Redis, chat: dict[str, Any], token: str
) -> None:
    accounts = Accounts(redis)
    operator = await accounts.create_token("ops", scopes=("read", "run", "admin"))
    await accounts.set_type(ACCOUNT, "user")

    def by(shown: dict[str, Any]) -> tuple[str, str]:
        maker = shown["current_release"]["created_by"]
        return maker["username"], maker["type"]

    async with api_client(settings, token=token) as mine, api_client(settings, token=operator) as other:
        assert by((await mine.get(CHAT)).json()) == (ACCOUNT, "user")
        assert by((await other.get(CHAT)).json()) == (ACCOUNT, "user")
        assert by((await other.patch(CHAT, json={"max_instances": 1})).json()) == ("ops", "organization")
        [listed] = (await mine.get("/v1/deployments")).json()["results"]
        assert by(listed) == ("ops", "organization")


async def test_suspended_account_may_only_delete_its_deployments(
    settings: ApiSettings, redis: Redis, chat: dict[str, Any], token: str
) -> None:
    suspension = Suspension(policy="hold", reason="unpaid", since_ms=0)
    await Accounts(redis).set_suspension(ACCOUNT, suspension)
    async with api_client(settings, token=token) as mine:
        assert (await mine.patch(CHAT, json={"max_instances": 1})).status_code == 403
        assert (await mine.delete(CHAT)).status_code == 204


async def test_hidden_model_is_neither_deployed_nor_run(settings: ApiSettings, redis: Redis, queue: str) -> None:
    stranger = await Accounts(redis).create_token("stranger")
    async with api_client(replace(settings, cache_s=0), token=stranger) as other:
        assert (await other.post("/v1/deployments", json=WANTED)).status_code == 200
        assert (await other.post("/v1/deployments/stranger/chat/predictions", json={"input": {}})).status_code == 201
        await redis.hset(keys.model(MODEL), "visibility", "private")
        again = {**WANTED, "name": "again"}
        for refused in (
            await other.post("/v1/deployments", json=again),
            await other.patch("/v1/deployments/stranger/chat", json={"version": VERSION}),
            await other.post("/v1/deployments/stranger/chat/predictions", json={"input": {}}),
        ):
            assert (refused.status_code, refused.json()["title"]) == (422, "Invalid version or not permitted")


async def test_invalid_name_in_the_path_is_not_looked_up(api: AsyncClient) -> None:
    for name in ("Chat", "ch%7Dat", "%7B", "a" * 65):
        assert (await api.get(f"/v1/deployments/{ACCOUNT}/{name}")).status_code == 404


async def test_deployment_of_a_just_deleted_version_is_refused(
    settings: ApiSettings, token: str, redis: Redis, scripts: Scripts, catalog: Catalog, queue: QueueName, later: str
) -> None:
    async with api_client(settings, token=token) as api:
        for version in (VERSION, later):
            await api.get(f"/v1/models/{MODEL}/versions/{version}")  # the API caches the version for some seconds more
        assert (await api.post("/v1/deployments", json=WANTED)).status_code == 200
        assert await Removal(redis, scripts, catalog).remove(MODEL, later) == "done"
        assert (await api.post("/v1/deployments", json=WANTED | {"name": "b", "version": later})).status_code == 422
        assert (await api.patch(CHAT, json={"version": later})).status_code == 422


async def test_disabled_deployment_refuses_and_cancels_what_it_has(
    api: AsyncClient, scripts: Scripts, chat: dict[str, Any], later: str, queue: QueueName
) -> None:
    """Predictions of an earlier release, that run and that wait; those of others go on."""

    async def create(path: str = f"{CHAT}/predictions") -> str:
        made = await api.post(path, json={"input": {}})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    async def status(prediction_id: str) -> str:
        return str((await api.get(f"/v1/predictions/{prediction_id}")).json()["status"])

    running = await create()
    played = PlayedDirector(scripts, queue)
    await played.begin(await played.claim())
    waiting, other = await create(), await create(f"/v1/models/{MODEL}/predictions")
    assert (await api.patch(CHAT, json={"version": later})).status_code == 200
    of_later = await create()
    disabled = await api.patch(CHAT, json={"min_instances": 0, "max_instances": 0})
    assert (disabled.status_code, disabled.json()["current_release"]["number"]) == (200, 3)
    assert [await status(each) for each in (waiting, of_later, other)] == ["canceled", "canceled", "starting"]
    stored = await scripts.get(PredictionId(running))
    assert stored is not None
    assert (stored.record.status, stored.record.cancel) == ("processing", "user")
    refused = await api.post(f"{CHAT}/predictions", json={"input": {}})
    assert (refused.status_code, refused.json()["code"]) == (422, "deployment_disabled")
    assert (await api.patch(CHAT, json={"max_instances": 1})).status_code == 200
    assert await status(await create()) == "starting"


async def test_enabling_a_deployment_stops_the_cancels_of_its_predictions(
    api: AsyncClient, chat: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.store.predictions.SLICE", 1)
    cancel, later = Scripts.cancel, list[str]()

    async def create() -> str:
        return str((await api.post(f"{CHAT}/predictions", json={"input": {}})).json()["id"])

    async def cancel_then_enable(*args: Any, **options: Any) -> Any:
        outcome = await cancel(*args, **options)
        if not later:
            assert (await api.patch(CHAT, json={"max_instances": 1})).status_code == 200
            later.append(await create())
        return outcome

    await create()
    monkeypatch.setattr(Scripts, "cancel", cancel_then_enable)
    assert (await api.patch(CHAT, json={"max_instances": 0})).status_code == 200
    assert (await api.get(f"/v1/predictions/{later[0]}")).json()["status"] == "starting"


async def test_prediction_that_was_being_created_when_its_deployment_was_disabled_is_canceled(
    api: AsyncClient, chat: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = deployments.read_create

    async def read_late(request: Request) -> CreatePrediction:
        assert (await api.patch(CHAT, json={"max_instances": 0})).status_code == 200
        return await read(request)

    monkeypatch.setattr(deployments, "read_create", read_late)
    made = await api.post(f"{CHAT}/predictions", json={"input": {}})
    assert (made.status_code, made.json()["status"]) == (201, "canceled")


async def test_prediction_that_was_filed_is_201_even_if_its_deployment_cannot_be_read_again(
    api: AsyncClient, chat: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = Deployments.get, 0

    async def read_once(self: Deployments, owner: str, name: str) -> Deployment | None:
        nonlocal reads
        reads += 1
        if reads > 1:
            raise BackendUnavailable("away")
        return await read(self, owner, name)

    monkeypatch.setattr(Deployments, "get", read_once)
    made = await api.post(f"{CHAT}/predictions", json={"input": {}})
    assert (reads, made.status_code, made.json()["status"]) == (2, 201, "starting")
