"""An answer of server-sent events: as long as somebody reads it, and broken where it was cut off.

Official clients take an orderly end for the whole of a stream: what ends before its end breaks the connection.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ("RETRY_AFTER_S", "STREAM", "EventStream", "Tell")

STREAM: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold it back
}

RETRY_AFTER_S: Final = 5

Tell = Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[bool]]
"""Sends all of a stream, a piece at a time; False where that was cut off."""


class EventStream(Response):
    """The answer, as long as it takes."""

    def __init__(self, tell: Tell) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(STREAM)
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if not await self._tell(partial(_send_piece, send)):
                _hang_up(scope)
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()


async def _send_piece(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _hang_up(scope: Scope) -> None:
    hang_up: Callable[[], Any] | None = scope["state"].get("hang_up")
    if hang_up is not None:  # a server that is not ours may have no such thing: then the end looks like one
        hang_up()
