"""Test a Cluster under a working service: a master dies, a slot moves, a part is gone, and no accepted work is lost."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.errors import BackendUnavailable
from director.store.accounts import Accounts
from tests.integration.broker.test_failover import ended
from tests.support.api import live_api
from tests.support.clusters import RedisCluster, redis_cluster
from tests.support.cog import cog_server, write_model
from tests.support.eventually import eventually, every
from tests.support.live_director import Caller, director_process, keeper_process
from tests.support.queue_driver import ACCOUNT, MODEL

pytestmark = [pytest.mark.cog, pytest.mark.heavy]

LIMIT_S = 90.0
PAUSE_S = 0.02
SOURCE = """
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def predict(self, text: str = "a") -> str:
            return text
"""


class Asker:
    """Submits without a pause and records the answers. Each request has a key, so that a lost one is repeated."""

    def __init__(self, http: httpx.AsyncClient, caller: Caller) -> None:
        self.caller = caller
        self.accepted: list[str] = []
        self.answers: Counter[int] = Counter()
        self._http = http
        self._is_over = False

    async def run(self) -> None:
        async for number in every(PAUSE_S):
            if self._is_over:
                break
            await self.ask(f"text {number}")

    def end(self) -> None:
        self._is_over = True

    async def ask(self, text: str) -> None:
        """Repeat one request until it is accepted, as a client that follows Retry-After does."""
        body, headers = {"input": {"text": text}}, {"idempotency-key": text}
        with anyio.fail_after(LIMIT_S):
            while True:
                answer = await self._http.post(f"/models/{MODEL}/predictions", json=body, headers=headers)
                self.answers[answer.status_code] += 1
                if answer.status_code != 503:
                    assert answer.status_code == 201, answer.text
                    self.accepted.append(answer.json()["id"])
                    return
                assert int(answer.headers["retry-after"]) >= 1
                await anyio.sleep(0.1)  # shorter than Retry-After, so that it meets each moment of the failover

    async def more(self, count: int) -> None:
        wanted = len(self.accepted) + count
        await eventually(lambda: len(self.accepted) >= wanted, f"{count} more are accepted", limit_s=LIMIT_S)

    async def all_succeeded(self) -> None:
        assert len(set(self.accepted)) == len(self.accepted)
        for prediction in self.accepted:
            await eventually(lambda it=prediction: ended(self.caller, it), f"{prediction} ended", limit_s=LIMIT_S)
            answer = await self._http.get(f"/predictions/{prediction}")
            assert answer.json()["status"] == "succeeded", answer.text
        await self.caller.nothing_is_left()


@asynccontextmanager
async def at_work(cluster: RedisCluster, folder: Path) -> AsyncGenerator[Asker]:
    """Run API, keeper and director as processes, and a client that submits continuously."""
    redis = client(cluster.url)
    gatherer = Gatherer(redis)
    caller = Caller(redis, Scripts(gatherer))
    try:
        token = await Accounts(redis).create_token(ACCOUNT)
        headers = {"authorization": f"Bearer {token}"}
        async with (
            cog_server(write_model(folder, SOURCE)) as cog,
            live_api(cluster.url) as api,
            keeper_process(cluster.url, lease_s=3, health_port=0),
            director_process(cluster.url, cog, lease_s=3) as director,
            httpx.AsyncClient(base_url=f"{api.url}/v1", headers=headers, timeout=LIMIT_S, trust_env=False) as http,
            anyio.create_task_group() as tasks,
        ):
            await eventually(lambda: director.said("model registered"), "a director serves it", limit_s=LIMIT_S)
            asker = Asker(http, caller)
            tasks.start_soon(asker.run)
            await asker.more(10)
            yield asker
            asker.end()
        await gatherer.aclose()
    finally:
        await redis.aclose()


async def replicated(redis: Redis) -> bool:
    found = await redis.info("replication")
    return found["slave0"]["offset"] == found["master_repl_offset"]


async def test_replica_takes_over_from_a_dead_master(tmp_path: Path) -> None:
    with redis_cluster(replicas=True) as cluster:
        async with at_work(cluster, tmp_path / "model") as asker:
            meta = keys.meta(asker.caller.queue)
            master = cluster.serving(meta)
            asker.end()
            await asker.all_succeeded()
            node = await asker.caller.redis.slots.serving(meta)
            await eventually(lambda: replicated(node), "all is replicated", limit_s=LIMIT_S)
            master.kill()
            await asker.ask("while it is away")
            for number in range(20):
                await asker.ask(f"later {number}")
            await asker.all_succeeded()
            assert cluster.serving(meta) in cluster.replicas
            assert asker.answers[503] > 0, "it was away, and said so"
            assert set(asker.answers) == {201, 503}


@pytest.mark.parametrize("how", ["key by key", "at once"])
async def test_slot_moves_under_load(tmp_path: Path, how: str) -> None:
    with redis_cluster() as cluster:
        async with at_work(cluster, tmp_path / "model") as asker:
            meta = keys.meta(asker.caller.queue)
            before = cluster.serving(meta)
            if how == "at once":
                cluster.move_at_once(meta)
                await eventually(lambda: cluster.serving(meta) is not before, "it has moved", limit_s=LIMIT_S)
            else:
                with cluster.moving(meta) as move:
                    async for _ in every(0.05, 20):
                        move(5)
            assert cluster.serving(meta) is not before
            await asker.more(20)
            asker.end()
            await asker.all_succeeded()
            assert set(asker.answers) <= {201, 503}
            assert (asker.answers[503] > 0) == (how == "key by key")


async def test_slots_without_a_master_are_unavailable_and_recover(tmp_path: Path) -> None:
    with redis_cluster() as cluster:
        async with at_work(cluster, tmp_path / "model") as asker:
            master = cluster.serving(keys.meta(asker.caller.queue))
            master.kill()
            await eventually(lambda: asker.answers[503] > 5, "it says that it is away", limit_s=LIMIT_S)
            with pytest.raises(BackendUnavailable):
                await asker.caller.scripts.stats(asker.caller.queue)
            master.start()
            await asker.more(20)
            asker.end()
            await asker.all_succeeded()
            assert set(asker.answers) == {201, 503}
