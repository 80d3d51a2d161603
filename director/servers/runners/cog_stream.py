"""Follow a run over the event stream of its own PUT: everything comes in order on one connection, the end too.

Never takes a stream that stops for an end: only `completed` is one.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Final

import httpx
from msgspec import Raw, Struct

from director.servers.runners.cog_answers import Again, read_end, too_large
from director.servers.runners.cog_put import Run, create_body, read_whole
from director.servers.runners.connections import Connection
from director.servers.runners.exchange import Exchange
from director.servers.runners.feed import Feed
from director.servers.runners.runner import Ended, Logged, Measured, Outcome, Produced
from director.servers.runners.sse import Frame, FrameTooLarge, SseParser
from director.servers.runners.untrusted import Unreadable, excerpt, one_line, read_json

__all__ = ("put_stream",)

EVENT_STREAM: Final = "text/event-stream"
LAGGED: Final = "stream lagged"  # coglet keeps 1,024 events for a reader that is behind
LAST_CHUNK_S: Final = 0.05  # the end of the body comes with the last event; a connection is not worth a longer wait


class _Log(Struct):
    data: str


class _Chunk(Struct):
    chunk: Raw


class _Metric(Struct):
    name: str
    value: Raw
    mode: str = "replace"


class _Error(Struct):
    error: str = ""


async def put_stream(
    connection: Connection, run: Run, feed: Feed, *, accepted: Callable[[], None] = lambda: None
) -> Ended | Again:
    """Start the run and follow it. `accepted` is called when the server has taken it.

    Raises `httpx.TransportError` when the connection breaks.
    """
    response = await connection.send(
        "PUT", run.path, content=create_body(run), accept=EVENT_STREAM, trace=run.request.trace, sent=feed.sent
    )
    async with aclosing(response):
        feed.answered()
        if response.status_code != 200 or not response.headers.get("content-type", "").startswith(EVENT_STREAM):
            return await read_whole(run, response)
        accepted()
        async with aclosing(_chunks(response)) as chunks:
            ended = await _follow(chunks, _Reader(run, feed), feed)
            with suppress(httpx.TransportError, TimeoutError):
                async with asyncio.timeout(LAST_CHUNK_S):
                    async for _ in chunks:  # read to the end, the connection can be used again
                        pass
    return ended


async def _follow(chunks: AsyncIterator[bytes], reader: "_Reader", feed: Feed) -> Ended | Again:
    async for chunk in chunks:
        if (ended := reader.read(chunk)) is not None:
            return ended
        await feed.room()
    return Ended(outcome=Outcome.LOST, error="The model server's event stream stopped before the run had ended")


async def _chunks(response: Exchange) -> AsyncGenerator[bytes, None]:
    """The body as it comes. coglet leaves Nagle's algorithm on: while an acknowledgement is delayed, it sends nothing
    more for 40 ms. The kernel forgets that it should acknowledge at once, so it is told again after every read.
    """
    acknowledge = _quick_ack(response)
    acknowledge()
    async for chunk in response.chunks():
        acknowledge()
        yield chunk


def _quick_ack(response: Exchange) -> Callable[[], None]:
    connected = response.socket
    if connected is None or not hasattr(socket, "TCP_QUICKACK"):  # only Linux has it
        return lambda: None

    def acknowledge() -> None:
        with suppress(OSError):  # the other side has just gone: the next read says so
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    return acknowledge


class _Reader:
    """Turns the stream of one run into events."""

    def __init__(self, run: Run, feed: Feed) -> None:
        self._run = run
        self._feed = feed
        self._parser = SseParser(run.max_body)
        self._produced = 0

    def read(self, chunk: bytes) -> Ended | Again | None:
        """Pass on the progress in this chunk. The end, if it is in it."""
        try:
            for frame in self._parser.feed(chunk):
                if (ended := self._take(frame)) is not None:
                    return ended
        except FrameTooLarge:
            return too_large(self._run.max_body)
        except Unreadable as exc:
            return Ended(outcome=Outcome.LOST, error=f"An event of the model server's stream is {exc}")
        return None

    def _take(self, frame: Frame) -> Ended | Again | None:
        match frame.event:
            case "start":
                self._feed.begin()
            case "completed":
                return read_end(frame.data, prediction_id=self._run.request.id, coglet=self._run.coglet)
            case "error":
                why = _why(frame)
                if LAGGED in why:
                    return Again.LAGGED
                return Ended(outcome=Outcome.LOST, error=f"The model server's event stream broke off: {why}")
            case "log" | "output" | "metric" if self._run.request.wants_progress:
                self._progress(frame)
            case _:
                pass  # an event of a later version
        return None

    def _progress(self, frame: Frame) -> None:
        size = len(frame.data)
        match frame.event:
            case "log":
                self._feed.add(Logged(read_json(frame.data, _Log).data), size=size)
            case "metric":
                metric = read_json(frame.data, _Metric)
                self._feed.add(Measured(metric.name, metric.value, metric.mode), size=size)
            case "output" if self._run.is_array:
                item = read_json(frame.data, _Chunk).chunk
                self._feed.add(Produced(item, self._produced), size=size)
                self._produced += 1


def _why(frame: Frame) -> str:
    try:
        return one_line(read_json(frame.data, _Error).error)
    except Unreadable:
        return excerpt(frame.data)
