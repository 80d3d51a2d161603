"""Test the death of a director, of a model server and of Redis: no prediction is lost, and none ends twice."""

import signal

import pytest

from director.broker import keys
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, Tally, live_director
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, driving
from tests.support.servers import redis_server

pytestmark = pytest.mark.cog


async def test_another_director_finishes_the_work_of_a_killed_one(
    caller: Caller, live: Live, gate: Gate, tally: Tally
) -> None:
    asked = await caller.submit(n=2, gate=str(gate), count=str(tally))
    async with live.keeper(lease_s=1):
        async with live.process(lease_s=1) as first:
            await caller.shows(asked, status="processing", output=["a0", "a1"])
            first.send(signal.SIGKILL)
            await first.exit_code()
        gate.open()
        async with live.director(lease_s=1):
            ended = await caller.ended(asked)
    assert (ended["status"], ended["output"], ended["logs"]) == ("succeeded", ["a0", "a1"], "token 0\ntoken 1\n")
    assert tally.runs == 2
    assert (await caller.record(asked)).attempt == 2
    await caller.nothing_is_left()


@pytest.mark.faults
async def test_director_that_slept_through_its_lease_writes_nothing(
    caller: Caller, live: Live, second_cog_url: str, gate: Gate, tally: Tally
) -> None:
    asked = await caller.submit(n=1, gate=str(gate), count=str(tally))
    async with (
        live.keeper(lease_s=1),
        live.process(lease_s=1) as zombie,
    ):
        await caller.shows(asked, status="processing", output=["a0"])
        zombie.send(signal.SIGSTOP)
        await eventually(lambda: caller.record(asked), "it is taken back", until=lambda record: not record.token)
        async with live.director(second_cog_url, lease_s=1) as heir:
            await eventually(lambda: caller.record(asked), "the heir has it", until=lambda it: it.holder == heir.name)
            zombie.send(signal.SIGCONT)
            await zombie.says("claim lost")
            gate.open()
            ended = await caller.ended(asked)
            assert (ended["status"], ended["output"]) == ("succeeded", ["a0"])
            assert (await caller.record(asked)).holder == heir.name
        assert not zombie.said("inference")
        assert not zombie.said("claim given back")
        events = await caller.kinds(asked)
        assert events.count("started") == 2
        assert events.index("retried") < len(events) - 1 - events[::-1].index("started")


async def test_lost_claim_ends_its_run_and_writes_nothing(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.director(lease_s=0.6) as director:
        asked = await caller.submit(n=1, gate=str(gate))
        await caller.shows(asked, status="processing", output=["a0"])
        await caller.redis.hset(keys.record(asked), "token", "of another")
        await eventually(lambda: len(director.claims), "it lets go", until=lambda held: held == 0)
        before = await caller.kinds(asked)
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"  # the slot is free again
        assert await caller.kinds(asked) == before
    assert (await caller.record(asked)).status == "processing"


async def test_end_during_an_outage_of_redis_is_written_afterwards(cog_url: str, gate: Gate) -> None:
    with redis_server() as server:
        async with driving(server.url) as driver, live_director(server.url, cog_url) as director:
            await Accounts(driver.redis).create_token(ACCOUNT)
            caller = Caller(driver.redis, driver.scripts)
            asked = await caller.submit(n=2, gate=str(gate))
            await caller.shows(asked, output=["a0", "a1"])
            [held] = director.claims._claims.values()
            server.kill()
            gate.open()
            await eventually(lambda: held.tracker.ended, "the run ends")
            server.start()
            ended = await caller.ended(asked)
            assert (ended["status"], ended["output"]) == ("succeeded", ["a0", "a1"])
            assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"


@pytest.mark.usefixtures("hurried")
async def test_emptied_redis_gets_the_queue_registered_again(caller: Caller, live: Live, catalog: Catalog) -> None:
    async with live.director():
        await caller.ended(await caller.submit(n=1))
        known = await catalog.version(MODEL, VERSION)
        await caller.redis.flushall()
        found = await eventually(lambda: catalog.version(MODEL, VERSION), "it is registered")
        assert (found.schema, found.server) == (known.schema, known.server)
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"
