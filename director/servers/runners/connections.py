"""Connections to one model server: one for each slot, kept and lent out.

What every request to a model server has is said here, and what it means when one breaks; how it is sent, in
`transport.py`.
"""

from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

import httpx

from director.core.trace_context import NO_TRACE, TraceHeaders
from director.servers.runners.exchange import Exchange
from director.servers.runners.runner import Ended, Outcome
from director.servers.runners.transport import NO_HEADERS, OneServer

__all__ = ("NO_HEADERS", "Connection", "Connections", "connection_lost", "read_body", "read_chunks")

REMOVED: Final = b"***"
SHORTEST_KEY: Final = 8


class Connection:
    """A transport to one server. Whoever calls knows how long an answer may take.

    `headers`: secrets, which go with every request, and nowhere else.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str] = NO_HEADERS) -> None:
        always = {
            "host": httpx.URL(url).netloc.decode("ascii"),
            "accept-encoding": "identity",  # without it a server may compress, and nothing here unpacks
            "content-type": "application/json",
            "user-agent": "director",
            "x-source": "director",  # so that a server can tell us from who calls it directly, and refuse us first
            **headers,
        }
        # a key is what stands behind its scheme, as in `Bearer KEY`; what is shorter than one is none
        keys = {value.rpartition(" ")[2] for value in headers.values()}
        self._secrets = tuple(key.encode() for key in keys if len(key) >= SHORTEST_KEY)
        self._transport = OneServer(httpx.URL(url), headers=always)

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        accept: str = "application/json",
        prefer: str = "",
        trace: TraceHeaders = NO_TRACE,
        sent: Callable[[], None] = lambda: None,
    ) -> Exchange:
        """Send a request and wait for the head of the answer. The caller closes the answer.

        Raises `httpx.TransportError` when the server is away or breaks the connection.
        """
        asked = {"accept": accept, **({"prefer": prefer} if prefer else {}), **trace}
        answer = await self._transport.send(method, path, headers=asked, content=content, sent=sent)
        answer.secrets = self._secrets
        return answer

    async def aclose(self) -> None:
        """Close what is open."""
        await self._transport.aclose()


class Connections:
    """Lends connections, and keeps as many as there are slots."""

    def __init__(self, url: str, *, keep: int, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self._url = url
        self._headers = headers
        self._keep = keep
        self._idle: list[Connection] = []

    def lend(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for one run. After an error it is still good: the transport drops what broke."""
        return _Lent(self)

    def take(self) -> Connection:
        """One to be given back."""
        return self._idle.pop() if self._idle else Connection(self._url, headers=self._headers)

    async def give_back(self, connection: Connection) -> None:
        """Keep it for the next one, if there is a slot for it."""
        if len(self._idle) < self._keep:
            self._idle.append(connection)
        else:
            await connection.aclose()

    async def aclose(self) -> None:
        """Close those that are not lent."""
        while self._idle:
            await self._idle.pop().aclose()


class _Lent(AbstractAsyncContextManager[Connection]):
    """Between taking a connection and giving it back."""

    def __init__(self, lender: Connections) -> None:
        self._lender = lender

    async def __aenter__(self) -> Connection:
        self._connection = self._lender.take()
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        await self._lender.give_back(self._connection)


async def read_body(response: Exchange, limit: int) -> tuple[bytes, bool]:
    """The body up to `limit` bytes, and whether that is all of it.

    A refusal is told to callers and in the log, and some servers repeat in it what they were sent: our secrets are
    taken out.
    """
    here = response.whole()
    body, is_whole = await read_chunks(response.chunks(), limit) if here is None else (here[:limit], len(here) <= limit)
    if not response.is_success:
        for secret in response.secrets:
            body = body.replace(secret, REMOVED)
    return body, is_whole


async def read_chunks(chunks: AsyncIterable[bytes], limit: int) -> tuple[bytes, bool]:
    """What comes, up to `limit` bytes, and whether that is all of it."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            return bytes(body[:limit]), False
    return bytes(body), True


def connection_lost(exc: httpx.TransportError, *, has_begun: bool) -> Ended:
    """The end of a run whose connection broke, or was never made. One that nobody was told of is given back unspent."""
    # a server that is only slow to accept may be alive; one that refuses or hangs up is not
    is_dead = not isinstance(exc, httpx.TimeoutException)
    never_made = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout)
    what = "The model server cannot be reached" if never_made else "The connection to the model server was lost"
    return Ended(
        outcome=Outcome.REFUSED if never_made and not has_begun else Outcome.LOST,
        error=f"{what}: {str(exc) or type(exc).__name__}",
        server_is_dead=is_dead,
    )
