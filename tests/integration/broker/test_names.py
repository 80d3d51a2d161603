"""Test that clients reach their servers by the last known addresses while the name servers are away."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from operator import not_
from typing import Any

import pytest
import uvloop

from director.broker import connections
from director.broker.names import WAIT_S, Names
from director.broker.redis_client import ask, client
from director.core.errors import BackendUnavailable
from tests.support.clusters import redis_cluster
from tests.support.eventually import eventually
from tests.support.sentinels import failover_group
from tests.support.servers import far_host, redis_server

pytestmark = pytest.mark.faults

HOST = "redis.test"
HERE = "127.0.0.1"
ELSEWHERE = "127.0.0.2"
SILENT_S = 5.0  # a lookup takes this long while the name server says nothing
SLOW_S = WAIT_S + 0.1
SOON_S = 2.0


class Resolver:
    """Stands where the resolver of the C library does. `answer` looks a name up, or is what happens instead."""

    def __init__(self) -> None:
        self.answer: Callable[[], list[str]] = lambda: [HERE]
        self.lookups = 0
        self.at_once = self.most = 0
        self._over = threading.Event()

    def __call__(self, host: str, port: int, *given: Any, **named: Any) -> list[Any]:
        if host != HOST:
            return REAL(host, port, *given, **named)
        self.lookups += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in self.answer()]
        finally:
            self.at_once -= 1

    def slow(self) -> list[str]:
        """The first name server is dead, so each lookup waits for it before it asks the next one."""
        time.sleep(SLOW_S)  # a name server that is slow
        return [ELSEWHERE]

    def silent(self) -> list[str]:
        self._over.wait(SILENT_S)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    def unknown(self) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def close(self) -> None:
        self._over.set()


REAL = socket.getaddrinfo


def lookups() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "redis-lookup"]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    monkeypatch.setattr(connections, "NAMES", Names())
    yield resolver
    resolver.close()


@pytest.fixture(scope="module", params=["one", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the URL of a deployment of each kind, with a name in place of its address."""
    kinds: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "one": lambda: redis_server(loopback=True),
        "sentinel": lambda: failover_group(replicas=0, patience_ms=1000),
        "cluster": redis_cluster,
    }
    with kinds[request.param]() as server:
        known = server.tcp_url if request.param == "one" else server.url
        yield known.replace(HERE, HOST)


@pytest.fixture
async def redis(url: str, resolver: Resolver) -> AsyncIterator[Any]:
    redis = client(url)
    await ask(lambda: redis.set("here", "1"))
    yield redis
    await redis.aclose()


@pytest.mark.parametrize("fault", ["silent", "unknown"])
async def test_new_connections_are_made_while_the_name_server_is_away(
    redis: Any, resolver: Resolver, fault: str
) -> None:
    resolver.answer = getattr(resolver, fault)
    began = time.monotonic()
    for _ in range(3):
        await redis.connection_pool.disconnect()
        assert await ask(lambda: redis.get("here")) == b"1"
    assert time.monotonic() - began < SOON_S
    assert resolver.most == 1, "a name has one lookup at a time"


async def test_all_addresses_of_a_name_are_tried(resolver: Resolver) -> None:
    with redis_server(loopback=True) as server:
        redis = client(server.tcp_url.replace(HERE, HOST))
        resolver.answer = lambda: [ELSEWHERE, HERE]
        assert await ask(redis.ping)
        await redis.aclose()


@pytest.mark.parametrize("gone", [1, 2])
async def test_next_address_is_tried_if_the_first_ones_have_vanished(resolver: Resolver, gone: int) -> None:
    with ExitStack() as stack:
        far = [stack.enter_context(far_host()) for _ in range(gone)]
        server = stack.enter_context(redis_server(loopback=True))
        for each in far:
            each.vanish()
        resolver.answer = lambda: [*(each.address for each in far), HERE]
        redis = client(server.tcp_url.replace(HERE, HOST))
        assert await ask(redis.ping)
        await redis.aclose()


@pytest.mark.parametrize("fault", ["silent", "unknown"])
async def test_name_without_an_earlier_answer_is_away(resolver: Resolver, fault: str) -> None:
    resolver.answer = getattr(resolver, fault)
    redis = client(f"redis://{HOST}:1/0")
    with pytest.raises(BackendUnavailable):
        await ask(redis.ping)
    await redis.aclose()


async def test_new_answer_replaces_the_last_known_addresses(resolver: Resolver) -> None:
    known = Names()
    assert await known.addresses(HOST) == [HERE]
    resolver.answer = resolver.unknown
    assert await known.addresses(HOST) == [HERE]
    resolver.answer = lambda: [ELSEWHERE]
    assert await known.addresses(HOST) == [ELSEWHERE]


async def test_answer_that_comes_late_replaces_the_last_known_addresses(resolver: Resolver) -> None:
    known = Names()
    assert await known.addresses(HOST) == [HERE]
    resolver.answer = resolver.slow
    assert await known.addresses(HOST) == [HERE], "a connection does not wait for it"
    await eventually(lookups, "the lookup ends", until=not_)
    assert await known.addresses(HOST) == [ELSEWHERE], "although the next lookup is as slow"


def test_failed_lookups_leave_no_exception_that_nothing_retrieved(resolver: Resolver) -> None:
    """On the event loop of the product: it logs the exception of each lookup whose caller has given up."""
    logged: list[dict[str, Any]] = []

    async def connect() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        redis = client(f"redis://{HOST}:1/0")
        for _ in range(3):
            with suppress(TimeoutError, BackendUnavailable):
                async with asyncio.timeout(0):  # canceled while the lookup is under way
                    await ask(redis.ping)
        with pytest.raises(BackendUnavailable):
            await ask(redis.ping)
        await redis.aclose()
        gc.collect()

    resolver.answer = resolver.unknown
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(connect())
    gc.collect()
    assert logged == []
