"""Open hours of an account and of a model, as an operator sets them and a caller sees them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.hours import DAY_MS, parse_hours
from director.core.policy import Policy
from director.keeper.registry import Registry
from director.keeper.sweeps import renew_hours
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver

LATER = datetime.now(UTC).replace(minute=0) + timedelta(hours=3)
CLOSED = f"{LATER:%H:%M}-{LATER + timedelta(hours=1):%H:%M} UTC"
OPEN = "00:00-24:00 UTC"


async def create(api: AsyncClient, **headers: str) -> Any:
    answer = await api.post("/v1/predictions", json={"version": VERSION, "input": {"text": "hi"}}, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def set_hours(admin: AsyncClient, hours: str | None) -> None:
    changed = await admin.patch(f"/v1/admin/accounts/{ACCOUNT}", json={"limits": {"open_hours": hours}})
    assert changed.status_code == 200, changed.text
    assert changed.json()["limits"]["open_hours"] == (None if hours in (None, "default") else hours)


@pytest.mark.parametrize("back", [OPEN, None, "default"])
async def test_account_waits_for_its_hours_and_starts_once_they_are_changed(
    api: AsyncClient, admin: AsyncClient, driver: QueueDriver, back: str | None
) -> None:
    before = await create(api)
    await set_hours(admin, CLOSED)
    made = await create(api)
    place = (await api.get(f"/v1/predictions/{made['id']}")).json()["queue"]
    assert place["reason"] == "closed"
    assert place["detail"] == f"It waits for its open hours, which begin {LATER:%a %H:%M} UTC."
    assert await driver.scripts.claim(driver.queue, consumer="d", nonce="n1", count=9, lease_s=15) == []
    explained = (await api.get(f"/v1/predictions/{made['id']}/explain")).json()
    assert explained["next"][0]["detail"].endswith("when its open hours begin")
    await set_hours(admin, back)
    claims = await driver.scripts.claim(driver.queue, consumer="d", nonce="n2", count=9, lease_s=15)
    assert {claim.id for claim in claims} == {before["id"], made["id"]}


async def test_first_create_of_an_account_with_hours_does_not_start(
    api: AsyncClient, admin: AsyncClient, driver: QueueDriver
) -> None:
    await set_hours(admin, CLOSED)
    await driver.redis.delete(keys.hours(driver.queue), keys.opens(driver.queue))
    await create(api)
    assert await driver.scripts.claim(driver.queue, consumer="d", nonce="n1", count=9, lease_s=15) == []
    assert await driver.redis.exists(keys.hours(driver.queue))


@pytest.mark.parametrize(
    ("hours", "why"),
    [("22-06 UTC", "is neither"), ("22:00-06:00 Mars/Base", "Mars/Base is no time zone"), ("at night", "no time zone")],
)
async def test_wrong_hours_are_refused_with_the_reason(
    api: AsyncClient, admin: AsyncClient, hours: str, why: str
) -> None:
    refused = await admin.patch(f"/v1/admin/accounts/{ACCOUNT}", json={"limits": {"open_hours": hours}})
    assert (refused.status_code, why in refused.text) == (422, True), refused.text
    refused = await admin.put(f"/v1/admin/models/{MODEL}/config", json={"open_hours": hours})
    assert (refused.status_code, why in refused.text) == (422, True), refused.text


async def test_hours_of_a_model_are_those_that_its_director_registers(
    driver: QueueDriver, scripts: Scripts, api: AsyncClient
) -> None:
    await scripts.register(driver.queue, version=VERSION, policy=Policy(open_hours=CLOSED))
    made = await create(api)
    assert (await api.get(f"/v1/predictions/{made['id']}")).json()["queue"]["reason"] == "closed"
    assert await scripts.claim(driver.queue, consumer="d", nonce="n1", count=9, lease_s=15) == []
    await scripts.register(driver.queue, version=VERSION, policy=Policy())
    assert len(await scripts.claim(driver.queue, consumer="d", nonce="n2", count=9, lease_s=15)) == 1


async def test_keeper_brings_the_closures_of_later_days(
    redis: Redis, scripts: Scripts, catalog: Catalog, driver: QueueDriver
) -> None:
    today = int(datetime.now(UTC).timestamp() * 1000) // DAY_MS
    before = {"revision": 7, "now_ms": (today - 5) * DAY_MS}
    for account in ("", "team-a"):
        await scripts.hours(driver.queue, CLOSED, account=account, **before)
    await scripts.hours(driver.queue, "", account="team-b", **before)
    registry = Registry(redis, catalog, FakeClock())
    assert await renew_hours(redis, scripts, registry) == {driver.queue: 2}
    kept: Any = await redis.hgetall(keys.hours(driver.queue))
    for account in (b"", b"team-a"):
        last = int(kept[account].rpartition(b"-")[2])
        assert kept[account].startswith(f"7 {CLOSED}|".encode())
        assert last // DAY_MS >= today + 7
        assert parse_hours(CLOSED).is_open(last)


async def test_zone_that_a_machine_does_not_know_leaves_hours_as_they_are(
    redis: Redis, scripts: Scripts, catalog: Catalog, driver: QueueDriver, api: AsyncClient, admin: AsyncClient
) -> None:
    unknown, known = f"{CLOSED.removesuffix(' UTC')} Mars/Base", "1 22:00-06:00 Mars/Base|1-99999999999999"
    await redis.hset(keys.account(ACCOUNT), "open_hours", unknown)
    await redis.hset(keys.hours(driver.queue), mapping={ACCOUNT: known, "team-b": f"1 {CLOSED}|1-2"})
    assert await renew_hours(redis, scripts, Registry(redis, catalog, FakeClock())) == {driver.queue: 2}
    await create(api)
    assert (await admin.get("/v1/admin/accounts")).status_code == 200
    kept: Any = await redis.hgetall(keys.hours(driver.queue))
    assert kept[ACCOUNT.encode()] == known.encode()
    assert kept[b"team-b"] != f"1 {CLOSED}|1-2".encode()


async def test_change_of_another_limit_writes_no_hours(
    api: AsyncClient, admin: AsyncClient, driver: QueueDriver
) -> None:
    changed = await admin.patch(f"/v1/admin/accounts/{ACCOUNT}", json={"limits": {"weight": 2}})
    assert changed.status_code == 200, changed.text
    assert not await driver.redis.exists(keys.hours(driver.queue), keys.reopened(driver.queue, ACCOUNT))
    await set_hours(admin, "default")
    assert await driver.redis.exists(keys.reopened(driver.queue, ACCOUNT))


async def test_idle_account_sends_idle_work_alone(api: AsyncClient, admin: AsyncClient, driver: QueueDriver) -> None:
    await set_hours(admin, "idle")
    await driver.scripts.extend(driver.queue, consumer="d", lease_s=15, claims=[], slots=1)
    made = await create(api, **{"X-Priority": "normal"})
    assert (await api.get(f"/v1/predictions/{made['id']}")).json()["queue"]["reason"] == "idle"
    [claim] = await driver.scripts.claim(driver.queue, consumer="d", nonce="n1", count=9, lease_s=15)
    assert claim.record.lane == "idle"


async def test_token_needs_the_idle_lane(api: AsyncClient, redis: Redis, driver: QueueDriver) -> None:
    body = {"version": VERSION, "input": {"text": "hi"}}
    refused = await api.post("/v1/predictions", json=body, headers={"X-Priority": "idle"})
    assert (refused.status_code, refused.json()["detail"]) == (403, "This token may not use the lane 'idle'.")
    token = await Accounts(redis).create_token(ACCOUNT, lanes=("normal", "idle"))
    headers = {"X-Priority": "idle", "Authorization": f"Bearer {token}"}
    assert (await api.post("/v1/predictions", json=body, headers=headers)).status_code == 201
    [claim] = await driver.scripts.claim(driver.queue, consumer="d", nonce="n1", count=9, lease_s=15)
    assert claim.record.lane == "idle"
