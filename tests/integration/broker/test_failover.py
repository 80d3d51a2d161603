"""Test three Sentinels, a master and two replicas: the master dies, and the service recovers by itself."""

import anyio
import httpx
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.durability import check
from director.broker.gatherer import Gatherer
from director.broker.news import Wakeup
from director.broker.redis_client import Pipes, ask, blocking_client, client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import queue_name
from director.core.settings import CommonSettings
from director.store.accounts import Accounts
from tests.support.api import live_api
from tests.support.cog import cog_server, write_model
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, director_process
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.sentinels import Failover, failover_group

pytestmark = [pytest.mark.cog, pytest.mark.faults]

LIMIT_S = 60.0
SOURCE = """
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def predict(self, text: str = "a", gate: str = "") -> str:
            wait_for(gate)
            return text
"""


async def replicated(redis: Redis) -> None:
    """Wait until a replica has the earlier writes too, so that a failover can no longer lose them."""
    await eventually(lambda: redis.wait(1, 1000), "a replica has it", limit_s=LIMIT_S)


async def test_service_recovers_by_itself_from_the_death_of_the_master(tmp_path) -> None:
    folder, gate = write_model(tmp_path / "model", SOURCE), Gate(tmp_path / "gate")
    config = {"min-replicas-to-write": "1", "min-replicas-max-lag": "2"}
    with failover_group(config=config) as group:
        redis = client(group.url)
        gatherer = Gatherer(redis)
        caller = Caller(redis, Scripts(gatherer))
        try:
            assert (await check(redis, CommonSettings(durability="replicated"))).level == "replicated"
            token = await Accounts(redis).create_token(ACCOUNT)
            env = {"DIRECTOR_DURABILITY": "replicated"}
            async with (
                cog_server(folder) as cog,
                live_api(group.url, env=env) as api,
                director_process(group.url, cog, durability="replicated", lease_s=3) as director,
                httpx.AsyncClient(
                    base_url=f"{api.url}/v1",
                    headers={"authorization": f"Bearer {token}"},
                    timeout=LIMIT_S,
                    trust_env=False,
                ) as http,
            ):
                await director.says("model registered")
                await fail_over_under_load(group, http, caller, gate)
        finally:
            await gatherer.aclose()
            await redis.aclose()


async def fail_over_under_load(group: Failover, http: httpx.AsyncClient, caller: Caller, gate: Gate) -> None:
    assert (await submitted(http, text="before", wait=30)).json()["output"] == "before"
    running = (await submitted(http, gate=str(gate))).json()
    waiting = [(await submitted(http, text=f"waits {n}")).json() for n in range(5)]
    await caller.shows(running["id"], status="processing")
    await replicated(caller.redis)
    held: list[httpx.Response] = []
    async with anyio.create_task_group() as tasks:

        async def hold() -> None:
            held.append(await submitted(http, text="held", wait=50))

        tasks.start_soon(hold)
        await eventually(lambda: in_queue(caller, 7), "the held one is accepted")
        await replicated(caller.redis)
        group.servers[0].kill()
        accepted = (await submitted(http, text="after")).json()
        gate.open()
    dead = group.servers[0].port
    await eventually(group.master_port, "the first Sentinel knows the new master", until=lambda port: port != dead)
    # it waited through the failover: its waiter has found the new master
    assert (held[0].status_code, held[0].json()["output"]) == (201, "held")
    for made in (running, *waiting, accepted):
        with anyio.fail_after(LIMIT_S):
            await eventually(lambda made=made: ended(caller, made["id"]), f"{made['id']} ended", limit_s=LIMIT_S)
        assert (await http.get(f"/predictions/{made['id']}")).json()["status"] == "succeeded"
    assert (await http.get(http.base_url.join("/readyz"))).json()["durability"] == "replicated"
    # ready to run more, although no process was restarted
    assert (await submitted(http, text="later", wait=30)).json()["output"] == "later"


