"""Bound what a connection may send beside bodies: the request line, the headers and the framing of a chunked body. The
parser has no limit of its own: it keeps an unfinished header, and gets slower as it grows.
"""

import asyncio
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.errors import head_too_large

MAX_HEAD_BYTES: Final = 64 << 10
STEP: Final = 4 << 10  # parsed at once, so that a head is found too large before all of it is stored
LINGER_S: Final = 2.0


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol, which answers 431 and closes the connection for a head that is too large.
    `state["hang_up"]` breaks the request's connection, so that a part is not taken for the whole. `state["is_whole"]`:
    the whole body has arrived.
    """

    _head_bytes = 0  # since the last structural event: a request's begin, its headers' end, a chunk, a piece of body
    _is_refused = False

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), STEP):
            if self._is_refused or self.transport.is_closing():
                return
            piece = data[start : start + STEP]
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()
        self.cycle.__class__ = OneWriteCycle  # uvicorn has no other way to choose the class
        self.scope["state"]["hang_up"] = partial(self._hang_up, self.cycle)

    def on_chunk_header(self) -> None:
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.scope["state"]["is_whole"] = True

    def _hang_up(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True  # else uvicorn logs an error that the response has no end
        self.transport.abort()

    def _refuse(self) -> None:
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # another request's response is due first: the two would be mixed
            return
        answer = head_too_large(limit=MAX_HEAD_BYTES).response()
        lines = [b"%b: %b\r\n" % header for header in [*answer.raw_headers, (b"connection", b"close")]]
        self.transport.write(b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", bytes(answer.body)]))
        # closing at once, with unread bytes, would reset the connection and lose the response
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


class OneWriteCycle(RequestResponseCycle):
    """A request and its response. A head with a Content-Length waits for the first bytes of the body. One write to the
    socket instead of two saves a tenth of the cost of a small response.
    """

    _head: MutableMapping[str, Any] | None = None

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start" and any(
            name == b"content-length" for name, _ in message["headers"]
        ):
            self._head = message
            return
        if self._head is None:
            await super().send(message)
            return
        head, self._head = self._head, None
        transport, pieces = self.transport, _Pieces(self.transport)
        self.transport = cast(asyncio.Transport, pieces)
        try:
            await super().send(cast(Any, head))
            await super().send(message)
        finally:
            pieces.leave()
            self.transport = transport


class _Pieces:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pieces: list[bytes] = []
        self.write = self._pieces.append

    def leave(self) -> None:
        if self._pieces:  # empty if the client is gone
            self._transport.writelines(self._pieces)
            self._pieces.clear()

    def close(self) -> None:
        self.leave()
        self._transport.close()
