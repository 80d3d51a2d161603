"""Serve the calls of OpenAI's API: chat, completions and embeddings. A call is one prediction, whose input is the body
as it came. Its answer is that of the model server, unchanged: whole, or in chunks as they come.

The head of a stream is held for two seconds, so that an early end has a status. A caller that hangs up cancels its
call, unless it asks for something else.
"""

import asyncio
import logging
import re
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, Self

import anyio
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.models.deployments import cancel_if_disabled
from api.openai.chunks import Chunks, Cut, EndedEarly, next_silence_s
from api.openai.ends import NO_CHUNK, Failure, error_event, failure, failure_of
from api.openai.find import Called, find_called
from api.openai.giving_up import give_up, give_up_later
from api.openai.lenient import count_members, read_leniently
from api.predictions import bodies
from api.predictions.intake import Filed, Following, Listener, accept, read_outlook
from api.predictions.streams import STREAM, Pieces
from api.services.services import Services
from api.services.stream_events import KEEP_ALIVE
from api.services.stream_readers import STALL_S
from api.services.waiters import Wait, Waiters
from api.sites.sites import Sites
from api.web import errors
from api.web.errors import Problem
from api.web.http import MEDIA_TYPE, Request, carry, decode_json, raw, read_body, type_of, watching
from api.web.route import Answer, Body, Parameter, changes, one_of
from director.core.errors import BackendUnavailable, QueueRefused
from director.core.schema import NewPrediction, Outlook, Record, Stored
from director.core.states import Status
from director.core.view import place
from director.core.words import span
from director.store.predictions import Ending

log = logging.getLogger(__name__)
Endpoint = Literal["chat", "completions", "embeddings"]
LANES: Final = {"priority": "high", "default": "normal", "flex": "low"}
AUTO: Final = ("normal", "low")
TIERS: Final = ("auto", *LANES)
SURROGATE: Final = re.compile("[\ud800-\udfff]")
FIELD: Final = re.compile(r"`\$\.(\w+)")
RETRY_S: Final = 5
LAST_WORDS_S: Final = 2.0  # for the error that ends a stream
HUNG_UP: Final = 499  # it is counted, and has no reader
MOST_MOVES: Final = 4
MOVED_S: Final = 30.0  # between two looks whether a call went to another site
LEAVING: Final = "This process of the service ends. Send the call again."
STOPPED: Final = "This stream cannot go on here. Send the call again."
BROKEN: Final = "The answer of this call could not be sent."
FAULT: Final = "a stream of a call failed inside the API"
MOST_MEMBERS: Final = 1_000  # of a body: the runner walks over them


class OpenAiCall(Struct, kw_only=True):
    """A body of OpenAI's API, as far as it is read. All other fields go to the model server as they are."""

    model: str
    stream: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None


# The next types are for the OpenAPI document


class ChatCompletionRequest(OpenAiCall, kw_only=True):
    """Beside these fields any other one, as the model server takes it."""

    messages: list[dict[str, Any]]


class CompletionRequest(OpenAiCall, kw_only=True):
    """Beside these fields any other one, as the model server takes it."""

    prompt: Any


class EmbeddingRequest(OpenAiCall, kw_only=True):
    """Beside these fields any other one, as the model server takes it."""

    input: Any


ON_DISCONNECT: Final = Parameter(
    "X-On-Disconnect",
    "`cancel` ends the run of a caller that hangs up, and `continue` does not. Default: `cancel`, or with an "
    "`Idempotency-Key` `continue`.",
    one_of("cancel", "continue"),
    "header",
)
ON_LOST: Final = Parameter(
    "X-On-Lost",
    "`fail` ends a stream whose model server dies after the first chunk. With `restart` it begins again after the "
    "comment `: retried`.",
    one_of("fail", "restart"),
    "header",
)
KEPT: Final = ("x-request-id", "X-Queue-Ahead", "X-Queue-Estimate", "X-Queue-Reason", "Idempotency-Replayed")
ANSWERS: Final = {200: Answer("The model server's own answer.", dict[str, Any], headers=KEPT)}
STREAMED: Final = (
    "With `stream` the answer is a stream of its chunks, which ends with `[DONE]` or with an object that has `error`."
)
calls: Final = partial(
    changes,
    "POST",
    bucket="create",
    parameters=(*bodies.HOW, ON_DISCONNECT, ON_LOST),
    answers=ANSWERS,
    refusals={402, 404, 409, 500, 503},
)


