"""Follow one run on a Cog server, over one of three transports; `cog.py` chooses which.

`put_sync` holds a PUT open until the run has ended; callbacks add progress, and to a failure its logs and partial
output, and come late, twice and in any order. `put_stream` reads the event stream of its PUT. `put_called` is for
servers that hear nothing else while they hold a PUT open: the last callback, repeated for minutes, is the end.
A stream that breaks off, or a server that is idle without an end, means that the run is lost.
"""

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.servers.runners import answers, cog_answers, outcomes
from director.servers.runners.http_base import RAN, Feed, StreamReader, receive
from director.servers.runners.inbox import Inbox, Mailbox
from director.servers.runners.outcomes import Observation
from director.servers.runners.runner import Ended, HealthStatus, Logged, Measured, Outcome, Produced, RunRequest
from director.servers.runners.transport import Exchange, OneServer

COMPLETED_WITHIN_S: Final = 0.25  # the last callback comes within 1 ms of the answer, or hardly ever
ACCEPTED: Final = 202
PROGRESS: Final = ("output", "logs")
LOOK_AFTER_S: Final = 1.0
REPORTED_WITHIN_S: Final = 5.0  # the last callback is sent before the server reports that it is ready again
GONE: Final = frozenset({HealthStatus.UNREACHABLE, HealthStatus.DEFUNCT, HealthStatus.SETUP_FAILED})
NO_END: Final = Ended(outcome=Outcome.LOST, error="The model server is done with the run and never reported its end")
LAGGED: Final = "events were dropped"  # coglet keeps 1,024 events for a slow reader


class Run(Struct, frozen=True, kw_only=True):
    request: RunRequest
    known: cog_answers.Known
    max_body: int
    path: str
    attempt: str = msgspec.field(default_factory=lambda: secrets.token_hex(4))

    @property
    def key(self) -> str:
        """A name for callbacks of this attempt alone, so that late callbacks of an earlier one are dropped."""
        return f"{self.request.id}.{self.attempt}"


class _Create(Struct, omit_defaults=True):
    id: str  # Cog 0.10 refuses a body without it
    input: Raw
    webhook: str | None = None
    webhook_events_filter: tuple[str, ...] = ()


def create_body(run: Run, *, webhook: str | None = None, events: tuple[str, ...] = ()) -> bytes:
    return msgspec.json.encode(_Create(run.request.id, run.request.input, webhook, events))


async def read_whole(run: Run, response: Exchange) -> Ended | cog_answers.Again:
    answer = await receive(response, run.max_body)
    if answer.status == 200 and not answer.complete:
        return answers.too_large(run.max_body)
    return cog_answers.read_answer(answer, prediction_id=run.request.id, coglet=run.known.coglet)


class Progress:
    """Returns what is new in each snapshot of one run. Snapshots may come late, twice or in the wrong order. Pure.
    Progress only grows. Items are reported only if the output is an array: other models' snapshots have a list that the
    end does not have.
    """

    def __init__(self, *, is_array: bool) -> None:
        self._is_array = is_array
        self._items = 0
        self._chars = 0

    def news(self, *, output: Raw | None, logs: str | None) -> Iterator[Logged | Produced]:
        if logs and len(logs) > self._chars:
            yield Logged(logs[self._chars :])
            self._chars = len(logs)
        if self._is_array and output is not None:
            items = _items(output)
            for index in range(self._items, len(items)):
                yield Produced(items[index].copy(), index)  # a copy: the item must not keep the snapshot alive
            self._items = max(self._items, len(items))


def _items(output: Raw) -> list[Raw]:
    try:
        return answers.read_json(bytes(answers.legible(output)), list[Raw])
    except answers.Unreadable:
        return []  # not an array after all; the end has the output


