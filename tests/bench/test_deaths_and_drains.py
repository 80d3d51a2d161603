"""Model processes die and directors drain under load; every prediction still ends as promised."""

import asyncio
import os
import random
import signal
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.integration.execution.conftest import caller as caller
from tests.support.cog import cog_server, write_model
from tests.support.eventually import eventually, every, until_time
from tests.support.live_director import TERMINAL, Caller, director_process, keeping, live_director, supervised_cog
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.heavy, pytest.mark.cog]

SECONDS = 60
SERVERS = 3
ATTEMPTS = 3
IN_QUEUE = 20
BACK_S = 2.0
DRAIN_S = 5.0
GRACE_S = DRAIN_S + 10 + 4  # the drain's own, and what handing back and telling may take
GAP_S = 1.0

LOGGED = """
    import time
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def predict(self, name: str, log: str, run_s: float = 0.1) -> str:
            with open(log, "a") as file:
                file.write(f"{name} {time.monotonic()}\\n")
            time.sleep(run_s)  # the model's own time
            return "x"
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "logged", LOGGED)


async def asked_for(caller: Caller, log: Path, asked: list[str], until: asyncio.Event, **given: float) -> None:
    async for _ in every(0.1):
        if until.is_set():
            break
        while (await caller.scripts.stats(caller.queue)).waiting < IN_QUEUE:
            prediction_id = caller.new_id()
            await caller.submit(prediction_id, name=str(prediction_id), log=str(log), **given)
            asked.append(prediction_id)


async def test_model_processes_killed_at_random_every_second_for_a_minute(
    caller: Caller, server: RedisServer, redis: Redis, model: Path, tmp_path: Path
) -> None:
    log, asked, over = tmp_path / "log", list[str](), asyncio.Event()
    dice, late_s = random.Random(7), list[float]()
    async with AsyncExitStack() as stack:
        cogs = [await stack.enter_async_context(supervised_cog(model)) for _ in range(SERVERS)]
        await stack.enter_async_context(keeping(server.url))
        director = await stack.enter_async_context(
            live_director(server.url, *(cog.url for cog in cogs), attempts=ATTEMPTS, breaker_after=0)
        )
        await eventually(lambda: all(each.can_run for each in director.servers.all), "all are ready")
        asking = asyncio.create_task(asked_for(caller, log, asked, over))
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            number = dice.randrange(SERVERS)
            cog, mortal = cogs[number], director.servers.all[number]
            assert cog.server is not None
            starts, killed_at = cog.starts, time.monotonic()
            os.killpg(cog.server.pid, signal.SIGKILL)
            await eventually(lambda cog=cog, n=starts: cog.starts > n, "it is ready again by its own word")
            ready_at = time.monotonic()
            await eventually(lambda mortal=mortal: mortal.can_run, "its slot is back")
            late_s.append(time.monotonic() - ready_at)
            await until_time(killed_at + 1)  # one death a second
        over.set()
        await asking
        ends = [(await caller.ended(each))["status"] for each in asked]  # type: ignore[arg-type]
    ran = [line.split()[0] for line in log.read_text().splitlines()]
    most = max(ran.count(each) for each in set(ran))
    print(
        f"{len(late_s)} kills of {SERVERS} servers, {len(asked)} predictions: {ends.count('succeeded')} succeeded, "
        f"{ends.count('failed')} failed; most runs of one {most} of {ATTEMPTS}; "
        f"a slot was back {max(late_s):.2f} s after its server at the latest"
    )
    assert set(ends) <= set(TERMINAL)
    assert most <= ATTEMPTS
    assert max(late_s) < BACK_S


async def test_a_director_that_leaves_under_load_does_so_in_its_grace_and_holds_up_no_other(
    caller: Caller, server: RedisServer, redis: Redis, model: Path, tmp_path: Path
) -> None:
    log, asked, over = tmp_path / "log", list[str](), asyncio.Event()
    async with (
        cog_server(model) as one,
        cog_server(model) as two,
        keeping(server.url),
        director_process(server.url, one, drain_s=DRAIN_S) as leaving,
        director_process(server.url, two) as staying,
    ):
        asking = asyncio.create_task(asked_for(caller, log, asked, over))
        for director in (leaving, staying):
            await eventually(lambda director=director: len(director.said("inference")) > 20, "it works")
        asked_at = time.monotonic()
        leaving.send(signal.SIGTERM)
        assert await leaving.exit_code() == 0
        left_at = time.monotonic()
        done = len(staying.said("inference"))
        await eventually(lambda: len(staying.said("inference")) > done + 20, "the other one goes on")
        over.set()
        await asking
        ends = [(await caller.ended(each))["status"] for each in asked]  # type: ignore[arg-type]
        assert not [each for each in leaving.said("claim given back") if each["spent"]]
        starts = [float(line.split()[1]) for line in log.read_text().splitlines()]
        records = [await caller.record(each) for each in asked]  # type: ignore[arg-type]
    during = [at for at in starts if asked_at <= at <= left_at + GAP_S]
    gap_s = max(after - before for before, after in pairwise(during))
    print(f"left {left_at - asked_at:.2f} s after it was asked to; longest time without a start {gap_s:.2f} s")
    assert set(ends) == {"succeeded"}
    assert {record.attempt for record in records} == {1}
    assert left_at - asked_at < GRACE_S
    assert gap_s < GAP_S
