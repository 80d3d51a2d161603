"""Test the trial of a version with several sites: the home runs it, since only the home's keepers count and stop it."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
import pytest
from httpx import AsyncClient
from msgspec import Raw

from api.sites.placing import SETTLED_MS
from director.broker import keys
from director.broker.scripts import IDEMPOTENCY_TTL_MS
from director.core.clock import SystemClock
from director.core.ids import PredictionId, new_prediction_id, queue_name, site_of
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.keeper.comparer import Comparer
from director.store.catalog import OPEN_SCHEMA
from director.store.services import Services
from tests.support import batches
from tests.support.api import PlayedDirector, api_client
from tests.support.eventually import eventually
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.sites import Place, sites_file, two_places

NEW: Final = "c3" * 32
THIRD: Final = "d4" * 32
FRONT: Final = f"/v1/deployments/{ACCOUNT}/front"
MADE: Final[dict[str, Any]] = {
    "name": "front", "model": MODEL, "version": VERSION, "hardware": "cpu", "min_instances": 0, "max_instances": 3,
}  # fmt: skip


@pytest.fixture
async def places(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Place]]:
    """Both sites have both versions, with a director of each."""
    async with two_places(monkeypatch) as found:
        for each in found.values():
            await each.catalog.register(MODEL, NEW, schema=OPEN_SCHEMA, server="echo", policy=Policy())
            await be_ready(each, NEW)
        yield found


async def be_ready(there: Place, version: str) -> None:
    queue = queue_name(MODEL, version)
    await there.driver.scripts.extend(queue, consumer=version[:4], lease_s=60, claims=[], slots=2)


def settings_of(places: dict[str, Place], folder: Path, *, end: str = "", **rows: Mapping[str, Any]) -> ApiSettings:
    path = sites_file(folder, list(places), top='placement = "random"', **rows)
    path.write_text(f"{path.read_text()}\n{end}")
    home = places["eu"].server.url
    return ApiSettings(redis_url=home, sites=str(path), cache_s=0.2, openai=True, files_dir=str(folder))


@asynccontextmanager
async def service(
    places: dict[str, Place], folder: Path, *, end: str = "", **rows: Mapping[str, Any]
) -> AsyncIterator[AsyncClient]:
    settings = settings_of(places, folder, end=end, **rows)
    async with api_client(settings, token=await places["eu"].accounts.create_token(ACCOUNT)) as api:
        assert (await api.post("/v1/deployments", json=MADE)).status_code == 200
        yield api


async def try_it(api: AsyncClient, share: int, **more: Any) -> None:
    answer = await api.post(f"{FRONT}/split", json={"version": NEW, "share": share, **more})
    assert answer.status_code == 200, answer.text


async def create(api: AsyncClient, **headers: str) -> dict[str, Any]:
    answer = await api.post(f"{FRONT}/predictions", json={"input": {}}, headers=headers)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def call(api: AsyncClient, **headers: str) -> tuple[str, int]:
    """Return the version and the site of one call."""
    made = await create(api, **headers)
    return made["version"], site_of(PredictionId(made["id"]))


async def test_home_runs_the_new_version_and_every_site_the_old_one(places: dict[str, Place], tmp_path: Path) -> None:
    async with service(places, tmp_path) as api:
        await try_it(api, 50)
        found = {await call(api) for _ in range(60)}
        assert found == {(NEW, 0), (VERSION, 0), (VERSION, 1)}
        assert (await api.post(f"{FRONT}/promote")).status_code == 200
        assert {await call(api) for _ in range(40)} == {(NEW, 0), (NEW, 1)}, "then it runs everywhere"


async def test_keeper_of_the_home_counts_every_run_of_the_new_version(places: dict[str, Place], tmp_path: Path) -> None:
    home, clock = places["eu"], SystemClock()
    stores = Services(home.driver.redis)
    async with service(places, tmp_path) as api:
        await try_it(api, 99)
        tried = [each for each in [await call(api) for _ in range(30)] if each[0] == NEW]
        director = PlayedDirector(home.driver.scripts, queue_name(MODEL, NEW))
        for _ in tried:
            await director.finish(await director.claim())
        await Comparer(stores.deployments, stores.queues, clock).run_once()
        shown = (await api.get(f"{FRONT}/split")).json()
    await stores.gatherer.aclose()
    assert shown["tried"]["succeeded"] == len(tried) > 20


async def test_call_for_another_site_runs_the_old_version(places: dict[str, Place], tmp_path: Path) -> None:
    async with service(places, tmp_path) as api:
        await try_it(api, 99)
        assert {await call(api, **{"x-site": "us"}) for _ in range(10)} == {(VERSION, 1)}
        assert (NEW, 0) in {await call(api, **{"x-site": "eu"}) for _ in range(10)}


async def fill_memory(home: Place, _: AsyncClient) -> None:
    await home.driver.redis.config_set("maxmemory", "1")


async def fill_queue(home: Place, _: AsyncClient) -> None:
    await home.driver.scripts.bound(queue_name(MODEL, NEW), mode="bounded", max_queued=0)


async def become_unsafe(home: Place, api: AsyncClient) -> None:
    """Its reads are answered, and nothing new goes there."""
    await home.driver.redis.config_set("maxmemory-policy", "allkeys-lru")
    await eventually(
        lambda: api.get("/readyz"), "it is known", until=lambda ready: ready.json()["sites"]["eu"] != "ready"
    )


@pytest.mark.parametrize("stop", [fill_memory, fill_queue, become_unsafe])
async def test_drawn_call_runs_the_old_version_while_the_home_cannot_take_it(
    places: dict[str, Place], tmp_path: Path, stop: Callable[[Place, AsyncClient], Awaitable[None]]
) -> None:
    async with service(places, tmp_path, eu={"weight": 0.001}, us={"weight": 1000}) as api:
        await try_it(api, 99)
        await stop(places["eu"], api)
        assert {await call(api) for _ in range(20)} == {(VERSION, 1)}
        if stop is fill_queue:  # else no key can be kept
            first, again = [await create(api, **{"idempotency-key": "k"}) for _ in range(2)]
            assert first["id"] == again["id"]


@asynccontextmanager
async def directors(places: dict[str, Place]) -> AsyncIterator[None]:
    """One of each version at each site, which ends each call."""
    async with anyio.create_task_group() as tasks:
        for each in places.values():
            for version in (VERSION, NEW):
                director = PlayedDirector(each.driver.scripts, queue_name(MODEL, version))
                tasks.start_soon(director.run, lambda _: b'{"done":true}')
        yield
        tasks.cancel_scope.cancel()


async def call_openai(api: AsyncClient, _: ApiSettings) -> list[str]:
    """Return the ids of three calls."""
    body = {"model": f"{ACCOUNT}/front", "messages": []}
    answers = [await api.post("/openai/v1/chat/completions", json=body) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return [answer.headers["x-request-id"] for answer in answers]


async def run_batch(api: AsyncClient, settings: ApiSettings) -> list[str]:
    """Return the ids of the three lines of a batch."""
    content = b"\n".join(batches.line(name, model=f"{ACCOUNT}/front") for name in ("a", "b", "c"))
    made = await batches.create(api, await batches.upload(api, content))
    async with batches.engine(settings) as engine:
        await eventually(engine.run_once, "the sites are known")
    output, errors = await batches.results(api, await batches.get(api, made["id"]))
    assert errors == []
    return [line["response"]["request_id"] for line in output]


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("run", [call_openai, run_batch])
async def test_openai_call_and_line_of_a_batch_run_the_old_version_elsewhere_only_if_refused(
    places: dict[str, Place],
    tmp_path: Path,
    run: Callable[[AsyncClient, ApiSettings], Awaitable[list[str]]],
    is_full: bool,
) -> None:
    for each in places.values():
        for version in (VERSION, NEW):
            await each.catalog.register(MODEL, version, schema=OPEN_SCHEMA, server="openai", policy=Policy())
    async with service(places, tmp_path, eu={"weight": 0.001}, us={"weight": 1000}) as api, directors(places):
        await try_it(api, 99)
        if is_full:
            await fill_queue(places["eu"], api)
        ids = await run(api, settings_of(places, tmp_path, eu={"weight": 0.001}, us={"weight": 1000}))
        runs = [(await api.get(f"/v1/predictions/{each}")).json() for each in ids]
    found = {(run["version"], site_of(PredictionId(run["id"]))) for run in runs}
    assert len(ids) == 3
    assert found == {(VERSION, 1)} if is_full else (NEW, 0) in found


@pytest.mark.parametrize(("end", "takes_new"), [(f'[models]\n"{MODEL}" = ["us"]', True), ("", False)])
async def test_trial_is_refused_where_the_home_takes_no_runs_of_the_model(
    places: dict[str, Place], tmp_path: Path, end: str, takes_new: bool
) -> None:
    async with service(places, tmp_path, end=end, eu={"takes_new": takes_new}) as api:
        refused = await api.post(f"{FRONT}/split", json={"version": NEW, "share": 10, "force": True})
        assert (refused.status_code, "it takes no new runs of this model" in refused.text) == (422, True)
        assert await call(api) == (VERSION, 1)


async def test_trial_that_the_home_may_not_run_any_more_gets_no_calls(places: dict[str, Place], tmp_path: Path) -> None:
    async with service(places, tmp_path) as api:
        await try_it(api, 99)
    token = await places["eu"].accounts.create_token(ACCOUNT)
    path = sites_file(tmp_path, list(places), eu={"takes_new": False})
    settings = ApiSettings(redis_url=places["eu"].server.url, sites=str(path), cache_s=0.2)
    async with api_client(settings, token=token) as api:
        assert {await call(api) for _ in range(10)} == {(VERSION, 1)}


@pytest.mark.parametrize("site", ["eu", "us"])
async def test_repeat_finds_its_prediction_at_any_site_where_one_version_hides_an_input(
    places: dict[str, Place], tmp_path: Path, site: str
) -> None:
    pin = {"pin": {"type": "string", "format": "password"}}
    document = msgspec.json.decode(OPEN_SCHEMA) | {
        "components": {"schemas": {"Input": {"type": "object", "properties": pin}}}
    }
    for each in places.values():
        schema = Raw(msgspec.json.encode(document))
        await each.catalog.register(MODEL, THIRD, schema=schema, server="echo", policy=Policy())
    sent, key = {"input": {"pin": "s3cr3t"}}, {"idempotency-key": "k"}
    async with service(places, tmp_path) as api:
        first = await api.post(f"{FRONT}/predictions", json=sent, headers={**key, "x-site": site})
        assert (await api.patch(FRONT, json={"version": THIRD})).status_code == 200
        again = await api.post(f"{FRONT}/predictions", json=sent, headers=key)
        assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])


async def test_repeat_beside_its_first_request_is_503_though_a_version_hides_an_input(
    places: dict[str, Place], tmp_path: Path
) -> None:
    home, key = places["eu"].driver, {"idempotency-key": "k"}
    async with service(places, tmp_path) as api:
        digest = hashlib.sha256(b"k").hexdigest()
        unplaced = new_prediction_id(model=MODEL, now_ms=SystemClock().now_ms(), site=0)
        pair = (digest, "f" * 64)  # as another version reads the request
        facts: dict[str, Any] = {"account": ACCOUNT, "model": MODEL, "instead_of": None}
        assert await home.scripts.bind(unplaced, idempotency=pair, **facts) is None
        first = await api.post(f"{FRONT}/predictions", json={"input": {}}, headers=key)
        assert (first.status_code, first.headers["retry-after"]) == (503, "2")
        await home.redis.pexpire(
            keys.idempotency(account=ACCOUNT, model=MODEL, digest=digest), IDEMPOTENCY_TTL_MS - SETTLED_MS
        )
        later = await api.post(f"{FRONT}/predictions", json={"input": {}}, headers=key)
        assert (later.status_code, later.json()["code"]) == (422, "idempotency_mismatch")


async def test_version_of_another_site_is_released_and_not_tried(places: dict[str, Place], tmp_path: Path) -> None:
    await places["us"].catalog.register(MODEL, THIRD, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await be_ready(places["us"], THIRD)
    async with service(places, tmp_path) as api:
        refused = await api.post(f"{FRONT}/split", json={"version": THIRD, "share": 10, "force": True})
        assert (refused.status_code, "it does not have this version" in refused.text) == (422, True)
        released = await api.patch(FRONT, json={"version": THIRD})
        assert released.status_code == 200, released.text
        assert {await call(api) for _ in range(10)} == {(THIRD, 1)}
        await api.post(f"{FRONT}/rollback")
        assert {version for version, _ in [await call(api) for _ in range(10)]} == {VERSION}
        assert (await api.patch(FRONT, json={"version": "0f" * 32})).status_code == 422


async def test_server_at_another_site_makes_no_version_ready(places: dict[str, Place], tmp_path: Path) -> None:
    for each in places.values():
        await each.catalog.register(MODEL, THIRD, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await be_ready(places["us"], THIRD)
    async with service(places, tmp_path) as api:
        refused = await api.post(f"{FRONT}/split", json={"version": THIRD, "share": 10})
        assert (refused.status_code, "No server of this version is ready" in refused.text) == (422, True)
