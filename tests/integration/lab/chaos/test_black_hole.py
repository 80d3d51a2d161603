"""Test that a link can be a black hole for which no right is needed: it acknowledges, resets and accepts nothing."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from director.lab.chaos.proxy import Link
from tests.support.eventually import eventually

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel acknowledges what arrives"),
    pytest.mark.faults,
]
LIMIT_S = 20.0
SILENT_S = 0.5
GIVEN_UP_MS = 1_000


class Echo:
    def __init__(self) -> None:
        self.open = 0
        self._writers: list[asyncio.StreamWriter] = []

    def end(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self._writers.append(writer)
        try:
            with suppress(ConnectionError):
                while data := await reader.read(100):
                    writer.write(data)
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def echoing() -> AsyncGenerator[tuple[Link, Echo]]:
    echo, link = Echo(), Link("near:far", seed=1)
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        await link.listen(partial(asyncio.open_connection, *server.sockets[0].getsockname()))
        try:
            yield link, echo
        finally:
            await link.stop()


@asynccontextmanager
async def connected(link: Link) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        yield reader, writer
    finally:
        writer.transport.abort()


async def connects(link: Link, *, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s), connected(link):
            return True
    except TimeoutError:
        return False


async def test_a_black_hole_is_silent_and_sends_again_afterwards() -> None:
    async with echoing() as (link, _), connected(link) as (reader, writer):
        link.vanish()
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), SILENT_S)
        assert not await connects(link, within_s=SILENT_S)
        link.come_back()
        assert await asyncio.wait_for(reader.readexactly(4), LIMIT_S) == b"late"
        assert await connects(link, within_s=LIMIT_S)


@pytest.mark.parametrize("how", ["what it sends", "what it only listens on"])
async def test_a_kernel_gives_up_a_connection_to_a_black_hole(how: str) -> None:
    async with echoing() as (link, echo), connected(link) as (reader, writer):
        own = writer.get_extra_info("socket")
        if how == "what it sends":
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GIVEN_UP_MS)
        else:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 2)):
                own.setsockopt(socket.IPPROTO_TCP, option, value)
        link.vanish()
        if how == "what it sends":
            writer.write(b"lost")
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="Connection timed out"):
            await asyncio.wait_for(reader.read(1), LIMIT_S)
        assert time.monotonic() - began >= GIVEN_UP_MS / 1000
        assert echo.open == 1, "the far end does not know of it"
        link.come_back()
        await eventually(lambda: echo.open, "the far end is not reset", until=lambda count: count == 0)


async def test_a_cut_link_acknowledges_what_it_does_not_pass_on() -> None:
    async with echoing() as (link, _), connected(link) as (reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100)
        link.cut()
        writer.write(b"late")
        with pytest.raises(TimeoutError) as silent:
            await asyncio.wait_for(reader.read(1), SILENT_S)
        assert silent.value.errno is None, "no kernel gave anything up"
        link.mend()
        assert await asyncio.wait_for(reader.readexactly(4), LIMIT_S) == b"late"


async def test_a_black_hole_resets_its_connections_only_afterwards() -> None:
    async with echoing() as (link, _), connected(link) as (reader, _):
        link.vanish()
        link.reset()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), SILENT_S)
        link.come_back()
        assert await asyncio.wait_for(reader.read(1), LIMIT_S) == b"", "its end"


async def test_the_end_of_the_far_process_is_not_seen_through_a_black_hole() -> None:
    async with echoing() as (link, echo), connected(link) as (reader, _):
        link.vanish()
        echo.end()
        await eventually(lambda: echo.open, "the far process has not ended", until=lambda count: count == 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), SILENT_S)
        link.come_back()
        assert await asyncio.wait_for(reader.read(1), LIMIT_S) == b"", "its end"


async def test_a_link_is_back_after_the_last_of_its_black_holes() -> None:
    async with echoing() as (link, _):
        link.vanish()
        link.vanish()
        link.come_back()
        assert not await connects(link, within_s=SILENT_S)
        link.come_back()
        assert await connects(link, within_s=LIMIT_S)
