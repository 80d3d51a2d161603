"""Send requests to one model server, and say what a broken connection means for a run.

`exchange.py` reads the answers.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Final

import httpx

from director.core.trace_context import NO_TRACE, TraceHeaders
from director.servers.runners.exchange import Exchange, Wire
from director.servers.runners.runner import Ended, Outcome

NO_HEADERS: Final[Mapping[str, str]] = {}
CONNECT_TIMEOUT_S: Final = 5.0
# A Python server closes what was idle for 5 s: a request sent at that moment would look like a server that died
KEEP_ALIVE_S: Final = 3.0
# The end of a body comes with the last event of its stream. A connection is not worth a longer wait
LAST_CHUNK_S: Final = 0.05
# Paths in which nothing has to be escaped; httpx writes all others
PLAIN: Final = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)+")
PORTS: Final = {"http": 80, "https": 443}

REMOVED: Final = b"***"
SHORTEST_KEY: Final = 8

# A run may be silent for any time, and so is a machine that is gone. The kernel probes it: after 20 s its connections
# break, and its runs are lost then and not at the end of a lease
PROBES: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, option), value)
        for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, option)
    ),
]


class OneServer:
    """HTTP/1.1 to the server at `url`, over as many connections as are needed, of which `keep` are kept while idle.

    `headers`: secrets, which go with every request to this server and to no other place. Stands where httpx would, and
    raises its errors, at half its cost (206 → 94 µs a run). Reads no proxy or `.netrc` from the environment, keeps no
    cookies, follows no redirects, unpacks no compressed body, and never sends a request twice. Limits the time of the
    connect only: the caller knows how long an answer may take.
    """

    def __init__(self, url: str, *, keep: int = 1, headers: Mapping[str, str] = NO_HEADERS) -> None:
        at = httpx.URL(url)
        self._url = url.rstrip("/")
        self._prefix = at.raw_path.rstrip(b"/")
        self._host = at.raw_host.decode("ascii").strip("[]")
        self._port = at.port or PORTS[at.scheme]
        self._tls = _trusted() if at.scheme == "https" else None
        always = {
            "host": at.netloc.decode("ascii"),
            "accept-encoding": "identity",  # without it a server may compress, and nothing here unpacks
            "content-type": "application/json",
            "user-agent": "director",
            # lets a server tell the director from direct callers, and refuse the director first
            "x-source": "director",
            **headers,
        }
        self._headers = _lines(always)
        # A key is the last word of a header, as in `Bearer KEY`. A shorter word is not a key
        keys = {value.rpartition(" ")[2] for value in headers.values()}
        self._secrets = tuple(key.encode() for key in keys if len(key) >= SHORTEST_KEY)
        self._path: str | None = None
        self._target_of_path = b""
        self._keep = keep
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._is_closed = False

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
        """Send a request and wait for the head of the answer, which the caller closes. `sent`: called when it has left.
        Raises `httpx.TransportError`, also for a header of more than one line.
        """
        first = b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), self._target(path))
        asked = _lines({"accept": accept, **({"prefer": prefer} if prefer else {}), **trace})
        request = b"%b%b%bcontent-length: %d\r\n\r\n%b" % (first, asked, self._headers, len(content), content)
        wire = self._kept() or await self._connected()
        self._busy.add(wire)

        def over(is_good: bool) -> None:
            self._give_back(wire, is_good=is_good)

        exchange = wire.ask(request, sent=sent, over=over)
        exchange.secrets = self._secrets
        try:
            await exchange.head
        except BaseException:  # also if the caller is canceled: the server sees the connection close
            exchange.close()
            raise
        return exchange

    async def aclose(self) -> None:
        self._is_closed = True
        for wire in [*self._idle, *self._busy]:
            wire.abort()
        self._idle.clear()

    def _target(self, path: str) -> bytes:
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
        # the text of the error has the server's address, which is not for callers
        except (OSError, UnicodeError) as exc:
            raise httpx.ConnectError("All connection attempts failed") from exc
        return wire

    def _give_back(self, wire: Wire, *, is_good: bool) -> None:
        self._busy.discard(wire)
        is_kept = is_good and not self._is_closed and len(self._idle) < self._keep
        if is_kept and wire.rest(asyncio.get_running_loop().time()):
            self._idle.append(wire)
        else:
            wire.abort()


@cache
def _trusted() -> ssl.SSLContext:
    """Return the public authorities, loaded once for all servers: loading blocks the loop for 50 ms."""
    return ssl.create_default_context()


def _lines(headers: Mapping[str, str]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        raise httpx.LocalProtocolError("A header of the request has more than one line")
    return text.encode("ascii")


async def read_body(response: Exchange, limit: int) -> tuple[bytes, bool]:
    """Read up to `limit` bytes of the body. Returns them, and whether they are the whole body. Our secrets are removed:
    some servers repeat a request in their refusal, which callers see.
    """
    here = response.whole()
    body, is_whole = await read_chunks(response.chunks(), limit) if here is None else (here[:limit], len(here) <= limit)
    if not response.is_success:
        for secret in response.secrets:
            body = body.replace(secret, REMOVED)
    return body, is_whole


async def read_chunks(chunks: AsyncIterable[bytes], limit: int) -> tuple[bytes, bool]:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            return bytes(body[:limit]), False
    return bytes(body), True


async def read_out(chunks: AsyncIterable[bytes]) -> None:
    with suppress(httpx.TransportError, TimeoutError):
        async with asyncio.timeout(LAST_CHUNK_S):
            async for _ in chunks:
                pass


def connection_lost(exc: httpx.TransportError, *, has_begun: bool) -> Ended:
    """Return the end of a run whose connection broke, or was never made: then the claim is given back unspent."""
    # A server that is slow to accept may be alive; one that refuses or hangs up is not
    is_dead = not isinstance(exc, httpx.TimeoutException)
    never_made = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout)
    what = "The model server cannot be reached" if never_made else "The connection to the model server was lost"
    return Ended(
        outcome=Outcome.REFUSED if never_made and not has_begun else Outcome.LOST,
        error=f"{what}: {str(exc) or type(exc).__name__}",
        server_is_dead=is_dead,
    )
