"""Send requests to one URL over many connections, from a process of its own: `python -m director.lab.bench.load`. Bare
sockets, since an HTTP client would be most of what is measured. The `Load` comes as JSON on stdin, since a command
line would show its token to every user of the machine. `Answered` is printed as JSON.
"""

import asyncio
import re
import sys
import time
from functools import partial
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
import uvloop
from msgspec import Struct

from director.core.figures import percentile
from director.runtime.startup import raise_descriptor_limit

WARM_PART: Final = 0.15  # of the time: answers in it do not count
LEAST_WARM: Final = 10
LIMIT_S: Final = 30.0  # for one answer
STATUS: Final = re.compile(rb'"status":"(\w+)"')  # of a prediction; a refusal has a number there


class Load(Struct, frozen=True, kw_only=True):
    """`wanted`: text that each good answer contains. `rate`: requests a second in all; 0 sends each after an answer."""

    url: str
    headers: dict[str, str] = {}
    body: str = "{}"
    wanted: str = ""
    connections: int = 1
    seconds: float = 3.0
    requests: int = 0
    rate: float = 0.0


class Answered(Struct, frozen=True, kw_only=True):
    """The figures after the warm-up. `total`: all good answers. `refused`: all bad ones; `said` is the last of them.
    `others`: when each bad one came, by the monotonic clock and under the name that `kind_of` gives it.
    """

    answered: int = 0
    total: int = 0
    seconds: float = 1.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    refused: int = 0
    said: str = ""
    others: dict[str, list[float]] = {}

    @property
    def per_s(self) -> float:
        return self.answered / self.seconds


class Caller(asyncio.Protocol):
    def __init__(self, crowd: "Crowd", number: int) -> None:
        self._crowd = crowd
        self._number = number
        self._read = b""
        self._sent_at = 0.0
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it
        self._due = time.perf_counter() + self._number / self._crowd.load.connections * self._crowd.pause_s
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(exc or ConnectionResetError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        self._read += data
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            return
        length = int(self._read[:end].lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._read) < end + 4 + length:
            return
        answer, self._read = self._read, b""
        self._crowd.note(answer, (time.perf_counter() - self._sent_at) * 1000)
        self._next()

    def _next(self) -> None:
        if self._crowd.is_over:
            if not self.over.done():
                self.over.set_result(None)
            self._transport.close()
        elif (wait := self._due - time.perf_counter()) > 0 and self._crowd.pause_s:
            asyncio.get_running_loop().call_later(wait, self._send)
        else:
            self._send()

    def _send(self) -> None:
        self._due += self._crowd.pause_s
        self._sent_at = time.perf_counter()
        self._transport.write(self._crowd.request)


class Crowd:
    def __init__(self, load: Load) -> None:
        self.load = load
        self.pause_s = load.connections / load.rate if load.rate else 0.0
        self._parts = parts = urlsplit(load.url)
        content = load.body.encode()
        headers = {"host": parts.netloc, "content-type": "application/json", "content-length": str(len(content))}
        fields = [f"{name}: {value}" for name, value in (headers | load.headers).items()]
        self.request = "\r\n".join([f"POST {parts.path} HTTP/1.1", *fields, "\r\n"]).encode() + content
        self._wanted = load.wanted.encode()
        self._began = time.perf_counter()
        self._notes: list[tuple[float, float]] = []  # the time of each answer, and how many ms it took
        self._others: dict[str, list[float]] = {}
        self._said = ""

    @property
    def is_over(self) -> bool:
        enough = len(self._notes) >= self.load.requests + LEAST_WARM if self.load.requests else False
        return enough or time.perf_counter() - self._began > self.load.seconds

    def note(self, answer: bytes, took_ms: float) -> None:
        if answer.startswith(b"HTTP/1.1 2") and self._wanted in answer:
            self._notes.append((time.perf_counter(), took_ms))
        else:
            self._others.setdefault(kind_of(answer), []).append(time.monotonic())
            self._said = answer.decode(errors="replace")[-500:]

    async def ask(self) -> Answered:
        loop = asyncio.get_running_loop()
        callers = []
        for number in range(self.load.connections):
            make, host, port = partial(Caller, self, number), self._parts.hostname or "", self._parts.port or 80
            callers.append((await loop.create_connection(make, host, port))[1])
        async with asyncio.timeout(self.load.seconds + LIMIT_S):
            await asyncio.gather(*(caller.over for caller in callers))
        return self._report()

    def _report(self) -> Answered:
        warm = self._began + (0 if self.load.requests else WARM_PART * self.load.seconds)
        counted = [note for note in self._notes if note[0] > warm][LEAST_WARM if self.load.requests else 0 :]
        refused = sum(map(len, self._others.values()))
        if len(counted) < 2:
            return Answered(refused=refused, said=self._said, others=self._others)
        times = [took_ms for _, took_ms in counted]
        return Answered(
            answered=len(counted) - 1,
            total=len(self._notes),
            seconds=counted[-1][0] - counted[0][0],
            p50_ms=percentile(times, 0.5),
            p99_ms=percentile(times, 0.99),
            refused=refused,
            said=self._said,
            others=self._others,
        )


def kind_of(answer: bytes) -> str:
    """Name an answer by its status, for example `503 with Retry-After`, or `201 failed` for a failed prediction."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head[9:12].decode(errors="replace")
    if b"\r\nretry-after:" in head.lower():
        return f"{status} with Retry-After"
    found = STATUS.search(body)
    return f"{status} {found[1].decode()}" if found else status


async def ask(load: Load) -> Answered:
    """Run the load in a new process. Raises ChildProcessError if that fails, or if any answer or all were bad."""
    answered = await run_load(load)
    if answered.refused or not answered.answered:
        raise ChildProcessError(
            f"{answered.refused} requests to {load.url} were not answered well. The last answer: {answered.said}"
        )
    return answered


async def run_load(load: Load) -> Answered:
    """Run the load in a new process. Raises ChildProcessError if that fails, also by a lost connection."""
    command, pipe = (sys.executable, "-m", "director.lab.bench.load"), asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        out, err = await process.communicate(msgspec.json.encode(load))
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise ChildProcessError(f"the load on {load.url} broke off: {err.decode(errors='replace')[-1000:]}")
    return msgspec.json.decode(out, type=Answered)


def main() -> None:
    raise_descriptor_limit()
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(Crowd(load).ask())))


if __name__ == "__main__":
    main()
