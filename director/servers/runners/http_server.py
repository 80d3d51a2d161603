"""One model server that speaks plain HTTP: its health, its connections, and what becomes of a run when they break.

Reads no more of an answer than it was told to. Never asks the server to end, since no such server can be asked to:
each break of a connection, and each wish for a restart, counts as a new start of it, so that nobody doubts it for ever.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Final, TypeVar

import httpx
import msgspec
from msgspec import Raw

from director.core.trace_context import NO_TRACE, TraceHeaders
from director.servers.runners.connections import NO_HEADERS, Connection, Connections, connection_lost, read_body
from director.servers.runners.exchange import Exchange
from director.servers.runners.feed import Feed, Voice
from director.servers.runners.http_answers import Answer, said_of
from director.servers.runners.runner import Ended, Health, HealthStatus, Hear, Outcome, RunEvent, RunRequest
from director.servers.runners.untrusted import NO_ENTRY, one_line

ASK_TIMEOUT_S: Final = 5.0
MOST_ASKED_BYTES: Final = 64 * 1024
REFUSAL_BYTES: Final = 64 * 1024  # what is read of an answer that tells no end

# What a server says that is there and not ready. Triton says 400, llama.cpp and TEI 503
NOT_YET: Final = frozenset({400, 425, 503})
NO_SUCH_PAGE: Final = frozenset({404, 405})


class HttpServer:
    """`health_paths`: the first of them that the server has is its health. `headers` go with every request."""

    def __init__(
        self,
        url: str,
        *,
        slots: int,
        name: str,
        health_paths: Sequence[str],
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        self.url = url
        self._name = name
        self._health_paths = health_paths
        self._connections = Connections(url, keep=slots, headers=headers)
        self._control = Connection(url, headers=headers)
        self._starts = 0

    async def health(self) -> Health:
        """Look once. A server that was never ready and one that is busy starting look the same."""
        answer: Answer | str = ""
        since = str(self._starts)
        for path in self._health_paths:
            answer = await self.ask("GET", path or "/")
            if isinstance(answer, str):
                return Health(status=HealthStatus.UNREACHABLE, detail=answer)
            if answer.is_ok or not path:
                return Health(status=HealthStatus.READY, server=self._name, since=since)
            if answer.status not in NO_SUCH_PAGE:
                break
        assert isinstance(answer, Answer)  # noqa: S101 - for the type checker: there is at least one path
        said = f"The model server answered {answer.status} to a health check: {said_of(answer)}".removesuffix(": ")
        status = HealthStatus.STARTING if answer.status in NOT_YET else HealthStatus.UNHEALTHY
        return Health(status=status, detail=said, is_locked=answer.status in NO_ENTRY)

    def lend(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for one run."""
        return self._connections.lend()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        connection: Connection | None = None,
        limit: int = MOST_ASKED_BYTES,
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> Answer | str:
        """Ask something that is answered soon: the answer, or why there is none."""
        try:
            async with asyncio.timeout(timeout_s):
                response = await (connection or self._control).send(method, path)
                async with aclosing(response):
                    return await read_answer(response, limit)
        except TimeoutError:
            return f"The model server did not answer within {timeout_s:g} s"
        except httpx.TransportError as exc:
            return f"The model server cannot be reached: {one_line(str(exc)) or type(exc).__name__}"

    def lost(self, exc: httpx.TransportError, *, has_begun: bool) -> Ended:
        """The end of a run whose connection broke, or was never made."""
        self.count_as_new()
        return connection_lost(exc, has_begun=has_begun)

    def count_as_new(self) -> None:
        """From here on it may be another start of the server."""
        self._starts += 1

    async def aclose(self) -> None:
        """Close what is open."""
        await self._connections.aclose()
        await self._control.aclose()


async def post(
    connection: Connection, path: str, body: bytes, *feeds: Voice, limit: int, trace: TraceHeaders = NO_TRACE
) -> Answer:
    """Start a run, or several that go together, and read the answer. Raises `httpx.TransportError` when the connection
    breaks.
    """

    def sent() -> None:
        for feed in feeds:
            feed.sent()

    response = await connection.send("POST", path, content=body, trace=trace, sent=sent)
    async with aclosing(response):
        for feed in feeds:
            feed.answered()
            if response.is_success:
                feed.begin()
        return await read_answer(response, limit)


async def read_answer(response: Exchange, limit: int) -> Answer:
    """Read an answer: up to `limit` bytes of one that may tell an end, less of a refusal."""
    is_ok = 200 <= response.status_code < 300
    body, complete = await read_body(response, limit if is_ok else min(limit, REFUSAL_BYTES))
    return Answer(
        status=response.status_code,
        body=body,
        complete=complete,
        retry_after=response.headers.get("retry-after"),
        content_type=response.headers.get("content-type", ""),
        headers=response.headers,
    )


