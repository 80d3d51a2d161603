"""Send HTTP/1.1 requests to one model server, read each answer as it comes, and say what a broken connection means.

The server is untrusted: everything beside the body has a bound, and the body comes only as fast as it is read. No
request is sent twice, unless the kernel knows that the server had closed a kept connection before any of it came there.
"""

import asyncio
import re
import select
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Any, Final, cast

import httptools
import httpx
from msgspec.structs import replace

try:
    import fcntl
    import termios
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from director.core import sockets
from director.core.schema import NO_TRACE, TraceHeaders
from director.servers.runners import outcomes
from director.servers.runners.outcomes import Observation
from director.servers.runners.runner import Ended

NO_HEADERS: Final[Mapping[str, str]] = {}
CONNECT_TIMEOUT_S: Final = 5.0
EACH_ADDRESS_S: Final = 1.0  # of a name with several
# A Python server closes what was idle for 5 s: a request sent at that moment would look like a server that died
KEEP_ALIVE_S: Final = 3.0
# The end of a body comes with the last event of its stream. A connection is not worth a longer wait
LAST_CHUNK_S: Final = 0.05
# A server that hangs takes no more of a large request. After this time it counts as sent: else its run would never
# begin, and only a run that has begun has a limit
TAKES_NOTHING_S: Final = 30.0
# A connection that its server closed resets once a request comes there. One that is closed half way is read on
RESETS_WITHIN_S: Final = 0.5
LOOK_FOR_RESET_S: Final = 0.002
REQUEST_TIMEOUT: Final = 408  # servers say so to an idle connection too
# Paths in which nothing has to be escaped; httpx writes all others
PLAIN: Final = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)+")
PORTS: Final = {"http": 80, "https": 443}

REMOVED: Final = b"***"
SHORTEST_KEY: Final = 8

# A run may be silent for any time, and so is a machine that is gone: after 20 s its connections break, and its runs are
# lost then and not at the end of their limit. A machine that is alive acknowledges a small request at once. It may take
# nothing of a large one while its server is busy, so there the kernel decides, after a quarter of an hour
PROBES: Final = sockets.probes()
SMALL_BYTES: Final = 32 * 1024
SMALL_ARRIVES: Final = sockets.limit_unacknowledged(sockets.GONE_S)
LARGE_ARRIVES: Final = sockets.limit_unacknowledged(0)

MOST_BESIDE: Final = 100 * 1024  # of heads, trailers and chunk framing, before more of the body comes
MOST_WAITING: Final = 256 * 1024  # of the body, before the server has to wait
FIRST_STATUS: Final = 100
FIRST_OK: Final = 200  # a status below it is a hint that an answer will follow
FIRST_NOT_OK: Final = 300
FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
HUNG_UP: Final = "Server disconnected without sending a response."
CUT_OFF: Final = "peer closed connection without sending complete message body"


class NeverReceived(httpx.RemoteProtocolError):
    """The server closed a kept connection before any byte of the request came there."""


class NotHttp(httpx.RemoteProtocolError):
    """The server answered something that is no HTTP."""


