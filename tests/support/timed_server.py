"""Serve a model whose runs take a given time, and record when each one began and ended."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

from tests.support.scripted_cog import HEALTHY

Span = tuple[float, float]
HEAD: Final = b"HTTP/1.1 %d Timed\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
SCHEMA: Final = {"paths": {"/predictions": {"post": {}}}, "components": {"schemas": {"Output": {"type": "string"}}}}


class TimedServer:
    """`spans`: begin and end of each run so far, by time.monotonic."""

    def __init__(self, run_s: float) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self._run_s = run_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                method, path, _ = head.split(" ", 2)
                lines = [line for line in head.split("\r\n") if line.startswith("content-length:")]
                await reader.readexactly(int(lines[0].partition(":")[2]) if lines else 0)
                status, body = await self._answer(method, path)
                content = json.dumps(body).encode()
                writer.write(HEAD % (status, len(content)) + content)
                await writer.drain()
        writer.close()

    async def _answer(self, method: str, path: str) -> tuple[int, object]:
        if method == "put" or path == "/run":
            began = time.monotonic()
            await asyncio.sleep(self._run_s)  # the model's own time
            self.spans.append((began, time.monotonic()))
            return 200, {"status": "succeeded", "output": "x"}
        known = {"/health-check": HEALTHY, "/openapi.json": SCHEMA}
        return (200, known[path]) if path in known else (404, {})


@asynccontextmanager
async def timed_server(run_s: float) -> AsyncGenerator[TimedServer]:
    timed = TimedServer(run_s)
    server = await asyncio.start_server(timed.serve, "127.0.0.1", 0)
    timed.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield timed
    finally:
        server.close()


def at_once(spans: list[Span]) -> int:
    """Return the most runs at any instant. A run that ends as another begins does not overlap it."""
    changes = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def gaps_ms(spans: list[Span], *, slots: int) -> list[float]:
    """Return the time from the end of each run to the next begin in its slot."""
    begins, ends = sorted(began for began, _ in spans), sorted(ended for _, ended in spans)
    return [1000 * (begin - end) for begin, end in zip(begins[slots:], ends, strict=False)]


def use_of(spans: list[Span], *, slots: int) -> float:
    """Return the share of the slots' time with a run, from the first begin to the last one."""
    first, last = min(began for began, _ in spans), max(began for began, _ in spans)
    return sum(min(ended, last) - began for began, ended in spans) / ((last - first) * slots)
