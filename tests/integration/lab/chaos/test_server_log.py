"""Read the server's own log as a fault-injection run does: on a real server, through the scripts as they are."""

import shutil
import time
from pathlib import Path

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import partition_of
from director.lab.chaos.journal import Arrived, Breaker, Claimed, Stepped
from director.lab.chaos.rest import Steps, count_owed_to_living, leftovers, server_log, size
from tests.support.queue_driver import QueueDriver
from tests.support.servers import RedisServer


async def test_the_log_has_arrivals_and_claims_in_the_servers_order(driver: QueueDriver, server: RedisServer):
    start = size(server.folder)
    first = await driver.submit(account="ant", streams=[5])
    second = await driver.submit(account="bee", lane="high")
    claims = await driver.claim_all(consumer="host-41-0a")
    await driver.release(claims[0])
    again = await driver.claim_one(consumer="host-42-0b")
    await driver.finish(again)
    await driver.finish(claims[1])
    lines = list(server_log(server.folder, start=start))
    arrived = [line for line in lines if isinstance(line, Arrived)]
    claimed = [line for line in lines if isinstance(line, Claimed)]
    assert [(line.id, line.tenant, line.queue, line.lane) for line in arrived] == [
        (first, "ant", driver.queue, "normal"),
        (second, "bee", driver.queue, "high"),
    ]
    assert [(line.id, line.holder) for line in claimed] == [
        (second, "host-41-0a"),
        (first, "host-41-0a"),
        (claims[0].id, "host-42-0b"),
    ]
    assert {line.stream for line in claimed if line.id == first} == {5}
    assert [line.number for line in lines] == sorted(line.number for line in lines)


async def test_the_log_has_each_step_of_a_prediction(driver: QueueDriver, server: RedisServer):
    start = size(server.folder)
    name = await driver.submit(webhook="http://sink.test", webhook_events="completed")
    first = await driver.claim_one()
    driver.pass_time(1)
    await driver.extend(first)
    await driver.release(first, code="refused")
    second = await driver.claim_one()
    await driver.finish(second)
    assert not await driver.finish(first)
    await driver.deliver(name)
    steps = [line for line in server_log(server.folder, start=start) if isinstance(line, Stepped) and line.id == name]
    wrote = [{what: to for what, to in step.wrote if what != "lease" or to is None} for step in steps]
    assert wrote == [
        {"status": "open", "wants": True},
        {"token": first.token},
        {},  # the lease alone
        {"token": "", "lease": None},
        {"token": second.token},
        {"status": "ended", "ended": second.token, "token": "", "lease": None, "owed": True},
        {"owed": False, "told": True},
    ]
    assert [step.now - driver.now_ms for step in steps if step.now] == [-1_000, -1_000, 0, 0, 0, 0]
    assert [step.code for step in steps if step.code] == ["refused"]


def test_half_a_script_and_a_key_that_moves_have_no_step():
    end = [b"HSET", b"{p1}:rec:" + b"a" * 26, b"status", b"succeeded", b"completed", b"7"]
    begin, done, steps = [b"MULTI"], [b"EXEC"], Steps()
    for number, command in enumerate((end, begin, end, begin, done)):
        assert list(steps.read(number, command)) == []
    assert [*steps.read(5, begin), *steps.read(6, end)] == []
    [step] = steps.read(7, done)
    assert (step.id, step.wrote, step.now) == ("a" * 26, (("status", "ended"),), 7)


async def test_a_claim_has_the_servers_time_and_the_records_time(driver: QueueDriver, server: RedisServer):
    start = size(server.folder)
    await driver.submit()
    before_ms = time.time_ns() // 1_000_000
    await driver.finish(await driver.claim_one())
    [claimed] = [line for line in server_log(server.folder, start=start) if isinstance(line, Claimed)]
    assert claimed.at == driver.now_ms, "a test's time, which the script was given"
    assert before_ms - 1 <= claimed.delivered <= time.time_ns() // 1_000_000 + 1


async def test_a_waiting_prediction_has_its_arrival_and_later_its_stream(
    driver: QueueDriver, scripts: Scripts, server: RedisServer
):
    await scripts.resize(driver.queue, streams=1)
    start = size(server.folder)
    ids = [await driver.submit() for _ in range(8)]
    claims = await driver.claim_all()
    lines = list(server_log(server.folder, start=start))
    assert [line.id for line in lines if isinstance(line, Arrived)] == ids
    assert [(line.id, line.stream) for line in lines if isinstance(line, Claimed)] == [(each, 0) for each in ids]
    for claim in claims:
        await driver.finish(claim)


async def test_a_command_that_a_kill_cut_off_is_left_out(driver: QueueDriver, server: RedisServer, tmp_path: Path):
    start = size(server.folder)
    await driver.submit()
    await driver.submit()
    await driver.redis.flushall()
    whole = list(server_log(server.folder, start=start))
    shutil.copytree(server.folder / "appendonlydir", tmp_path / "appendonlydir")
    [log] = (tmp_path / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(log.read_bytes()[:-3])
    assert list(server_log(tmp_path, start=start)) == whole, "only the last command, which tells of neither, is gone"
    end = log.read_bytes().rindex(b"\r\ncreated\r\n")
    log.write_bytes(log.read_bytes()[:end])
    assert list(server_log(tmp_path, start=start)) == whole[:-2]


async def test_webhooks_to_dead_receivers_may_stay_owed(driver: QueueDriver):
    ids = [
        await driver.submit(webhook=f"http://127.0.0.1:1/{path}", webhook_events="completed")
        for path in ("dead", "hook/1")
    ]
    for claim in await driver.claim_all():
        await driver.finish(claim)
    owed = keys.owed(partition_of(ids[0]))
    assert await driver.redis.zcard(owed) == 2
    assert await count_owed_to_living(driver.redis, owed) == 1
    found = await leftovers(driver.redis)
    assert (found.owed, owed in found.endless) == (1, False)
    await driver.redis.flushall()


async def test_the_log_has_when_a_breaker_opened_and_closed(driver: QueueDriver, server: RedisServer):
    start = size(server.folder)
    for _ in range(6):
        await driver.submit()
    for number in range(5):
        await driver.release(await driver.claim_one(consumer=f"d{number}"), spent=True, code="server_lost", delay_s=60)
    assert await driver.claim() == []
    driver.pass_time(3600)
    await driver.finish(await driver.claim_one(), ran_ms=10)
    told = [line for line in server_log(server.folder, start=start) if isinstance(line, Breaker)]
    assert [(line.queue, line.is_open) for line in told] == [(driver.queue, True), (driver.queue, False)]
    await driver.redis.flushall()  # the retries
