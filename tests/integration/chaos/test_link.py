"""Check a link of a fault-injection run: it passes on every byte, and can be slow, cut, broken, or lose one reply."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from director.chaos.proxy import Link

pytestmark = pytest.mark.anyio

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that answers each line with the same line, and remembers it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.hung_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.heard.append(line)
                writer.write(line)
        except ConnectionError:
            pass
        finally:
            self.hung_up.set()
            writer.close()


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Link, Echo]]:
    echo = Echo()
    async with await asyncio.start_server(echo.serve, "127.0.0.1", 0, limit=1 << 20) as server:
        port = server.sockets[0].getsockname()[1]
        link = Link("a:b", lambda: asyncio.open_connection("127.0.0.1", port), seed=1)
        await link.start()
        try:
            yield link, echo
        finally:
            await link.stop()


@asynccontextmanager
async def connected(link: Link) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def say(ends: Ends, line: bytes) -> bytes:
    ends[1].write(line)
    return await ends[0].readline()


async def test_a_link_passes_on_every_byte_both_ways():
    async with linked() as (link, echo), connected(link) as ends:
        long = b"x" * 200_000 + b"\n"
        ends[1].write(long)
        assert await ends[0].readexactly(len(long)) == long
        assert echo.heard == [long]


async def test_a_slow_link_delivers_every_byte_in_order():
    async with linked() as (link, _), connected(link) as ends:
        link.delay_s = (0.001, 0.005)
        for number in range(20):
            ends[1].write(b"%d\n" % number)
        assert [await ends[0].readline() for _ in range(20)] == [b"%d\n" % number for number in range(20)]


async def test_connections_of_a_narrow_link_share_its_bytes_per_second():
    async with linked() as (link, _), connected(link) as ends, connected(link) as others:
        link.bytes_s = 1_000_000
        began = asyncio.get_running_loop().time()
        lines = [b"x" * 150_000 + b"\n", b"y" * 150_000 + b"\n"]
        for (_, writer), line in zip((ends, others), lines, strict=True):
            writer.write(line)
        heard = [await reader.readexactly(len(line)) for (reader, _), line in zip((ends, others), lines, strict=True)]
        assert heard == lines
        assert asyncio.get_running_loop().time() - began > 0.25
        assert link.carried == {False: 300_002, True: 300_002}


async def test_a_cut_link_delivers_its_bytes_once_it_is_mended():
    async with linked() as (link, echo), connected(link) as ends:
        assert await say(ends, b"before\n") == b"before\n"
        link.cut()
        ends[1].write(b"meanwhile\n")
        async with connected(link) as others:
            others[1].write(b"new\n")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ends[0].readline(), 0.1)
            assert echo.heard == [b"before\n"]
            link.mend()
            assert await ends[0].readline() == b"meanwhile\n"
            assert await others[0].readline() == b"new\n"


async def test_a_lost_reply_does_not_arrive_though_its_request_did():
    async with linked() as (link, echo), connected(link) as ends, connected(link) as others:
        losing = asyncio.create_task(link.lose_reply(b"secret"))
        await asyncio.sleep(0)
        assert await say(ends, b"harmless\n") == b"harmless\n"
        with suppress(ConnectionError):
            assert await say(ends, b"secret\n") == b""
        await losing
        assert echo.heard == [b"harmless\n", b"secret\n"]
        assert await say(others, b"secret\n") == b"secret\n"


async def test_a_link_works_after_no_reply_to_lose_came():
    async with linked() as (link, _), connected(link) as ends:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(link.lose_reply(b"secret"), 0.01)
        assert await say(ends, b"secret\n") == b"secret\n"


async def test_a_reset_breaks_only_open_connections():
    async with linked() as (link, _), connected(link) as ends:
        assert await say(ends, b"before\n") == b"before\n"
        link.reset()
        with suppress(ConnectionError):
            assert await ends[0].read() == b""
        async with connected(link) as others:
            assert await say(others, b"after\n") == b"after\n"


async def test_a_link_passes_on_a_hang_up():
    async with linked() as (link, echo), connected(link) as ends:
        assert await say(ends, b"last\n") == b"last\n"
        ends[1].close()
        await asyncio.wait_for(echo.hung_up.wait(), 20)
