"""Connections to one model server: one for each slot, kept and lent out.

What every request to a model server has is said here, and what it means when one breaks; how it is sent, in
`transport.py`.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import cache
from typing import Final

import httpx

from director.core.trace_context import NO_TRACE, TraceHeaders
from director.servers.runners.exchange import Exchange, Wire
from director.servers.runners.runner import Ended, Outcome

# The way to one model server: plain HTTP/1.1, over connections that are kept.
#
# Stands where httpx would, whose words it has for what goes wrong: that looks at every connection it has for each
# request, and what it makes of one request and its answer takes longer than all that is done here. It reads no proxy
# or `.netrc` from the environment, keeps no cookies, follows no redirects, unpacks no compressed body, and never sends
# a request twice. Times only the connect: whoever asks knows how long an answer may take.

NO_HEADERS: Final[Mapping[str, str]] = {}
CONNECT_TIMEOUT_S: Final = 5.0
# a Python server closes what was idle for 5 s: a request sent at that moment would look like a server that died
KEEP_ALIVE_S: Final = 3.0
# The end of a body comes with the last event of its stream. A connection is not worth a longer wait
LAST_CHUNK_S: Final = 0.05
# what nothing has to be escaped in; whatever else is a path is httpx's to write
PLAIN: Final = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)+")
PORTS: Final = {"http": 80, "https": 443}

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


class OneServer:
    """Every request is for the server at `url`. `headers`: lines that each of them has."""

    def __init__(self, url: httpx.URL, *, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self._url = str(url).rstrip("/")
        self._prefix = url.raw_path.rstrip(b"/")
        self._headers = _lines(headers)
        self._host = url.raw_host.decode("ascii").strip("[]")
        self._port = url.port or PORTS[url.scheme]
        self._tls = _trusted() if url.scheme == "https" else None
        self._path: str | None = None
        self._target_of_path = b""
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._is_closed = False

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        content: bytes = b"",
        sent: Callable[[], None] = lambda: None,
    ) -> Exchange:
        """Send a request, and wait for the head of the answer. `sent` is called when the request has left.

        Raises `httpx.TransportError` where no answer comes, and for a header that would be two.
        """
        first = b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), self._target(path))
        request = b"%b%b%bcontent-length: %d\r\n\r\n%b" % (first, _lines(headers), self._headers, len(content), content)
        wire = self._kept() or await self._connected()
        self._busy.add(wire)

        def over(is_good: bool) -> None:
            self._give_back(wire, is_good=is_good)

        exchange = wire.ask(request, sent=sent, over=over)
        try:
            await exchange.head
        except BaseException:  # also where the caller lets go: the server sees that nobody waits any more
            await exchange.aclose()
            raise
        return exchange

    async def aclose(self) -> None:
        """Close what is open. Answers that are being read break."""
        self._is_closed = True
        for wire in [*self._idle, *self._busy]:
            wire.abort()
        self._idle.clear()

    def _target(self, path: str) -> bytes:
        """As it stands in the first line of a request. Mostly it is the same one again."""
        if path != self._path:
            is_plain = PLAIN.fullmatch(path)
            target = self._prefix + path.encode("ascii") if is_plain else httpx.URL(self._url + path).raw_path
            self._path, self._target_of_path = path, target
        return self._target_of_path

    def _kept(self) -> Wire | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            wire = self._idle.pop()
            if now - wire.idle_since < KEEP_ALIVE_S and wire.is_silent:
                return wire
            wire.abort()
        return None

    async def _connected(self) -> Wire:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, wire = await loop.create_connection(Wire, self._host, self._port, ssl=self._tls)
            for option in PROBES:
                wire.get_extra_info("socket").setsockopt(*option)
        except TimeoutError as exc:
            raise httpx.ConnectTimeout("") from exc
        except (OSError, UnicodeError) as exc:  # its text has the server's address, which is not for callers
            raise httpx.ConnectError("All connection attempts failed") from exc
        return wire

    def _give_back(self, wire: Wire, *, is_good: bool) -> None:
        self._busy.discard(wire)
        if is_good and not self._is_closed and wire.rest(asyncio.get_running_loop().time()):
            self._idle.append(wire)
        else:
            wire.abort()


@cache
def _trusted() -> ssl.SSLContext:
    """The public authorities, once for all servers: loading them takes 50 ms, in which nothing else goes on."""
    return ssl.create_default_context()


def _lines(headers: Mapping[str, str]) -> bytes:
    """Raises `httpx.LocalProtocolError` for a header that would be two."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        raise httpx.LocalProtocolError("A header of the request has more than one line")
    return text.encode("ascii")


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


async def read_out(chunks: AsyncIterable[bytes]) -> None:
    """Read what is left of a body, so that its connection can be used again."""
    with suppress(httpx.TransportError, TimeoutError):
        async with asyncio.timeout(LAST_CHUNK_S):
            async for _ in chunks:
                pass


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
