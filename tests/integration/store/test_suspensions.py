"""Check that nothing of a suspended account starts, in any queue and race, and that a keeper completes the rest."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import to_thread
from msgspec.structs import replace
from redis.asyncio import Redis

from api.app import ROUTES
from api.web.route import Route
from director.broker import keys
from director.broker.scripts import Scripts
from director.cli.main import main
from director.core.clock import SystemClock
from director.core.errors import BackendFull, SettingsError
from director.core.ids import QueueName, lowest_id_at
from director.core.policy import Policy as QueuePolicy
from director.core.settings import ApiSettings
from director.store.accounts import Accounts, Suspension
from director.store.administration import SETTLED_S, Ended, Suspensions
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.predictions import SLICE
from director.store.removal import Removal
from tests.integration.api.conftest import settings as settings
from tests.integration.api.conftest import token as token
from tests.support.api import api_client
from tests.support.clock import FakeClock
from tests.support.eventually import turns
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer

BODY = {"version": VERSION, "input": {}}
OTHER_VERSION = "b2" * 32


@pytest.fixture
async def api(settings: ApiSettings, token: str, driver: QueueDriver) -> AsyncIterator[httpx.AsyncClient]:
    """An API that caches accounts for longer than any test lasts."""
    async with api_client(replace(settings, cache_s=600), token=token) as client:
        yield client


@pytest.fixture
def suspensions(redis: Redis, catalog: Catalog, scripts: Scripts, token: str) -> Suspensions:
    clock = SystemClock()
    return Suspensions(redis, Accounts(redis, clock=clock), catalog, scripts, clock)


@pytest.fixture
def late(redis: Redis, catalog: Catalog, scripts: Scripts) -> Suspensions:
    """The same long after any test."""
    clock = FakeClock()
    clock.pass_time(SystemClock().now_ms() / 1000 + 10 * SETTLED_S - clock.now_ms() / 1000)
    return Suspensions(redis, Accounts(redis), catalog, scripts, clock)


async def status(api: httpx.AsyncClient, prediction_id: str) -> str:
    return str((await api.get(f"/v1/predictions/{prediction_id}")).json()["status"])


async def created(api: httpx.AsyncClient) -> str:
    answer = await api.post("/v1/predictions", json=BODY)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def test_suspended_account_reads_the_reason_and_may_cancel(
    settings: ApiSettings, token: str, suspensions: Suspensions, driver: QueueDriver
) -> None:
    async with api_client(replace(settings, cache_s=0), token=token) as api:
        waits = await created(api)
        await suspensions.suspend(ACCOUNT, "hold", "unpaid", within_s=5)
        for path in ("/v1/predictions", f"/v1/models/{MODEL}/predictions"):
            refused = await api.post(path, json=BODY if path == "/v1/predictions" else {"input": {}})
            assert (refused.status_code, refused.json()["code"]) == (403, "account_suspended")
            assert "its bills are unpaid" in refused.json()["detail"]
        shown = (await api.get(f"/v1/predictions/{waits}")).json()
        assert shown["queue"]["detail"] == "This account is suspended."
        assert (await api.post(f"/v1/predictions/{waits}/cancel")).json()["status"] == "canceled"
        await suspensions.resume(ACCOUNT)
        await created(api)


async def test_hold_keeps_waiting_work_and_lets_runs_continue(
    api: httpx.AsyncClient, suspensions: Suspensions, driver: QueueDriver
) -> None:
    runs, waits = await created(api), await created(api)
    claim = await driver.claim_one()
    assert await suspensions.suspend(ACCOUNT, "hold", "review", within_s=5) == Ended()
    assert await driver.claim_all() == []
    assert await driver.extend(claim) == ["held"]
    assert await driver.finish(claim)
    assert await status(api, runs) == "succeeded"
    assert await driver.claim_all() == []
    await suspensions.resume(ACCOUNT)
    assert [claim.id for claim in await driver.claim_all()] == [waits]


async def test_end_cancels_waiting_and_running_work(
    api: httpx.AsyncClient, suspensions: Suspensions, driver: QueueDriver
) -> None:
    runs = await created(api)
    claim = await driver.claim_one()
    waiting = [await created(api) for _ in range(150)]
    assert await suspensions.suspend(ACCOUNT, "end", "abuse", within_s=60) == Ended(ended=150, asked=1, left=1)
    assert {await status(api, each) for each in waiting} == {"canceled"}
    assert await driver.extend(claim) == ["user"]
    assert await status(api, runs) == "starting"


async def test_end_includes_runs_of_other_kinds(suspensions: Suspensions, driver: QueueDriver) -> None:
    training = await driver.submit(kind="training")
    await driver.scripts.enlist(training, account=ACCOUNT, oldest=lowest_id_at(0), kind="training")
    assert await suspensions.suspend(ACCOUNT, "end", "abuse", within_s=60) == Ended(ended=1, asked=0, left=0)
    assert (await driver.record(training)).status == "canceled"


async def test_end_includes_work_that_its_list_lacks(suspensions: Suspensions, driver: QueueDriver) -> None:
    """A create that ended in 503 may have reached the queue and not the list."""
    runs = await driver.claimed()
    await driver.scripts.enlist(runs.id, account=ACCOUNT, oldest=lowest_id_at(0))
    driver.pass_time(1)
    theirs = await driver.submit_many(SLICE, account="umbrella")
    driver.pass_time(1)
    unlisted = [await driver.submit(), await driver.submit(kind="training")]
    assert await suspensions.suspend(ACCOUNT, "end", "abuse", within_s=60) == Ended(ended=2, asked=1, left=1)
    assert [(await driver.record(each)).status for each in unlisted] == ["canceled"] * 2
    assert {(await driver.record(each)).status for each in theirs} == {"starting"}
    assert await driver.extend(runs) == ["user"]


async def test_long_list_leaves_time_to_look_into_the_queues(
    redis: Redis, catalog: Catalog, scripts: Scripts, driver: QueueDriver, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ticking(SystemClock):
        ticks = 0.0

        def monotonic(self) -> float:
            self.ticks += 1
            return self.ticks

    monkeypatch.setattr("director.store.administration.CANCELS_AT_ONCE", 1)
    for _ in range(20):
        await scripts.enlist(driver.new_id(), account=ACCOUNT, oldest=lowest_id_at(0))
    unlisted = await driver.submit()
    suspensions = Suspensions(redis, Accounts(redis), catalog, scripts, Ticking())
    assert await suspensions.suspend(ACCOUNT, "end", "abuse", within_s=10) == Ended(ended=1)
    assert (await driver.record(unlisted)).status == "canceled"


async def test_resumption_stops_the_end_of_what_is_left(
    suspensions: Suspensions, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.store.administration.CANCELS_AT_ONCE", 1)
    for _ in range(3):
        await driver.scripts.enlist(await driver.submit(), account=ACCOUNT, oldest=lowest_id_at(0))
    new, cancel = list[str](), driver.scripts.cancel

    async def cancel_then_resume(*args: Any, **options: Any) -> Any:
        outcome = await cancel(*args, **options)
        await suspensions.resume(ACCOUNT)
        new.append(await driver.submit())
        return outcome

    monkeypatch.setattr(driver.scripts, "cancel", cancel_then_resume)
    assert await suspensions.suspend(ACCOUNT, "end", "abuse", within_s=60) == Ended(ended=1, left=3)
    assert len(new) == 1
    assert new[0] in {claim.id for claim in await driver.claim_all()}


async def test_other_accounts_are_not_touched(suspensions: Suspensions, driver: QueueDriver) -> None:
    theirs = [await driver.submit(account="umbrella") for _ in range(3)]
    await suspensions.suspend(ACCOUNT, "end", "abuse", within_s=5)
    assert [claim.id for claim in await driver.claim_all()] == theirs


@pytest.mark.parametrize("registered", ["before", "after"])
async def test_work_accepted_by_an_unaware_api_does_not_start(
    api: httpx.AsyncClient, suspensions: Suspensions, driver: QueueDriver, catalog: Catalog, registered: str
) -> None:
    async def register() -> QueueName:
        return await catalog.register(MODEL, OTHER_VERSION, schema=OPEN_SCHEMA, server="echo", policy=QueuePolicy())

    await created(api)  # the account is cached from here for the rest of the test
    if registered == "before":
        await register()
    await suspensions.suspend(ACCOUNT, "hold", "review", within_s=5)
    other = await register()
    for version in (VERSION, OTHER_VERSION):
        assert (await api.post("/v1/predictions", json={"version": version, "input": {}})).status_code == 201
    elsewhere = QueueDriver(driver.redis, driver.scripts, other)
    assert await driver.claim_all() == []
    assert await elsewhere.claim_all() == []
    await suspensions.resume(ACCOUNT)
    assert len(await driver.claim_all()) == 2
    assert len(await elsewhere.claim_all()) == 1


async def test_no_claim_after_suspension_despite_racing_creates(
    api: httpx.AsyncClient, suspensions: Suspensions, driver: QueueDriver
) -> None:
    await created(api)
    has_returned, stop = asyncio.Event(), asyncio.Event()
    after: list[str] = []

    async def create_on() -> None:
        while not stop.is_set():
            await created(api)

    async def claim_on() -> None:
        while not stop.is_set():
            is_after = has_returned.is_set()
            claims = await driver.claim(5)
            after.extend(claim.id for claim in claims if is_after)
            await turns()

    async def suspend() -> None:
        await suspensions.suspend(ACCOUNT, "hold", "review", within_s=5)
        has_returned.set()
        for _ in range(20):
            await created(api)
            await driver.claim(5)
        stop.set()

    await asyncio.gather(create_on(), claim_on(), suspend())
    assert after == []
    await suspensions.resume(ACCOUNT)
    assert len(await driver.claim_all()) >= 20


@pytest.mark.parametrize("reached", ["nothing", "what is written down", "one queue of two"])
async def test_keeper_finishes_an_interrupted_suspension(
    reached: str, suspensions: Suspensions, driver: QueueDriver, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await catalog.register(MODEL, OTHER_VERSION, schema=OPEN_SCHEMA, server="echo", policy=QueuePolicy())
    elsewhere = QueueDriver(driver.redis, driver.scripts, other)
    for each in (driver, elsewhere):
        await each.submit()
    scripts_pause, calls = driver.scripts.pause, 0

    async def pause(*args: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if reached == "what is written down" or calls == 2:
            raise ConnectionResetError
        await scripts_pause(*args, **options)

    async def written(*_: Any) -> None:
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(driver.scripts, "pause", pause)
        if reached == "nothing":
            patch.setattr(Accounts, "set_suspension", written)
        with pytest.raises(ConnectionResetError):
            await suspensions.suspend(ACCOUNT, "hold", "review", within_s=5)
    assert await suspensions.settle_all(within_s=10) == 1
    is_held = reached != "nothing"
    assert [len(await each.claim_all()) for each in (driver, elsewhere)] == ([0, 0] if is_held else [1, 1])


async def test_deletion_of_a_version_that_was_cut_short_stops_no_suspension(
    suspensions: Suspensions, driver: QueueDriver, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await catalog.register(MODEL, OTHER_VERSION, schema=OPEN_SCHEMA, server="echo", policy=QueuePolicy())
    removal = Removal(driver.redis, driver.scripts, catalog)

    async def cut_short(*_: Any) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(removal, "_forget", cut_short)
    with pytest.raises(ConnectionResetError):
        await removal.remove(MODEL, OTHER_VERSION)  # its queue is gone, and still listed
    waits = await driver.submit()
    assert await suspensions.suspend(ACCOUNT, "end", "abuse", within_s=60) == Ended(ended=1)
    assert (await driver.record(waits)).status == "canceled"
    assert await suspensions.settle_all(within_s=5) == 1
    await suspensions.resume(ACCOUNT)
    await driver.submit()
    assert len(await driver.claim_all()) == 1


@pytest.mark.parametrize("is_listed", [True, False])
async def test_full_server_does_not_hold_up_the_end_of_what_fills_it(
    is_listed: bool, suspensions: Suspensions, driver: QueueDriver
) -> None:
    waiting = {name: await driver.submit(account=name) for name in (ACCOUNT, "umbrella")}
    accounts = Accounts(driver.redis)
    for name, prediction in waiting.items():
        await accounts.create(name)
        await driver.scripts.enlist(prediction, account=name, oldest=lowest_id_at(0))
        if is_listed:
            await suspensions.suspend(name, "end", "abuse", within_s=0)
        else:  # the server is full before the next step
            await driver.redis.zadd(keys.settling(), {name: SystemClock().now_ms()})
            await accounts.set_suspension(name, Suspension(policy="end", reason="abuse", since_ms=0))
    await driver.redis.config_set("maxmemory", "1")
    try:
        with nullcontext() if is_listed else pytest.raises(BackendFull):
            await suspensions.settle_all(within_s=5)
        assert [(await driver.record(each)).status for each in waiting.values()] == ["canceled"] * 2
        assert await driver.redis.hlen(keys.suspended(driver.queue)) == 2
    finally:
        await driver.redis.config_set("maxmemory", "0")
    assert await suspensions.settle_all(within_s=5) == 2
    assert await driver.redis.zcard(keys.suspensions()) == 2


async def test_account_that_could_not_be_settled_is_not_forgotten(
    suspensions: Suspensions, late: Suspensions, redis: Any, driver: QueueDriver
) -> None:
    await suspensions.suspend(ACCOUNT, "hold", "review", within_s=0)
    await redis.delete(keys.suspensions())
    await redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(BackendFull):
            await late.settle_all(within_s=5)
    finally:
        await redis.config_set("maxmemory", "0")
    assert await late.settle_all(within_s=5) == 1
    assert await redis.exists(keys.suspensions())
    assert await late.settle_all(within_s=5) == 0


async def test_keeper_ends_work_accepted_after_the_suspension(
    api: httpx.AsyncClient, suspensions: Suspensions, driver: QueueDriver
) -> None:
    await created(api)
    await suspensions.suspend(ACCOUNT, "end", "abuse", within_s=5)
    late = await created(api)
    assert await driver.claim_all() == []
    await suspensions.settle_all(within_s=10)
    assert await status(api, late) == "canceled"


async def test_keeper_forgets_a_settled_account(
    suspensions: Suspensions, late: Suspensions, redis: Any, driver: QueueDriver, api: httpx.AsyncClient
) -> None:
    await created(api)
    claim = await driver.claim_one()
    await suspensions.suspend(ACCOUNT, "end", "abuse", within_s=5)
    assert await suspensions.settle_all(within_s=5) == 1, "an API may still take something in"
    for _ in range(2):
        assert await late.settle_all(within_s=5) == 1, "one still runs"
    assert await driver.finish(claim)
    assert await late.settle_all(within_s=5) == 1
    assert await late.settle_all(within_s=5) == 0
    assert not await redis.exists(keys.settling())
    await driver.submit()
    assert await driver.claim_all() == [], "it is suspended all the same"


async def test_late_keeper_does_not_undo_a_suspension(
    suspensions: Suspensions, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch, redis: Redis
) -> None:
    await suspensions.suspend(ACCOUNT, "hold", "review", within_s=5)
    await suspensions.resume(ACCOUNT)
    as_it_was = await Accounts(redis).read_written(ACCOUNT)
    await suspensions.suspend(ACCOUNT, "hold", "unpaid", within_s=5)

    async def outdated(*_: Any) -> Any:
        return as_it_was

    with monkeypatch.context() as patch:
        patch.setattr(Accounts, "read_written", outdated)
        await suspensions.settle(ACCOUNT, within_s=5)
    await driver.submit()
    assert await driver.claim_all() == []


async def test_operator_suspends_and_resumes_over_http(settings: ApiSettings, driver: QueueDriver, token: str) -> None:
    operator = await Accounts(driver.redis).create_token("operators", scopes=("admin",))
    path = f"/v1/admin/accounts/{ACCOUNT}"
    async with api_client(settings, token=operator) as admin:
        await driver.submit()
        answer = await admin.post(f"{path}/suspend", json={"policy": "hold", "reason": "security"})
        assert answer.status_code == 200
        shown = (await admin.get(path)).json()["suspension"]
        assert (shown["policy"], shown["reason"]) == ("hold", "security")
        assert await driver.claim_all() == []
        assert (await admin.post(f"{path}/resume")).json()["suspension"] is None
        assert len(await driver.claim_all()) == 1
        for wrong in ({}, {"policy": "maybe"}, {"policy": "hold", "reason": "<b>because</b>"}):
            refused = await admin.post(f"{path}/suspend", json=wrong)
            assert refused.status_code == 400
            assert "because" not in refused.text
        for act in ("suspend", "resume"):
            gone = await admin.post(f"/v1/admin/accounts/unknown/{act}", json={"policy": "hold"})
            assert gone.status_code == 404
    async with api_client(settings, token=token) as caller:
        assert (await caller.post(f"{path}/suspend", json={"policy": "hold"})).status_code == 403


async def test_suspended_operator_may_not_administrate(
    settings: ApiSettings, redis: Redis, suspensions: Suspensions, token: str
) -> None:
    await Accounts(redis).create_token("ops")
    await suspensions.suspend("ops", "hold", "security", within_s=5)
    operator = await Accounts(redis).create_token("ops", scopes=["read", "admin"])
    async with api_client(replace(settings, cache_s=0), token=operator) as api:
        for refused in (
            await api.post("/v1/admin/accounts/ops/resume"),
            await api.post(f"/v1/admin/accounts/{ACCOUNT}/tokens", json={}),
            await api.get("/v1/admin/accounts"),
        ):
            assert (refused.status_code, refused.json()["code"]) == (403, "account_suspended")
        assert (await api.get("/v1/predictions")).status_code == 200
        assert (await api.get(f"/v1/predictions?account={ACCOUNT}")).status_code == 403, "only its own"


# Each of these only ends or deletes
FREEING = {
    *(f"{kind}.cancel" for kind in ("predictions", "trainings", "procedures")),
    *("predictions.delete", "models.delete", "models.versions.delete", "deployments.delete", "files.delete"),
    *("openai.files.delete", "openai.batches.cancel"),
}


async def test_suspended_account_only_reads_cancels_and_deletes(
    settings: ApiSettings, redis: Redis, suspensions: Suspensions, token: str
) -> None:
    await suspensions.suspend(ACCOUNT, "hold", "abuse", within_s=5)
    everything = await Accounts(redis).create_token(ACCOUNT, scopes=["read", "run", "admin"])
    refused, went_on = set(), set()
    async with api_client(replace(settings, cache_s=0, openai=True), token=everything) as api:
        for route in (route for route in ROUTES if route.scopes):
            is_of_openai = route.path.startswith("/openai/")
            answer = await api.request(route.method, ("" if is_of_openai else "/v1") + example_of(route))
            is_refused = answer.status_code == 403 and code_in(answer.json()) == "account_suspended"
            (refused if is_refused else went_on).add(route.name)
    reads = {route.name for route in ROUTES if "read" in route.scopes and route.method in ("GET", "QUERY")}
    assert went_on == reads | FREEING
    assert {"files.create", "models.update", "predictions.webhooks.redeliver", "webhooks.default.secret.get"} <= refused


def code_in(said: dict[str, Any]) -> str | None:
    code: str | None = said.get("error", said).get("code")
    return code


def example_of(route: Route) -> str:
    return route.path.format(**{one.name: one.example for one in route.all_parameters if one.place == "path"})


async def test_suspended_account_stores_no_files(
    settings: ApiSettings, suspensions: Suspensions, token: str, tmp_path: Path
) -> None:
    await suspensions.suspend(ACCOUNT, "hold", "abuse", within_s=5)
    async with api_client(replace(settings, files_dir=str(tmp_path)), token=token) as api:
        refused = await api.post("/v1/files", files={"content": b"x"})
        assert (refused.status_code, refused.json()["code"]) == (403, "account_suspended")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_operator_suspends_and_resumes_by_command(
    server: RedisServer, driver: QueueDriver, token: str, capsys: Any
) -> None:
    async def types(*line: str) -> tuple[int, str, str]:
        code = await to_thread.run_sync(lambda: main([*line, "--redis", server.url]))
        return (code, *capsys.readouterr())

    await driver.submit()
    code, said, logged = await types("account", "suspend", ACCOUNT, "--reason", "unpaid")
    assert (code, said.startswith(f"{ACCOUNT} is suspended")) == (0, True)
    assert [json.loads(line)["detail"]["reason"] for line in logged.splitlines()] == ["unpaid"]
    assert await driver.claim_all() == []
    assert "suspended          hold" in (await types("account", "show", ACCOUNT))[1]
    assert (await types("account", "resume", ACCOUNT))[0] == 0
    assert len(await driver.claim_all()) == 1
    assert "there is no account unknown" in (await types("account", "suspend", "unknown"))[2]


async def test_unknown_account_cannot_be_suspended(suspensions: Suspensions, redis: Any) -> None:
    for act in (suspensions.suspend("unknown", "hold", "review", within_s=1), suspensions.resume("unknown")):
        with pytest.raises(SettingsError, match="there is no account"):
            await act
    assert not await redis.exists(keys.settling(), keys.suspensions())
