"""Test the bounds of every HTTP port: connections that send nothing, little or too much, and crowds of them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from director.core.ids import QueueName
from director.runtime import bounded_http
from director.runtime.metrics import Registry
from director.runtime.process import Health, serve_http
from tests.support.api import live_api
from tests.support.eventually import eventually, every
from tests.support.servers import RedisServer

pytestmark = pytest.mark.faults

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: director.test\r\n"
BIG = b"x" * (32 << 20)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def large(_: Request) -> Response:
    return Response(BIG)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[int, Registry]]:
    ports: list[int] = []
    metrics = Registry("keeper")
    app = Health(metrics=metrics).app([Route("/large", large)])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve_http(app, host="127.0.0.1", port=0, started=ports.append, metrics=metrics))
        [port] = await eventually(lambda: ports, "it listens")
        yield port, metrics
        tasks.cancel_scope.cancel()


async def livez(port: int) -> float:
    """Ask for health on a new connection, and return the seconds that it took."""
    began = time.monotonic()
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(LIVEZ + b"Connection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    return time.monotonic() - began


async def closed_after(port: int, begin: bytes, *, drip: bytes = b"", every_s: float = 0.05) -> float:
    """Send `begin`, then a drop every while. Return the seconds until the other side closes; fail after 20."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begin)
    began = time.monotonic()

    async def dripping() -> None:
        while drip:
            writer.write(drip)
            await asyncio.sleep(every_s)  # a client that drips

    task = asyncio.create_task(dripping())
    try:
        async with asyncio.timeout(20):
            with suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
    finally:
        task.cancel()
        writer.close()
    return time.monotonic() - began


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit_s in {"CHECK_S": 0.1, "HEAD_S": 0.5, "BODY_S": 0.5, "UNREAD_BODY_S": 0.5, "STALL_S": 0.5}.items():
        monkeypatch.setattr(bounded_http, name, limit_s)


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        pytest.param(b"", b"", id="silent"),
        pytest.param(LIVEZ, b"", id="half a head"),
        pytest.param(LIVEZ + b"X: ", b"x", id="a dripping head"),
        pytest.param(LIVEZ + b"\r\n" + LIVEZ + b"X: ", b"x", id="a dripping second head"),
        pytest.param(LIVEZ + b"Content-Length: 9999\r\n\r\n", b"x", id="a dripping body"),
        pytest.param(LIVEZ + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", id="dripping chunks"),
        pytest.param(LIVEZ + b"\r\n", b"\r\n", id="dripping line breaks after an answer"),
    ],
)
async def test_connection_that_sends_too_little_is_closed(hasty: None, begin: bytes, drip: bytes) -> None:
    async with served() as (port, _):
        assert await closed_after(port, begin, drip=drip) < 3


async def test_connection_between_two_requests_stays_open(hasty: None) -> None:
    async with served() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async for _ in every(1, 2):
            writer.write(LIVEZ + b"\r\n")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def assert_that_an_answer_is_dropped(head: bytes) -> None:
    """Ask for a large answer, and take nothing of it for too long."""
    async with served() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.write(LIVEZ.replace(b"/livez", b"/large") + head + b"\r\n")
        await asyncio.sleep(2)  # longer than a client may take nothing
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(len(BIG))
        writer.close()


async def test_answer_that_the_client_does_not_take_is_dropped(hasty: None) -> None:
    await assert_that_an_answer_is_dropped(b"")


