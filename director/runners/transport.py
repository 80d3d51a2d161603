"""A transport of httpx that is made for one model server: plain HTTP/1.1, over connections that are kept.

Stands where httpx's own would, since that looks at every connection it has for each request, and takes several
times as long for one. It reads no proxy or `.netrc` from the environment, keeps no cookies, follows no redirects,
unpacks no compressed body, and never sends a request twice. Times only the connect: whoever asks knows how long an
answer may take.
"""

import asyncio
import socket
import ssl
from functools import cache
from typing import Final

import httpx

from director.runners.exchange import Wire

__all__ = ("OneServer",)

CONNECT_TIMEOUT_S: Final = 5.0
# a Python server closes what was idle for 5 s: a request sent at that moment would look like a server that died
KEEP_ALIVE_S: Final = 3.0
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


class OneServer(httpx.AsyncBaseTransport):
    """Every request is for the server at `url`. `sent` of a request's extensions is called when it has left."""

    def __init__(self, url: httpx.URL) -> None:
        self._host = url.raw_host.decode("ascii").strip("[]")
        self._port = url.port or PORTS[url.scheme]
        self._tls = _trusted() if url.scheme == "https" else None
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it, and wait for the head of the answer. Raises `httpx.TransportError` where none comes."""
        wire = self._kept() or await self._connected()
        self._busy.add(wire)

        def over(is_good: bool) -> None:
            self._give_back(wire, is_good=is_good)

        exchange = wire.ask(_bytes(request), sent=request.extensions.get("sent", _nothing), over=over)
        try:
            await exchange.head
        except BaseException:  # also where the caller lets go: the server sees that nobody waits any more
            await exchange.aclose()
            raise
        return httpx.Response(
            exchange.status, headers=exchange.headers, stream=exchange, extensions={"network_stream": wire}
        )

    async def aclose(self) -> None:
        """Close what is open. Answers that are being read break."""
        self._is_closed = True
        for wire in [*self._idle, *self._busy]:
            wire.abort()
        self._idle.clear()

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


def _bytes(request: httpx.Request) -> bytes:
    """Raises `httpx.LocalProtocolError` for a header that would be two."""
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in request.headers.raw]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise httpx.LocalProtocolError("A header of the request has more than one line")
    return head + b"\r\n\r\n" + request.content


def _nothing() -> None:
    """Nobody waits for it."""
