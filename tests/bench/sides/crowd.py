"""Hold many requests open in a process of its own: `python -m tests.bench.sides.crowd`, a `Crowd` as JSON on stdin.

Each client creates a prediction. It holds the response until the prediction ends, or reads its event stream. An output
is the time at which it was written, so a client knows how late it is. `Heard` is printed as JSON once all have ended.
"""

import asyncio
import re
import sys
import time
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
import uvloop
from msgspec import Struct, field

from director.runtime.startup import raise_descriptor_limit

LIMIT_S: Final = 600.0
LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
STREAM: Final = re.compile(rb'"stream":"https?://[^/"]+(/[^"]+)"')
WRITTEN: Final = re.compile(rb'"output":"?(\d+\.\d+)')
TOKEN: Final = re.compile(rb"event: output\n(?:id: [^\n]*\n)?data: (\d+\.\d+)\n")
DONE: Final = b"event: done\n"
LONGEST: Final = 1 << 16


class Crowd(Struct, frozen=True, kw_only=True):
    """`per_s`: clients that come in a second."""

    url: str
    token: str
    body: str
    clients: int
    per_s: float
    is_reading: bool


class Heard(Struct, kw_only=True):
    """`ended`: clients that saw the end of their prediction. `ran_out`: responses that were held for all of their time.
    `refused`: another answer than these.
    """

    ended: int = 0
    ran_out: int = 0
    refused: int = 0
    said: str = ""
    late_ms: list[float] = field(default_factory=list)


class Client(asyncio.Protocol):
    def __init__(self, crowd: Crowd, heard: Heard) -> None:
        self._crowd = crowd
        self._heard = heard
        self._read = b""
        self._is_streaming = False
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it
        crowd = self._crowd
        prefer = [] if crowd.is_reading else ["Prefer: wait=60"]
        lines = (f"Authorization: Bearer {crowd.token}", f"Content-Length: {len(crowd.body)}", *prefer)
        self._send("POST", "/v1/predictions", lines, crowd.body)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if self._is_streaming:
            self._follow()
        elif (end := self._read.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._read[:end])
            if length is None or len(self._read) >= end + 4 + int(length[1]):
                self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self._end(f"the connection was lost: {exc}".encode())

    def _answered(self) -> None:
        answer, self._read = self._read, b""
        stream, written = STREAM.search(answer), WRITTEN.search(answer)
        if answer.startswith(b"HTTP/1.1 202"):
            self._heard.ran_out += 1
            self._close()
        elif not answer.startswith(b"HTTP/1.1 201"):
            self._end(answer)
        elif self._crowd.is_reading and stream:
            self._is_streaming = True
            self._send("GET", stream[1].decode(), ("Accept: text/event-stream",))
        elif written and b'"status":"succeeded"' in answer:
            self._heard.late_ms.append(1000 * (time.time() - float(written[1])))
            self._end()
        else:
            self._end(answer)

    def _follow(self) -> None:
        now_s, last = time.time(), 0
        for token in TOKEN.finditer(self._read):
            self._heard.late_ms.append(1000 * (now_s - float(token[1])))
            last = token.end()
        if DONE in self._read:
            self._end()
        elif self._read.startswith(b"HTTP/1.1 ") and not self._read.startswith(b"HTTP/1.1 200"):
            self._end(self._read)
        self._read = self._read[last:][-LONGEST:] if last else self._read[-LONGEST:]

    def _send(self, method: str, path: str, headers: tuple[str, ...], body: str = "") -> None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {urlsplit(self._crowd.url).netloc}", *headers, "\r\n"]
        self._transport.write(("\r\n".join(lines) + body).encode())

    def _end(self, wrong: bytes = b"") -> None:
        if wrong:
            self._heard.refused += 1
            self._heard.said = wrong.decode(errors="replace")[:500]
        else:
            self._heard.ended += 1
        self._close()

    def _close(self) -> None:
        self.over.set_result(None)
        self._transport.close()


async def hold(crowd: Crowd) -> Heard:
    heard, loop, (host, port) = Heard(), asyncio.get_running_loop(), urlsplit(crowd.url).netloc.split(":")
    began, clients = loop.time(), []
    for number in range(crowd.clients):
        await asyncio.sleep(began + number / crowd.per_s - loop.time())  # the rate of the load
        made = await loop.create_connection(lambda: Client(crowd, heard), host, int(port))
        clients.append(made[1])
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(client.over for client in clients))
    return heard


if __name__ == "__main__":
    raise_descriptor_limit()
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=Crowd)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(hold(given))))
