"""Test the death of one of several Redis servers: new work continues at the others, and no work is lost or repeated."""

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from httpx import AsyncClient

from api.web.http import Request
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, site_of
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.core.usage import Price, Used
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.ledger import Ledger
from tests.support.api import api_client
from tests.support.eventually import eventually
from tests.support.garbage import alive, uncollected
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer, redis_server
from tests.support.sites import Place, environ, place, sites_file

ASKED = {"version": VERSION, "input": {}}
NAMES = ["eu", "us", "asia"]


@pytest.fixture
def servers() -> Iterator[dict[str, RedisServer]]:
    with redis_server(guarded=True) as one, redis_server() as two, redis_server() as three:
        yield dict(zip(NAMES, (one, two, three), strict=True))


@pytest.fixture
async def places(servers: dict[str, RedisServer]) -> AsyncIterator[dict[str, Place]]:
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(place(server)) for name, server in servers.items()}


@pytest.fixture
async def api(
    servers: dict[str, RedisServer], places: dict[str, Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncClient]:
    for name, value in environ(servers).items():
        monkeypatch.setenv(name, value)
    token = await places["eu"].accounts.create_token(ACCOUNT)
    settings = ApiSettings(
        redis_url=servers["eu"].url, sites=str(sites_file(tmp_path, NAMES, top='placement = "random"')), cache_s=0.2
    )
    async with api_client(settings, token=token) as client:
        yield client


def site(prediction_id: str) -> str:
    return NAMES[site_of(PredictionId(prediction_id))]


async def forced(api: AsyncClient, name: str, **headers: str) -> str:
    answer = await api.post("/v1/predictions", json=ASKED, headers={"x-site": name, **headers})
    assert answer.status_code == 201
    return str(answer.json()["id"])


async def sites_of(api: AsyncClient) -> dict[str, str]:
    return dict((await api.get("/readyz")).json()["sites"])


@pytest.mark.parametrize("victim", ["us", pytest.param("eu", marks=pytest.mark.heavy)])
async def test_predictions_of_a_dead_site_are_503_until_it_returns(
    api: AsyncClient, servers: dict[str, RedisServer], places: dict[str, Place], victim: str
) -> None:
    there, elsewhere = await forced(api, victim), await forced(api, "asia")
    keyed = {"idempotency-key": "before"}
    known = await forced(api, victim, **keyed)
    scripts, only_there = places[victim].driver.scripts, "c3" * 32
    catalog = Catalog(places[victim].driver.redis, scripts, SystemClock())
    await catalog.register(MODEL, only_there, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    servers[victim].kill()
    perhaps = await api.post("/v1/predictions", json={**ASKED, "version": only_there})
    assert perhaps.status_code == 503, "no site can say that there is no such version"
    away = await api.get(f"/v1/predictions/{there}")
    assert (away.status_code, away.json()["code"], away.headers["retry-after"]) == (503, "unavailable", "2")
    assert (await api.get(f"/v1/predictions/{elsewhere}")).status_code == 200
    made = [await api.post("/v1/predictions", json=ASKED) for _ in range(6)]
    assert {answer.status_code for answer in made} == {201}
    assert victim not in {site(answer.json()["id"]) for answer in made}
    again = await api.post("/v1/predictions", json=ASKED, headers=keyed)
    assert again.status_code == 503, "it is there, and is not made a second time"
    new = await api.post("/v1/predictions", json=ASKED, headers={"idempotency-key": "new"})
    assert new.status_code == (503 if victim == "eu" else 201), "keys are held at home"
    made += [new] if new.status_code == 201 else []
    listed = await api.get("/v1/predictions")
    assert listed.headers["x-sites-away"] == victim
    assert [one["id"] for one in listed.json()["results"]] == sorted(
        [elsewhere, *(answer.json()["id"] for answer in made)], reverse=True
    )
    ready = await api.get("/readyz")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert ready.json()["sites"] | {victim: ""} == dict.fromkeys(NAMES, "ready") | {victim: ""}
    servers[victim].start()
    await eventually(lambda: sites_of(api), "it is back", until=lambda told: told[victim] == "ready")
    assert (await api.get(f"/v1/predictions/{there}")).status_code == 200
    assert (await api.post("/v1/predictions", json=ASKED, headers=keyed)).json()["id"] == known
    listed = await api.get("/v1/predictions")
    assert "x-sites-away" not in listed.headers
    assert {there, known, elsewhere} <= {one["id"] for one in listed.json()["results"]}


async def test_usage_of_the_other_sites_is_shown_and_names_the_dead_one(
    api: AsyncClient, servers: dict[str, RedisServer], places: dict[str, Place]
) -> None:
    for each in places.values():
        each.driver.now_ms = SystemClock().now_ms()
        await each.driver.finish(await each.driver.claimed(), used=Used(runs=1))
    whole = await api.get("/v1/usage")
    assert (whole.json()["total"]["runs"], "x-sites-away" in whole.headers) == (3, False)
    servers["us"].kill()
    part = await api.get("/v1/usage")
    assert (part.status_code, part.json()["total"]["runs"], part.headers["x-sites-away"]) == (200, 2, "us")


async def test_usage_is_503_where_a_counted_site_does_not_say_its_prices(
    api: AsyncClient, places: dict[str, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    us, answered, prices = places["us"].driver, list[Collection[str]](), Ledger.prices
    us.now_ms = SystemClock().now_ms()
    await us.finish(await us.claimed(), used=Used(runs=1))

    async def fail_at_other_sites(ledger: Ledger, models: Collection[str]) -> dict[str, Price]:
        if answered:
            raise BackendUnavailable("away")
        answered.append(models)
        return await prices(ledger, models)

    monkeypatch.setattr(Ledger, "prices", fail_at_other_sites)
    asked = await api.get("/v1/usage")
    assert (asked.status_code, "x-sites-away" in asked.headers) == (503, False), "its runs are in the sum"


@pytest.mark.parametrize("known_at", ["asia", "nowhere"])
async def test_look_up_beside_a_dead_site_leaves_nothing_to_the_garbage_collector(
    api: AsyncClient, servers: dict[str, RedisServer], places: dict[str, Place], known_at: str
) -> None:
    if known_at in places:
        driver = places[known_at].driver
        catalog = Catalog(driver.redis, driver.scripts, SystemClock())
        await catalog.register(MODEL, "c3" * 32, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    servers["us"].kill()
    with uncollected():
        asked = await api.post("/v1/predictions", json={**ASKED, "version": "c3" * 32})
        assert asked.status_code == (201 if known_at in places else 503), "no site can say that it does not exist"
        await anyio.wait_all_tasks_blocked()
        assert alive(Request, BackendUnavailable) == 0


async def test_api_stays_ready_and_answers_503_while_all_sites_are_away(
    api: AsyncClient, servers: dict[str, RedisServer]
) -> None:
    for server in servers.values():
        server.kill()
    found = await eventually(
        lambda: api.get("/readyz"), "nothing is there", until=lambda ready: not ready.json()["accepting"]
    )
    assert (found.status_code, found.json()["ready"]) == (200, True)
    assert (await api.post("/v1/predictions", json=ASKED)).status_code == 503
    assert (await api.get("/v1/predictions")).status_code == 503


@pytest.mark.heavy
async def test_hanging_site_is_skipped_once_noticed_and_returns(
    api: AsyncClient, servers: dict[str, RedisServer]
) -> None:
    await forced(api, "asia")
    servers["us"].freeze()
    await eventually(lambda: sites_of(api), "it is noticed", until=lambda told: told["us"] != "ready", limit_s=30)
    with anyio.fail_after(10):
        made = [await api.post("/v1/predictions", json=ASKED) for _ in range(10)]
    assert {answer.status_code for answer in made} == {201}
    assert "us" not in {site(answer.json()["id"]) for answer in made}
    servers["us"].thaw()
    await eventually(lambda: sites_of(api), "it is back", until=lambda told: told["us"] == "ready", limit_s=30)
    await forced(api, "us")


@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["us", "eu"])
async def test_repeated_kills_under_load_lose_and_duplicate_nothing(
    api: AsyncClient, servers: dict[str, RedisServer], places: dict[str, Place], victim: str
) -> None:
    accepted: dict[str, str] = {}  # request → its id
    refused: set[str] = set()
    is_over = False

    async def ask(name: str, **headers: str) -> None:
        body: dict[str, Any] = {"version": VERSION, "input": {"name": name}}
        answer = await api.post("/v1/predictions", json=body, headers=headers)
        if answer.status_code == 201:
            accepted[name] = answer.json()["id"]
        else:
            assert answer.status_code == 503, answer.text
            refused.add(name)

    async def load(who: int) -> None:
        count = 0
        while not is_over:
            count += 1
            name = f"{who}-{count}"
            await ask(name, **({"idempotency-key": name} if who % 2 else {}))

    async def more(count: int) -> None:
        least = len(accepted) + count
        await eventually(lambda: len(accepted), "it is accepted", until=lambda now: now > least)

    async with anyio.create_task_group() as tasks:
        for who in range(8):
            tasks.start_soon(load, who)
        for _ in range(4):
            await more(20)
            servers[victim].kill()
            await more(20)
            servers[victim].start()
            await eventually(lambda: sites_of(api), "it is back", until=lambda told: told[victim] == "ready")
        is_over = True
    # a client with a key repeats its request until it is answered, and gets one prediction
    for name in sorted(refused):
        if int(name.partition("-")[0]) % 2:
            refused.discard(name)
            await eventually(partial(_asked_again, ask, name, accepted), "it is answered", limit_s=60)
    there: dict[str, list[str]] = {}
    for where in places.values():
        for claim in await where.driver.claim_all():
            there.setdefault(bytes(claim.input).decode(), []).append(claim.id)
    assert all(len(ids) == 1 for ids in there.values()), "nothing is there twice"
    ids = {ids[0] for ids in there.values()}
    assert set(accepted.values()) <= ids, "nothing is lost"
    assert {site(one) for one in accepted.values()} == set(NAMES)


async def _asked_again(ask: Any, name: str, accepted: dict[str, str]) -> bool:
    await ask(name, **{"idempotency-key": name})
    return name in accepted
