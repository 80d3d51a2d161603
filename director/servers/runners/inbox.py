"""Where a container's callbacks arrive: a loopback address that only those can name who were told it.

Never believes, reads or answers a callback by what is in it: it hands the bytes to whoever listens for that run, and
drops what nobody listens for. It answers at once, because some servers hold the slot until it does.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from director.servers.runners.arrivals import Arrivals

__all__ = ("Inbox", "Mailbox")

MAX_BODY: Final = 64 * 1024 * 1024
MAX_WAITING: Final = 64


class Mailbox:
    """Callbacks of one run that were not read yet. Bounded: each tells the whole run so far, so the oldest may go."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bodies: deque[bytes] = deque()
        self._held = 0
        self._arrived = asyncio.Event()

    def put(self, body: bytes) -> None:
        """Add a callback; the oldest make room for it."""
        while self._bodies and (len(self._bodies) >= MAX_WAITING or self._held + len(body) > self._max_bytes):
            self._held -= len(self._bodies.popleft())
        self._bodies.append(body)
        self._held += len(body)
        self._arrived.set()

    async def get(self) -> bytes:
        """The oldest callback that is still here, when there is one."""
        while not self._bodies:
            self._arrived.clear()
            await self._arrived.wait()
        body = self._bodies.popleft()
        self._held -= len(body)
        return body


class Inbox:
    """The open mailboxes of this process. `base_url` is where its routes are mounted, as the container sees it.

    `arrivals`: where it may put files, if it may.
    """

    def __init__(self, base_url: str, *, max_body: int = MAX_BODY, arrivals: Arrivals | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self.arrivals = arrivals
        self._max_body = max_body
        self._secret = secrets.token_urlsafe(24)
        self._mailboxes: dict[str, Mailbox] = {}

    def url_for(self, key: str) -> str:
        """Where callbacks for `key` are to be sent. The secret in it ends with this process."""
        return f"{self.base_url}/inbox/{self._secret}/{key}"

    @contextmanager
    def subscribe(self, key: str) -> Iterator[Mailbox]:
        """Listen for one run. `key` names the attempt, not only the prediction: a late callback must find nobody."""
        mailbox = self._mailboxes[key] = Mailbox(max_bytes=self._max_body)
        try:
            yield mailbox
        finally:
            if self._mailboxes.get(key) is mailbox:
                del self._mailboxes[key]

    def routes(self) -> list[Route]:
        """To be mounted on a listener that only the container can reach."""
        files = [] if self.arrivals is None else self.arrivals.routes()
        return [Route("/inbox/{secret}/{key}", self._receive, methods=["POST"]), *files]

    async def _receive(self, request: Request) -> Response:
        if not secrets.compare_digest(request.path_params["secret"].encode(), self._secret.encode()):
            return Response(status_code=404)
        key = request.path_params["key"]
        if key not in self._mailboxes:
            return Response()
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > self._max_body:
                    return Response(status_code=413)  # Cog gives up on this one, and the run goes on
        except ClientDisconnect:
            return Response(status_code=400)
        if body and (mailbox := self._mailboxes.get(key)) is not None:  # it may have ended while the body came
            mailbox.put(bytes(body))
        return Response()
