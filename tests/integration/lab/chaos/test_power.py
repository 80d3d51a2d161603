"""Cut the power of a real server: what was answered is still there, and what its log got since is gone."""

import asyncio
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from director.broker.redis_client import client
from director.lab.chaos import scene as module
from director.lab.chaos.journal import Arrived, Journal
from director.lab.chaos.nemesis import Nemesis
from director.lab.chaos.plan import AT_A_SYNC, SERVER, Planned
from director.lab.chaos.rest import cut, server_log, size
from director.lab.chaos.scene import Options, open_scene
from director.local.home import Home
from tests.support.eventually import eventually

WRITERS = 8


@pytest.mark.faults
@pytest.mark.parametrize("detail", [AT_A_SYNC, "in the middle of a write"])
async def test_a_power_cut_takes_only_what_no_client_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detail: str
) -> None:
    home = Home(tmp_path / "run")
    home.make()
    answered: set[str] = set()
    numbers = count()

    async def write(url: str) -> None:
        redis = client(url, name="writer")
        while True:
            key = f"k{next(numbers)}"
            with suppress(RedisError):
                await redis.set(key, "x" * 100)
                answered.add(key)

    dropped: list[int] = []

    def noted(data: Path, length: int, *, is_torn: bool) -> None:
        before = size(data)
        cut(data, length, is_torn=is_torn)
        dropped.append(before - size(data))

    monkeypatch.setattr(module, "cut", noted)
    async with open_scene(home, Options(seed=1, seconds=1)) as scene:
        urls = await scene.start_server()
        fault = Planned(at_ms=0, kind="kill_power", target=SERVER, lasts_ms=100, detail=detail)
        with closing(Journal(scene.journals / "nemesis.jsonl")) as journal:
            writing = [asyncio.create_task(write(url)) for url in urls.values() for _ in range(WRITERS)]
            await eventually(lambda: answered, "writes were answered", until=lambda keys: len(keys) > WRITERS)
            await Nemesis(scene, journal, print).run([fault], seconds=60)
        for task in writing:
            task.cancel()
        await asyncio.wait(writing)
        there = {key.decode() for key in await scene.redis.keys()}
    assert answered <= there
    assert len(dropped) == 1
    assert dropped[0] > 0, "the writes that the server carried out while replies were held"


@pytest.mark.faults
@pytest.mark.parametrize(
    ("length", "is_torn", "kept"), [(3, True, [3, 0]), (5, True, [5, 2]), (7, True, [5, 3]), (7, False, [5, 2])]
)
def test_only_the_last_file_of_a_log_is_torn(tmp_path: Path, length: int, is_torn: bool, kept: list[int]) -> None:
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    paths = [folder / f"a.{number}.incr.aof" for number in (1, 2)]
    for path in paths:
        path.write_bytes(b"x" * 5)
    (folder / "a.manifest").write_text("".join(f"file {path.name} seq {n} type i\n" for n, path in enumerate(paths)))
    cut(tmp_path, length, is_torn=is_torn)
    assert [path.stat().st_size for path in paths] == kept


def is_rewritten(info: dict[str, Any]) -> bool:
    return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]


@pytest.mark.faults
async def test_a_log_that_was_rewritten_still_has_all_that_happened(tmp_path: Path) -> None:
    home = Home(tmp_path / "run")
    home.make()
    record = {"created": "1", "account": "ant", "queue": "q", "lane": "normal"}
    async with open_scene(home, Options(seed=1, seconds=1)) as scene:
        await scene.start_server()
        for number in range(3):
            await scene.redis.hset(f"{{p1}}:rec:{number:026}", mapping=record)
            length = size(home.valkey)
            await scene.redis.bgrewriteaof()
            await eventually(scene.redis.info, "the log is rewritten", until=is_rewritten)
            assert size(home.valkey) >= length
        assert [line.id for line in server_log(home.valkey) if isinstance(line, Arrived)] == [
            f"{number:026}" for number in range(3)
        ]
