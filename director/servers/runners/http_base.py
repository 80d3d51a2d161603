"""The base of runners of servers that speak HTTP: connections, questions, and runs with exactly one end each.

`HttpBase` implements all of the runner protocol but `_follow`. A plain HTTP server cannot be asked to restart: each
connection that breaks, and each wish for a restart, counts as a new start, or it would be in doubt for ever.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import aclosing, suppress
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import httpx
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.runner_config import WHOLE_INPUT, MappedConfig
from director.core.schema import TraceHeaders
from director.servers.runners import answers, openapi, outcomes
from director.servers.runners.inbox import Inbox
from director.servers.runners.runner import (
    Began,
    Capabilities,
    Ended,
    Health,
    HealthStatus,
    Hear,
    NoAnswer,
    Outcome,
    Produced,
    Progress,
    RunEvent,
    RunRequest,
)
from director.servers.runners.transport import NO_HEADERS, Exchange, OneServer, connection_lost, read_body, read_out

# Carry the events of one run from the code that follows it to the executor. A `Reporter` calls back at once. A `Feed`
# queues events: the server is read eagerly, since it drops what is not read in time. Neither holds much more than
# `read_ahead` bytes, reports `Began` twice, or lets anything through after `Ended`.

BEGAN_AFTER_S: Final = 0.03  # a refusal takes a millisecond: a server that is silent for this long has begun the run
EVENT_BYTES: Final = 200  # the memory of an event beside its data

# ends that only a run that began can have
RAN: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED})


class Reporter:
    """`complete`: adds to the end what is known of the output, also to the end of a run that is cut off."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self.complete: Callable[[Ended], Ended] = lambda ended: ended
        self.has_begun = False
        self.is_answered = False  # the head of the server's answer is there
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    def note_sent(self) -> None:
        """Note that the request has left. Unless the server answers within 30 ms, the run has begun."""
        self.note_answered()
        self.is_answered = False
        self._timer = asyncio.get_running_loop().call_later(BEGAN_AFTER_S, self.begin)

    def note_answered(self) -> None:
        self.is_answered = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def mute(self) -> None:
        self.note_answered()
        self._ended = True

    def begin(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._put(Began(), 0)

    def add(self, event: Progress, *, size: int = 0) -> None:
        self.begin()
        self._put(event, size)

    def end(self, ended: Ended) -> None:
        self.note_answered()
        if ended.outcome in RAN:
            self.begin()
        self._put(self.complete(ended), 0)
        self._ended = True

    async def room(self) -> None:
        """Wait until the events that wait for their reader are few. Here none waits."""

    def _put(self, event: RunEvent, size: int) -> None:
        if not self._ended:
            self._hear(event)


class Feed(Reporter):
    def __init__(self, *, read_ahead: int) -> None:
        super().__init__(lambda event: None)
        self._read_ahead = read_ahead
        self._events: deque[tuple[RunEvent, int]] = deque()
        self._held = 0
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    async def room(self) -> None:
        while self._held > self._read_ahead:
            self._taken.clear()
            await self._taken.wait()

    async def next(self) -> RunEvent:
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        event, size = self._events.popleft()
        self._held -= size
        self._taken.set()
        return event

    def _put(self, event: RunEvent, size: int) -> None:
        if self._ended:
            return
        size += EVENT_BYTES
        self._held += size
        self._events.append((event, size))
        self._arrived.set()


log = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 5.0
MOST_ASKED_BYTES: Final = 64 * 1024
REFUSAL_BYTES: Final = 64 * 1024  # read at most of an answer that is no end of a run

# The answers of a server that is there and not ready. Triton says 400, llama.cpp and TEI 503
NOT_YET: Final = frozenset({400, 425, 503})
NO_SUCH_PAGE: Final = frozenset({404, 405, 501})
SERVER_ERROR: Final = 500
# A server that is loading, or that wants a key, may say so at every path. Any other answer that it gives everywhere,
# such as 500 for a path that it does not know, says nothing of its health
SAID_BY_ALL: Final = frozenset({425, 503}) | answers.NO_ENTRY
# Where servers say whether they are ready, and the answers that mean "not yet" there. Each is tried once for each start
# of a server whose configuration names none. A readiness comes before a liveness
KNOWN_HEALTH: Final = {
    "/health": frozenset({425, 503}),
    "/v2/health/ready": NOT_YET,
    "/readyz": frozenset({425, 503}),
    "/healthz": frozenset({425, 503}),
    "/-/healthz": frozenset({425, 503}),
    "/ping": frozenset({425, 503}),
}

CLOSED: Final = Ended(outcome=Outcome.LOST, error="The director stopped following the run")
UNPROVEN: Final = "The model server's answer does not say where it ends"
HUNG_UP: Final = Ended(outcome=Outcome.CANCELED, error="The director hung up")

Events = TypeVar("Events", bound=Reporter)
End = TypeVar("End")

Follow = Callable[[RunRequest, Feed], Awaitable[Ended]]
"""Follows a run to its end. If it is canceled, it releases the server at once."""

FollowOne = Callable[[RunRequest, Reporter], Awaitable[Ended]]
"""The same for a run whose events are taken as they come, without flow control."""


class OpenRuns:
    """The open runs of one runner, each followed in a task of its own or in the task of the caller. A reader gets
    exactly one end, unless it stops itself. `read_ahead`: bytes that wait for the reader before the server has to wait.
    """

    def __init__(self, *, read_ahead: int) -> None:
        self._read_ahead = read_ahead
        self._open: dict[str, asyncio.Task[Any]] = {}
        self._stopped: dict[asyncio.Task[Any], Ended] = {}
        self._closed = False
        self._emptied = asyncio.Event()

    async def hear(self, request: RunRequest, follow: FollowOne, hear: Hear) -> None:
        reporter, task = Reporter(hear), asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: a coroutine runs in one
        asked = task.cancelling()
        self._open[request.id] = task
        try:
            ended = await self._end_of(request, reporter, follow)
        except asyncio.CancelledError:
            if task not in self._stopped or task.cancelling() > asked + 1:  # the caller itself was canceled
                reporter.mute()
                raise
            ended = self._stopped[task]
        finally:
            if self._forget(request, task) is not None:
                task.uncancel()
        reporter.end(ended)

    async def run(self, request: RunRequest, follow: Follow) -> AsyncGenerator[RunEvent, None]:
        """Yield the events of a run up to its end. Closed early, it releases the server before it returns."""
        feed = Feed(read_ahead=self._read_ahead)
        following = asyncio.create_task(self._end_of(request, feed, follow), name=f"run of {request.id}")
        self._open[request.id] = following
        # Here and not in the task: a task that is canceled before its first step runs no code of its own
        following.add_done_callback(lambda task: self._end(request, task, feed))
        try:
            while True:
                event = await feed.next()
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            if not following.done():
                following.cancel()
                await asyncio.wait({following})

    def hang_up(self, prediction_id: str) -> bool:
        following = self._open.get(prediction_id)
        if following is None:
            return False
        self._stop(following, HUNG_UP)
        return True

    async def aclose(self) -> None:
        self._closed = True
        for following in set(self._open.values()):
            self._stop(following, CLOSED)
        if self._open:
            self._emptied.clear()
            await self._emptied.wait()

    def _stop(self, following: asyncio.Task[Any], end: Ended) -> None:
        if following not in self._stopped:  # a second cancel would interrupt the release of the server
            self._stopped[following] = end
            following.cancel()

    async def _end_of(
        self, request: RunRequest, events: Events, follow: Callable[[RunRequest, Events], Awaitable[Ended]]
    ) -> Ended:
        try:
            return CLOSED if self._closed else await follow(request, events)
        except Exception as exc:  # a fault of the runner is the end of this run: its caller must hear of it
            log.exception("following a run failed", extra={"prediction": request.id})
            # an answer that this director cannot digest would be the same again
            is_same_again = events.is_answered and not isinstance(exc, OSError)
            outcome = Outcome.FAILED if is_same_again else Outcome.LOST
            return Ended(outcome=outcome, error=f"Following the run failed: {type(exc).__name__}")

    def _end(self, request: RunRequest, task: asyncio.Task[Ended], feed: Feed) -> None:
        stopped = self._forget(request, task) or CLOSED
        feed.end(stopped if task.cancelled() else task.result())

    def _forget(self, request: RunRequest, task: asyncio.Task[Any]) -> Ended | None:
        if self._open.get(request.id) is task:
            del self._open[request.id]
        if not self._open:
            self._emptied.set()
        return self._stopped.pop(task, None)


class RunnerOptions(Struct, frozen=True, kw_only=True):
    """The place and the bounds of one model server.

    `max_body`: the bytes read at most of one answer, of one event, or of a run ahead of its reader. `max_files`: of all
    files that one run uploads. `inbox`: where a Cog server can call back. `trains`: a Cog server that was started to
    train (`--x-mode train`) and never streams. `headers`: secrets that go with every request.
    """

    url: str
    slots: int = 1
    max_body: int = 64 << 20
    max_files: int = 1 << 30
    inbox: Inbox | None = None
    trains: bool = False
    headers: Mapping[str, str] = NO_HEADERS


class HttpBase(ABC):
    """A runner of one server. `health_paths`: the first that the server has is used; None to look for the known ones.
    `schema`: if it shows none.
    """

    capabilities = Capabilities()

    def __init__(
        self, options: RunnerOptions, *, name: str, health_paths: Sequence[str] | None = (), schema: Raw | None = None
    ) -> None:
        self.url = options.url.rstrip("/")
        self._name = name
        self._max_body = options.max_body
        self._health_paths = health_paths
        self._looks_for_health = health_paths is None
        self._schema = schema
        self._server = OneServer(self.url, keep=options.slots + 1, headers=options.headers)
        self._runs = OpenRuns(read_ahead=options.max_body)
        self._starts = 0
        self._forgives = 0  # how often a 403 is about the input until a run succeeds

    @abstractmethod
    async def _follow(self, request: RunRequest, feed: Feed) -> Ended: ...

    async def health(self) -> Health:
        """Look once. A server that was never ready and one that is busy starting look the same."""
        answer, path = answers.Answer(), ""
        since = str(self._starts)
        if self._health_paths is None:
            return await self._look_for_health(since)
        for path in self._health_paths:
            answer = await self._ask("GET", path or "/")
            if answer.trouble:
                if self._looks_for_health:  # it may come back as another server
                    self._health_paths = None
                return no_health(answer)
            if answer.is_ok or not path:
                return Health(status=HealthStatus.READY, server=self._name, since=since)
            if answer.status not in NO_SUCH_PAGE:
                break
        refused = _not_ready(answer, path, NOT_YET)
        if self._looks_for_health and answer.status in NO_SUCH_PAGE:  # behind a proxy another server may have come
            return await self._look_for_health(since, unless=refused)
        return refused

    async def _look_for_health(self, since: str, *, unless: Health | None = None) -> Health:
        """Ask the known paths in turn, and keep the first that the server has. Without one, return `unless` if there is
        such a verdict; else any answer means ready.
        """
        anywhere = await self._ask("GET", "/")
        for path, not_yet in KNOWN_HEALTH.items():
            answer = await self._ask("GET", path)
            if answer.trouble:
                return no_health(answer)
            if answer.is_ok:
                self._health_paths = [path]
                break
            is_said = answer.status in not_yet | answers.NO_ENTRY or answer.status >= SERVER_ERROR
            is_said_anywhere = answer.status == anywhere.status and answer.status not in SAID_BY_ALL
            if is_said and not is_said_anywhere and answer.status not in NO_SUCH_PAGE:
                return _not_ready(answer, path, not_yet)
        else:
            if unless is not None:  # a proxy may say 404 to everything while its server is away
                return unless
            self._health_paths = [""]
        return Health(status=HealthStatus.READY, server=self._name, since=since)

    async def openapi_schema(self) -> Raw | None:
        return self._schema

    def run(self, request: RunRequest) -> AsyncGenerator[RunEvent, None]:
        return self._runs.run(request, self._follow_to_end)

    async def _follow_to_end(self, request: RunRequest, feed: Any) -> Ended:
        ended = await self._settle(await self._follow(request, feed))
        if ended.outcome is Outcome.SUCCEEDED:
            self._forgives = outcomes.MOST_FORBIDDEN
        return ended

    async def _settle(self, ended: Ended) -> Ended:
        """Ask the server how it is, if that decides what the end means."""
        if ended.error is not None:
            ended = replace(ended, error=self._server.without_secrets(ended.error))
        if not ended.in_doubt:
            return ended
        if ended.outcome is Outcome.SUCCEEDED:
            ended = replace(ended, error=UNPROVEN)
        for _ in range(outcomes.MOST_ASKED):
            if not (health := await self.health()).is_silent:
                break
        is_forbidden = ended.outcome is Outcome.INVALID
        ended = outcomes.settle(ended, health, restarts=self.capabilities.restarts, lets_in=self._forgives > 0)
        if is_forbidden and not ended.is_locked:
            self._forgives -= 1
        if ended.outcome is Outcome.SUCCEEDED:
            return replace(ended, error=None)
        if ended.server_is_dead:
            self._starts += 1
        return ended

    def knows(self, remote: str) -> bool:
        return False

    async def cancel(self, prediction_id: str) -> bool:
        return self._runs.hang_up(prediction_id)

    async def shutdown(self) -> bool:
        self._starts += 1
        return False

    async def aclose(self) -> None:
        await self._runs.aclose()
        await self._server.aclose()

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        limit: int = MOST_ASKED_BYTES,
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> answers.Answer:
        """Ask something that is answered soon. Never raises: an answer that did not come has its `trouble`. A GET on a
        connection that breaks is sent again on a new one: some servers close a connection after an answer.
        """
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await self._ask_once(method, path, content, limit)
                except (httpx.ReadError, httpx.RemoteProtocolError):
                    if method != "GET":
                        raise
                    return await self._ask_once(method, path, content, limit, on_new=True)
        except TimeoutError:
            return answers.Answer(trouble=f"The model server did not answer within {timeout_s:g} s", is_silent=True)
        except httpx.TransportError as exc:
            why = answers.one_line(str(exc)) or type(exc).__name__
            is_silent = isinstance(exc, httpx.TimeoutException)
            return answers.Answer(trouble=f"The model server cannot be reached: {why}", is_silent=is_silent)

    async def _ask_once(
        self, method: str, path: str, content: bytes, limit: int, *, on_new: bool = False
    ) -> answers.Answer:
        response = await self._server.send(method, path, content=content, on_new=on_new)
        async with aclosing(response):
            return await receive(response, limit)

    def _lose(self, exc: httpx.TransportError, *, has_begun: bool) -> Ended:
        self._starts += 1  # it may have restarted
        return connection_lost(exc, has_begun=has_begun)


def no_health(answer: answers.Answer) -> Health:
    return Health(status=HealthStatus.UNREACHABLE, detail=answer.trouble, is_silent=answer.is_silent)


def _not_ready(answer: answers.Answer, path: str, not_yet: Set[int]) -> Health:
    said = f"{answers.status_of(answer, asked=f'GET {path}' if path else 'GET /')}: {answers.read_words(answer)}"
    status = HealthStatus.STARTING if answer.status in not_yet else HealthStatus.UNHEALTHY
    return Health(status=status, detail=said.removesuffix(": "), is_locked=answer.status in answers.NO_ENTRY)


async def receive(response: Exchange, limit: int) -> answers.Answer:
    """Read up to `limit` bytes of a 2xx answer, and up to 64 KiB of any other."""
    limit = limit if response.is_success else min(limit, REFUSAL_BYTES)
    body, complete = await read_body(response, limit)
    headers, unpacker, packed = response.headers, None, ""
    if encoding := answers.encoding_in(headers):
        try:
            unpacker = answers.Unpacker(encoding, limit)
            body = unpacker.feed(body)
            if complete:
                unpacker.end()
        except answers.FrameTooLarge:
            complete = False
        except answers.Unreadable as exc:
            # a body that does not even begin so is as it says itself
            packed = str(exc) if unpacker is None or unpacker.has_begun else ""
    return answers.Answer(
        status=response.status_code,
        body=body,
        complete=complete,
        headers=headers,
        is_framed=response.is_framed,
        packed=packed,
    )


async def unpack(response: Exchange, most: int) -> AsyncGenerator[bytes, None]:
    """Yield the body as it comes. Raises Unreadable."""
    unpacker = answers.Unpacker(encoding, most) if (encoding := answers.encoding_in(response.headers)) else None
    async for chunk in response.chunks():
        yield chunk if unpacker is None else unpacker.feed(chunk)
    if unpacker is not None:
        unpacker.end()


class StreamReader(ABC, Generic[End]):
    def __init__(
        self, request: RunRequest, feed: Reporter, max_body: int, *, parser: answers.Parser | None = None
    ) -> None:
        self._request = request
        self._feed = feed
        self._max_body = max_body
        self._parser = parser or answers.SseParser(max_body)

    @abstractmethod
    def _take(self, frame: answers.Frame) -> End | Ended | None:
        """Report one event. Raises Unreadable for one that the run needs and that cannot be read."""

    def _cut_off(self, exc: answers.Unreadable) -> End | Ended | None:
        """Return the end of a stream whose last event is cut off; None if its end is missing anyway."""
        return None

    async def follow(self, chunks: AsyncGenerator[bytes, None]) -> End | Ended | None:
        """Report what comes, as fast as its reader takes it. Returns None if the stream stops without an end."""
        async with aclosing(chunks):
            try:
                async for chunk in chunks:
                    if (ended := self._read(self._parser.feed, chunk)) is not None:
                        if not isinstance(ended, Ended) or ended.outcome is Outcome.SUCCEEDED:
                            with suppress(answers.Unreadable, answers.FrameTooLarge):  # the end has come
                                await read_out(chunks)  # after a fault the server may go on for long: hang up
                        return ended
                    await self._feed.room()
            except answers.FrameTooLarge:
                return answers.too_large(self._max_body)
            except answers.Unreadable as exc:
                return answers.unreadable("The model server's stream is", exc, b"")
        return self._read(lambda _: self._parser.end(), b"", is_last=True)

    def _read(
        self, parse: Callable[[bytes], list[answers.Frame]], chunk: bytes, *, is_last: bool = False
    ) -> End | Ended | None:
        data = b""
        try:
            for frame in parse(chunk):
                data = frame.data
                if (ended := self._take(frame)) is not None:
                    return ended
        except answers.FrameTooLarge:
            return answers.too_large(self._max_body)
        except answers.Unreadable as exc:
            if is_last:
                return self._cut_off(exc)
            return answers.unreadable("An event of the model server's stream is", exc, data)
        return None


class OutputReader(StreamReader[Ended]):
    """Takes the pieces of a stream as outputs, and shows each if the caller asked to see them."""

    def __init__(
        self, request: RunRequest, feed: Reporter, max_body: int, *, parser: answers.Parser | None = None
    ) -> None:
        super().__init__(request, feed, max_body, parser=parser)
        self._items: list[bytes] = []
        self._bytes = 0
        self._metrics: dict[str, Raw] = {}

    def _produce(self, item: bytes, *, tokens: int = 0) -> Ended | None:
        self._bytes += len(item) + 1
        if self._bytes > self._max_body:
            return answers.too_large(self._max_body)
        if self._request.wants_progress:
            self._feed.add(Produced(Raw(item), len(self._items), tokens), size=len(item))
        self._items.append(item)
        return None


class MappedRunner(HttpBase):
    """The base of runners whose configuration maps inputs to requests and answers to outputs."""

    def __init__(self, config: MappedConfig, options: RunnerOptions) -> None:
        super().__init__(
            options,
            name=str(config.__struct_config__.tag),
            health_paths=None if config.health is None else [config.health],
            schema=openapi.document(config.input_schema, config.output_schema, title=config.model),
        )
        self._config = config
        self._path = self._path_in(config.path)
        self._method = "POST"

    async def openapi_schema(self) -> Raw | None:
        config = self._config
        if self._schema is not None or not config.openapi or config.input != WHOLE_INPUT:
            return self._schema
        answer = await self._ask("GET", config.openapi, limit=openapi.MOST_BYTES)
        if answer.trouble:
            raise NoAnswer(answer.trouble)
        if not answer.is_ok or not answer.complete:
            return None
        return openapi.read_schema(
            answer.body, self._path, is_form=getattr(config, "body", "json") == "form", title=config.model
        )

    async def _post(self, body: bytes, *feeds: Reporter, trace: TraceHeaders) -> answers.Answer:
        """Send one request, for one run or for several, and read the answer. Raises `httpx.TransportError`."""
        response = await self._send_request(body, *feeds, trace=trace)
        try:
            return await receive(response, self._max_body)
        finally:
            response.close()

    async def _send_request(self, body: bytes, *feeds: Reporter, trace: TraceHeaders) -> Exchange:
        """Send one request, and return its answer once its head is there. The caller closes it."""

        def sent() -> None:
            for feed in feeds:
                feed.note_sent()

        response = await self._server.send(self._method, self._path, content=body, trace=trace, sent=sent)
        for feed in feeds:
            feed.note_answered()
            if response.is_success:
                feed.begin()
        return response

    def _judge_refusal(self, answer: answers.Answer) -> Ended:
        return answers.judge_refusal(answer, error=self._config.error, busy=self._config.busy)

    def _path_in(self, template: str) -> str:
        return template.replace("{model}", quote(self._config.model, safe=""))
