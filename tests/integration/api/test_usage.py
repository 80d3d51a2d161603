"""GET /v1/usage and /v1/admin/usage: what an account used, by model, day and API token, and what that costs."""

from datetime import UTC, datetime
from typing import Any

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from api.accounts import usage
from director.broker.scripts import Scripts
from director.core.states import Status
from director.core.usage import Price, Used
from director.store.accounts import Accounts
from director.store.services import Services
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver

RUN = Used(runs=1, ms=2_500, input_tokens=700, cached_tokens=500, output_tokens=40, file_bytes=9)
SHOWN = {"runs": 1, "seconds": 2.5, "input_tokens": 700, "cached_tokens": 500, "output_tokens": 40, "file_bytes": 9}


@pytest.fixture
def driver(driver: QueueDriver) -> QueueDriver:
    """A driver with the real time, as the API has it."""
    driver.now_ms = int(datetime.now(UTC).timestamp() * 1000)
    return driver


async def run(driver: QueueDriver, used: Used = RUN, **options: Any) -> None:
    await driver.finish(await driver.claimed(**options), used=used)


async def test_a_run_is_shown_to_its_account_by_model(api: AsyncClient, driver: QueueDriver) -> None:
    await run(driver)
    await run(driver, account="other")
    today = datetime.fromtimestamp(driver.now_ms / 1000, UTC).date()
    assert (await api.get("/v1/usage")).json() == {
        "first": str(today.replace(day=1)),
        "last": str(today),
        "total": {**SHOWN, "cost": None},
        "results": [{"model": MODEL, **SHOWN, "cost": None}],
    }


async def test_a_create_through_the_api_counts_under_its_token(
    api: AsyncClient, redis: Redis, scripts: Scripts, driver: QueueDriver
) -> None:
    await api.post("/v1/predictions", json={"version": VERSION, "input": {}})
    await driver.finish(await driver.claim_one(), used=RUN)
    [token] = await Accounts(redis).tokens.of(ACCOUNT)
    [row] = (await api.get("/v1/usage?by=token,day")).json()["results"]
    assert (row["token"], row["day"]) == (token.id, f"{datetime.fromtimestamp(driver.now_ms / 1000, UTC):%Y-%m-%d}")


async def test_nothing_used_is_a_total_of_zeros(api: AsyncClient) -> None:
    answer = (await api.get("/v1/usage")).json()
    assert (answer["results"], answer["total"]["runs"], answer["total"]["cost"]) == ([], 0, None)


async def test_days_outside_the_range_do_not_count(api: AsyncClient, driver: QueueDriver) -> None:
    now_ms = driver.now_ms
    for days_ago in (0, 40, 41):
        driver.now_ms = now_ms - days_ago * 86_400_000
        await run(driver)
    day = f"{datetime.fromtimestamp(now_ms / 1000 - 40 * 86_400, UTC):%Y-%m-%d}"
    answer = (await api.get(f"/v1/usage?from={day}&to={day}&by=day")).json()
    assert [(row["day"], row["runs"]) for row in answer["results"]] == [(day, 1)]
    assert (await api.get(f"/v1/usage?from={day}")).json()["total"]["runs"] == 2


@pytest.mark.parametrize(
    "query",
    ["by=account", "by=color", "by=day,day", "from=2026-13-01", "from=yesterday", "from=2026-11-02&to=2026-11-01"],
)
async def test_an_unknown_key_or_day_is_refused(api: AsyncClient, query: str) -> None:
    assert (await api.get(f"/v1/usage?{query}")).status_code == 422


async def test_too_many_sums_are_refused_with_what_to_leave_out(
    api: AsyncClient, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = driver.now_ms
    for days_ago in (0, 1):
        driver.now_ms = now_ms - days_ago * 86_400_000
        await run(driver)
    monkeypatch.setattr(usage, "MOST_RESULTS", 1)
    since = f"from={datetime.fromtimestamp(now_ms / 1000 - 86_400, UTC):%Y-%m-%d}"
    refused = await api.get(f"/v1/usage?{since}&by=day")
    assert (refused.status_code, refused.json()["invalid_fields"][0]["field"]) == (422, "by")
    assert (await api.get(f"/v1/usage?{since}&by=model")).json()["total"]["runs"] == 2


async def test_operators_see_every_account_with_its_cost(
    admin: AsyncClient, api: AsyncClient, redis: Redis, driver: QueueDriver
) -> None:
    services = Services(redis)
    await services.ledger.set_price(MODEL, Price(input=1, cached=0.1, output=4, run=0.5))
    await run(driver)
    await Accounts(redis).create_token("other")
    for status in (Status.FAILED, Status.CANCELED):
        await driver.finish(await driver.claimed(account="other"), status, used=RUN)
    cost = round(0.5 + (200 * 1 + 500 * 0.1 + 40 * 4) / 1e6, 6)
    answer = (await admin.get("/v1/admin/usage")).json()
    assert [(row["account"], row["model"], row["runs"], row["cost"]) for row in answer["results"]] == [
        (ACCOUNT, MODEL, 1, cost),
        ("other", MODEL, 2, round(2 * cost, 6)),
    ]
    assert answer["total"]["runs"] == 3
    [row] = (await admin.get("/v1/admin/usage?account=other&by=account")).json()["results"]
    assert (row["account"], row["output_tokens"]) == ("other", 80)
    assert (await api.get("/v1/admin/usage")).status_code == 403
    assert (await admin.get("/v1/admin/usage?account=-")).status_code == 422
    assert (await admin.get("/v1/admin/usage?account=unknown")).status_code == 422
    await services.gatherer.aclose()
