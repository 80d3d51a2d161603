"""Run predictions on a server that answers a POST with an id, and poll it for the state of the run.

The slot is in use for the whole run, also if the prediction was canceled. The id is reported as soon as it is known, so
that the next director of the prediction polls the same run. Never sends a run twice, and fails on an unknown state.
"""

import asyncio
import hashlib
import math
import socket
from enum import Enum
from typing import Final
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.json_pointer import Pointer
from director.core.runner_config import PollingConfig
from director.servers.runners import answers
from director.servers.runners.http_base import HUNG_UP, Feed, MappedRunner, RunnerOptions
from director.servers.runners.runner import Accepted, Capabilities, Ended, Outcome, RunRequest

MOST_ID_CHARS: Final = 256
# a server that has not stopped a run for this long will not; shorter than the executor's own limit
UNHEEDED_S: Final = 20.0
# A server that does not know the run has lost it
FORGOTTEN: Final = frozenset({404, 410})
LOOPBACK: Final = ("localhost", "127.", "::1")


class PollStatus(Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"


class PollingRunner(MappedRunner):
    capabilities = Capabilities(resumes=True)
    _config: PollingConfig

    def __init__(self, config: PollingConfig, options: RunnerOptions) -> None:
        super().__init__(config, options)
        self._words = {word.casefold(): status for status in PollStatus for word in getattr(config, status.value)}
        self._jobs: dict[str, _Job] = {}
        self._left: set[asyncio.Task[Ended | None]] = set()
        self._scope = _scope(self.url)

    def knows(self, remote: str) -> bool:
        return remote.startswith(self._scope)

    async def cancel(self, prediction_id: str) -> bool:
        """Ask the server to stop the run. If it cannot be asked, or does not stop, the prediction ends as canceled."""
        job = self._jobs.get(prediction_id)
        if job is None:
            return self._runs.hang_up(prediction_id)
        job.unwanted_since = min(job.unwanted_since, asyncio.get_running_loop().time())
        if not job.id:  # it is being sent, and cannot be stopped before its id is known
            return True
        heard = await self._stop(job)
        job.wake.set()
        return heard or not self._config.cancel_endpoint_template

    async def aclose(self) -> None:
        await self._runs.aclose()
        if left := set(self._left):
            for each in left:
                each.cancel()
            await asyncio.wait(left)
        await super().aclose()

    async def _follow(self, request: RunRequest, feed: Feed) -> Ended:
        job = self._jobs[request.id] = _Job(
            request.remote.removeprefix(self._scope) if self.knows(request.remote) else "",
            asyncio.get_running_loop().time() + self._config.longest_s,
        )
        try:
            if not job.id and (refusal := await self._submit(request, job, feed)) is not None:
                return refusal
            feed.add(Accepted(self._scope + job.id), size=len(job.id))
            if job.unwanted_since < math.inf:
                await self._stop(job)
            return await self._until_ended(job) or self._leave(job)
        finally:
            if self._jobs.get(request.id) is job:
                del self._jobs[request.id]

    async def _submit(self, request: RunRequest, job: "_Job", feed: Feed) -> Ended | None:
        try:
            body = self._config.input.fill(request.input)
            answer = await self._post(body, feed, trace=request.trace)
        except httpx.TransportError as exc:
            return self._lost(exc, has_begun=feed.has_begun)
        if not answer.is_ok:
            return answers.refused(answer, error=self._config.error)
        try:
            job.id = _id_at(answers.read_document(answer.body), self._config.id_field)
        except answers.Unreadable as exc:
            return Ended(outcome=Outcome.LOST, error=f"The model server's answer is {exc}")
        return None

    def _leave(self, job: "_Job") -> Ended:
        job.is_left = True
        rest = asyncio.create_task(self._until_ended(job), name=f"rest of {job.id}")
        self._left.add(rest)
        rest.add_done_callback(self._left.discard)
        return replace(HUNG_UP, goes_on=rest)

    async def _until_ended(self, job: "_Job") -> Ended | None:
        now = asyncio.get_running_loop().time
        config, silent_since = self._config, math.inf
        patience_s = UNHEEDED_S if config.cancel_endpoint_template else 0.0
        while (asked_at := now()) < job.until:
            if not job.is_left and asked_at - job.unwanted_since >= patience_s:
                return None
            path = self._path_of(config.poll_endpoint_template, job)
            answer = await self._ask("GET", path, limit=self._max_body, timeout_s=config.away_s)
            pause_s = config.interval_s
            match self._read(answer):
                case Ended() as ended:
                    return ended
                case str() as trouble:
                    # not since the last answer, which may be an interval ago
                    silent_since = min(silent_since, asked_at)
                    if now() - silent_since >= config.away_s:
                        is_away = bool(answer.trouble)
                        self._starts += is_away
                        return Ended(outcome=Outcome.LOST, error=trouble, server_is_dead=is_away)
                    pause_s = min(pause_s, config.away_s)
                case None:
                    silent_since = math.inf
            await job.pause(min(pause_s, job.until - now()))
        await self._stop(job)
        return Ended(outcome=Outcome.FAILED, error=f"It ran for longer than {config.longest_s:g} s")

    def _read(self, answer: answers.Answer) -> Ended | str | None:
        if answer.trouble:
            return answer.trouble
        if answer.status in FORGOTTEN:
            why = f"{answers.refused(answer).error}: the run is not known there any more"
            return Ended(outcome=Outcome.LOST, error=why)
        if answer.status in answers.NO_ENTRY:  # the run goes on, for a director with the right key
            return answers.locked(answer.status)
        if not answer.is_ok:
            return answers.refused(answer).error or ""
        if not answer.complete:
            return answers.too_large(self._max_body)
        try:
            document = answers.read_document(answer.body)
        except answers.Unreadable as exc:
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
                return answers.mapped_end(document, self._config)
            case PollStatus.FAILED:
                why = answers.mapped_error(document, self._config.error)
                return Ended(outcome=Outcome.FAILED, error=why or "The model failed without saying why")
            case PollStatus.CANCELED:
                return Ended(outcome=Outcome.CANCELED, error=answers.mapped_error(document, self._config.error) or None)
            case _:
                said = f"The model server says that the run is {answers.one_line(word)!r}"
                return Ended(outcome=Outcome.FAILED, error=f"{said}, a word that is not configured")

    async def _stop(self, job: "_Job") -> bool:
        if not self._config.cancel_endpoint_template:
            return False
        path = self._path_of(self._config.cancel_endpoint_template, job)
        return (await self._ask(self._config.cancel_method, path)).is_ok

    def _path_of(self, template: str, job: "_Job") -> str:
        return self._path_in(template).replace("{id}", quote(job.id, safe=""))


make = PollingRunner


class _Job(Struct, eq=False):
    """A run on the server. `id`: the server's name for it, '' while unknown. `until`: when its time is up. `is_left`:
    the prediction has ended before it. `wake`: poll now.
    """

    id: str
    until: float
    unwanted_since: float = math.inf
    is_left: bool = False
    wake: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    async def pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            return
        self.wake.clear()


def _id_at(document: Raw, id_field: Pointer) -> str:
    found = id_field.find(document)
    try:
        name = str(answers.read_json(bytes(found or b""), str | int))  # type: ignore[arg-type]
    except answers.Unreadable:
        name = ""
    # Dots alone would lead to another place in a path
    if len(name) > MOST_ID_CHARS or not name.isprintable() or not name.strip("."):
        raise answers.Unreadable(f"without an id at {id_field.text or 'its top'}")
    return name


def _word(value: Raw) -> str:
    try:
        return answers.read_json(bytes(value), str)
    except answers.Unreadable:
        return bytes(value).decode(errors="replace")


def _scope(url: str) -> str:
    """Return a prefix for ids of this server. A loopback address is another server on each machine, or pod."""
    host = urlsplit(url).hostname or ""
    where = f"{socket.gethostname()} {url}" if host.startswith(LOOPBACK) else url
    return hashlib.sha256(where.encode()).hexdigest()[:12] + ":"
