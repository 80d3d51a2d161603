"""Run predictions on a server that answers a POST with an id, and is asked again and again what became of it.

The slot is held for the whole run. The id is told as soon as it is known: whoever takes the prediction over asks for
the same run. Never sends a run twice, and believes no word for how it stands that the configuration does not know.
"""

import asyncio
import hashlib
import math
import socket
from collections.abc import AsyncGenerator, Mapping
from enum import Enum
from typing import Final
from urllib.parse import quote, urlsplit

import httpx
from msgspec import Raw

from director.core.json_pointer import Pointer
from director.core.runner_config import PollingConfig
from director.runners.connections import NO_HEADERS, Connection
from director.runners.feed import Feed
from director.runners.http.answers import Answer, mapped_end, mapped_error, read_document, refused, too_large
from director.runners.http.open_runs import OpenRuns
from director.runners.http.openapi import openapi
from director.runners.http.server import HttpServer, post
from director.runners.reasons import NO_ENTRY, locked
from director.runners.runner import Accepted, Capabilities, Ended, Health, Outcome, RunEvent, RunRequest
from director.runners.untrusted import Unreadable, one_line, read_json

__all__ = ("PollStatus", "PollingRunner")

MOST_ID_CHARS: Final = 256
# A server that knows no such run, or no longer, has lost it
FORGOTTEN: Final = frozenset({404, 410})
LOOPBACK: Final = ("localhost", "127.", "::1")