@calls(
    "/openai/v1/chat/completions",
    body=Body(ChatCompletionRequest),
    name="openai.chat.completions",
    summary="Create a chat completion",
    about=f"The body goes to the model server as it is, with its own name of the model. {STREAMED}",
)
async def chat(request: Request) -> Response:
    return await _call(request, "chat")


@calls(
    "/openai/v1/completions",
    body=Body(CompletionRequest),
    name="openai.completions",
    summary="Create a completion",
    about=f"The body goes to the model server as it is, with its own name of the model. {STREAMED}",
)
async def completions(request: Request) -> Response:
    return await _call(request, "completions")


@calls(
    "/openai/v1/embeddings",
    body=Body(EmbeddingRequest),
    name="openai.embeddings",
    summary="Create embeddings",
    about="The body goes to the model server as it is, with its own name of the model.",
)
async def embeddings(request: Request) -> Response:
    return await _call(request, "embeddings")


async def _call(request: Request, endpoint: Endpoint) -> Response:
    services = request.services
    body = await read_body(request, max_bytes=services.settings.max_body_bytes, refusal=errors.too_large)
    call = read_call(body)
    on_lost = _choose(request, "X-On-Lost", ("fail", "restart"), "fail")
    keeps = "continue" if "idempotency-key" in request.headers else "cancel"
    continues = _choose(request, "X-On-Disconnect", ("cancel", "continue"), keeps) == "continue"
    lane = _lane_of(call, request.account.lanes)
    is_streamed = bool(call.stream) and endpoint != "embeddings"
    asked = bodies.CreatePrediction(
        body=body,
        input=Raw(body),
        endpoint=endpoint,
        once_shown=is_streamed and on_lost == "fail",
        lane=lane,
        affinity=bodies.digest_of(call.prompt_cache_key) if call.prompt_cache_key else "",
    )
    called = await find_called(request, call.model)
    run = Run(request, called, asked, continues=continues)
    return await (stream(run, restarts=on_lost == "restart") if is_streamed else answer(run))


def read_call(body: bytes) -> OpenAiCall:
    """Read what is decided here. Raises a 400 that names the field which is wrong."""
    if type_of(body) != "object":
        decode_json(body, Raw)
        raise errors.malformed("The body must be a JSON object.")
    try:
        call = _decode(body)
        if body.count(b":") > MOST_MEMBERS and (count := count_members(body)) > MOST_MEMBERS:
            raise errors.malformed(f"The body has {count} members: at most {MOST_MEMBERS} are accepted.")
        return call
    except errors.Problem as exc:
        fault = exc.__cause__
        if not isinstance(fault, msgspec.ValidationError):
            raise
        found = FIELD.search(str(fault))
        reason = str(fault).partition(" - at ")[0].replace("`", "")
        raise errors.invalid_field("invalid_type", found[1] if found else "model", reason) from exc


def _decode(body: bytes) -> OpenAiCall:
    """Decode a body. Half of a surrogate pair is taken outside of the fields that are read: clients write it for an
    emoji that was cut, and model servers take it.
    """
    try:
        return decode_json(body, OpenAiCall)
    except errors.Problem as exc:
        if isinstance(exc.__cause__, msgspec.ValidationError) or (members := read_leniently(body)) is None:
            raise
    fields = {name: members[name] for name in OpenAiCall.__struct_fields__ if name in members}
    for name, value in fields.items():
        if isinstance(value, str) and SURROGATE.search(value):
            raise errors.invalid_field("invalid_type", name, "must be a text of whole characters")
    try:
        return msgspec.convert(fields, OpenAiCall)
    except msgspec.ValidationError as exc:
        raise errors.malformed("The body cannot be read.") from exc


