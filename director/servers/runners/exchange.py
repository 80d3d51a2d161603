"""Send one request on one connection, and read its answer as it comes: HTTP/1.1, for `connections.py`.

The server is untrusted: everything beside the body has a bound, and the body comes only as fast as it is read.
Never sends a request twice, and never opens a connection.
"""

import asyncio
import select
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, cast

import httptools
import httpx

MOST_BESIDE: Final = 100 * 1024  # of heads, trailers and chunk framing, before more of the body comes
MOST_WAITING: Final = 256 * 1024  # of the body, before the server has to wait
FIRST_STATUS: Final = 100
FIRST_OK: Final = 200  # a status below it is a hint that an answer will follow
FIRST_NOT_OK: Final = 300
FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
HUNG_UP: Final = "Server disconnected without sending a response."
CUT_OFF: Final = "peer closed connection without sending complete message body"


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
        self._chunks: deque[bytes] = deque()
        self._waiting = 0
        self._reader: asyncio.Future[None] | None = None
        self._is_complete = False
        self._keeps_alive = False
        self._fault: httpx.TransportError | None = None

    @property
    def is_success(self) -> bool:
        return FIRST_OK <= self.status_code < FIRST_NOT_OK

    @property
    def socket(self) -> Any:
        return self._wire.get_extra_info("socket")

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._waiting -= len(chunk)
                yield chunk
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
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.fail(httpx.RemoteProtocolError(f"The answer is no HTTP: {type(exc).__name__}"))
        if self._beside > MOST_BESIDE:
            self.fail(httpx.RemoteProtocolError("The head of the answer is too large"))
        if self._waiting > MOST_WAITING:
            self._wire.pause()

    def lost(self, exc: Exception | None) -> None:
        """Take in that the connection closed. An answer without a length ends in this way."""
        if self._is_complete:
            self._keeps_alive = False
        elif exc is not None:
            self.fail(httpx.ReadError(""))
        elif not self.head.done():
            self.fail(httpx.RemoteProtocolError(HUNG_UP))
        elif FRAMING & self.headers.keys():
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
            self.fail(httpx.RemoteProtocolError("The answer has no status"))
            return
        if self.status_code < FIRST_OK:
            self.headers.clear()
            return
        self._keeps_alive = self._parser.should_keep_alive()
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
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._is_slow = False
        self._on_sent: Callable[[], None] | None = None
        self._poll = select.poll()

    def ask(self, request: bytes, *, sent: Callable[[], None], over: Callable[[bool], None]) -> Exchange:
        """Send a request. `sent` is called when it has left, or all but its last bytes."""
        assert self._transport is not None  # noqa: S101 - for the type checker: it is open
        self._exchange = exchange = Exchange(self, over)
        self._transport.write(request)
        if self._is_slow:
            self._on_sent = sent
        else:
            sent()
        return exchange

    def rest(self, now: float) -> bool:
        """End the exchange, whose answer was read. True if the connection is good for another request."""
        self._exchange = None
        self.idle_since = now
        self.resume()
        return self.is_open and not self._is_slow

    @property
    def is_silent(self) -> bool:
        """False if there is something to read: without a request that can only be that the server hung up."""
        return self.is_open and not self._poll.poll(0)

    def get_extra_info(self, name: str) -> Any:
        return None if self._transport is None else self._transport.get_extra_info(name)

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
        self._on_sent = None  # the server has answered: its silence no longer means that the run began
        if self._exchange is None:
            self.abort()
        else:
            self._exchange.feed(data)

    def pause_writing(self) -> None:
        self._is_slow = True

    def resume_writing(self) -> None:
        self._is_slow = False
        if self._on_sent is not None:
            on_sent, self._on_sent = self._on_sent, None
            on_sent()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._exchange is not None:
            self._exchange.lost(exc)