async def test_rest_of_an_answer_does_not_keep_a_closing_connection(
    hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = bounded_http.BoundedHttp.connection_made

    def never_paused(self: bounded_http.BoundedHttp, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=2 * len(BIG))
        begin(self, transport)

    monkeypatch.setattr(bounded_http.BoundedHttp, "connection_made", never_paused)
    await assert_that_an_answer_is_dropped(b"Connection: close\r\n")


async def test_answer_that_is_taken_slowly_arrives_whole(hasty: None) -> None:
    async with served() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(LIVEZ.replace(b"/livez", b"/large") + b"Connection: close\r\n\r\n")
        taken = 0
        while piece := await reader.read(1 << 20):
            taken += len(piece)
            await asyncio.sleep(0.02)  # a client that is slow, and takes something each time
        assert taken > len(BIG)
        writer.close()


async def test_endless_header_costs_little_and_delays_no_other_request() -> None:
    async with served() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(LIVEZ + b"X: ")
        sent, slowest_s = 0, 0.0
        with suppress(ConnectionError):
            while sent < 32 << 20 and not reader.at_eof():
                writer.write(b"x" * (64 << 10))
                await asyncio.wait_for(writer.drain(), 5)
                sent += 64 << 10
                slowest_s = max(slowest_s, await livez(port))
        writer.close()
    assert sent <= 1 << 20
    assert slowest_s <= 0.2


@asynccontextmanager
async def idle(port: int, count: int) -> AsyncIterator[list[Stream]]:
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(count):
            streams.append(await asyncio.open_connection("127.0.0.1", port))
            stack.callback(streams[-1][1].close)
        yield streams


async def shown(metrics: Registry) -> dict[str, float]:
    text, _ = await metrics.page("")
    families = text_string_to_metric_families(text.decode())
    samples = [each for family in families for each in family.samples]
    return {each.labels["limit"]: each.value for each in samples if "connections_limited_total" in each.name}


async def test_connections_beyond_the_limits_may_only_ask_for_health(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bounded_http, "_most_connections", lambda: 40)
    async with served() as (port, metrics), idle(port, 60):
        for _ in range(3):
            await livez(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(2 * (LIVEZ.replace(b"/livez", b"/metrics") + b"\r\n"))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()
        assert await shown(metrics) == {"all": 0, "peer": 34}
    assert [record.message for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == [
        "connections are at their limit: further ones may only ask for health"
    ]


async def test_places_of_closed_connections_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "_most_connections", lambda: 8)
    async with served() as (port, metrics):
        for _ in range(5):
            async with idle(port, 6):
                await livez(port)

        async def is_free() -> bool:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(LIVEZ.replace(b"/livez", b"/metrics") + b"Connection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer.startswith(b"HTTP/1.1 200 ")

        assert await eventually(is_free, "the places are free")
        assert (await shown(metrics))["peer"] >= 5


async def test_full_process_still_answers_health(server: RedisServer, queue: QueueName) -> None:
    """An API with 256 descriptors and 300 idle connections."""
    async with live_api(server.url, descriptors=256) as live:
        port = int(live.url.rpartition(":")[2])
        async with idle(port, 300):
            async for _ in every(0.2, 3):
                await livez(port)


async def test_silent_half_and_dripping_connections_are_closed_in_20_seconds(
    server: RedisServer, queue: QueueName
) -> None:
    async with live_api(server.url) as live, asyncio.TaskGroup() as tasks:
        port = int(live.url.rpartition(":")[2])
        for _ in range(20):
            tasks.create_task(closed_after(port, b""))
            tasks.create_task(closed_after(port, LIVEZ))
        for _ in range(5):
            tasks.create_task(closed_after(port, LIVEZ + b"X: ", drip=b"x", every_s=5))


@pytest.mark.parametrize(
    ("exempt", "beyond"), [(("127.0.0.1",), 0), ((), 7)], ids=["a trusted proxy", "any other address"]
)
async def test_limit_of_one_address_spares_trusted_proxies(exempt: tuple[str, ...], beyond: int) -> None:
    metrics = Registry("api")
    places = bounded_http.Connections(most=20, per_peer=3, is_exempt=exempt.__contains__, metrics=metrics)
    connections = [_Connection("127.0.0.1") for _ in range(10)]
    assert [places.enter(each) for each in connections].count(False) == beyond  # type: ignore[arg-type]
    assert (await shown(metrics))["peer"] == beyond


def test_addresses_of_one_ipv6_network_are_one_peer() -> None:
    same = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:2:1:2:3:4"]
    networks = list(map(bounded_http._network_of, [*same, "2001:db8:1:3::1", "::1", "10.0.0.1", "::ffff:10.0.0.1"]))
    assert len(set(networks)) == 5


class _Connection:
    def __init__(self, host: str) -> None:
        self.client = (host, 1)
        self.cycle = None
        self.loop = asyncio.get_running_loop()
        self.transport = self
        self._is_closed = False

    def abort(self) -> None:
        self._is_closed = True

    def is_closing(self) -> bool:
        return self._is_closed
