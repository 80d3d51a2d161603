"""Test the transport to a model server: how it treats every kind of answer, and when it reuses a connection."""

import asyncio
import select
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from director.servers.runners.transport import MOST_WAITING, OneServer, Wire
from tests.support.authority import Authority, secure_sink
from tests.support.eventually import eventually, turns

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers each request as configured, and counts connections."""

    def __init__(self, answer: Answer) -> None:
        self.url = ""
        self.heads: list[bytes] = []
        self.opened = self.closed = 0
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                await self._answer(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.closed += 1


@asynccontextmanager
async def serving(answer: bytes | Answer) -> AsyncGenerator[tuple[Server, OneServer]]:
    """Yield a server and a transport to it. Bytes are the answer to every request."""

    async def as_told(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    server = Server(as_told if isinstance(answer, bytes) else answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    transport = OneServer(server.url)
    try:
        yield server, transport
    finally:
        await transport.aclose()
        listening.close()
        await eventually(lambda: server.closed, "all connections closed", until=lambda closed: closed == server.opened)


async def ask(server: Server, transport: OneServer) -> bytes:
    response = await transport.send("GET", "/x")
    return b"".join([chunk async for chunk in response.chunks()])


ANSWERS = {
    "with a length": (OK, 1),
    "in chunks": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\na: b\r\n\r\n", 1),
    "after a hint": (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + OK, 1),
    "and closes": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", 2),
    "with more than was asked for": (OK + OK, 2),
}


@pytest.mark.parametrize(("answer", "connections"), ANSWERS.values(), ids=ANSWERS)
async def test_complete_answer_keeps_a_good_connection(answer: bytes, connections: int) -> None:
    async with serving(answer) as (server, transport):
        assert await ask(server, transport) == b"ok"
        assert await ask(server, transport) == b"ok"
        assert server.opened == connections


def then_closing(said: bytes) -> Answer:
    """Close each connection after this answer."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    return answer


async def test_answer_without_a_length_ends_with_its_connection() -> None:
    async with serving(then_closing(b"HTTP/1.1 200 OK\r\n\r\nok")) as (server, transport):
        assert await ask(server, transport) == b"ok"


BROKEN = {
    "no HTTP": b"220 mail.example ESMTP\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "no status": b"HTTP/1.1 000 OK\r\ncontent-length: 2\r\n\r\nok" + OK,
    "an endless head": b"HTTP/1.1 200 OK\r\na: " + b"x" * 200_000,
    "endless trailers": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: " + b"x" * 200_000,
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
async def test_invalid_answer_breaks_the_connection(answer: bytes) -> None:
    async with serving(answer) as (server, transport):
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(server, transport)
        await eventually(lambda: server.closed, "hung up", until=(1).__eq__)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"], ids=["nothing", "half"])
async def test_disconnection_is_no_end_of_an_answer(said: bytes) -> None:
    async with serving(then_closing(said)) as (server, transport):
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(server, transport)


async def test_kept_connection_that_the_server_closed_is_not_used() -> None:
    async with serving(then_closing(OK)) as (server, transport):  # the head does not announce it
        assert await ask(server, transport) == b"ok"
        await eventually(lambda: server.closed, "closed", until=(1).__eq__)
        assert await ask(server, transport) == b"ok"


class Hand:
    """A server that a test plays, one step at a time, on sockets of its own."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    async def connection(self) -> socket.socket:
        connected, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        return connected

    async def answer(self, connected: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(connected, 65536)
        await loop.sock_sendall(connected, OK)

    def close(self) -> None:
        self._listener.close()


@asynccontextmanager
async def kept_connection() -> AsyncGenerator[tuple[Hand, OneServer, socket.socket]]:
    """Yield a server, a transport, and the server's end of a connection that the transport has kept."""
    hand = Hand()
    transport = OneServer(hand.url)
    asking = asyncio.create_task(transport.send("POST", "/x"))
    connected = await hand.connection()
    await hand.answer(connected)
    assert (await asking).whole() == b"ok"
    try:
        yield hand, transport, connected
    finally:
        await transport.aclose()
        connected.close()
        hand.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what was acknowledged")
async def test_request_that_met_the_close_of_its_connection_goes_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kept_connection() as (hand, transport, connected):

        def is_silent(wire: Wire) -> bool:
            connected.close()  # just after the look, before the request
            return True

        monkeypatch.setattr(Wire, "is_silent", property(is_silent))
        asking = asyncio.create_task(transport.send("POST", "/x", content=b"a run"))
        with await asyncio.wait_for(hand.connection(), 5) as second:
            await hand.answer(second)
            assert (await asking).whole() == b"ok"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what was acknowledged")
async def test_request_that_met_a_late_408_goes_by_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kept_connection() as (hand, transport, connected):

        def is_silent(wire: Wire) -> bool:
            connected.sendall(b"HTTP/1.1 408 Late\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            connected.close()
            return True

        monkeypatch.setattr(Wire, "is_silent", property(is_silent))
        asking = asyncio.create_task(transport.send("POST", "/x", content=b"a run"))
        with await asyncio.wait_for(hand.connection(), 5) as second:
            await hand.answer(second)
            assert (await asking).status_code == 200


async def test_request_that_a_half_closed_connection_brings_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with kept_connection() as (hand, transport, connected):

        def is_silent(wire: Wire) -> bool:
            connected.shutdown(socket.SHUT_WR)
            return True

        monkeypatch.setattr(Wire, "is_silent", property(is_silent))
        asking = asyncio.create_task(transport.send("POST", "/x", content=b"a run"))
        assert b"a run" in await asyncio.get_running_loop().sock_recv(connected, 65536)
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await asking
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hand.connection(), 0.2)


@pytest.mark.parametrize("reads", [True, False])
async def test_request_that_came_to_its_server_is_never_sent_again(reads: bool) -> None:
    async with kept_connection() as (hand, transport, connected):
        asking = asyncio.create_task(transport.send("POST", "/x", content=b"a run"))
        if reads:
            await asyncio.get_running_loop().sock_recv(connected, 65536)
        else:
            await eventually(lambda: select.select([connected], [], [], 0)[0], "it came")
        connected.close()
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await asking
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hand.connection(), 0.2)


