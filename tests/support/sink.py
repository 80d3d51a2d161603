"""Receive webhooks over real HTTP on loopback, give the scripted answers and keep every request."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from msgspec import Struct

from director.lab.chaos import wire

CHUNK: Final = b"x" * 65_536


class Answer(Struct, frozen=True, kw_only=True):
    """`reset`: break the connection. `body_bytes`: an answer of that size. `stall`: stop after the first byte."""

    status: int = 200
    headers: Mapping[str, str] = {}
    delay_s: float = 0.0
    body: bytes = b""
    body_bytes: int = 0
    stall: bool = False
    reset: bool = False


class Received(NamedTuple):
    headers: Mapping[str, str]
    body: bytes


class Sink:
    """The receiver. `answers` are used up one by one; then `answer` applies, except at the paths of `by_path`."""

    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.answers: deque[Answer] = deque()
        self.answer = Answer()
        self.by_path: dict[str, Answer] = {}
        self.received: list[Received] = []
        self.targets: list[str] = []  # path and query of each, as they came over the wire
        self.peers: list[tuple[str, int]] = []  # where each came from: one per connection
        self.open = 0  # being answered now
        self.sent_bytes = 0  # of large answers, all together
        self._changed = asyncio.Condition()
        self._closing = asyncio.Event()

    async def arrived(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.received) >= count)

    def close(self) -> None:
        self._closing.set()

    async def serve(self, request: wire.Request) -> wire.Answer:
        if request.method != "POST":  # a health check, where the sink stands for a model server
            return wire.Answer(405)
        self.open += 1
        try:
            async with self._changed:
                self.received.append(Received(request.headers, request.body))
                self.targets.append(request.path)
                self.peers.append(request.writer.get_extra_info("peername"))
                self._changed.notify_all()
            usual = self.by_path.get(request.path, self.answer)
            return await self._answered(self.answers.popleft() if self.answers else usual, request)
        finally:
            self.open -= 1

    async def _answered(self, answer: Answer, request: wire.Request) -> wire.Answer:
        if answer.delay_s:
            await self._wait(answer.delay_s)
        if answer.reset:
            connection = request.writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
            request.writer.transport.abort()
            return wire.BROKEN
        if not answer.stall and not answer.body_bytes:
            return wire.Answer(answer.status, answer.body, answer.headers)
        with suppress(ConnectionError):
            lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
            await request.write(f"HTTP/1.1 {answer.status} Answer\r\nconnection: close\r\n{lines}\r\n".encode())
            for _ in range(0, answer.body_bytes, len(CHUNK)):
                await request.write(CHUNK)
                self.sent_bytes += len(CHUNK)
            if answer.stall:
                await request.write(b"x")
                await self._wait(None, request.gone)
        return wire.BROKEN

    async def _wait(self, delay_s: float | None, *others: asyncio.Event) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._closing, *others)]
        await asyncio.wait(waits, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


@asynccontextmanager
async def sink(port: int = 0) -> AsyncGenerator[Sink]:
    receiver = Sink()
    async with wire.listening(receiver.serve, port) as receiver.port:
        receiver.url = f"http://127.0.0.1:{receiver.port}/hook"
        try:
            yield receiver
        finally:
            receiver.close()
