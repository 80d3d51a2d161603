"""Read streams of OpenAI's API over bare sockets, from a process of its own: `python -m tests.bench.sides.streams`.

An HTTP client would be most of what is measured. The `Plan` comes as JSON on stdin, `Heard` is printed as JSON.
"""

import asyncio
import re
import sys
import time
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
import uvloop
from msgspec import Struct

from director.runtime.startup import raise_descriptor_limit

TOKEN: Final = re.compile(rb'"content": ?"1')  # its text is the time at which it was written
TAIL: Final = 12  # bytes of one that is not complete, at most
END: Final = b"0\r\n\r\n"
ENDED: Final = "it ended without a byte"  # also of a connection that a server kept for long enough


class Plan(Struct, frozen=True, kw_only=True):
    """`moments`: when each stream begins, in seconds. A stream waits for none before it while a connection is left;
    `connections` are opened before the first one, and more as they are needed. `limit_s`: of one stream.
    """

    url: str
    headers: dict[str, str]
    body: str
    moments: list[float]
    connections: int
    limit_s: float

    def request(self) -> bytes:
        parts, body = urlsplit(self.url), self.body.encode()
        fields = {"host": parts.netloc, "content-type": "application/json", "content-length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in (fields | self.headers).items())
        return f"POST {parts.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


class Heard(Struct, frozen=True, kw_only=True):
    """One stream: the milliseconds to its first token, and those between two tokens. `fault`: why it did not end."""

    first_ms: float = 0.0
    gaps_ms: list[float] = []
    fault: str = ""


class Reader(asyncio.Protocol):
    """Reads one answer at a time on a connection."""

    def __init__(self) -> None:
        self._tail = b""
        self._times: list[float] = []
        self._over: asyncio.Future[str] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"it ended early: {self._tail!r}" if self._tail or self._times else ENDED)

    def data_received(self, data: bytes) -> None:
        now, seen = time.perf_counter(), self._tail + data
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200 "):
            self._end(f"it was refused: {data[:500]!r}")
        ends = [found.end() for found in TOKEN.finditer(seen)]
        self._times += [now] * len(ends)
        self._tail = seen[max(len(seen) - TAIL, 0, *ends[-1:]) :]
        if seen.endswith(END):
            self._end("")

    async def read(self, request: bytes, limit_s: float) -> Heard:
        self._tail, self._times = b"", []
        self._over = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._transport.write(request)
        try:
            async with asyncio.timeout(limit_s):
                fault = await self._over
        except TimeoutError:
            fault = f"it did not end within {limit_s:g} s"
        if fault or not self._times:
            self._over = None
            self._transport.close()
            return Heard(fault=fault or f"it had no token: {self._tail!r}")
        gaps = [round(1000 * (later - before), 3) for before, later in zip(self._times, self._times[1:], strict=False)]
        return Heard(first_ms=1000 * (self._times[0] - began), gaps_ms=gaps)

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def _end(self, fault: str) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(fault)


async def read_all(plan: Plan) -> list[Heard]:
    request, parts = plan.request(), urlsplit(plan.url)

    async def connect() -> Reader:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Reader, parts.hostname or "", parts.port or 80))[1]

    async def read() -> Heard:
        while idle:
            reader = idle.pop()
            if reader.is_open and (heard := await reader.read(request, plan.limit_s)).fault != ENDED:
                break
        else:
            reader = await connect()
            heard = await reader.read(request, plan.limit_s)
        if reader.is_open:
            idle.append(reader)
        return heard

    idle = [await connect() for _ in range(plan.connections)]
    reads, began = [], time.perf_counter()
    for moment in plan.moments:
        await asyncio.sleep(began + moment - time.perf_counter())  # the callers' own time
        reads.append(asyncio.create_task(read()))
    return await asyncio.gather(*reads)


async def hear(plan: Plan) -> list[Heard]:
    """Read the streams in a new process. Raises ChildProcessError if that breaks off."""
    command, pipe = (sys.executable, "-m", "tests.bench.sides.streams"), asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        out, err = await process.communicate(msgspec.json.encode(plan))
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        [*_, why] = err.decode(errors="replace").strip().splitlines() or ["without a word"]
        raise ChildProcessError(f"the streams of {plan.url} broke off: {why[:200]}")
    return msgspec.json.decode(out, type=list[Heard])


if __name__ == "__main__":
    raise_descriptor_limit()
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    found = msgspec.json.encode(uvloop.run(read_all(wanted)))
    # with PYTHONUNBUFFERED a write to stdout ends where the pipe is full
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(found)