async def put_sync(server: OneServer, run: Run, feed: Feed, *, inbox: Inbox | None) -> Ended | cog_answers.Again:
    """Start the run and wait for its answer. Without an inbox there is no progress, and coglet's failures have no logs.
    Raises `httpx.TransportError` when the connection breaks.
    """
    # Each callback costs the server, and holds the slot of a Python one
    events = PROGRESS if run.request.wants_progress else ()
    events = events if run.known.kind.tells_all_at_end else (*events, "completed")
    async with _reading(run, feed, inbox if events else None) as callbacks:
        body = create_body(run, webhook=callbacks.url, events=events if callbacks.url else ())
        response = await server.send("PUT", run.path, content=body, trace=run.request.trace, sent=feed.note_sent)
        async with aclosing(response):
            feed.note_answered()
            ended = await read_whole(run, response)
        if isinstance(ended, cog_answers.Again):
            return ended
        if response.status_code == 200 and not run.known.kind.tells_all_at_end:
            ended = await callbacks.complete(ended)
    if ended.outcome in RAN:
        callbacks.report(ended.output, ended.logs, size=0)  # progress that came too late as a callback
    return ended


@asynccontextmanager
async def _reading(run: Run, feed: Feed, inbox: Inbox | None) -> AsyncIterator["_Callbacks"]:
    if inbox is None:
        yield _Callbacks(run, feed)
        return
    with inbox.subscribe(run.key) as mailbox:
        callbacks = _Callbacks(run, feed, mailbox, url=inbox.url_for(run.key))
        reading = asyncio.create_task(callbacks.read(), name=f"callbacks of {run.request.id}")
        try:
            yield callbacks
        finally:
            reading.cancel()
            await asyncio.wait({reading})


async def put_called(
    server: OneServer,
    run: Run,
    feed: Feed,
    *,
    inbox: Inbox,
    look: Callable[[], Awaitable[cog_answers.Sighting]],
    accepted: Callable[[], None],
) -> Ended | cog_answers.Again:
    """Start the run and wait for the callback with its end. No earlier run of its id may be left on the server.
    Raises `httpx.TransportError` when the connection breaks before the server took the run.
    """
    with inbox.subscribe(run.key) as mailbox:
        events = (*PROGRESS, "completed") if run.request.wants_progress else ("completed",)
        body = create_body(run, webhook=inbox.url_for(run.key), events=events)
        response = await server.send(
            "PUT", run.path, content=body, prefer="respond-async", trace=run.request.trace, sent=feed.note_sent
        )
        async with aclosing(response):
            feed.note_answered()
            if response.status_code != ACCEPTED:
                return await read_whole(run, response)
        accepted()
        feed.begin()
        return await _Callbacks(run, feed, mailbox).end(look)


class _Callbacks:
    def __init__(self, run: Run, feed: Feed, mailbox: Mailbox | None = None, *, url: str | None = None) -> None:
        self.url = url
        self._run = run
        self._feed = feed
        self._mailbox = mailbox or Mailbox(max_bytes=0)
        self._progress = Progress(is_array=run.known.is_array) if run.request.wants_progress else None
        self._last: cog_answers.Snapshot | None = None
        self._completed = asyncio.Event()

    def report(self, output: Raw | None, logs: str | None, *, size: int) -> None:
        if self._progress is not None:
            for event in self._progress.news(output=output, logs=logs):
                self._feed.add(event, size=size)

    async def _next(self) -> tuple[cog_answers.Snapshot, bytes]:
        while True:
            body = await self._mailbox.get()
            with suppress(answers.Unreadable):  # no snapshot: the answer or the server's health has the end
                return cog_answers.read_snapshot(body, prediction_id=self._run.request.id), body

    async def read(self) -> None:
        while True:
            snapshot, body = await self._next()
            if snapshot.is_terminal:
                self._last = snapshot
                self._completed.set()
            else:
                output = snapshot.output_or_none if self._run.known.shows_output else None
                self.report(output, snapshot.logs, size=len(body))

    async def complete(self, ended: Ended) -> Ended:
        if self.url is None or ended.outcome is Outcome.SUCCEEDED:
            return ended
        with suppress(TimeoutError):
            async with asyncio.timeout(COMPLETED_WITHIN_S):
                await self._completed.wait()
        last = self._last
        if last is None or cog_answers.OUTCOMES[last.status] is Outcome.SUCCEEDED:
            return ended
        # coglet's callbacks have a list of items, also of a model that yields nothing
        output = ended.output or (answers.legible_or_none(last.output_or_none) if self._run.known.is_array else None)
        return replace(ended, logs=ended.logs or last.logs, output=output)

    async def end(self, look: Callable[[], Awaitable[cog_answers.Sighting]]) -> Ended:
        now = asyncio.get_running_loop().time
        idle_since: float | None = None
        while True:
            try:
                async with asyncio.timeout(LOOK_AFTER_S):
                    snapshot, body = await self._next()
            except TimeoutError:
                health = (await look()).health
                if health.status in GONE:
                    error = f"The model server went away under the run: {health.detail}"
                    return Ended(outcome=Outcome.LOST, error=error, server_is_dead=True)
                idle_since = None if health.status is HealthStatus.BUSY else (idle_since or now())
                if idle_since is not None and now() - idle_since >= REPORTED_WITHIN_S:
                    return NO_END
                continue
            if not snapshot.is_terminal:
                self.report(snapshot.output_or_none, snapshot.logs, size=len(body))
                continue
            ended = cog_answers.read_end(body, prediction_id=self._run.request.id, coglet=self._run.known.coglet)
            if ended.outcome in RAN:
                self.report(snapshot.output_or_none, snapshot.logs, size=len(body))
            return ended