async def submitted(http: httpx.AsyncClient, *, wait: int = 0, **given: str) -> httpx.Response:
    """Submit until accepted, as a client with a key that follows Retry-After does."""
    headers = {"idempotency-key": str(given)} | ({"prefer": f"wait={wait}"} if wait else {})
    with anyio.fail_after(LIMIT_S):
        while True:
            answer = await http.post(f"/models/{MODEL}/predictions", json={"input": given}, headers=headers)
            if answer.status_code != 503:
                assert answer.status_code == 201, answer.text
                return answer
            await anyio.sleep(min(0.5, float(answer.headers["retry-after"])))  # as it was told to


async def in_queue(caller: Caller, count: int) -> bool:
    return (await caller.scripts.stats(caller.queue)).live == count


async def ended(caller: Caller, prediction_id: str) -> bool:
    try:
        stored = await caller.scripts.get(prediction_id)  # type: ignore[arg-type]
    except BackendUnavailable:
        return False
    return stored is not None and stored.record.is_terminal


@pytest.mark.heavy
async def test_commands_and_blocking_calls_leave_a_frozen_master() -> None:
    with failover_group(replicas=1) as group:
        redis, waits = client(group.url), blocking_client(group.url, block_s=5)
        queue = queue_name(MODEL, VERSION)
        wakeup = Wakeup(waits, [queue], SystemClock())
        try:
            assert await wakeup.wait() is False
            await ask(lambda: redis.wait(1, 5000))
            # frozen, not dead: no connection is closed, so only timeouts can show it
            group.servers[0].freeze()

            async def is_moved() -> bool:
                try:
                    await ask(lambda: redis.set("moved", "1"))
                except BackendUnavailable:
                    return False
                return group.master_port() == group.servers[1].port

            await eventually(is_moved, "commands go to the new master", limit_s=LIMIT_S)
            await ask(lambda: redis.lpush(keys.bell(queue), "1"))
            await eventually(wakeup.wait, "the bell is heard", limit_s=LIMIT_S)
        finally:
            group.servers[0].thaw()
            await redis.aclose()
            await waits.aclose()


async def test_no_command_goes_to_a_former_master_that_still_answers() -> None:
    with failover_group(replicas=1) as group:
        redis = client(group.url)
        pipes = Pipes(redis, timeout_s=LIMIT_S)
        former, new = (client(server.admin_url) for server in group.servers)
        try:
            await new.replicaof("no", "one")
            await former.set("who", "former")
            await new.set("who", "new")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pipes.ask, [b"*3\r\n$5\r\nBLPOP\r\n$4\r\ngate\r\n$1\r\n0\r\n"])
                await eventually(lambda: blocked(former), "a connection waits at the former master", until=bool)
                assert await who(pipes) == [b"former"]  # this connection is kept for the next command
                group.name_master(group.servers[1])
                assert await redis.get("who") == b"new"  # a new connection asks the Sentinels
                assert await who(pipes) == [b"new"]
                await former.rpush("gate", "open")
            assert await who(pipes) == [b"new"]
        finally:
            await pipes.aclose()
            for each in (redis, former, new):
                await each.aclose()


async def who(pipes: Pipes) -> list[bytes]:
    return await pipes.ask([b"*2\r\n$3\r\nGET\r\n$3\r\nwho\r\n"])


async def blocked(server: Redis) -> int:
    return int((await server.info("clients"))["blocked_clients"])


async def test_unknown_master_name_is_an_outage() -> None:
    with failover_group(replicas=0) as group:
        redis = client(group.url.replace("mymaster", "theirs"))
        with pytest.raises(BackendUnavailable, match="MasterNotFoundError"):
            await ask(redis.ping)
        await redis.aclose()
        # a server does not answer as a Sentinel
        redis = client(f"redis+sentinel://127.0.0.1:{group.servers[0].port}/mymaster")
        with pytest.raises(BackendUnavailable, match="MasterNotFoundError"):
            await ask(redis.ping)
        await redis.aclose()