# The runs of one runner that are under way, each followed by a task: one of its own, or that of who hears of it.
#
# Whatever happens in such a task, who reads or hears gets exactly one end, unless it lets go itself. Never knows what
# a run is.

log = logging.getLogger(__name__)

LET_GO: Final = Ended(outcome=Outcome.LOST, error="The director let go of the run")
HUNG_UP: Final = Ended(outcome=Outcome.CANCELED, error="The director hung up")

Told = TypeVar("Told", bound=Voice)

Follow = Callable[[RunRequest, Feed], Awaitable[Ended]]
"""Follows a run to its end. Canceled, it lets go of the server at once."""

FollowOne = Callable[[RunRequest, Voice], Awaitable[Ended]]
"""The same, of a run that shows nothing before its end: nobody has to be slowed."""


class OpenRuns:
    """`read_ahead`: bytes of one run that wait for its reader, before the server has to."""

    def __init__(self, *, read_ahead: int) -> None:
        self._read_ahead = read_ahead
        self._open: dict[str, asyncio.Task[object]] = {}
        self._let_go: dict[asyncio.Task[object], Ended] = {}
        self._closed = False
        self._emptied = asyncio.Event()

    def __contains__(self, prediction_id: object) -> bool:
        return prediction_id in self._open

    async def hear(self, request: RunRequest, follow: FollowOne, hear: Hear) -> None:
        """Follow a run that shows nothing before its end, in the task of who calls. Canceled, it lets go."""
        voice, task = Voice(hear), asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: a coroutine runs in one
        asked = task.cancelling()
        self._open[request.id] = task
        try:
            ended = await self._end_of(request, voice, follow)
        except asyncio.CancelledError:
            if task not in self._let_go or task.cancelling() > asked + 1:  # whoever hears is to let go itself
                voice.hush()
                raise
            ended = self._let_go[task]
        finally:
            if self._forget(request, task) is not None:
                task.uncancel()
        voice.end(ended)

    async def run(self, request: RunRequest, follow: Follow) -> AsyncGenerator[RunEvent, None]:
        """The events of a run, up to its end. Closed early, it lets go of the server before it returns."""
        feed = Feed(read_ahead=self._read_ahead)
        following = asyncio.create_task(self._follow(request, feed, follow), name=f"run of {request.id}")
        self._open[request.id] = following
        # here and not below: a task that is canceled before its first step runs nothing of its own
        following.add_done_callback(lambda task: self._gone(request, task, feed))
        try:
            while True:
                event = await feed.next()
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            if not following.done():
                following.cancel()
                await asyncio.wait({following})

    def hang_up(self, prediction_id: str) -> bool:
        """Let go of the server; the run ends as canceled. False where no such run is open."""
        following = self._open.get(prediction_id)
        if following is None:
            return False
        self._cancel(following, HUNG_UP)
        return True

    async def aclose(self) -> None:
        """Let go of every run."""
        self._closed = True
        for following in set(self._open.values()):
            self._cancel(following, LET_GO)
        if self._open:
            self._emptied.clear()
            await self._emptied.wait()

    def _cancel(self, following: asyncio.Task[object], end: Ended) -> None:
        if following not in self._let_go:  # asked twice, it would not even see to it that the server stops
            self._let_go[following] = end
            following.cancel()

    async def _follow(self, request: RunRequest, feed: Feed, follow: Follow) -> None:
        feed.end(await self._end_of(request, feed, follow))

    async def _end_of(
        self, request: RunRequest, told: Told, follow: Callable[[RunRequest, Told], Awaitable[Ended]]
    ) -> Ended:
        try:
            return LET_GO if self._closed else await follow(request, told)
        except Exception as exc:
            log.exception("following a run failed", extra={"prediction": request.id})
            return Ended(outcome=Outcome.LOST, error=f"Following the run failed: {type(exc).__name__}")

    def _gone(self, request: RunRequest, task: asyncio.Task[None], feed: Feed) -> None:
        feed.end(self._forget(request, task) or LET_GO)  # of those that ended by themselves, the end was told

    def _forget(self, request: RunRequest, task: asyncio.Task[None] | asyncio.Task[object]) -> Ended | None:
        """The end that it was let go of with, if it was by us."""
        if self._open.get(request.id) is task:
            del self._open[request.id]
        if not self._open:
            self._emptied.set()
        return self._let_go.pop(task, None)


# The OpenAPI document of a model whose server has none, from the schemas in a configuration. Pure.

ANYTHING: Final[dict[str, Any]] = {"title": "Output"}


def openapi(given: dict[str, Any] | None, output: dict[str, Any] | None, *, title: str) -> Raw | None:
    """A document as Cog servers have them; None where nothing is known of the input."""
    if given is None:
        return None
    document = {
        "openapi": "3.0.2",
        "info": {"title": title, "version": "0.1.0"},
        "paths": {},
        "components": {"schemas": {"Input": given, "Output": output or ANYTHING}},
    }
    return Raw(msgspec.json.encode(document))
