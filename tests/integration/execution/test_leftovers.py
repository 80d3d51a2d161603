"""Test that what coglet leaves of a run is deleted once the run has certainly ended, and nothing else."""

import os
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.core.clock import SystemClock
from director.core.ids import PredictionId
from director.servers.leftovers import QUIET_S, UNKNOWN_S, Leftovers
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live

pytestmark = pytest.mark.cog

COGLET: Final = Path("/tmp/coglet/predictions")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    runs = tmp_path / "coglet" / "predictions"
    runs.mkdir(parents=True)
    return runs


def leave(runs: Path, name: str, *, quiet_s: float = 0, size: int = 0) -> Path:
    home = runs / name
    for part in ("inputs", "outputs"):
        (home / part).mkdir(parents=True)
    (home / "outputs" / "spill_1.json").write_bytes(b"x" * size)
    at = SystemClock().now_ms() / 1000 - quiet_s
    for path in (home / "inputs", home / "outputs", home):
        os.utime(path, (at, at))
    return home


async def test_everything_that_coglet_leaves_is_deleted(caller: Caller, live: Live, runs: Path) -> None:
    async with live.director(max_output_bytes=64 << 20):
        asked = await caller.submit(n=1, size=9 << 20)
        assert (await caller.ended(asked))["status"] == "succeeded"
    left = COGLET / asked
    assert sorted(path.name for path in left.iterdir()) == ["inputs", "outputs"]
    [spilled] = (left / "outputs").iterdir()
    assert spilled.stat().st_size > 9 << 20
    shutil.move(left, runs)  # all servers of this machine share the folder itself
    clock = FakeClock(now_ms=SystemClock().now_ms())
    leftovers = Leftovers(runs, caller.redis, clock)
    assert await leftovers.run_once() == 0, "it may be too soon"
    clock.pass_time(QUIET_S + 10)
    assert await leftovers.run_once() == 1
    assert list(runs.iterdir()) == []


async def test_files_of_a_running_prediction_are_kept(caller: Caller, live: Live, runs: Path, gate: Gate) -> None:
    async with live.director():
        asked = await caller.running(n=1, gate=str(gate))
        home = leave(runs, asked, quiet_s=10 * UNKNOWN_S)
        assert await Leftovers(runs, caller.redis, SystemClock()).run_once() == 0
        assert (home / "outputs" / "spill_1.json").exists()
        gate.open()
        await caller.ended(asked)
    assert await Leftovers(runs, caller.redis, SystemClock()).run_once() == 1


async def test_unknown_leftovers_are_deleted_after_a_day(caller: Caller, redis: Redis, runs: Path) -> None:
    young, old = (leave(runs, caller.new_id(), quiet_s=quiet_s) for quiet_s in (UNKNOWN_S - 60, UNKNOWN_S + 60))
    assert await Leftovers(runs, redis, SystemClock()).run_once() == 1
    assert young.exists()
    assert not old.exists()


async def test_recently_written_leftovers_stay_though_their_folder_is_old(caller: Caller, runs: Path) -> None:
    home = leave(runs, caller.new_id(), quiet_s=2 * UNKNOWN_S)
    (home / "outputs" / "spill_2.json").touch()
    assert await Leftovers(runs, caller.redis, SystemClock()).run_once() == 0


async def test_foreign_files_and_links_are_left_alone(caller: Caller, redis: Redis, runs: Path, tmp_path: Path) -> None:
    leave(runs, "foreign", quiet_s=2 * UNKNOWN_S)
    precious = leave(tmp_path / "elsewhere", caller.new_id(), quiet_s=2 * UNKNOWN_S)
    (runs / precious.name).symlink_to(precious)
    home = leave(runs, caller.new_id(), quiet_s=2 * UNKNOWN_S)
    (home / "inputs" / "link").symlink_to(precious)
    os.utime(home / "inputs", (0, 0))
    assert await Leftovers(runs, redis, SystemClock()).run_once() == 1
    assert (precious / "outputs" / "spill_1.json").exists()
    assert (runs / "foreign").exists()
    assert not home.exists()


@pytest.mark.parametrize("link", ["coglet", "coglet/predictions"])
async def test_replaced_folder_is_not_entered(caller: Caller, tmp_path: Path, link: str, caplog: Any) -> None:
    elsewhere = tmp_path / "elsewhere"
    precious = leave(elsewhere / ("predictions" if link == "coglet" else ""), caller.new_id(), quiet_s=2 * UNKNOWN_S)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(elsewhere)
    leftovers = Leftovers(tmp_path / "coglet" / "predictions", caller.redis, SystemClock())
    for _ in range(2):
        assert await leftovers.run_once() == 0
    assert precious.exists()
    assert caplog.messages.count("leftovers of model servers cannot be deleted") == 1


async def test_leftover_that_stays_does_not_protect_others(caller: Caller, redis: Redis, runs: Path) -> None:
    ids = [caller.new_id() for _ in range(250)]
    for number, name in enumerate(ids):
        leave(runs, name, quiet_s=2 * UNKNOWN_S)
        if number % 2:
            await redis.hset(keys.record(PredictionId(name)), "status", "processing")
    assert await Leftovers(runs, redis, SystemClock()).run_once() == 125
    assert sorted(path.name for path in runs.iterdir()) == sorted(ids[1::2])
    for name in ids[1::2]:
        await redis.delete(keys.record(name))


async def test_missing_folder_is_not_reported(redis: Redis, tmp_path: Path, caplog: Any) -> None:
    assert await Leftovers(tmp_path / "none" / "yet", redis, SystemClock()).run_once() == 0
    assert caplog.messages == []


async def test_director_with_a_configured_folder_cleans_it(caller: Caller, live: Live, runs: Path) -> None:
    home = leave(runs, caller.new_id(), quiet_s=2 * UNKNOWN_S)
    async with live.director(coglet_dir=str(runs)):
        await eventually(lambda: not home.exists(), "it is deleted")
