"""Put a TCP proxy on loopback between two processes, as a link that can be slow, narrow, cut, a black hole, or lose one
reply. It never changes or reorders a byte. A cut link delivers its bytes afterwards, as TCP does by sending again.

A cut link acknowledges and accepts. A black hole does neither, where the kernel is Linux: packets to its sockets are
dropped by a filter, for which no right is needed. So the near end's kernel runs its timers, and ends its connections.
"""

import asyncio
import ctypes
import os
import random
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

CHUNK: Final = 65_536
AHEAD_S: Final = 0.03  # a sleep is never exact, least on a busy machine: so much of its delay is made up for


ATTACH_FILTER: Final = 26  # SO_ATTACH_FILTER and SO_DETACH_FILTER, which Python does not name
DETACH_FILTER: Final = 27
DROP: Final = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)  # one instruction: accept 0 bytes
DROP_ALL: Final = struct.pack("HP", 1, ctypes.addressof(DROP))
# After a black hole, a connection that the near end has given up meanwhile is found by a probe, and reset
PROBES: Final = (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3))


class Replies(Protocol):
    async def read(self, most: int, /) -> bytes: ...


Connection = tuple[Replies, asyncio.StreamWriter]
Upstream = Callable[[], Awaitable[Connection]]
LOOPBACK: Final = "127.0.0.1"


class Link:
    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.port = 0  # the first that it listens on
        self.delay_s = (0.0, 0.0)  # shortest and longest delay of each piece
        self.bytes_s = 0.0  # of all connections together, each way; 0 for no limit
        self.carried = {False: 0, True: 0}  # bytes of requests, bytes of replies
        self._dice = random.Random(f"{seed}:{name}")  # noqa: S311 - repeatable on purpose
        self._free_at = {False: 0.0, True: 0.0}
        self._open = asyncio.Event()
        self._open.set()
        self._replies = asyncio.Event()
        self._replies.set()
        self._holes = 0
        self._is_reset = False
        self._here = asyncio.Event()
        self._here.set()
        self._marker: bytes | None = None
        self._is_of_request = False
        self._lost = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._near: set[asyncio.StreamWriter] = set()

    async def listen(self, connect: Upstream, *, host: str = LOOPBACK, port: int = 0) -> None:
        """Listen at one address more, and pass its connections on. All addresses are one link."""
        server = await asyncio.start_server(partial(self._serve, connect), host, port, backlog=512)
        self._servers.append(server)
        self.port = self.port or server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        self._holes = 0
        self._here.set()
        self.reset()
        if self._connections:
            await asyncio.wait(self._connections)

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        """End a cut, a delay, or the wait for a reply to lose. The width stays."""
        self.delay_s = (0.0, 0.0)
        self._marker = None
        self._open.set()

    def vanish(self) -> None:
        """Be a black hole until `come_back`: pass on nothing, reset nothing, and take no connection."""
        self._holes += 1
        self._here.clear()
        for descriptor in self._descriptors():
            _drop_packets(descriptor)

    def come_back(self) -> None:
        """Call it once for each `vanish`: the last one ends the black hole."""
        self._holes -= 1
        if self._holes == 0:
            for descriptor in self._descriptors():
                _pass_packets(descriptor)
            if self._is_reset:
                self._is_reset = False
                self.reset()
            self._here.set()

    def _descriptors(self) -> list[int]:
        near = [writer.get_extra_info("socket").fileno() for writer in self._near]
        return [number for number in [*near, *(server.sockets[0].fileno() for server in self._servers)] if number >= 0]

    def hold_replies(self) -> None:
        """Pass on requests and no replies, until `pass_replies`. `mend` changes nothing of it."""
        self._replies.clear()

    def pass_replies(self) -> None:
        self._replies.set()

    def reset(self) -> None:
        """Break all connections. The near end of a black hole learns of it when that ends."""
        if self._holes:
            self._is_reset = True
            return
        for connection in self._connections:
            connection.cancel()

    def lose_next_reply(self, marker: bytes, *, is_of_request: bool = False) -> None:
        """Break the connection of the next reply that holds `marker`, or whose request does, and pass on no reply."""
        self._lost.clear()
        self._marker, self._is_of_request = marker, is_of_request

    async def lose_reply(self, marker: bytes) -> None:
        self.lose_next_reply(marker)
        try:
            await self._lost.wait()
        finally:
            self._marker = None

    async def _serve(self, connect: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self._connections.add(task)
        self._near.add(writer)
        try:
            await self._open.wait()
            if self._holes:  # it was accepted at the last moment
                _drop_packets(writer.get_extra_info("socket").fileno())
            await self._here.wait()
            far = await connect()
            try:
                is_over = await self._both_ways((reader, writer), far)
                await self._here.wait()  # the near end of a black hole learns of nothing
                if is_over:
                    writer.close()
            finally:
                far[1].transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # the far end is missing, or this link breaks: for the near end it is the same
        finally:
            self._connections.discard(task)
            self._near.discard(writer)
            if not writer.is_closing():
                writer.transport.abort()

    async def _both_ways(self, near: Connection, far: Connection) -> bool:
        """Pass bytes until either end hangs up. Return False if a reply was lost on purpose."""
        doomed = asyncio.Event()
        requests = asyncio.create_task(self._pass_on(near[0], far[1], doomed, replies=False))
        replies = asyncio.create_task(self._pass_on(far[0], near[1], doomed, replies=True))
        ways = {requests, replies}
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            return all(way.result() for way in done)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)

    async def _pass_on(
        self, reader: Replies, writer: asyncio.StreamWriter, doomed: asyncio.Event, *, replies: bool
    ) -> bool:
        with suppress(ConnectionError):
            while chunk := await reader.read(CHUNK):
                if self.delay_s[1]:
                    await asyncio.sleep(self._dice.uniform(*self.delay_s))
                if self.bytes_s:
                    await self._turn(len(chunk), replies=replies)
                await self._open.wait()
                await self._here.wait()
                if replies:
                    await self._replies.wait()
                if self._marker is not None and replies is not self._is_of_request and self._marker in chunk:
                    self._marker = None
                    doomed.set()
                if replies and doomed.is_set():
                    self._lost.set()
                    return False
                if writer.is_closing():
                    return True
                writer.write(chunk)
                await writer.drain()
                self.carried[replies] += len(chunk)
        return True

    async def _turn(self, size: int, *, replies: bool) -> None:
        now = asyncio.get_running_loop().time()
        free_at = max(self._free_at[replies], now - AHEAD_S) + size / self.bytes_s
        self._free_at[replies] = free_at
        if free_at > now:
            await asyncio.sleep(free_at - now)


def _drop_packets(descriptor: int) -> None:
    """Let the kernel drop what arrives at this socket: then it acknowledges nothing, and takes no connection."""
    if sys.platform == "linux":
        with socket.socket(fileno=os.dup(descriptor)) as one:
            one.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, DROP_ALL)


def _pass_packets(descriptor: int) -> None:
    if sys.platform == "linux":
        with socket.socket(fileno=os.dup(descriptor)) as one:
            with suppress(FileNotFoundError):  # it has none
                one.setsockopt(socket.SOL_SOCKET, DETACH_FILTER, 0)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in PROBES:
                one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
