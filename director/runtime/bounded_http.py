"""Bound what HTTP connections may take from a process: time, bytes of heads, and descriptors.

uvicorn's protocol has none of these bounds. Its parser keeps an unfinished header and gets slower as it grows: one
endless header took 96 MiB and 13 s of CPU. Its only timer runs between an answer and the next byte.
"""

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from director.core import sockets
from director.runtime.metrics import Registry

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 64 << 10
STEP: Final = 4 << 10  # parsed at once, so that a head is found too large before all of it is stored
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 512 << 10  # taken and dropped after a refusal

CHECK_S: Final = 5.0  # between two looks at a connection: each limit below may be passed by as much
HEAD_S: Final = 10.0  # from the connection, or the first byte of a later head, to the head's end
PROBE_HEAD_S: Final = 2.0  # the same for a connection beyond the limits
BODY_S: Final = 40.0  # longer than a handler waits for a body: it answers 408 first
UNREAD_BODY_S: Final = 30.0  # for the rest of a body after the answer: many clients send it all before they read
STALL_S: Final = 60.0  # for a client that takes nothing of its answer
ARRIVES: Final = sockets.limit_unacknowledged(STALL_S)
LEAST_BYTES_S: Final = 256  # of a body, and of an answer that the client delays

HEALTH_PATHS: Final = frozenset({b"/livez", b"/readyz"})
PROBES: Final = 16  # connections beyond the limits: each may only ask for health
KEPT_DESCRIPTORS: Final = 64  # at least, for the probes, Redis, files and webhooks
PEER_SHARE: Final = 0.75
LOG_AGAIN_S: Final = 10.0


class Connections:
    """The open connections of a process. Those beyond `most`, or beyond `per_peer` of one address, may only ask for
    health. If too many of these are open, the oldest one without a request is closed. So probes are answered while
    the process is full. `is_exempt`: addresses with no limit of their own. `is_ending`: each further answer is the last
    one of its connection, and says so.
    """

    def __init__(
        self,
        *,
        most: int = 0,
        per_peer: int = 0,
        is_exempt: Callable[[str], bool] = lambda _: False,
        metrics: Registry | None = None,
    ) -> None:
        allowed = _most_connections()
        self.most: Final = min(most, allowed) if most else allowed
        self.per_peer: Final = per_peer or max(1, int(PEER_SHARE * self.most))
        self._is_exempt = is_exempt
        self._limited = None if metrics is None else metrics.limited
        self._peers: dict[BoundedHttp, str] = {}  # of each connection within the limits, "" if exempt
        self._by_peer: Counter[str] = Counter()
        self._probes: dict[BoundedHttp, None] = {}
        self._logged_at = float("-inf")
        self.is_ending = False

    def enter(self, connection: "BoundedHttp") -> bool:
        """Note a new connection. Returns whether it is within the limits."""
        host = connection.client[0] if connection.client else ""
        peer = "" if not host or self._is_exempt(host) else _network_of(host)
        if len(self._peers) >= self.most:
            return self._enter_beyond("all", connection)
        if peer and self._by_peer[peer] >= self.per_peer:
            return self._enter_beyond("peer", connection)
        self._peers[connection] = peer
        if peer:
            self._by_peer[peer] += 1
        return True

    def leave(self, connection: "BoundedHttp") -> None:
        self._probes.pop(connection, None)
        if peer := self._peers.pop(connection, ""):
            self._by_peer[peer] -= 1
            if not self._by_peer[peer]:
                del self._by_peer[peer]

    def _enter_beyond(self, why: str, connection: "BoundedHttp") -> bool:
        if self._limited is not None:
            self._limited.labels(why).inc()
        now = connection.loop.time()
        if now - self._logged_at >= LOG_AGAIN_S:
            self._logged_at = now
            facts = {"why": why, "open": len(self._peers), "most": self.most, "per_peer": self.per_peer}
            log.warning("connections are at their limit: further ones may only ask for health", extra=facts)
        if len(self._probes) >= PROBES:
            oldest = next((each for each in self._probes if each.cycle is None), connection)
            self._probes.pop(oldest, None)
            oldest.transport.abort()
        if not connection.transport.is_closing():
            self._probes[connection] = None
        return False


