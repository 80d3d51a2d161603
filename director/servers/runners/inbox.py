"""Take in what a Cog server sends on its own: callbacks (`Inbox`) and the files of outputs (`Arrivals`).

Both are routes with a secret in the path, and drop what belongs to no run that is followed here. Callbacks are
answered at once, because some servers hold the slot until then.
"""

import asyncio
import hashlib
import logging
import os
import re
import secrets
import tempfile
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from director.core.errors import SettingsError
from director.servers.runners.runner import BLOCK_BYTES, Received, ServerFile, Unreceived

log = logging.getLogger(__name__)

MAX_BODY: Final = 64 * 1024 * 1024
MAX_WAITING: Final = 64
PIECE_BYTES: Final = 1 << 20
# As coglet hands it on in an output: a scheme in lower case, without a character that JSON would escape
NAME: Final = "director-file:"
TYPE: Final = re.compile(
    r"([a-z0-9][a-z0-9.+_-]{0,63}/[a-z0-9][a-z0-9.+_-]{0,63})(?:\s*;\s*charset=\"?([a-z0-9-]{1,32})\"?)?"
)
PLAIN_TYPE: Final = "application/octet-stream"

Tell = Callable[[Received | Unreceived], None]


class Spool:
    """Keeps the files of one run, until they are stored, in one temporary file without a name.

    No file is ever whole in memory, and the system frees the disk also after a director was killed. One spool serves
    all files of a run, since a process may have few open files. Files may come at the same time: their pieces
    alternate, each in a place of 1 MiB. The pieces of a file that breaks off are used for others.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the last who holds a file in it
        self._end = 0
        self._free: list[int] = []
        weakref.finalize(self, self._file.close)

    async def take(self, blocks: AsyncIterator[bytes], *, content_type: str) -> ServerFile:
        """Keep a file as it comes. Raises what `blocks` raises, and OSError if the disk is full."""
        digest, waiting = hashlib.sha256(), bytearray()
        pieces: list[tuple[int, int]] = []

        async def keep() -> None:
            piece = bytes(waiting[:PIECE_BYTES])
            del waiting[:PIECE_BYTES]
            place = self._place()
            pieces.append((place, len(piece)))
            await to_thread.run_sync(self._write, piece, place)
            await to_thread.run_sync(digest.update, piece)

        try:
            async for block in blocks:
                waiting += block
                while len(waiting) >= PIECE_BYTES:
                    await keep()
            if waiting:
                await keep()
        except BaseException:  # also if canceled: the places would be lost
            self._free += [place for place, _ in pieces]
            raise
        return ServerFile(
            content_type=content_type,
            size=sum(size for _, size in pieces),
            digest=digest.hexdigest(),
            blocks=partial(self._blocks, tuple(pieces)),
        )

    async def _blocks(self, pieces: tuple[tuple[int, int], ...]) -> AsyncGenerator[bytes, None]:
        for place, size in pieces:
            yield await to_thread.run_sync(self._read, place, size)

    def _place(self) -> int:
        if self._free:
            return self._free.pop()
        place, self._end = self._end, self._end + PIECE_BYTES
        return place

    def _write(self, data: bytes, place: int) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._file.fileno(), left, place)
            left, place = left[written:], place + written

    def _read(self, place: int, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := os.pread(self._file.fileno(), size - len(data), place + len(data))):
            data += more
        return data


class _TooLarge(Exception): ...


class _Run:
    """One run that files are taken for, up to `room` bytes. `overlapped`: some files came at the same time."""

    def __init__(self, tell: Tell, room: int) -> None:
        self.tell = tell
        self.is_over = False
        self.overlapped = False
        self._room = room
        self._spool: Spool | None = None
        self._last = asyncio.Event()
        self._last.set()

    async def take(self, request: Request) -> str:
        """Keep a file and return its name. Raises `_TooLarge`, ClientDisconnect and OSError, and then keeps nothing.
        coglet sends the files of a run side by side and lists them in the order of the answers, so each is answered
        after the files that began before it.
        """
        before, self._last = self._last, asyncio.Event()
        mine = self._last
        self.overlapped |= not before.is_set()
        try:
            self._spool = self._spool or Spool()
            content_type = _content_type(request.headers.get("content-type", ""))
            file = await self._spool.take(self._bound(request), content_type=content_type)
            await before.wait()
            name = NAME + secrets.token_hex(16)
            self.tell(Received(name, file))
            return name
        finally:
            mine.set()

    async def _bound(self, request: Request) -> AsyncGenerator[bytes, None]:
        size = taken = 0
        try:
            async for block in request.stream():
                size += len(block)
                before, taken = taken, max(size, BLOCK_BYTES)
                self._room -= taken - before
                if self._room < 0:
                    raise _TooLarge
                yield block
        except BaseException:  # also if canceled: the room would be lost
            self._room += taken
            raise


class Arrivals:
    """Takes the files of outputs that a Cog server uploads (`--upload-url`), and gives each the name that the output
    has in the file's place. `secret`: what a sender has to know.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._runs: dict[str, _Run] = {}
        self._warned = False

    @classmethod
    def of(cls, secret: str) -> "Arrivals | None":
        """Return None without a secret. Raises SettingsError if there is no place for a file."""
        if not secret:
            return None
        try:
            Spool()
        except OSError as exc:
            # With a full disk `tempfile` finds no folder at all. Until there is room, each file is refused
            folder = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - nothing is written here
            if not os.access(folder, os.W_OK | os.X_OK):
                reason = f"DIRECTOR_UPLOAD_SECRET needs a TMPDIR that can be written ({exc.strerror})."
                raise SettingsError(reason) from exc
        return cls(secret)

    @contextmanager
    def expect(self, prediction_id: str, tell: Tell, *, most: int) -> Iterator[None]:
        """Take files for this run, `most` bytes together. Each is reported before the server has its answer."""
        run = self._runs[prediction_id] = _Run(tell, most)
        try:
            yield
        finally:
            run.is_over = True
            if self._runs.get(prediction_id) is run:
                del self._runs[prediction_id]

    def routes(self) -> list[Route]:
        return [Route("/uploads/{secret}/{name:path}", self._receive, methods=["PUT"])]

    async def _receive(self, request: Request) -> Response:
        if not secrets.compare_digest(request.path_params["secret"].encode(), self._secret):
            return Response(status_code=404)
        prediction_id = request.headers.get("x-prediction-id")
        run = self._runs.get(prediction_id or "")
        if prediction_id is None and len(self._runs) == 1:  # coglet before 0.23 does not send the id
            run = next(iter(self._runs.values()))
        if run is None:
            log.warning("a file came that belongs to no run here")
            return Response(status_code=404)
        try:
            name = await run.take(request)
        except ClientDisconnect:
            return Response(status_code=400)
        except _TooLarge:
            run.tell(Unreceived(too_large=True))
            return Response(status_code=413)
        except OSError:
            log.exception("a file of a run could not be taken: there must be room in TMPDIR")
            run.tell(Unreceived())
            return Response(status_code=507)
        if run.overlapped and not self._warned:
            log.warning("files of a run come at the same time: coglet may not list them in the model's order")
            self._warned = True
        return Response(status_code=410 if run.is_over else 201, headers={"location": name})


