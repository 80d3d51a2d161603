"""Each step of a prediction is one log entry, and the log is bounded."""

import re
from pathlib import Path

from director.broker import keys
from director.core.ids import partition_of
from director.core.schema import Claim
from director.core.states import Status
from director.store.logs import KINDS
from tests.support.queue_driver import ACCOUNT, QueueDriver

SCRIPTS = Path(__file__).parents[2] / "lua"


async def logged(driver: QueueDriver) -> list[dict[str, str]]:
    entries = await driver.redis.xrange(keys.log(partition_of(driver.new_id())))
    return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in entries]


async def steps(driver: QueueDriver) -> list[tuple[str, str]]:
    return [(entry["kind"], entry["detail"]) for entry in await logged(driver)]


async def test_each_step_of_a_life_is_logged(driver: QueueDriver) -> None:
    prediction_id = await driver.submit(lane="low", webhook="https://example.com/secret", webhook_events="completed")
    await driver.release(await driver.claim_one(), code="server_full")
    await driver.release(await driver.claim_one(consumer="d2"), spent=True, code="connection_lost")
    claim = await driver.claim_one()
    await driver.begin(claim, ("output", b'"secret"'))
    await driver.finish(claim, output=b'"secret"', logs="secret", seq=claim.record.seq + 2)
    await driver.deliver(prediction_id, outcome="failed", delay_s=2)
    await driver.deliver(prediction_id, status=204)
    assert await steps(driver) == [
        ("accepted", "low"),
        ("claimed", "d1 1"),
        ("released", "server_full d1"),
        ("claimed", "d2 1"),
        ("retried", "connection_lost d2"),
        ("claimed", "d1 2"),
        ("ended", "succeeded"),
        ("told", "failed - 1"),
        ("told", "delivered 204 2"),
    ]
    for entry in await logged(driver):
        assert entry["id"] == prediction_id
        assert (entry["queue"], entry["account"], entry["at"]) == (driver.queue, ACCOUNT, str(driver.now_ms))
        assert "secret" not in str(entry)


async def test_every_end_is_logged_with_its_code(driver: QueueDriver) -> None:
    canceled = await driver.submit()
    await driver.cancel(canceled)
    late = await driver.submit(lifetime_ms=1000)
    driver.pass_time(1)
    await driver.expire()
    await driver.submit()
    await driver.finish(await driver.claim_one(), Status.FAILED, code="model_failed", error="secret")
    dead = await driver.die()
    ends = [entry for entry in await logged(driver) if entry["kind"] == "ended"]
    assert [entry["detail"] for entry in ends] == [
        "canceled",
        "failed deadline_exceeded",
        "failed model_failed",
        "failed broken",
    ]
    assert [ends[number]["id"] for number in (0, 1, 3)] == [canceled, late, dead]


async def test_recoveries_and_revivals_are_logged(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.claim_one()
    driver.pass_time(15)
    await driver.reap()
    assert (await steps(driver))[-1] == ("retried", "director_lost d1")
    await driver.release(await driver.claim_one(), spent=True, code="broken")
    claim = await driver.claim_one()
    assert await driver.release(claim, spent=True, code="broken") == "dead"
    await driver.revive(claim.id)
    assert (await steps(driver))[-2:] == [("ended", "failed broken"), ("revived", "")]


async def test_drops_and_erasures_are_logged(driver: QueueDriver) -> None:
    dropped = await driver.die()
    await driver.drop(dropped)
    await driver.drop(dropped)
    for account in ("rival", ACCOUNT, ACCOUNT):
        await driver.scripts.erase(dropped, account=account, now_ms=driver.now_ms)
    told = (await logged(driver))[-2:]
    assert [(entry["kind"], entry["id"], entry["account"]) for entry in told] == [
        ("dropped", dropped, ACCOUNT),
        ("erased", dropped, ACCOUNT),
    ]
    assert {(entry["queue"], entry["at"]) for entry in told} == {(driver.queue, str(driver.now_ms))}


async def test_a_request_to_stop_is_logged_once(driver: QueueDriver, claim: Claim) -> None:
    for account in ("rival", ACCOUNT, ACCOUNT):
        await driver.cancel(claim.id, account=account)
    await driver.finish(claim, Status.CANCELED)
    assert (await steps(driver))[-3:] == [("claimed", "d1 1"), ("asked", "d1"), ("ended", "canceled")]


async def test_calls_that_change_nothing_log_nothing(driver: QueueDriver) -> None:
    without_record = await driver.die()
    await driver.redis.delete(keys.record(without_record))
    claim = await driver.claimed(webhook="https://example.com", webhook_events="completed")
    await driver.finish(claim)
    before = await logged(driver)
    assert await driver.drop(without_record)
    await driver.deliver(claim.id, outcome="put_off", delay_s=2)
    await driver.submit(claim.id)
    await driver.finish(claim)
    await driver.release(claim)
    await driver.cancel(claim.id)
    await driver.claim()
    assert await logged(driver) == before
    await driver.deliver(claim.id)
    before = await logged(driver)
    await driver.deliver(claim.id)
    assert await logged(driver) == before


async def test_the_log_is_bounded(driver: QueueDriver) -> None:
    key = keys.log(partition_of(driver.new_id()))
    pipe = driver.redis.pipeline()
    for _ in range(10_500):
        pipe.xadd(key, {"id": "x", "kind": "x", "queue": "x", "account": "x", "at": 1, "detail": ""})
    await pipe.execute()
    await driver.submit()
    assert await driver.redis.xlen(key) <= 10_200, "whole blocks of a hundred are cut"
    assert (await steps(driver))[-1][0] == "accepted"


def test_a_filter_accepts_each_kind_that_a_script_logs() -> None:
    named = {kind for file in SCRIPTS.rglob("*.lua") for kind in re.findall(r"\blog\.write\('(\w+)'", file.read_text())}
    assert named
    assert named <= KINDS