class Exchange:
    """An answer: its head once `head` is done, then its body, once. `headers`: names in lower case. `over` is called
    when it was read or closed, with whether the connection can be used again. `secrets`: what callers must not see.
    """

    def __init__(self, wire: "Wire", over: Callable[[bool], None]) -> None:
        self.head: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status_code = 0
        self.headers: dict[str, str] = {}
        self.secrets: tuple[bytes, ...] = ()
        self._wire = wire
        self._over: Callable[[bool], None] | None = over
        self._parser = httptools.HttpResponseParser(self)
        self._beside = 0
        self._chunks: list[bytes] = []
        self._waiting = 0
        self._reader: asyncio.Future[None] | None = None
        self._is_complete = False
        self._keeps_alive = False
        self._has_data = False
        self._fault: httpx.TransportError | None = None

    @property
    def is_success(self) -> bool:
        return FIRST_OK <= self.status_code < FIRST_NOT_OK

    @property
    def is_framed(self) -> bool:
        """Whether the answer says where it ends. Without that, a broken connection looks like its end."""
        return not FRAMING.isdisjoint(self.headers)

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def socket(self) -> Any:
        return self._wire.get_extra_info("socket")

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            if self._chunks:
                chunk = b"".join(self._chunks)  # tokens that came together are parsed together
                self._chunks.clear()
                self._waiting = 0
                yield chunk
                continue
            if self._fault is not None:
                raise self._fault
            if self._is_complete:
                await self.aclose()
                return
            self._wire.resume()
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    def whole(self) -> bytes | None:
        if not self._is_complete or self._fault is not None:
            return None
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._waiting = 0
        self.close()
        return body

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Read no further. Unless it was read to its end, the server sees the connection close."""
        if self._over is not None:
            over, self._over = self._over, None
            over(self._is_complete and self._keeps_alive and self._fault is None)

    def feed(self, data: bytes) -> None:
        self._has_data = True
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.fail(NotHttp(f"The answer is no HTTP: {type(exc).__name__}"))
        if self._beside > MOST_BESIDE:
            self.fail(NotHttp("The head of the answer is too large"))
        if self._waiting > MOST_WAITING:
            self._wire.pause()

    def lose(self, exc: Exception | None) -> None:
        """Take in that the connection closed. An answer without a length ends in this way."""
        if self._is_complete:
            self._keeps_alive = False
        elif self._wire.is_unread and not self._has_data:
            self.fail(NeverReceived(HUNG_UP))
        elif exc is not None:
            self.fail(httpx.ReadError(""))
        elif not self.head.done():
            self.fail(httpx.RemoteProtocolError(HUNG_UP))
        elif self.is_framed:
            self.fail(httpx.RemoteProtocolError(CUT_OFF))
        else:
            self._is_complete = True
            self._wake()

    def fail(self, fault: httpx.TransportError) -> None:
        if self._fault is None and not self._is_complete:
            self._fault = fault
            if not self.head.done():
                self.head.set_exception(fault)
        self._keeps_alive = False
        self._wake()
        self._wire.abort()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def on_message_begin(self) -> None:
        if self._is_complete:  # the server answered twice
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head.done():  # else it is a trailer
            known, text = name.lower().decode("latin-1"), value.decode("latin-1")
            self.headers[known] = f"{self.headers[known]}, {text}" if known in self.headers else text

    def on_headers_complete(self) -> None:
        if self._is_complete or self.head.done():
            return
        self.status_code = self._parser.get_status_code()
        if self.status_code < FIRST_STATUS:  # an answer without a status has a body, and would look like a hint
            self.fail(NotHttp("The answer has no status"))
            return
        if self.status_code < FIRST_OK:
            self.headers.clear()
            return
        self._keeps_alive = self._parser.should_keep_alive()
        if self.status_code == REQUEST_TIMEOUT and not self._keeps_alive and self._wire.has_brought_nothing:
            self.fail(NeverReceived(HUNG_UP))  # it was said before the request came
            return
        self.head.set_result(None)

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        if not self._is_complete:
            self._chunks.append(body)
            self._waiting += len(body)
            self._wake()

    def on_message_complete(self) -> None:
        if self.status_code >= FIRST_OK:
            self._is_complete = True
            self._wake()


class Wire(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_open = False
        self.is_unread = False  # it was closed by the server, which had received nothing of the last request
        self.idle_since = 0.0
        self._is_kept = False
        self._asked_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._is_slow = False
        self._on_sent: Callable[[], None] | None = None
        self._sent_timer: asyncio.TimerHandle | None = None
        self._reset_timer: asyncio.TimerHandle | None = None
        self._poll = select.poll()
        self._arrives: Sequence[sockets.Option] = ()

    def ask(self, request: bytes, *, sent: Callable[[], None], over: Callable[[bool], None]) -> Exchange:
        """Send a request. `sent` is called when it has left, or all but its last bytes, or when the server takes
        nothing of it for `TAKES_NOTHING_S`.
        """
        assert self._transport is not None  # noqa: S101 - for the type checker: it is open
        self._exchange = exchange = Exchange(self, over)
        self._asked_bytes = len(request)
        self._limit(SMALL_ARRIVES if len(request) <= SMALL_BYTES else LARGE_ARRIVES)
        self._transport.write(request)
        if self._is_slow:
            self._on_sent = sent
            self._look_again(self._transport)
        else:
            sent()
        return exchange

    def rest(self, now: float) -> bool:
        """End the exchange, whose answer was read. True if the connection is good for another request."""
        self._exchange = None
        self._is_kept = True
        self.idle_since = now
        self.resume()
        return self.is_open and not self._is_slow

    @property
    def is_silent(self) -> bool:
        """False if there is something to read: without a request that can only be that the server hung up."""
        return self.is_open and not self._poll.poll(0)

    def get_extra_info(self, name: str) -> Any:
        return None if self._transport is None else self._transport.get_extra_info(name)

    def _limit(self, arrives: Sequence[sockets.Option]) -> None:
        if arrives is not self._arrives:
            self._arrives = arrives
            for option in arrives:
                self.get_extra_info("socket").setsockopt(*option)

    def pause(self) -> None:
        if self._transport is not None and self.is_open and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self.is_open and not self._transport.is_reading():
            self._transport.resume_reading()

    def abort(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self._on_sent is not None:  # the server has answered: its silence no longer means that the run began
            self._forget_sending()
        if self._exchange is None:
            self.abort()
        else:
            self._exchange.feed(data)

    def pause_writing(self) -> None:
        self._is_slow = True

    def resume_writing(self) -> None:
        self._is_slow = False
        self._has_left()

    def _has_left(self) -> None:
        on_sent = self._on_sent
        self._forget_sending()
        if on_sent is not None:
            on_sent()

    def _look_again(self, transport: asyncio.Transport) -> None:
        unsent = transport.get_write_buffer_size()

        def look() -> None:
            if transport.get_write_buffer_size() < unsent:
                self._look_again(transport)
            else:
                self._has_left()

        self._sent_timer = asyncio.get_running_loop().call_later(TAKES_NOTHING_S, look)

    def _forget_sending(self) -> None:
        self._on_sent = None
        if self._sent_timer is not None:
            self._sent_timer.cancel()
            self._sent_timer = None

    @property
    def has_brought_nothing(self) -> bool:
        """Whether the server has acknowledged nothing of a request on a kept connection. False if that is not known."""
        if not self._is_kept or self._exchange is None or fcntl is None or self.get_extra_info("ssl_object"):
            return False
        with suppress(OSError):
            unsaid = fcntl.ioctl(self.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
            return int.from_bytes(unsaid, sys.byteorder) >= self._asked_bytes > 0
        return False

    def eof_received(self) -> bool:
        """Judge whether the server had closed the connection before a request came. Then its kernel answers the request
        with a reset, and acknowledges nothing. It acknowledges what a server reads that has closed only half of it.
        """
        if not self.has_brought_nothing:
            return False
        self._look_for_reset(asyncio.get_running_loop().time() + RESETS_WITHIN_S)
        return True  # else the connection closes, and a reset is not seen any more

    def _look_for_reset(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        is_reset = any(event & (select.POLLERR | select.POLLHUP) for _, event in self._poll.poll(0))
        self.is_unread = is_reset and self.has_brought_nothing
        if is_reset or not self.has_brought_nothing or loop.time() >= until:
            self.abort()
        else:
            self._reset_timer = loop.call_later(LOOK_FOR_RESET_S, self._look_for_reset, until)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._forget_sending()
        if self._reset_timer is not None:
            self._reset_timer.cancel()
        if self._exchange is not None:
            self._exchange.lose(exc)


class OneServer:
    """HTTP/1.1 to the server at `url`, over as many connections as are needed, of which `keep` are kept while idle.

    `headers`: secrets, which go with every request to this server and to no other place. Stands where httpx would, and
    raises its errors, at half its cost (206 → 94 µs a run). Reads no proxy or `.netrc` from the environment, keeps no
    cookies, follows no redirects, unpacks no compressed body, and sends no request twice that may have come there.
    Limits the time of the connect only: the caller knows how long an answer may take.
    """

    def __init__(self, url: str, *, keep: int = 1, headers: Mapping[str, str] = NO_HEADERS) -> None:
        at = httpx.URL(url)
        self._url = url.rstrip("/")
        self._prefix = at.raw_path.rstrip(b"/")
        self._host = at.raw_host.decode("ascii").strip("[]")
        self._port = at.port or PORTS[at.scheme]
        self._is_name = not _is_address(self._host)
        self._tls = _load_authorities() if at.scheme == "https" else None
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
        self._lines_of_kind: dict[tuple[str, str], bytes] = {}
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
        on_new: bool = False,
    ) -> Exchange:
        """Send a request and wait for the head of the answer, which the caller closes. `sent`: called when it has left.
        `on_new`: on a new connection. Raises `httpx.TransportError`, also for a header of more than one line.
        """
        lines = self._lines_of_kind.get((accept, prefer)) or self._make_lines(accept, prefer)
        traced = _lines(trace) if trace else b""
        request = b"%b %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
            method.encode("ascii"),
            self._target(path),
            lines,
            traced,
            len(content),
            content,
        )
        wire = (None if on_new else self._take_idle()) or await self._connect()
        try:
            return await self._ask_on(wire, request, sent)
        except NeverReceived:
            return await self._ask_on(await self._connect(), request, sent)

    async def _ask_on(self, wire: Wire, request: bytes, sent: Callable[[], None]) -> Exchange:
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

    def _make_lines(self, accept: str, prefer: str) -> bytes:
        """Return the lines of all requests that differ only in path and trace, made once: a runner asks in few ways."""
        asked = {"accept": accept, "prefer": prefer} if prefer else {"accept": accept}
        lines = self._lines_of_kind[accept, prefer] = _lines(asked) + self._headers
        return lines

    def without_secrets(self, text: str) -> str:
        """Return the server's words for callers: some servers repeat a request, with the key that it had."""
        for secret in self._secrets:
            text = text.replace(secret.decode(), REMOVED.decode())
        return text

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

    def _take_idle(self) -> Wire | None:
        now = time.monotonic()
        while self._idle:
            wire = self._idle.pop()
            if now - wire.idle_since < KEEP_ALIVE_S and wire.is_silent:
                return wire
            wire.abort()
        return None

    async def _connect(self) -> Wire:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                wire = await self._to_each_address() if self._is_name else await self._to(self._host)
            for option in PROBES:
                wire.get_extra_info("socket").setsockopt(*option)
        except TimeoutError as exc:
            raise httpx.ConnectTimeout("") from exc
        # the text of the error has the server's address, which is not for callers
        except (OSError, UnicodeError) as exc:
            raise httpx.ConnectError("All connection attempts failed") from exc
        return wire

    async def _to_each_address(self) -> Wire:
        """Connect to the first address of the name that answers. One that swallows what it gets holds up no other."""
        found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        *others, last = dict.fromkeys(str(one[4][0]) for one in found)
        for address in others:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(EACH_ADDRESS_S):
                    return await self._to(address)
        return await self._to(last)

    async def _to(self, address: str) -> Wire:
        name = self._host if self._tls is not None else None
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(Wire, address, self._port, ssl=self._tls, server_hostname=name)
        return wire

    def _give_back(self, wire: Wire, *, is_good: bool) -> None:
        self._busy.discard(wire)
        is_kept = is_good and not self._is_closed and len(self._idle) < self._keep
        if is_kept and wire.rest(time.monotonic()):
            self._idle.append(wire)
        else:
            wire.abort()


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@cache
def _load_authorities() -> ssl.SSLContext:
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
    if isinstance(exc, NotHttp):
        return outcomes.end(Observation.UNFRAMED, f"The model server's answer cannot be read: {exc}")
    # A server that is slow to accept may be alive; one that refuses or hangs up is not
    is_dead = not isinstance(exc, httpx.TimeoutException)
    never_made = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout)
    what = "The model server cannot be reached" if never_made else "The connection to the model server was lost"
    seen = Observation.UNREACHED if never_made and not has_begun else Observation.BROKEN
    return replace(outcomes.end(seen, f"{what}: {str(exc) or type(exc).__name__}"), server_is_dead=is_dead)