def _content_type(said: str) -> str:
    found = TYPE.fullmatch(said.strip().lower())
    if found is None:
        return PLAIN_TYPE
    return found[1] + (f"; charset={found[2]}" if found[2] and found[1].startswith("text/") else "")


class Mailbox:
    """The unread callbacks of one run. Bounded: each reports the whole run so far, so the oldest may be dropped."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bodies: deque[bytes] = deque()
        self._held = 0
        self._arrived = asyncio.Event()

    def put(self, body: bytes) -> None:
        while self._bodies and (len(self._bodies) >= MAX_WAITING or self._held + len(body) > self._max_bytes):
            self._held -= len(self._bodies.popleft())
        self._bodies.append(body)
        self._held += len(body)
        self._arrived.set()

    async def get(self) -> bytes:
        while not self._bodies:
            self._arrived.clear()
            await self._arrived.wait()
        body = self._bodies.popleft()
        self._held -= len(body)
        return body


class Inbox:
    """The open mailboxes of this process. `base_url`: where the model server sees its routes."""

    def __init__(self, base_url: str, *, max_body: int = MAX_BODY, arrivals: Arrivals | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self.arrivals = arrivals
        self._max_body = max_body
        self._secret = secrets.token_urlsafe(24)
        self._mailboxes: dict[str, Mailbox] = {}

    def url_for(self, key: str) -> str:
        return f"{self.base_url}/inbox/{self._secret}/{key}"

    @contextmanager
    def subscribe(self, key: str) -> Iterator[Mailbox]:
        """Listen for one run. `key` names the attempt, not only the prediction, so that late callbacks are dropped."""
        mailbox = self._mailboxes[key] = Mailbox(max_bytes=self._max_body)
        try:
            yield mailbox
        finally:
            if self._mailboxes.get(key) is mailbox:
                del self._mailboxes[key]

    def routes(self) -> list[Route]:
        """Return the routes, to be mounted on a listener that only the model server can reach."""
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
                    return Response(status_code=413)  # Cog drops this callback, and the run goes on
        except ClientDisconnect:
            return Response(status_code=400)
        if body and (mailbox := self._mailboxes.get(key)) is not None:  # the run may have ended while the body came
            mailbox.put(bytes(body))
        return Response()
