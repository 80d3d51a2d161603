"""Strike the masters of real groups, over the links of their clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from director.broker import keys
from director.broker.redis_client import client
from director.core.ids import QueueName
from director.lab.chaos.failovers import reigns, unmade
from director.lab.chaos.journal import Fault, Journal, read
from director.lab.chaos.nemesis import Nemesis
from director.lab.chaos.plan import (
    CLUSTER,
    CUT_MASTER,
    FAILOVERS,
    KILL_MASTER,
    MOVE_SLOT,
    SENTINEL,
    Planned,
    ServerKind,
)
from director.lab.chaos.scene import Options, Scene, open_scene
from director.lab.chaos.servers import ClusterNodes
from director.local.home import Home
from tests.support.eventually import eventually, every

pytestmark = pytest.mark.heavy

NAME = "director-0"


@asynccontextmanager
async def group(folder: Path, kind: ServerKind) -> AsyncIterator[tuple[Scene, Redis]]:
    """Yield servers of this kind, and a client that reaches them over its link only."""
    home = Home(folder / "run")
    home.make()
    async with open_scene(home, Options(seed=1, seconds=1, kind=kind)) as scene:
        urls = await scene.start_server()
        async with client(urls[NAME]) as redis:
            yield scene, redis


async def strike(scene: Scene, kind: str) -> list[Fault]:
    path = scene.journals / "nemesis.jsonl"
    with closing(Journal(path)) as journal:
        await Nemesis(scene, journal, print).run([Planned(at_ms=0, kind=kind, target="x", detail="0")], seconds=600)
    return [line for line in read(path) if isinstance(line, Fault)]


async def accept(redis: Any, number: int) -> str:
    prediction_id = f"{number:026}"
    await redis.hset(f"{{p1}}:rec:{prediction_id}", mapping={"status": "starting", "created": number})
    return prediction_id


@pytest.mark.parametrize("kind", FAILOVERS)
async def test_clients_follow_each_failover_and_what_it_lost_is_found(tmp_path: Path, kind: str) -> None:
    accepted: set[str] = set()
    async with group(tmp_path, SENTINEL) as (scene, redis):

        async def write() -> None:
            async for number in every(0.02):
                with suppress(RedisError):
                    accepted.add(await accept(redis, number + 1))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            begin, end = await strike(scene, kind)
            before = len(accepted)
            await eventually(lambda: len(accepted), "more is accepted", until=lambda count: count > before + 5)
            tasks.cancel_scope.cancel()
        assert begin.target == end.target == "redis-0"
        assert await scene.servers.redis.ping()
        data = scene.servers.data
        promotions = reigns({name: scene.home.log(name) for name in data})
        there = {name.decode().rpartition(":")[2] async for name in scene.redis.scan_iter("{p1}:rec:*")}
        lost = {line.id for line in unmade(data, promotions)}
        carried = scene.links[f"{NAME}:redis"].carried
    assert [reign.server for reign in promotions] in (["redis-1"], ["redis-2"])
    assert accepted - there == accepted & lost, "exactly what was accepted and is gone"
    assert lost or kind != CUT_MASTER, "a master that is cut off accepts for some seconds"
    assert all(carried.values())


async def test_a_restart_of_the_master_is_not_taken_for_a_loss(tmp_path: Path) -> None:
    async with group(tmp_path, SENTINEL) as (scene, redis):
        first = await accept(redis, 1)
        await strike(scene, KILL_MASTER)
        second = await accept(redis, 2)
        await strike(scene, KILL_MASTER)
        data = scene.servers.data
        promotions = reigns({name: scene.home.log(name) for name in data})
        assert len(promotions) == 2
        assert list(unmade(data, promotions)) == []
        for each in (first, second):
            assert await redis.exists(f"{{p1}}:rec:{each}")


async def test_a_client_of_a_cluster_follows_a_slot_over_its_own_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = QueueName("acme/echo:0123456789ab")

    async def queues(scene: Scene) -> list[QueueName]:
        return [queue]

    monkeypatch.setattr(Scene, "queues", queues)
    async with group(tmp_path, CLUSTER) as (scene, redis):
        for number in range(100):
            await redis.set(f"k{number}", number)
        assert isinstance(scene.servers, ClusterNodes)
        begin, end = await strike(scene, MOVE_SLOT)
        assert begin.kind == end.kind == MOVE_SLOT
        assert [int(await redis.get(f"k{number}") or -1) for number in range(100)] == list(range(100))
        sizes = [await scene.servers.direct[name].dbsize() for name in scene.servers.data]
        assert sum(sizes) == 100
        assert all(sizes)
        assert all(port >= 20_000 for port in {each.port for each in scene.links.values()})


async def test_a_slot_that_did_not_move_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with group(tmp_path, CLUSTER) as (scene, _):
        await scene.redis.sadd(keys.queues(), "acme/echo:0123456789ab")
        [begin, end] = await strike(scene, MOVE_SLOT)
        monkeypatch.setattr(ClusterNodes, "move", refused)
        assert await strike(scene, MOVE_SLOT) == [begin, end]


async def refused(servers: ClusterNodes, key: str) -> None:
    raise ResponseError("unknown subcommand MIGRATESLOTS")