def _lane_of(call: OpenAiCall, allowed: tuple[str, ...]) -> str:
    """Return the lane that the tier stands for. `auto` is the best of the account's lanes that is at most normal."""
    tier = call.service_tier or "auto"
    if tier not in TIERS:
        raise errors.invalid_field("enum", "service_tier", f"must be one of {', '.join(TIERS)}")
    return LANES.get(tier) or next((lane for lane in AUTO if lane in allowed), allowed[0])


def _choose(request: Request, header: str, words: tuple[str, ...], default: str) -> str:
    chosen = request.headers.get(header.lower(), default)
    if chosen not in words:
        raise errors.invalid_header(header, " or ".join(words))
    return chosen


class Attempts:
    """Notes under which id and at which server a call was filed last."""

    def __init__(self, listener: Listener) -> None:
        self.last: tuple[NewPrediction, Services] | None = None
        self._listener = listener

    def listen(self, services: Services, new: NewPrediction) -> NewPrediction:
        heard = self._listener.listen(services, new)
        self.last = (new, services)
        return heard


class Run:
    """Files one call, and gives it up. `continues`: it runs on if its caller hangs up. So does one that another request
    has filed. `has_key`: a repeat finds it.
    """

    def __init__(self, request: Request, called: Called, asked: bodies.CreatePrediction, *, continues: bool) -> None:
        self.request = request
        self._called = called
        self._asked = asked
        self._continues = continues
        self._has_key = "idempotency-key" in request.headers

    async def file(self, listener: Listener) -> Filed:
        """File it. Each answer from then on has its id and its place in the queue."""
        request, deployment = self.request, self._called.deployment
        attempts = Attempts(listener)
        try:
            filed = await accept(
                request,
                self._called.version,
                self._asked,
                rate_token=request.rate_token,
                deployment=deployment,
                listener=attempts,
            )
        except BackendUnavailable as exc:
            if attempts.last is not None and not exc.is_untouched:  # Redis may have it, and its caller will call again
                new, services = attempts.last
                carry(request, raw({"x-request-id": new.id}))
                if not self._has_key:
                    give_up_later(request, new.id, services)
            raise
        self._continues |= filed.is_repeat
        if deployment:
            filed = await cancel_if_disabled(request, filed)
        carry(request, raw(headers_of(filed)))
        return filed

    async def give_up(self, record: Record, services: Services, *, is_refused: bool = False) -> None:
        """Cancel it, because its caller gets no more of it. `is_refused`: the caller was told to call again, and so it
        runs on only for a repeat.
        """
        if not (self._has_key if is_refused else self._continues):
            await give_up(self.request, record.id, services)

    async def find_moved(self, record: Record, services: Services) -> Services | None:
        """Return where it is now, or None if it has not moved, or not to a site of this API."""
        sites: Sites | None = self.request.sites
        if sites is None or services.is_leaving:
            return None
        with suppress(BackendUnavailable):
            known = await services.scripts.replay(record.id, after=0, count=0, most_bytes=0)
            return await sites.find_called(known.moved) if known and known.moved else None
        return None


def headers_of(filed: Filed) -> dict[str, str]:
    record, outlook = filed.stored.record, filed.stored.outlook
    headers = {"x-request-id": str(record.id)}
    if filed.is_repeat:
        headers["Idempotency-Replayed"] = "true"
    if outlook is not None:
        shown = place(outlook, record)
        headers |= {"X-Queue-Ahead": str(shown.ahead), "X-Queue-Reason": shown.reason}
        if shown.eta_s is not None:
            headers["X-Queue-Estimate"] = f"{shown.eta_s.p50:g}"
    return headers


# An answer that is not streamed


class Waiting:
    """A call's wait for its end. It keeps its room until it is left."""

    def __init__(self) -> None:
        self.wait = Wait()
        self._waiters: Waiters | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        if self._waiters is not None:
            self._waiters.give_back(self.wait)

    def listen(self, services: Services, new: NewPrediction) -> NewPrediction:
        self.leave()
        self._waiters = services.waiters
        waiter = self._waiters.reserve(new.id, self.wait, new.account, len(new.input))
        if waiter is None:
            raise QueueRefused("too_many_calls", retry_after_s=RETRY_S)
        return replace(new, waiter=waiter)