class PollStatus(Enum):
    """How a run stands, whatever word the server has for it."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"


class PollingRunner:
    """One such server with `slots` slots. `max_body`: the most that is read of one answer."""

    capabilities = Capabilities(resumes=True)

    def __init__(
        self, url: str, config: PollingConfig, *, slots: int = 1, max_body: int, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self.url = url.rstrip("/")
        self._config = config
        self._max_body = max_body
        self._path = config.path.replace("{model}", quote(config.model, safe=""))
        self._words = {word.casefold(): status for status in PollStatus for word in getattr(config, status.value)}
        self._server = HttpServer(self.url, slots=slots, name="polling", health_paths=[config.health], headers=headers)
        self._runs = OpenRuns(read_ahead=max_body)
        self._jobs: dict[str, _Job] = {}
        self._scope = _scope(self.url)

    async def health(self) -> Health:
        """Look once, at the configured path."""
        return await self._server.health()

    async def openapi_schema(self) -> Raw | None:
        """Made of the configured schemas, if there are any."""
        return openapi(self._config.input_schema, self._config.output_schema, title=self._config.model)

    def run(self, request: RunRequest) -> AsyncGenerator[RunEvent, None]:
        """Start a run, or find the one that it already is, and ask until its end. Closed early, it asks no more."""
        return self._runs.run(request, self._follow)

    def knows(self, remote: str) -> bool:
        """Was that told by a runner of this server?"""
        return remote.startswith(self._scope)

    async def cancel(self, prediction_id: str) -> bool:
        """Ask the server to stop it, where it can be asked. Else nobody follows it further, and it ends as canceled."""
        job = self._jobs.get(prediction_id)
        if job is None or not self._config.cancel_endpoint_template:
            return self._runs.hang_up(prediction_id)
        job.is_unwanted = True
        if not job.id:  # it is being sent, and cannot be stopped before its id is known
            return True
        heard = await self._stop(job)
        job.wake.set()
        return heard

    async def shutdown(self) -> bool:
        """Such a server cannot be asked."""
        self._server.count_as_new()
        return False

    async def aclose(self) -> None:
        """Let go of every run and every connection."""
        await self._runs.aclose()
        await self._server.aclose()

    async def _follow(self, request: RunRequest, feed: Feed) -> Ended:
        job = self._jobs[request.id] = _Job(
            request.remote.removeprefix(self._scope) if self.knows(request.remote) else ""
        )
        try:
            async with self._server.lend() as connection:
                if not job.id and (refusal := await self._submit(connection, request, job, feed)) is not None:
                    return refusal
                feed.add(Accepted(self._scope + job.id), size=len(job.id))
                if job.is_unwanted:
                    await self._stop(job)
                return await self._until_ended(connection, job)
        finally:
            if self._jobs.get(request.id) is job:
                del self._jobs[request.id]

    async def _submit(self, connection: Connection, request: RunRequest, job: "_Job", feed: Feed) -> Ended | None:
        try:
            body = self._config.input.fill(request.input)
            answer = await post(connection, self._path, body, feed, limit=self._max_body)
        except httpx.TransportError as exc:
            return self._server.lost(exc, has_begun=feed.has_begun)
        if not answer.is_ok:
            return refused(answer, error=self._config.error)
        try:
            job.id = _id_at(read_document(answer.body), self._config.id_field)
        except Unreadable as exc:
            return Ended(outcome=Outcome.LOST, error=f"The model server's answer is {exc}")
        return None

    async def _until_ended(self, connection: Connection, job: "_Job") -> Ended:
        now = asyncio.get_running_loop().time
        config, silent_since = self._config, math.inf
        until = now() + config.longest_s
        while (asked_at := now()) < until:
            path = self._path_of(config.poll_endpoint_template, job)
            answer = await self._server.ask(
                "GET", path, connection=connection, limit=self._max_body, timeout_s=config.away_s
            )
            pause_s = config.interval_s
            match self._read(answer):
                case Ended() as ended:
                    return ended
                case str() as trouble:
                    silent_since = min(
                        silent_since, asked_at
                    )  # not since the last answer, which may be an interval ago
                    if now() - silent_since >= config.away_s:
                        return self._given_up(trouble, is_away=isinstance(answer, str))
                    pause_s = min(pause_s, config.away_s)
                case None:
                    silent_since = math.inf
            await job.pause(min(pause_s, until - now()))
        await self._stop(job)
        return Ended(outcome=Outcome.FAILED, error=f"It ran for longer than {config.longest_s:g} s")

    def _read(self, answer: Answer | str) -> Ended | str | None:
        """What an answer to a poll says: the end, nothing new, or (as text) nothing that can be understood."""
        if isinstance(answer, str):
            return answer
        if answer.status in FORGOTTEN:
            return Ended(outcome=Outcome.LOST, error=f"{refused(answer).error}: the run is not known there any more")
        if answer.status in NO_ENTRY:  # the run goes on, for whoever has the right key
            return locked(answer.status)
        if not answer.is_ok:
            return refused(answer).error or ""
        if not answer.complete:
            return too_large(self._max_body)
        try:
            document = read_document(answer.body)
        except Unreadable as exc:
            return f"The model server's answer is {exc}"
        said = self._config.status.find(document)
        if said is None:
            return f"The model server's answer has nothing at {self._config.status.text}"
        return self._judge(_word(said), document)

    def _judge(self, word: str, document: Raw) -> Ended | None:
        match self._words.get(word.casefold()):
            case PollStatus.RUNNING:
                return None
            case PollStatus.DONE:
                return mapped_end(document, self._config)
            case PollStatus.FAILED:
                why = mapped_error(document, self._config.error)
                return Ended(outcome=Outcome.FAILED, error=why or "The model failed without saying why")
            case PollStatus.CANCELED:
                return Ended(outcome=Outcome.CANCELED, error=mapped_error(document, self._config.error) or None)
            case _:
                return Ended(
                    outcome=Outcome.FAILED,
                    error=f"The model server says that the run is {one_line(word)!r}, a word that is not configured",
                )

    def _given_up(self, trouble: str, *, is_away: bool) -> Ended:
        if is_away:
            self._server.count_as_new()
        return Ended(outcome=Outcome.LOST, error=trouble, server_is_dead=is_away)

    async def _stop(self, job: "_Job") -> bool:
        if not self._config.cancel_endpoint_template:
            return False
        path = self._path_of(self._config.cancel_endpoint_template, job)
        answer = await self._server.ask(self._config.cancel_method, path)
        return not isinstance(answer, str) and answer.is_ok

    def _path_of(self, template: str, job: "_Job") -> str:
        return template.replace("{model}", quote(self._config.model, safe="")).replace("{id}", quote(job.id, safe=""))


class _Job:
    """A run under the name that its server gave it, '' before it did. `wake`: ask now, and not when it is time."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.is_unwanted = False
        self.wake = asyncio.Event()

    async def pause(self, seconds: float) -> None:
        """Until it is time to ask again."""
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            return
        self.wake.clear()


def _id_at(document: Raw, id_field: Pointer) -> str:
    found = id_field.find(document)
    try:
        name = str(read_json(bytes(found or b""), str | int))  # type: ignore[arg-type]
    except Unreadable:
        name = ""
    # dots alone would lead elsewhere in a path
    if len(name) > MOST_ID_CHARS or not name.isprintable() or not name.strip("."):
        raise Unreadable(f"without an id at {id_field.text or 'its top'}")
    return name


def _word(value: Raw) -> str:
    """A text as it is; a number, true or false as it is written."""
    try:
        return read_json(bytes(value), str)
    except Unreadable:
        return bytes(value).decode(errors="replace")


def _scope(url: str) -> str:
    """What an id is unique in: its server. At a loopback address each machine, or pod, has another one."""
    host = urlsplit(url).hostname or ""
    where = f"{socket.gethostname()} {url}" if host.startswith(LOOPBACK) else url
    return hashlib.sha256(where.encode()).hexdigest()[:12] + ":"
