"""Test several Redis servers behind one API: where work is placed, and that each prediction is found at its site."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from httpx import AsyncClient

from api.openai import runs
from api.services import stream_readers
from director.broker import keys
from director.broker.scripts import IDEMPOTENCY_TTL_MS
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, QueueRefused
from director.core.ids import PredictionId, lowest_id_at, new_file_id, new_prediction_id, site_of
from director.core.policy import Policy
from director.core.schema import NewPrediction
from director.core.settings import ApiSettings
from director.files.store import Links, file_name
from director.store.catalog import OPEN_SCHEMA, Awaited
from director.store.departure import name_site
from tests.integration.api.conftest import refusal
from tests.support.api import BASE, api_client
from tests.support.eventually import eventually
from tests.support.garbage import alive, uncollected
from tests.support.queue_driver import ACCOUNT, MODEL, START_MS, VERSION
from tests.support.servers import RedisServer, redis_server
from tests.support.sites import Place, environ, place, sites_file

ASKED = {"version": VERSION, "input": {}}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, RedisServer]]:
    with redis_server(guarded=True) as home, redis_server(guarded=True) as far:
        yield {"eu": home, "us": far}


@pytest.fixture
async def eu(servers: dict[str, RedisServer]) -> AsyncIterator[Place]:
    async with place(servers["eu"]) as started:
        yield started


@pytest.fixture
async def us(servers: dict[str, RedisServer]) -> AsyncIterator[Place]:
    async with place(servers["us"]) as started:
        yield started


class Service:
    def __init__(self, servers: Mapping[str, RedisServer], folder: Path, token: str) -> None:
        self._servers = servers
        self._folder = folder
        self._token = token

    @asynccontextmanager
    async def api(
        self, *, top: str = "", openai: bool = False, files_dir: str = "", **rows: Mapping[str, Any]
    ) -> AsyncIterator[AsyncClient]:
        path = sites_file(self._folder, list(self._servers), top=top, **rows)
        home = next(iter(self._servers.values()))
        settings = ApiSettings(redis_url=home.url, sites=str(path), cache_s=0.2, openai=openai, files_dir=files_dir)
        async with api_client(settings, token=self._token) as client:
            yield client


@pytest.fixture
async def service(
    servers: dict[str, RedisServer], eu: Place, us: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Service:
    for name, value in environ(servers).items():
        monkeypatch.setenv(name, value)
    return Service(servers, tmp_path, await eu.accounts.create_token(ACCOUNT))


@pytest.fixture
async def api(service: Service) -> AsyncIterator[AsyncClient]:
    async with service.api(top='placement = "random"') as client:
        yield client


async def made(api: AsyncClient, **headers: str) -> dict[str, Any]:
    answer = await api.post("/v1/predictions", json=ASKED, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def at(api: AsyncClient, site: str) -> str:
    return str((await made(api, **{"x-site": site}))["id"])


def number(prediction_id: str) -> int:
    return site_of(PredictionId(prediction_id))


async def test_forced_site_holds_the_prediction_and_is_in_its_id(api: AsyncClient, eu: Place, us: Place) -> None:
    ids = {site: await at(api, site) for site in ("eu", "us", "eu")}
    assert {site: number(name) for site, name in ids.items()} == {"eu": 0, "us": 1}
    assert (await eu.has(), await us.has()) == (2, 1)
    refused = await api.post("/v1/predictions", json=ASKED, headers={"x-site": "mars"})
    assert (refused.status_code, "eu or us" in refused.json()["detail"]) == (422, True)


async def test_models_of_openais_api_are_those_of_all_sites(service: Service, eu: Place, us: Place) -> None:
    async def register(there: Place, model: str, visibility: str) -> None:
        version = hashlib.sha256(model.encode()).hexdigest()
        await there.catalog.register(model, version, schema=OPEN_SCHEMA, server="openai", policy=Policy())
        await there.catalog.models.change(model, {"visibility": visibility})

    await register(us, "globex/llm", "public")
    await register(us, "globex/secret", "public")
    await register(eu, "globex/secret", "private")
    await eu.driver.redis.hset(keys.aliases(), "gpt-4o", "globex/llm")
    async with service.api(openai=True) as api:
        listed = (await api.get("/openai/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["gpt-4o", "globex/llm"], "the first site decides who may see it"
        assert (await api.get("/openai/v1/models/gpt-4o")).status_code == 200
        assert (await api.get("/openai/v1/models/globex/secret")).status_code == 404


async def test_batch_for_an_unknown_site_is_refused(service: Service, tmp_path: Path) -> None:
    body = {"input_file_id": new_file_id(0), "endpoint": "/v1/embeddings", "completion_window": "24h"}
    async with service.api(openai=True, files_dir=str(tmp_path)) as api:
        refused = await api.post("/openai/v1/batches", json=body, headers={"x-site": "mars"})
        assert (refused.status_code, "eu or us" in refused.json()["error"]["message"]) == (400, True), refused.text
        known = await api.post("/openai/v1/batches", json=body, headers={"x-site": "us"})
        assert known.status_code == 404, "only the file is unknown"


async def test_random_placement_uses_both_sites(api: AsyncClient, eu: Place, us: Place) -> None:
    await asyncio.gather(*(made(api) for _ in range(40)))
    has = await eu.has(), await us.has()
    assert sum(has) == 40
    assert min(has) > 0


async def test_least_wait_placement_balances_the_queues(service: Service, eu: Place, us: Place) -> None:
    for each, waiting in ((eu, 0), (us, 20)):
        await each.driver.have_slots(1)
        for _ in range(waiting):
            await each.driver.submit()
    async with service.api() as api:
        placed = [number((await made(api))["id"]) for _ in range(20)]
        assert placed == [0] * 20
        await asyncio.gather(*(made(api) for _ in range(20)))
    assert abs(await eu.has() - await us.has()) <= 10, "a crowd of one moment does not choose alike"


async def test_full_site_passes_work_on_until_all_are_full(service: Service, eu: Place, us: Place) -> None:
    for each, most in ((eu, 0), (us, 2)):
        await each.driver.scripts.bound(each.driver.queue, mode="bounded", max_queued=most)
    async with service.api() as api:
        for _ in range(2):
            assert number((await made(api))["id"]) == 1
        refused = await api.post("/v1/predictions", json=ASKED)
        assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
        shown = (await api.get("/v1/predictions")).json()["results"]
    assert len(shown) == 2, "what was refused is in no list"


@pytest.mark.parametrize("us_takes", [0, 1])
async def test_failover_leaves_nothing_to_the_garbage_collector(
    service: Service, eu: Place, us: Place, us_takes: int
) -> None:
    for each, most in ((eu, 0), (us, us_takes)):
        await each.driver.scripts.bound(each.driver.queue, mode="bounded", max_queued=most)
    async with service.api(top='placement = "random"', eu={"weight": 1000}) as api:
        with uncollected():
            answer = await api.post("/v1/predictions", json=ASKED)
            assert answer.status_code == (201 if us_takes else 429)
            await anyio.wait_all_tasks_blocked()
            assert alive(NewPrediction, QueueRefused) == 0


@pytest.mark.parametrize("name", ["eu", "us"])
async def test_site_without_memory_takes_nothing_new_and_is_not_away(
    service: Service, eu: Place, us: Place, name: str
) -> None:
    full, first = {"eu": eu, "us": us}[name].driver.redis, dict[str, Any]({name: {"weight": 1000}})
    async with service.api(top='placement = "random"', **first) as api:
        there = await at(api, name)
        await full.config_set("maxmemory", "1")
        try:
            refused = await api.post("/v1/predictions", json=ASKED, headers={"x-site": name})
            assert (refused.status_code, refused.json()["code"]) == (503, "memory_full")
            elsewhere = (await made(api))["id"]
            listed = await api.get("/v1/predictions")
        finally:
            await full.config_set("maxmemory", "0")
    assert number(elsewhere) != number(there)
    assert "x-sites-away" not in listed.headers
    assert [one["id"] for one in listed.json()["results"]] == [elsewhere, there]


async def test_site_table_decides_which_accounts_may_use_a_site(service: Service) -> None:
    only = f'[models]\n"{MODEL}" = ["us"]\n'
    async with service.api(eu={"weight": 1000}, us={"weight": 1}, top="") as api:
        path = service._folder / "sites.toml"
        path.write_text(path.read_text() + "\n" + only)
    settings = ApiSettings(redis_url=service._servers["eu"].url, sites=str(path))
    async with api_client(settings, token=service._token) as api:
        assert {number((await made(api))["id"]) for _ in range(8)} == {1}
        assert (await api.post("/v1/predictions", json=ASKED, headers={"x-site": "eu"})).status_code == 422
    async with service.api(us={"takes_new": False}) as api:
        assert {number((await made(api))["id"]) for _ in range(8)} == {0}
        forced = await api.post("/v1/predictions", json=ASKED, headers={"x-site": "us"})
        assert forced.status_code == 503


async def test_queue_known_only_at_home_stays_there(service: Service, eu: Place) -> None:
    named = {"version": VERSION, "input": {"file": "https://x.test/v1/files/" + "0" * 26}}
    async with service.api(top='placement = "random"', eu={"weight": 0.001}, us={"weight": 1000}) as api:
        assert number((await made(api))["id"]) == 1
        for _ in range(4):
            assert number((await api.post("/v1/predictions", json=named)).json()["id"]) == 0
        await eu.accounts.set_limits(ACCOUNT, {"compute_s_per_day": "1000"})
        await eventually(lambda: made(api), "the limit is known", until=lambda one: number(one["id"]) == 0)
        assert {number((await made(api))["id"]) for _ in range(4)} == {0}


async def test_open_hours_hold_at_every_site_and_are_taken_back_at_every_site(
    api: AsyncClient, eu: Place, us: Place
) -> None:
    operator = await eu.accounts.create_token("ops", scopes=["admin"])
    closed = f"{datetime.now(UTC) + timedelta(hours=3):%H:00}-{datetime.now(UTC) + timedelta(hours=4):%H:00} UTC"
    waiting = {await at(api, "eu"), await at(api, "us")}

    async def start_after(hours: str) -> set[str]:
        changed = await api.patch(
            f"/v1/admin/accounts/{ACCOUNT}",
            json={"limits": {"open_hours": hours}},
            headers={"authorization": f"Bearer {operator}"},
        )
        assert changed.status_code == 200, changed.text
        asked = [
            site.driver.scripts.claim(site.driver.queue, consumer="d", nonce=hours, count=9, lease_s=15)
            for site in (eu, us)
        ]
        return {claim.id for claims in await asyncio.gather(*asked) for claim in claims}

    assert await start_after(closed) == set()
    assert await start_after("default") == waiting


async def test_site_with_missing_rights_gets_no_work_and_reports_why(service: Service, us: Place) -> None:
    admin: Any = us.driver.redis
    await admin.execute_command("ACL SETUSER", "api", "-xadd")
    try:
        async with service.api(top='placement = "random"') as api:
            assert {number((await made(api))["id"]) for _ in range(8)} == {0}
            told = "The user in the Redis URL lacks rights that are needed"
            await eventually(
                lambda: api.get("/readyz"), "it says why", until=lambda ready: told in ready.json()["sites"]["us"]
            )
    finally:
        await admin.execute_command("ACL SETUSER", "api", "+xadd")


async def test_prediction_is_read_canceled_followed_and_awaited_at_its_site(
    api: AsyncClient, eu: Place, us: Place
) -> None:
    for site, where in (("eu", eu), ("us", us)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(where.director.run, lambda _: b'"hi"')
            answer = await api.post("/v1/predictions", json=ASKED, headers={"x-site": site, "prefer": "wait"})
            tasks.cancel_scope.cancel()
        shown = answer.json()
        assert (shown["status"], shown["output"]) == ("succeeded", "hi")
        path = f"/v1/predictions/{shown['id']}"
        assert (await api.get(path)).json()["output"] == "hi"
        assert len((await api.get(f"{path}/events")).json()["events"]) > 1
        assert (await api.get(f"{path}/explain")).status_code == 200
        assert (await api.get(f"{path}/webhooks")).status_code == 200
        assert "event: done" in (await api.get(httpx.URL(shown["urls"]["stream"]).raw_path.decode())).text
        assert (await api.delete(path)).status_code == 204
        assert (await api.get(path)).status_code == 404
        waits = f"/v1/predictions/{await at(api, site)}"
        assert (await api.post(f"{waits}/cancel")).json()["status"] == "canceled"


async def test_id_of_an_unknown_site_is_not_found(api: AsyncClient) -> None:
    strange = new_prediction_id(model=MODEL, now_ms=1_800_000_000_000, site=9)
    for path in ("", "/events", "/explain", "/webhooks"):
        assert (await api.get(f"/v1/predictions/{strange}{path}")).status_code == 404
    assert (await api.get(f"/v1/streams/{strange}{'a' * 26}")).status_code == 404


async def test_list_merges_all_sites_newest_first_in_pages(api: AsyncClient, eu: Place, us: Place) -> None:
    ids = [new_prediction_id(model=MODEL, now_ms=START_MS + each, site=each % 2) for each in range(250)][::-1]
    for number, where in enumerate((eu.driver, us.driver)):
        here = [each for each in ids if site_of(each) == number]
        await asyncio.gather(*(where.scripts.enlist(each, account=ACCOUNT, oldest=lowest_id_at(0)) for each in here))
        await asyncio.gather(*map(where.submit, here))
    pages, url = [], "/v1/predictions"
    while url:
        page = (await api.get(url)).json()
        pages.append([one["id"] for one in page["results"]])
        url, back = page["next"], page["previous"]
    assert pages == [ids[:100], ids[100:200], ids[200:]]
    assert [one["id"] for one in (await api.get(back)).json()["results"]] == ids[100:200]


async def move(prediction_id: PredictionId, here: Place, there: Place) -> None:
    name = await name_site(there.driver.redis)
    record = await here.driver.redis.hgetall(keys.record(prediction_id))
    assert await here.driver.scripts.depart(here.driver.queue, [(prediction_id, ACCOUNT)], site=name) == ["leaving"]
    await there.driver.scripts.enlist(prediction_id, account=ACCOUNT, oldest=prediction_id)
    flat = [part for pair in record.items() for part in pair]
    events = await here.driver.redis.lrange(keys.events(prediction_id), 0, -1)
    await there.driver.scripts.arrive(
        prediction_id, there.driver.queue, move=1, record=flat, input=b"{}", events=events, limits_rev=0
    )
    await here.driver.scripts.vacate(prediction_id, site=name)


async def test_prediction_moved_to_another_site_is_read_there(api: AsyncClient, eu: Place, us: Place) -> None:
    key = {"idempotency-key": "once"}
    prediction_id = PredictionId((await made(api, **{"x-site": "eu", **key}))["id"])
    await move(prediction_id, eu, us)
    shown = await api.get(f"/v1/predictions/{prediction_id}")
    assert (shown.status_code, shown.json()["status"]) == (200, "starting")
    again = await made(api, **{"x-site": "eu", **key})
    assert (again["id"], again["status"], again["input"]) == (prediction_id, "starting", {})
    assert [one["id"] for one in (await api.get("/v1/predictions")).json()["results"]] == [prediction_id]
    assert (await api.post(f"/v1/predictions/{prediction_id}/cancel")).json()["status"] == "canceled"


async def test_moved_prediction_has_its_files_webhook_and_deletion_where_it_is(
    service: Service, eu: Place, us: Place, tmp_path: Path
) -> None:
    """Its id names the site where it was made."""
    links, expires_s = Links(us.driver.redis, SystemClock()), SystemClock().now_ms() // 1000 + 60
    async with service.api(us={"files_dir": f'"{tmp_path}"'}) as api:
        asked = {**ASKED, "webhook": "https://example.com/told"}
        created = (await api.post("/v1/predictions", json=asked, headers={"x-site": "eu"})).json()
        path, prediction_id = f"/v1/predictions/{created['id']}", PredictionId(created["id"])
        await move(prediction_id, eu, us)
        assert refusal(await api.delete(path)) == (409, "not_terminal")
        assert refusal(await api.post(f"{path}/webhooks/redeliver")) == (409, "not_terminal")
        name = file_name(prediction_id, b"cat", content_type="text/plain")
        order = await links.order("put", str(name), expires_s=expires_s)
        assert (await api.put(f"/internal/outputs/{name}?{order}", content=b"cat")).status_code == 204
        assert (await api.get(await links.sign(str(name), base=BASE, expires_s=expires_s))).content == b"cat"
        assert (await api.get(f"/v1/outputs/{name}")).status_code == 403
        await us.director.finish(await us.director.claim(), output=b'"hi"')
        assert (await api.post(f"{path}/webhooks/redeliver")).status_code == 200
        assert (await api.delete(path)).status_code == 204
        assert (await api.get(path)).status_code == 404
        assert (await api.get(await links.sign(str(name), base=BASE, expires_s=expires_s))).status_code == 404


async def test_first_site_that_knows_a_model_decides_who_learns_what_it_waits_for(
    service: Service, eu: Place, us: Place
) -> None:
    missing = "ff" * 32
    await us.catalog.note_awaited(MODEL, Awaited(version=missing, why="Setup is running"))
    token = await eu.accounts.create_token("stranger")
    async with service.api() as api:

        async def told() -> str:
            answer = await api.post(
                "/v1/predictions",
                json={"version": f"{MODEL}:{missing}", "input": {}},
                headers={"authorization": f"Bearer {token}"},
            )
            return str(answer.json()["detail"])

        assert (await told()).endswith(": Setup is running")
        await eu.driver.redis.hset(keys.model(MODEL), "visibility", "private")
        assert "Setup" not in await told()


async def test_suspension_covers_every_site(api: AsyncClient, eu: Place, us: Place) -> None:
    await made(api, **{"x-site": "us"})
    operator = await eu.accounts.create_token("ops", scopes=["admin"])
    path, headers = f"/v1/admin/accounts/{ACCOUNT}", {"authorization": f"Bearer {operator}"}
    asked = {"policy": "hold", "reason": "abuse"}
    assert (await api.post(f"{path}/suspend", json=asked, headers=headers)).status_code == 200
    assert await us.driver.claim_all() == []
    assert (await api.post(f"{path}/resume", headers=headers)).status_code == 200
    assert len(await us.driver.claim_all()) == 1
    await made(api, **{"x-site": "us"})
    ended = await api.post(f"{path}/suspend", json={**asked, "policy": "end"}, headers=headers)
    assert (ended.json()["ended"], ended.json()["asked"]) == (1, 1)


async def test_operators_query_the_home_or_a_named_site(api: AsyncClient, eu: Place, us: Place) -> None:
    operator = await eu.accounts.create_token("ops", scopes=["admin"])
    headers = {"authorization": f"Bearer {operator}", "x-site": "us"}
    queue = f"/v1/admin/queues/{us.driver.queue.replace(':', '/')}"
    assert (await api.post(f"{queue}/pause", headers=headers)).status_code == 200
    assert ((await us.driver.stats()).paused, (await eu.driver.stats()).paused) == (True, False)
    assert (await api.get(queue, headers=headers)).json()["paused"] is True
    for path in ("/v1/admin/directors", "/v1/admin/owed", "/v1/admin/dead", "/v1/admin/audit"):
        assert (await api.get(path, headers=headers)).status_code == 200
        assert (await api.get(path, headers={**headers, "x-site": "mars"})).status_code == 422


async def test_webhooks_of_every_site_use_the_secret_shown_to_the_caller(
    api: AsyncClient, eu: Place, us: Place
) -> None:
    await made(api, **{"x-site": "us"})
    told = (await api.get("/v1/webhooks/default/secret")).json()["key"]
    assert await us.accounts.webhook_secrets(ACCOUNT) == [told]
    await eu.driver.scripts.rotate(ACCOUNT, secret="whsec_new", keep_s=60)

    async def again() -> list[str]:
        await made(api, **{"x-site": "us"})
        return await us.accounts.webhook_secrets(ACCOUNT)

    await eventually(again, "the new one signs, and the old one for a while", until=["whsec_new", told].__eq__)


async def test_idempotency_key_finds_its_prediction_at_any_site(api: AsyncClient, eu: Place, us: Place) -> None:
    names = [f"key-{each}" for each in range(12)]
    first = {key: (await made(api, **{"idempotency-key": key}))["id"] for key in names}
    assert {number(name) for name in first.values()} == {0, 1}
    for site in ("eu", "us"):
        again = {key: (await made(api, **{"idempotency-key": key, "x-site": site}))["id"] for key in names}
        assert again == first
    assert await eu.has() + await us.has() == 12
    other = await api.post("/v1/predictions", json={**ASKED, "input": {"x": 1}}, headers={"idempotency-key": names[0]})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


async def test_key_being_placed_is_503_and_an_abandoned_key_is_reused(api: AsyncClient, eu: Place, us: Place) -> None:
    key = {"idempotency-key": "once", "x-site": "eu"}
    await made(api, **key)
    held = keys.idempotency(account=ACCOUNT, model=MODEL, digest=hashlib.sha256(b"once").hexdigest())
    fingerprint = (await eu.driver.redis.get(held)).decode().partition(" ")[2]
    for age_s, status in ((1, 503), (60, 201)):
        # it is a minute old by the clock of the API that placed it
        other = new_prediction_id(model=MODEL, now_ms=SystemClock().now_ms() - 60_000, site=1)
        await eu.driver.redis.set(held, f"{other} {fingerprint}", px=IDEMPOTENCY_TTL_MS - age_s * 1000)
        answer = await api.post("/v1/predictions", json=ASKED, headers=key)
        assert answer.status_code == status
    assert (await made(api, **key))["id"] == answer.json()["id"]
    with pytest.raises(BackendUnavailable):  # the API that placed it was frozen for that time, or the network was
        await us.driver.submit(other, idempotency=(held.rpartition(":")[2], fingerprint), bound=True)
    assert (await eu.has(), await us.has()) == (2, 0)


async def test_retries_of_a_key_being_placed_reserve_no_compute(service: Service, eu: Place) -> None:
    await eu.accounts.set_limits(ACCOUNT, {"compute_s_per_day": "1000"})
    key = {"idempotency-key": "once"}
    async with service.api() as api:
        await made(api, **key)
        reserved = [(await eu.accounts.usage(ACCOUNT, day=SystemClock().now_ms() // 86_400_000)).reserved_s]
        held = keys.idempotency(account=ACCOUNT, model=MODEL, digest=hashlib.sha256(b"once").hexdigest())
        fingerprint = (await eu.driver.redis.get(held)).decode().partition(" ")[2]
        other = new_prediction_id(model=MODEL, now_ms=SystemClock().now_ms(), site=1)
        await eu.driver.redis.set(held, f"{other} {fingerprint}", px=IDEMPOTENCY_TTL_MS)
        assert (await api.post("/v1/predictions", json=ASKED, headers=key)).status_code == 503
        reserved.append((await eu.accounts.usage(ACCOUNT, day=SystemClock().now_ms() // 86_400_000)).reserved_s)
    assert reserved[0] == reserved[1] > 0


async def test_simultaneous_creates_with_one_key_make_one_prediction(api: AsyncClient, eu: Place, us: Place) -> None:
    for each in range(6):
        key = {"idempotency-key": f"twins-{each}"}
        assert len({one["id"] for one in await asyncio.gather(*(made(api, **key) for _ in range(4)))}) == 1
    assert await eu.has() + await us.has() == 6


CHUNK = b'{"choices":[{"index":0,"delta":{"content":"hi"}}]}'


async def speak_openai(*places: Place) -> None:
    for each in places:
        await each.catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="openai", policy=Policy())


@pytest.mark.parametrize("streams", [True, False])
async def test_call_of_openai_is_answered_by_the_site_that_took_it(
    service: Service, eu: Place, us: Place, streams: bool
) -> None:
    await speak_openai(eu, us)
    body = {"model": MODEL, "stream": streams}
    answers: list[httpx.Response] = []

    async def ask() -> None:
        headers = {"X-Site": "us", "Idempotency-Key": "k"}
        answers.append(await api.post("/openai/v1/chat/completions", json=body, headers=headers))

    async with service.api(openai=True) as api:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            claim = await us.director.claim()
            seq = await us.director.begin(claim, CHUNK)
            await us.director.finish(claim, output=b'{"whole":1.0}', seq=seq)
        await ask()  # the same again
    first, second = answers
    assert site_of(PredictionId(first.headers["x-request-id"])) == 1
    assert first.content == second.content
    assert first.content == (b"data: %b\n\ndata: [DONE]\n\n" % CHUNK if streams else b'{"whole":1.0}')


async def test_stream_without_room_at_any_site_is_filed_nowhere(
    service: Service, eu: Place, us: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise QueueRefused("too_many_streams")

    await speak_openai(eu, us)
    monkeypatch.setattr(stream_readers.Readers, "reserve", refuse)
    async with service.api(openai=True) as api:
        headers = {"Idempotency-Key": "k"}
        body = {"model": MODEL, "stream": True}
        answer = await api.post("/openai/v1/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_streams")
    assert (await eu.has(), await us.has()) == (0, 0)


async def count_noted(at: Place) -> int:
    """Count the calls that a keeper would cancel if their process died."""
    redis = at.driver.redis
    return sum([await redis.scard(key) for key in await redis.keys("*:calls:*")])


@pytest.mark.parametrize("streams", [True, False])
async def test_call_that_moves_while_it_waits_is_answered_by_its_new_site(
    service: Service, eu: Place, us: Place, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    monkeypatch.setattr(runs, "MOVED_S", 0.3)
    await speak_openai(eu, us)
    answers: list[httpx.Response] = []

    async def ask() -> None:
        body = {"model": MODEL, "stream": streams}
        answers.append(await api.post("/openai/v1/chat/completions", json=body, headers={"X-Site": "eu"}))

    async with service.api(openai=True) as api, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await eventually(eu.has, "it is filed")
        [key] = await eu.driver.redis.keys("*:rec:*")
        await move(PredictionId(key.decode().rpartition(":")[2]), eu, us)
        claim = await us.director.claim()
        for at, count in ((us, 1), (eu, 0)):
            await eventually(partial(count_noted, at), "its process is noted at the new site", until=count.__eq__)
        seq = await us.director.begin(claim, CHUNK)
        await us.director.finish(claim, output=b'{"whole":1.0}', seq=seq)
    [answer] = answers
    assert answer.content == (b"data: %b\n\ndata: [DONE]\n\n" % CHUNK if streams else b'{"whole":1.0}')