async def answer(run: Run) -> Response:
    with Waiting() as waiting:
        filed = await run.file(waiting)
        if filed.is_repeat:  # it waits for another one
            waiting.leave()
        stored = await _wait_for_end(run, filed, waiting)
    if stored is None:
        return Response(status_code=HUNG_UP)
    if stored.record.status is not Status.SUCCEEDED:
        return _refuse(failure_of(stored))
    if stored.output is None:
        raise errors.data_removed()
    if type_of(bytes(stored.output)) != "object":
        return _refuse(failure("model_failed", NO_CHUNK))
    return Response(bytes(stored.output), media_type=MEDIA_TYPE)


async def _wait_for_end(run: Run, filed: Filed, waiting: Waiting) -> Stored | None:
    """Return how the call ended, or None if its caller has left."""
    stored, services = filed.stored, filed.services
    record = stored.record
    if record.is_terminal:
        return stored
    ended: Ending | Stored | None = None
    why: Problem | None = None
    try:
        with watching(run.request) as gone:
            while ended is None and not gone.done() and why is None:
                ended = await services.waiters.wait_for_end(
                    record.id,
                    seconds=MOVED_S,
                    account=record.account,
                    weight=len(stored.input or b""),
                    wait=waiting.wait,
                    gone=gone,
                    stays=True,
                )
                if services.is_leaving:
                    why = errors.unavailable(LEAVING, retry_after=RETRY_S)
                elif ended is None:
                    services = await run.find_moved(record, services) or services
    finally:
        if ended is None:
            await run.give_up(record, services, is_refused=not gone.done())
    if ended is not None:
        return ended.of(stored) if isinstance(ended, Ending) else ended
    if gone.done() or why is None:
        return None
    raise why


def _refuse(failed: Failure) -> Response:
    return Response(failed.body, failed.status, headers=failed.headers, media_type=MEDIA_TYPE)


# A stream in the answer of its call


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
        self._services = filed.services
        self._following = following
        self._frames = Chunks(restarts=restarts, say=self._say)
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
                return _refuse(early.failure)
            except Cut as cut:
                return _refuse(cut.failure)
            except Exception:
                log.exception(FAULT, extra={"prediction": self._record.id})
                return _refuse(failure("internal", BROKEN))
            return _refuse(self._explain_stop())
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
        except Exception:
            log.exception(FAULT, extra={"prediction": self._record.id})
            rest = error_event(failure("internal", BROKEN))
        with anyio.move_on_after(LAST_WORDS_S) as limit:
            await self._head(rest)
        if limit.cancelled_caught:
            _hang_up(scope)
        return False

    async def _leave(self, *, is_refused: bool = False) -> None:
        """Read no more, and give the call up."""
        self._reading.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({self._reading})
            await self._run.give_up(self._record, self._services, is_refused=is_refused)

    def _explain_stop(self) -> Failure:
        """Return why the stream stopped before its call did."""
        message = LEAVING if self._services.is_leaving else STOPPED
        return failure("unavailable", message, status=503, retry_after_s=RETRY_S)

    async def _read(self) -> bool:
        """Read to the end, at each server to which the call moves. Returns False if that was cut off."""
        record, news, place = self._record, self._following.news, self._following.place
        with self._following:
            for _ in range(MOST_MOVES):
                if await self._services.readers.read(
                    *(record.id, self._frames, self._head),
                    account=record.account,
                    is_over=record.is_terminal,
                    news=news,
                    place=place,
                    stays=True,
                ):
                    return True
                there = await self._run.find_moved(record, self._services)
                if there is None:
                    return False
                self._services, news, place = there, None, None
            return False

    async def _say(self) -> tuple[bytes, float]:
        """Return the place in the queue as a comment."""
        readers = self._services.readers
        outlook = await read_outlook(self._services, self._record.id)
        text = KEEP_ALIVE if outlook is None else comment_of(outlook, self._record)
        return text, next_silence_s(readers.reading, waits=outlook is not None)


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
