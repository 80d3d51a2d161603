"""Connections to one model server: one for each slot, kept and lent out.

Each is an httpx transport of its own, since httpx's pool looks at every connection it has for every request. A bare
transport also has nothing that could carry over from one answer to the next request: it reads no proxy or `.netrc`
from the environment, keeps no cookies, follows no redirects and unpacks no compressed body.
"""

import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import httpx

from director.runners.runner import Ended, Outcome

__all__ = ("NO_HEADERS", "Connection", "Connections", "connection_lost", "read_body")

CONNECT_TIMEOUT_S: Final = 5.0
# a Python server closes what was idle for 5 s: a request sent at that moment would look like a server that died
KEEP_ALIVE_S: Final = 3.0

# A run may be silent for as long as it likes. A machine that is gone says nothing either, and is asked: after 20 s its
# connections break, and what it ran is lost now and not at the end of some lease
PROBES: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, option), value)
        for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, option)
    ),
]

NO_HEADERS: Final[Mapping[str, str]] = {}
TIMEOUTS: Final = {"connect": CONNECT_TIMEOUT_S, "read": None, "write": None, "pool": None}


class _Body:
    """A request's body that says when it has left, which no answer tells."""

    def __init__(self, content: bytes, sent: Callable[[], None]) -> None:
        self._content = content
        self._sent = sent

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content
        self._sent()


class Connection:
    """A transport to one server. Times only the connect: whoever calls knows how long an answer may take.

    `headers`: secrets, which go with every request, and nowhere else.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self._url = url
        self._headers = headers
        # plain HTTP needs no certificates, and loading them takes longer than a prediction
        context = ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        limits = httpx.Limits(keepalive_expiry=KEEP_ALIVE_S)
        self._transport = httpx.AsyncHTTPTransport(
            verify=context, trust_env=False, limits=limits, socket_options=PROBES
        )

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        accept: str = "application/json",
        prefer: str = "",
        sent: Callable[[], None] = lambda: None,
    ) -> httpx.Response:
        """Send a request and wait for the head of the answer. The caller closes the response.

        Raises `httpx.TransportError` when the server is away or breaks the connection.
        """
        request = httpx.Request(
            method,
            self._url + path,
            headers={
                "accept": accept,
                "accept-encoding": "identity",  # without it a server may compress, and nothing here unpacks
                "content-type": "application/json",
                "content-length": str(len(content)),
                "user-agent": "director",
                "x-source": "director",  # so that a server can tell us from who calls it directly, and refuse us first
                **({"prefer": prefer} if prefer else {}),
                **self._headers,
            },
            content=_Body(content, sent),
            extensions={"timeout": TIMEOUTS},
        )
        return await self._transport.handle_async_request(request)

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

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """A connection for one run. After an error it is still good: the transport drops what broke."""
        connection = self._idle.pop() if self._idle else Connection(self._url, headers=self._headers)
        try:
            yield connection
        finally:
            if len(self._idle) < self._keep:
                self._idle.append(connection)
            else:
                await connection.aclose()

    async def aclose(self) -> None:
        """Close those that are not lent."""
        while self._idle:
            await self._idle.pop().aclose()


async def read_body(response: httpx.Response, limit: int) -> tuple[bytes, bool]:
    """The body up to `limit` bytes, and whether that is all of it."""
    body = bytearray()
    async for chunk in response.aiter_raw():
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