class _Log(Struct):
    data: str


class _Chunk(Struct):
    chunk: Raw


class _Metric(Struct):
    name: str
    value: Raw
    mode: str = "replace"


class _Error(Struct):
    error: str = ""


async def put_stream(
    server: OneServer, run: Run, feed: Feed, *, accepted: Callable[[], None] = lambda: None
) -> Ended | cog_answers.Again:
    """Start the run and follow it. `accepted`: called when the server took it. Raises `httpx.TransportError`."""
    response = await server.send(
        "PUT",
        run.path,
        content=create_body(run),
        accept=answers.EVENT_STREAM,
        trace=run.request.trace,
        sent=feed.note_sent,
    )
    async with aclosing(response):
        feed.note_answered()
        if response.status_code != 200 or answers.kind_in(response.headers) != answers.EVENT_STREAM:
            return await read_whole(run, response)
        accepted()
        if (ended := await _Reader(run, feed).follow(_chunks(response))) is not None:
            return ended
    return outcomes.end(Observation.ENDLESS, "The model server's event stream stopped before the run had ended")


async def _chunks(response: Exchange) -> AsyncGenerator[bytes, None]:
    """Yield the body as it comes, and ask the kernel after every read to acknowledge at once: coglet leaves Nagle's
    algorithm on, so while an acknowledgement is delayed it sends nothing more for 40 ms.
    """
    connected = response.socket if hasattr(socket, "TCP_QUICKACK") else None  # only Linux has it

    def acknowledge() -> None:
        if connected is not None:
            with suppress(OSError):  # the server has just closed the connection: the next read fails
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    acknowledge()
    async for chunk in response.chunks():
        acknowledge()
        yield chunk


class _Reader(StreamReader[cog_answers.Again]):
    def __init__(self, run: Run, feed: Feed) -> None:
        super().__init__(run.request, feed, run.max_body)
        self._known = run.known
        self._produced = 0

    def _take(self, frame: answers.Frame) -> Ended | cog_answers.Again | None:
        match frame.event:
            case "start":
                self._feed.begin()
            case "completed":
                return cog_answers.read_end(frame.data, prediction_id=self._request.id, coglet=self._known.coglet)
            case "error":
                why = _why(frame)
                if LAGGED in why:
                    return cog_answers.Again.LAGGED
                error = f"The model server's event stream broke off: {why}"
                return outcomes.end(outcomes.read_stream_error(0, why), error)
            case "log" | "output" | "metric" if self._request.wants_progress:
                with suppress(answers.Unreadable):  # the last event has all of it
                    self._progress(frame)
            case _:
                pass  # an event of a later version
        return None

    def _progress(self, frame: answers.Frame) -> None:
        size = len(frame.data)
        match frame.event:
            case "log":
                self._feed.add(Logged(answers.read_json(frame.data, _Log).data), size=size)
            case "metric":
                metric = answers.read_json(frame.data, _Metric)
                self._feed.add(Measured(metric.name, answers.legible(metric.value), metric.mode), size=size)
            case "output" if self._known.is_array:
                item = answers.legible(answers.read_json(frame.data, _Chunk).chunk)
                self._feed.add(Produced(item, self._produced), size=size)
                self._produced += 1


def _why(frame: answers.Frame) -> str:
    try:
        return answers.one_line(answers.read_json(frame.data, _Error).error)
    except answers.Unreadable:
        return answers.excerpt(frame.data)
