"""Answer a call with its chunks as they come. The head is held for two seconds, so that an early end has a status."""

import asyncio
import logging
from functools import partial
from typing import Any, Final

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.openai.chunks import Chunks, Cut, EndedEarly, next_silence_s
from api.openai.ends import Failure, error_event, failure
from api.openai.runs import HUNG_UP, RETRY_S, Run, refuse
from api.predictions.intake import Filed, Following, read_outlook
from api.predictions.streams import STREAM, Pieces
from api.services.stream_events import KEEP_ALIVE
from api.services.stream_readers import STALL_S
from api.web import errors
from api.web.http import watching
from director.core.schema import Outlook, Record
from director.core.view import place
from director.core.words import span

log = logging.getLogger(__name__)
LAST_ERROR_S: Final = 2.0  # for the error that ends a stream
MOST_MOVES: Final = 4
STOPPED: Final = "This stream cannot go on here. Send the call again."
BROKEN: Final = "The answer of this call could not be sent."


async def stream(run: Run, *, restarts: bool) -> Response:
    following = Following(stays=True)
    filed = await following.accept(run.file)
    return await CallStream(run, filed, following, restarts=restarts).begin()


class Head:
    """Sends the pieces of a body behind a head that is held. `is_due`: there is a first piece, which waits for it."""

    def __init__(self) -> None:
        self.is_due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_open = asyncio.Event()
        self._pieces: Pieces | None = None

    def open(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._is_open.set()

    async def __call__(self, data: bytes) -> None:
        if not data:
            return
        if not self.is_due.done():
            self.is_due.set_result(None)
        if self._pieces is None:
            await self._is_open.wait()
        if self._pieces is not None:
            await self._pieces(data)

    def push(self, data: bytes) -> bool:
        return self._pieces is not None and self._pieces.push(data)


class CallStream(Response):
    """The stream of a call. Its reader is a task that goes on from `begin`, which waits for the first data, to the end
    of the response.
    """

    def __init__(self, run: Run, filed: Filed, following: Following, *, restarts: bool) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(STREAM)
        self._run = run
        self._record = filed.stored.record
        self._following = following
        # nothing here refers back to this response: only the garbage collector would free it
        self._frames = Chunks(restarts=restarts, write_comment=partial(write_place, run, self._record))
        self._head = Head()
        self._reading = asyncio.create_task(self._read())

    async def begin(self) -> Response:
        """Return once there is something to send: this response, or the refusal of a call that has ended."""
        is_over, is_refused = False, True
        try:
            with watching(self._run.request) as gone:
                await _first_of(self._reading, self._head.is_due, gone)
            if self._head.is_due.done() or not self._reading.done():
                is_over = self._frames.is_open = self._head.is_due.done()
                is_refused = False
                return self if is_over else Response(status_code=HUNG_UP)
            try:
                is_over = await self._reading
            except EndedEarly as early:
                is_over = True
                self._run.note_end(self._record, self._run.services)
                early.with_traceback(None)  # it holds this frame
                return refuse(early.failure)
            except Cut as cut:
                cut.with_traceback(None)
                return refuse(cut.failure)
            except Exception:
                log.exception("a call failed before its stream", extra={"prediction": self._record.id})
                return refuse(failure("internal", BROKEN))
            return refuse(self._explain_stop())
        finally:
            if not is_over:
                await self._leave(is_refused=is_refused)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_whole = False
        try:
            with watching(self._run.request) as gone:
                with anyio.move_on_after(STALL_S) as limit:
                    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                if limit.cancelled_caught:
                    return _hang_up(scope)
                self._head.open(Pieces(scope, send))
                await _first_of(self._reading, gone)
            if self._reading.done():
                is_whole = await self._end(scope)
                await send({"type": "http.response.body", "body": b""})
        finally:
            if not is_whole:
                await self._leave()

    async def _end(self, scope: Scope) -> bool:
        """Say how the stream ended. Returns whether the call has ended too."""
        try:
            if await self._reading:
                return True
            rest = error_event(self._explain_stop())
        except Cut as cut:
            rest = cut.rest + error_event(cut.failure)
            cut.with_traceback(None)  # it holds this frame
        except Exception:
            log.exception("the stream of a call failed", extra={"prediction": self._record.id})
            rest = error_event(failure("internal", BROKEN))
        with anyio.move_on_after(LAST_ERROR_S) as limit:
            await self._head(rest)
        if limit.cancelled_caught:
            _hang_up(scope)
        return False

    async def _leave(self, *, is_refused: bool = False) -> None:
        """Read no more, and give the call up."""
        self._reading.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({self._reading})
            await self._run.give_up(self._record, self._run.services, is_refused=is_refused)

    def _explain_stop(self) -> Failure:
        """Return why the stream stopped before its call did."""
        message = errors.leaving.detail if self._run.services.is_leaving else STOPPED
        return failure("unavailable", message, status=503, retry_after_s=RETRY_S)

    async def _read(self) -> bool:
        """Read to the end, at each server to which the call moves. Returns False if that was cut off."""
        record, news, place = self._record, self._following.news, self._following.place
        with self._following:
            for _ in range(MOST_MOVES):
                if await self._run.services.readers.read(
                    *(record.id, self._frames, self._head),
                    account=record.account,
                    is_over=record.is_terminal,
                    news=news,
                    place=place,
                    stays=True,
                ):
                    self._run.note_end(record, self._run.services)
                    return True
                there = await self._run.find_moved(record, self._run.services)
                if there is None:
                    return False
                self._run.services, news, place = there, None, None
            return False


async def write_place(run: Run, record: Record) -> tuple[bytes, float]:
    """Return the place in the queue as a comment, and after how many seconds of silence the next one is due."""
    outlook = await read_outlook(run.services, record.id)
    text = KEEP_ALIVE if outlook is None else comment_of(outlook, record)
    return text, next_silence_s(run.services.readers.reading, waits=outlook is not None)


def comment_of(outlook: Outlook, record: Record) -> bytes:
    """Return the place in the queue as a comment of a stream: `: 3 ahead, about 12 s`."""
    shown = place(outlook, record)
    words = [f"{shown.ahead} ahead"]
    if shown.eta_s is not None:
        words.append(f"about {span(shown.eta_s.p50)}")
    if shown.reason != "waiting_its_turn":
        words.append(shown.reason.replace("_", " "))
    return f": {', '.join(words)}\n\n".encode()


def _hang_up(scope: Scope) -> None:
    if (hang_up := scope["state"].get("hang_up")) is not None:
        hang_up()


async def _first_of(*awaited: asyncio.Future[Any]) -> None:
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
