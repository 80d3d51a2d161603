"""Cut the power of a real server: what was answered is still there, and what its log got since is gone."""

import asyncio
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from director.broker.redis_client import client
from director.chaos.journal import Journal
from director.chaos.nemesis import Nemesis
from director.chaos.plan import AT_A_SYNC, SERVER, Planned
from director.chaos.scene import Options, staged
from director.local.home import Home

WRITERS = 8


@pytest.mark.faults
@pytest.mark.parametrize("detail", [AT_A_SYNC, "in the middle of a write"])
async def test_a_power_cut_takes_only_what_no_client_was_answered(tmp_path: Path, detail: str) -> None:
    home = Home(tmp_path / "run")
    home.make()
    asked: set[str] = set()
    answered: set[str] = set()
    numbers = count()

    async def write(url: str) -> None:
        redis = client(url, name="writer")
        while True:
            key = f"k{next(numbers)}"
            asked.add(key)
            with suppress(RedisError):
                await redis.set(key, "x" * 100)
                answered.add(key)

    async with staged(home, Options(seed=1, seconds=1)) as scene:
        urls = await scene.start_server()
        fault = Planned(at_ms=300, kind="kill_power", target=SERVER, lasts_ms=100, detail=detail)
        with closing(Journal(scene.journals / "nemesis.jsonl")) as journal:
            writing = [asyncio.create_task(write(url)) for url in urls.values() for _ in range(WRITERS)]
            await Nemesis(scene, journal, print).run([fault], seconds=2)
        for task in writing:
            task.cancel()
        await asyncio.wait(writing)
        there = {key.decode() for key in await scene.redis.keys()}
    assert len(answered) > WRITERS
    assert answered <= there
    assert len(asked - answered - there) >= WRITERS, "the writes that the server carried out while replies were held"
