"""One model server that speaks plain HTTP: its health, its connections, and what becomes of a run when they break.

Reads no more of an answer than it was told to. Never asks the server to end, since no such server can be asked to:
each break of a connection, and each wish for a restart, counts as a new start of it, so that nobody doubts it for ever.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Final

import httpx

from director.core.trace_context import NO_TRACE, TraceHeaders
from director.servers.runners.connections import Connection, Connections, connection_lost, read_body
from director.servers.runners.exchange import Exchange
from director.servers.runners.feed import Voice
from director.servers.runners.http_answers import Answer, said_of
from director.servers.runners.reasons import NO_ENTRY
from director.servers.runners.runner import Ended, Health, HealthStatus
from director.servers.runners.transport import NO_HEADERS
from director.servers.runners.untrusted import one_line

__all__ = ("HttpServer", "post", "read_answer")

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