def _most_connections() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    return max(1, limit - max(KEPT_DESCRIPTORS, limit // 10))


def _network_of(host: str) -> str:
    """Return the address, or of IPv6 the text of its first 64 bits: one client usually has as many addresses."""
    if ":" not in host or "." in host:
        return host
    head, gap, tail = host.partition("::")
    groups = head.split(":") if head else []
    if gap:
        after = tail.split(":") if tail else []
        groups += ["0"] * (8 - len(groups) - len(after)) + after
    return ":".join(groups[:4])


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with bounds. A head that is too large is answered with 431. A connection is closed
    whose head or body comes too slowly, or whose client does not take its answer.
    """

    _head_bytes = 0  # since the last structural event: a request's begin, its headers' end, a chunk, a piece of body
    _is_refused = False
    _lingered_bytes = 0
    _is_probe = False
    _head_began: float | None = None  # None between a head and the next one
    _body_began: float | None = None  # of the time that is judged; None while no body is due
    _body_bytes = 0  # since then
    _paused_at: float | None = None  # since then the client takes too little of its answer
    _paused_bytes = 0

    def __init__(self, *given: Any, connections: Connections, **named: Any) -> None:
        super().__init__(*given, **named)
        self._places = connections

    def refusal(self, status: int) -> Response:
        """Return the answer to a head that is too large, 431, or to a connection beyond the limits, 503."""
        words = {431: "The request line and headers are too large.", 503: "There are too many connections."}
        return Response(words[status] + "\n", status, media_type="text/plain")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # a client that vanished takes its answer into the kernel's buffers, which send it for a quarter of an hour
        for option in ARRIVES:
            transport.get_extra_info("socket").setsockopt(*option)
        self._head_began = self.loop.time()
        self._is_probe = not self._places.enter(self)
        self._look = self.loop.call_later(PROBE_HEAD_S if self._is_probe else CHECK_S, self._look_after)

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        self._places.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        for start in range(0, len(data), STEP):
            if self._is_refused or self.transport.is_closing():
                return
            piece = data[start : start + STEP]
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431)

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        if self._head_began is None:
            self._head_began = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._is_refused:  # a further request in the same piece
            return
        self._head_bytes = 0
        self._body_began, self._head_began = self._head_began, None
        self._body_bytes = 0
        if self._is_probe and self.url.partition(b"?")[0] not in HEALTH_PATHS:
            self._refuse(503)
            return
        super().on_headers_complete()
        if self._is_probe or self._places.is_ending:
            self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_bytes += len(body)
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_began = None
        if not self._is_refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._body_began is not None:
            self._body_began = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._paused_at, self._paused_bytes = self.loop.time(), self.transport.get_write_buffer_size()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._paused_at = None
        super().resume_writing()

    def _look_after(self) -> None:
        now = self.loop.time()
        if self.transport.is_closing() and self._paused_at is None:
            self._paused_at, self._paused_bytes = now, self.transport.get_write_buffer_size()
        if self._is_answer_stalled(now):
            self.transport.abort()  # a close would wait until the client has taken the rest
        elif self._is_head_late(now) or self._is_body_slow(now):
            self.transport.close()
        self._look = self.loop.call_later(CHECK_S, self._look_after)

    def _is_head_late(self, now: float) -> bool:
        if self.cycle is not None and not self.cycle.response_complete:
            return False  # the answer to the request before comes first
        if self._head_began is None:
            # Any byte ends uvicorn's wait for the next head, also a line break, or the rest of a body after the answer
            if self._body_began is None and self.timeout_keep_alive_task is None:
                self._head_began = now
            return False
        return now - self._head_began >= (PROBE_HEAD_S if self._is_probe else HEAD_S)

    def _is_body_slow(self, now: float) -> bool:
        if self._body_began is None or self.cycle is None:
            return False
        if self.cycle.response_complete:
            return now - self._body_began >= UNREAD_BODY_S
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:  # the client waits for us
            self._body_began, self._body_bytes = now, 0
            return False
        took_s = now - self._body_began
        if took_s < BODY_S:
            return False
        is_slow = self._body_bytes < LEAST_BYTES_S * took_s
        self._body_began, self._body_bytes = now, 0
        return is_slow

    def _is_answer_stalled(self, now: float) -> bool:
        if self._paused_at is None or now - self._paused_at < STALL_S:
            return False
        left = self.transport.get_write_buffer_size()
        is_stalled = self._paused_bytes - left < LEAST_BYTES_S * (now - self._paused_at)
        self._paused_at, self._paused_bytes = now, left
        return is_stalled

    def _refuse(self, status: int) -> None:
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # another request's response is due first: the two would be mixed
            return
        answer = self.refusal(status)
        lines = [b"%b: %b\r\n" % header for header in [*answer.raw_headers, (b"connection", b"close")]]
        self.transport.write(b"".join([STATUS_LINE[answer.status_code], *lines, b"\r\n", bytes(answer.body)]))
        # closing at once, with unread bytes, would reset the connection and lose the response
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)
