"""Where a Cog server puts the files of its outputs (`--upload-url`): a path that only those can name who were told it.

Takes a file for a run that is followed here and for no other, and gives it a name that its output then has in the
file's place. Never holds a file in memory, keeps nothing of what breaks off, and trusts nothing but the bytes.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from director.core.errors import SettingsError
from director.servers.runners.runner import BLOCK_BYTES, Received, Unreceived
from director.servers.runners.spool import Spool

__all__ = ("Arrivals",)

log = logging.getLogger(__name__)

# as coglet hands it on in an output: a scheme in lower case, and nothing in it that JSON would escape
NAME: Final = "director-file:"
TYPE: Final = re.compile(
    r"([a-z0-9][a-z0-9.+_-]{0,63}/[a-z0-9][a-z0-9.+_-]{0,63})(?:\s*;\s*charset=\"?([a-z0-9-]{1,32})\"?)?"
)
PLAIN_TYPE: Final = "application/octet-stream"

Tell = Callable[[Received | Unreceived], None]


class _TooLarge(Exception):
    """All files of the run together are larger than what is kept: it cannot succeed any more."""


class _Run:
    """One run that files are taken for, `room` bytes of them. `overlapped`: some came at the same time."""

    def __init__(self, tell: Tell, room: int) -> None:
        self.tell = tell
        self.is_over = False
        self.overlapped = False
        self._room = room
        self._spool: Spool | None = None
        self._last = asyncio.Event()
        self._last.set()

    async def take(self, request: Request) -> str:
        """The name that a file has from now on. Raises `_TooLarge`, ClientDisconnect and OSError; then nothing is kept.

        coglet sends the files of a run side by side, and lists them as they are answered: so each is answered after
        those that began before it.
        """
        before, self._last = self._last, asyncio.Event()
        mine = self._last
        self.overlapped |= not before.is_set()
        try:
            self._spool = self._spool or Spool()
            content_type = _content_type(request.headers.get("content-type", ""))
            file = await self._spool.take(self._bounded(request), content_type=content_type)
            await before.wait()
            name = NAME + secrets.token_hex(16)
            self.tell(Received(name, file))
            return name
        finally:
            mine.set()

    async def _bounded(self, request: Request) -> AsyncGenerator[bytes, None]:
        size = taken = 0
        try:
            async for block in request.stream():
                size += len(block)
                before, taken = taken, max(size, BLOCK_BYTES)
                self._room -= taken - before
                if self._room < 0:
                    raise _TooLarge
                yield block
        except BaseException:
            self._room += taken
            raise


class Arrivals:
    """The runs of this process that files are taken for. `secret`: what whoever sends one has to know."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._runs: dict[str, _Run] = {}
        self._warned = False

    @classmethod
    def of(cls, secret: str) -> "Arrivals | None":
        """Those that are set; None where no secret is. Raises SettingsError where there is no place for a file."""
        if not secret:
            return None
        try:
            Spool()
        except OSError as exc:
            raise SettingsError(f"DIRECTOR_UPLOAD_SECRET needs a TMPDIR that can be written ({exc.strerror}).") from exc
        return cls(secret)

    @contextmanager
    def expect(self, prediction_id: str, tell: Tell, *, most: int) -> Iterator[None]:
        """Take files for this run, `most` bytes together. Each is told before the server has its answer."""
        run = self._runs[prediction_id] = _Run(tell, most)
        try:
            yield
        finally:
            run.is_over = True
            if self._runs.get(prediction_id) is run:
                del self._runs[prediction_id]

    def routes(self) -> list[Route]:
        """To be mounted where the model server can reach it."""
        return [Route("/uploads/{secret}/{name:path}", self._receive, methods=["PUT"])]

    async def _receive(self, request: Request) -> Response:
        if not secrets.compare_digest(request.path_params["secret"].encode(), self._secret):
            return Response(status_code=404)
        run = self._run_of(request.headers.get("x-prediction-id"))
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

    def _run_of(self, prediction_id: str | None) -> _Run | None:
        if prediction_id is None and len(self._runs) == 1:  # coglet before 0.23 does not say whose it is
            return next(iter(self._runs.values()))
        return self._runs.get(prediction_id or "")


def _content_type(said: str) -> str:
    found = TYPE.fullmatch(said.strip().lower())
    if found is None:
        return PLAIN_TYPE
    return found[1] + (f"; charset={found[2]}" if found[2] and found[1].startswith("text/") else "")
