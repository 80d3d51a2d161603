"""Test that each kind of wait on a server that vanishes ends in time, with an error and not with an answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvloop
from redis import exceptions
from redis.asyncio import Redis

from director.broker import connections
from director.broker.gatherer import Gatherer
from director.broker.news import Wakeup
from director.broker.redis_client import Pipes, ask, blocking_client, client
from director.broker.scripts import Scripts
from director.core import sockets
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import queue_name
from tests.support.eventually import eventually, turns
from tests.support.far_host import FarHost
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import RedisServer, far_host, redis_server

pytestmark = pytest.mark.faults

LIMIT_S = 25.0  # twice the silence that a command may meet, and then the connect
QUEUE = queue_name(MODEL, VERSION)
GONE = (exceptions.ConnectionError, exceptions.TimeoutError, BackendUnavailable)


@pytest.fixture
def far() -> Iterator[FarHost]:
    with far_host() as host:
        yield host


@pytest.fixture
def server(far: FarHost) -> Iterator[RedisServer]:
    with redis_server(far=far) as started:
        yield started


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel give up before any limit of a call: then a wait ends with ETIMEDOUT and not with its limit."""
    monkeypatch.setattr(sockets, "IDLE_S", 1)
    monkeypatch.setattr(sockets, "EVERY_S", 1)
    monkeypatch.setattr(connections, "PROBES", [*sockets.probes(), *sockets.limit_unacknowledged(1)])


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Any]:
    redis = client(server.tcp_url)
    yield redis
    await redis.aclose()


@pytest.fixture
async def waits(server: RedisServer) -> AsyncIterator[Any]:
    waits = blocking_client(server.tcp_url, block_s=60)
    yield waits
    await waits.aclose()


async def subscription(waits: Redis, vanish: Callable[[], None]) -> object:
    async with waits.pubsub() as messages:
        await messages.subscribe("here")
        assert await messages.get_message(timeout=5)
        vanish()
        return await messages.get_message(timeout=60)


async def wakeup(waits: Redis, vanish: Callable[[], None]) -> object:
    asyncio.get_running_loop().call_later(0.2, vanish)
    return await waits.blpop(["nothing"], timeout=60)


async def carried_claim(waits: Redis, vanish: Callable[[], None]) -> object:
    asyncio.get_running_loop().call_later(0.2, vanish)
    return await Wakeup(waits, [QUEUE], SystemClock()).carry(b"*1\r\n$4\r\nPING\r\n")


async def command(waits: Redis, vanish: Callable[[], None]) -> object:
    await waits.set("here", "1")
    vanish()
    return await waits.get("here")


async def round_trip(waits: Redis, vanish: Callable[[], None]) -> object:
    pipes = Pipes(waits, timeout_s=60)
    asked = [b"*2\r\n$3\r\nGET\r\n$4\r\nhere\r\n"]
    await pipes.ask(asked)
    vanish()
    return await pipes.ask(asked)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("wait", [subscription, wakeup, carried_claim, command, round_trip])
async def test_wait_that_the_kernel_ends_is_an_error_and_never_an_answer(
    far: FarHost, waits: Redis, wait: Callable[[Redis, Callable[[], None]], Awaitable[object]]
) -> None:
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(GONE):
            await wait(waits, far.vanish)


@pytest.mark.usefixtures("soon")
async def test_idle_connection_of_a_vanished_server_is_not_used_again(far: FarHost, redis: Any) -> None:
    await redis.set("here", "1")
    far.vanish()
    [kept] = redis.connection_pool._available_connections
    await eventually(kept.can_read, "the kernel gave it up")
    far.come_back()
    assert await redis.get("here") == b"1", "the first call already goes over another one"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_write_to_a_connection_that_the_kernel_gave_up_is_a_lost_connection(
    server: RedisServer, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def write() -> None:
        waits = blocking_client(server.tcp_url, block_s=1)
        connection: Any = await waits.connection_pool.get_connection()
        connection._writer.transport.abort()
        await turns()
        with pytest.raises(exceptions.ConnectionError):
            await connection.send_command("PING")
        await connection.send_command("PING")
        assert await connection.read_response() == b"PONG"
        await waits.connection_pool.release(connection)
        await waits.aclose()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(write())


async def test_calls_to_a_vanished_server_end_in_time_and_work_again_after_it(far: FarHost, redis: Any) -> None:
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    await ask(redis.ping)
    far.vanish()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: ask(redis.ping),
        lambda: scripts.stats(QUEUE),
        lambda: ask(redis.pipeline(transaction=False).ping().execute),
    ]
    async with asyncio.timeout(LIMIT_S):
        ends = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
    assert [type(end) for end in ends] == [BackendUnavailable] * len(calls)
    far.come_back()
    assert await ask(redis.ping)
    await gatherer.aclose()


@pytest.mark.parametrize("kind", ["redis", "redis+sentinel", "redis+cluster"])
async def test_first_contact_with_a_vanished_deployment_ends_in_time(far: FarHost, kind: str) -> None:
    with ExitStack() as listening:
        ports = [listening.enter_context(far.listen()).getsockname()[1] for _ in range(1 if kind == "redis" else 3)]
        hosts = ",".join(f"{far.address}:{port}" for port in ports)
        redis = client(f"{kind}://{hosts}/{'mymaster' if kind == 'redis+sentinel' else ''}")
        far.vanish()
        used = time.process_time()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(BackendUnavailable):
                await ask(redis.ping)
        assert time.process_time() - used < 1
        await redis.aclose()
