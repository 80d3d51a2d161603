"""Extend uvicorn's HTTP protocol: one write for a whole response, pieces of a stream without ASGI, broken connections.

It relies on members of uvicorn's `HttpToolsProtocol` and `RequestResponseCycle` that are not documented: those that the
code below names. `tests/integration/api/test_protocol.py` fails where one changes its meaning. Another ASGI server puts
nothing into a request's state: then each piece goes through ASGI, and an early stop looks like the end.
"""

import asyncio
from functools import partial
from typing import Any, Final
from weakref import ref

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

from api.openai import errors as openai_errors
from api.web.errors import head_too_large, too_many_connections
from api.web.route import OPENAI
from director.runtime.bounded_http import MAX_HEAD_BYTES, BoundedHttp

RETRY_AFTER_S: Final = 5


class Http(BoundedHttp):
    """The bounded protocol, with the API's refusals. `state["hang_up"]` breaks the request's connection, so that a part
    is not taken for the whole. `state["is_whole"]`: the whole body has arrived. `state["gone"]` is done when the
    connection is lost. `state["push"]` sends a piece of a chunked body at once, if the connection takes it now.
    """

    def refusal(self, status: int) -> Response:
        is_large, url = status == 431, getattr(self, "url", b"")  # unset before the first request line
        refusal = head_too_large(limit=MAX_HEAD_BYTES) if is_large else too_many_connections(retry_after=RETRY_AFTER_S)
        return openai_errors.answer(refusal) if url.startswith(OPENAI.encode()) else refusal.response()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._gone: asyncio.Future[None] = self.loop.create_future()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone.set_result(None)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self._is_refused:
            return
        self.cycle.__class__ = OneWriteCycle  # uvicorn has no other way to choose the class
        # not self, and a weak cycle: both have the state, so each connection would wait for the garbage collector
        self.scope["state"] |= {
            "hang_up": partial(_hang_up, ref(self.cycle), self.transport),
            "push": partial(_push, ref(self.cycle)),
            "gone": self._gone,
        }

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.scope["state"]["is_whole"] = True


def _hang_up(known: "ref[RequestResponseCycle]", transport: asyncio.Transport) -> None:
    if (cycle := known()) is not None:
        cycle.disconnected = True  # else uvicorn logs an error that the response has no end
    transport.abort()


def _push(known: "ref[RequestResponseCycle]", data: bytes) -> bool:
    cycle = known()
    if cycle is None or cycle.disconnected or cycle.response_complete or cycle.flow.write_paused:
        return False
    if not cycle.response_started or not cycle.chunked_encoding:
        return False
    if data:  # a chunk without data ends the body
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True


class OneWriteCycle(RequestResponseCycle):
    """A request and its response. A whole response leaves in one write to the socket: uvicorn makes two, and looks at
    each header by itself. It sends any other response, and refuses a header with a line break.
    """

    _head: Any = None

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start" and b"content-length" in dict(message["headers"]):
            self._head = message
            return
        head, self._head = self._head, None
        if head is None or not self._has_sent(head, message):
            for each in filter(None, (head, message)):
                await super().send(each)

    def _has_sent(self, head: Any, message: Any) -> bool:
        body, headers = message.get("body", b""), [*self.default_headers, *head["headers"]]
        known = dict(headers)
        is_whole = not message.get("more_body") and int(known[b"content-length"]) == len(body)
        is_taken = not self.disconnected and not self.flow.write_paused and not self.waiting_for_100_continue
        is_plain = self.scope["method"] != "HEAD" and b"connection" not in known
        lines = list(map(b": ".join, headers))
        if not (is_whole and is_taken and is_plain) or HEADER_VALUE_RE.search(b" ".join(lines)):
            return False
        if not self.keep_alive:
            lines.append(b"connection: close")
        self.transport.writelines([STATUS_LINE[head["status"]], b"\r\n".join([*lines, b"\r\n"]), body])
        if not self.keep_alive:
            self.transport.close()
        self.response_started = self.response_complete = True
        self.message_event.set()
        self.on_response()
        return True