async def test_abandoned_request_closes_the_connection() -> None:
    async def answer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)

    async with serving(answer) as (server, transport):
        asking = asyncio.create_task(ask(server, transport))
        await eventually(lambda: len(server.heads), "asked", until=(1).__eq__)
        asking.cancel()
        await eventually(lambda: server.closed, "hung up", until=(1).__eq__)


async def test_unread_body_makes_the_server_wait() -> None:
    sent = 0

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        for _chunk in range(1000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    async with serving(answer) as (_server, transport):
        response = await transport.send("GET", "/x")
        size = 0
        async for chunk in response.chunks():
            if size == 0:  # the kernel buffers some MB for both sides
                await eventually(lambda: sent, "stuck", until=lambda at: at > MOST_WAITING)
                await turns(100)
                assert sent < 50_000_000
            size += len(chunk)
        assert size == 100_000_000


@pytest.mark.parametrize(("name", "is_trusted"), [("localhost", True), ("elsewhere.example", False)])
async def test_tls_server_is_called_if_its_certificate_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_trusted: bool
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setattr("director.servers.runners.transport._load_authorities", authority.trusted)
    async with secure_sink(authority.shown_by(name)) as sink:
        asking = OneServer(f"https://localhost:{sink.port}").send("GET", "/x")
        if is_trusted:
            assert (await asking).status_code == 200
        else:
            with pytest.raises(httpx.ConnectError):
                await asking
    assert len(sink.heads) == is_trusted


async def test_each_address_of_a_server_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in ("::1", "127.0.0.9", "127.0.0.1")]

    async with serving(OK) as (server, _):
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
        transport = OneServer(server.url.replace("127.0.0.1", "gpu.example"))
        assert (await transport.send("GET", "/x")).status_code == 200
        await transport.aclose()


def test_authorities_are_loaded_once_for_all_servers() -> None:
    one, two = OneServer("https://one.example"), OneServer("https://two.example")
    assert one._tls is not None
    assert one._tls is two._tls


async def test_unreachable_server_is_reported_without_its_address() -> None:
    async with serving(OK) as (server, _):
        pass
    with pytest.raises(httpx.ConnectError) as caught:
        await OneServer(server.url).send("GET", "/x")
    assert "127.0.0.1" not in str(caught.value)


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "xn--a", "unknown.invalid"])
async def test_impossible_host_name_counts_as_unreachable(host: str) -> None:
    with pytest.raises(httpx.ConnectError):
        await OneServer(f"http://{host}:5000").send("GET", "/x")


async def test_header_is_a_single_line() -> None:
    async with serving(OK) as (server, transport):
        for header in ({"x-key": "a\r\nx-other: b"}, {"x-key": "a\nb"}, {"x\r\ny": "b"}):
            with pytest.raises(httpx.LocalProtocolError):
                await transport.send("GET", "/x", trace=header)
        assert not server.heads


async def test_path_is_escaped() -> None:
    async with serving(OK) as (server, _):
        transport = OneServer(server.url + "/below/")
        for path in ("/predictions/a1b2", "/v1/a b?c=d é", "/../x"):
            await (await transport.send("GET", path)).aclose()
        await transport.aclose()
    lines = [head.partition(b"\r\n")[0] for head in server.heads]
    assert lines == [
        b"GET /below/predictions/a1b2 HTTP/1.1",
        b"GET /below/v1/a%20b?c=d%20%C3%A9 HTTP/1.1",
        b"GET /x HTTP/1.1",
    ]


async def test_early_answer_does_not_count_as_sent_later() -> None:
    calls = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await reader.readexactly(50_000_000)

    async with serving(answer) as (_server, transport):
        response = await transport.send("POST", "/x", content=b"x" * 50_000_000, sent=lambda: calls.append("sent"))
        assert [chunk async for chunk in response.chunks()] == [b"ok"]
        assert calls == []


async def test_request_that_its_server_never_reads_counts_as_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("director.servers.runners.transport.TAKES_NOTHING_S", 0.05)
    sent = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await sent.wait()
        writer.close()

    async with serving(hang) as (_server, transport):
        with pytest.raises(httpx.TransportError):
            async with asyncio.timeout(10):
                await transport.send("POST", "/x", content=b"x" * 50_000_000, sent=sent.set)


async def test_request_that_its_server_reads_slowly_counts_as_sent_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("director.servers.runners.transport.TAKES_NOTHING_S", 0.2)
    read, left = 0, list[int]()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal read
        while read < 50_000_000:
            read += len(await reader.readexactly(1_000_000))
            await asyncio.sleep(0.02)  # the server is slow: this is what is tried
        writer.write(OK)

    async with serving(take) as (_server, transport):
        response = await transport.send("POST", "/x", content=b"x" * 50_000_000, sent=lambda: left.append(read))
        assert [chunk async for chunk in response.chunks()] == [b"ok"]
    assert len(left) == 1
    assert left[0] > 25_000_000, "the buffers of both sides take some of it"
