"""Run predictions on a server that answers a POST with an id, and poll it for the state of the run.

The slot is in use for the whole run, also if the prediction was canceled. The id is reported as soon as it is known, so
that the next director of the prediction polls the same run. Sends no run twice that may have come
there, and fails on an unknown state.
"""

import asyncio
import hashlib
import math
import re
import socket
from collections.abc import Sequence
from contextlib import aclosing
from enum import Enum
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.json_pointer import Pointer
from director.core.runner_config import PollingConfig
from director.servers.runners import answers, outcomes
from director.servers.runners.http_base import HUNG_UP, Feed, MappedRunner, RunnerOptions, receive, unpack
from director.servers.runners.outcomes import Observation
from director.servers.runners.runner import Accepted, Capabilities, Ended, Outcome, RunRequest
from director.servers.runners.transport import Exchange

MOST_ID_CHARS: Final = 256
# a server that has not stopped a run for this long will not; shorter than the executor's own limit
UNHEEDED_S: Final = 20.0
# A server that does not know the run has lost it
FORGOTTEN: Final = frozenset({404, 410})
SAYS_NOTHING: Final = frozenset({Observation.GATEWAY, Observation.TIMED_OUT, Observation.BUSY})
# By a server that is ready it only says that the answer takes longer, or that it was asked too often
COME_AGAIN: Final = frozenset({Observation.TIMED_OUT, Observation.BUSY})
# A state comes as JSON, or as an event stream that is open until the run ends
STATES: Final = f"application/json, {answers.EVENT_STREAM};q=0.9, */*;q=0.5"
ENDLESS: Final = "The model server's event stream stopped before the run had ended"
UNKNOWN: Final = re.compile(r"(?:404|410)\b")  # the same in the last event of a stream
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
        self._method = config.submit_method
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
        job.wake.set()  # also if it was not heard: the slot is then in use for longer than the prediction
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
            self._config,
        )
        try:
            if not job.id and (refusal := await self._submit(request, job, feed)) is not None:
                return refusal
            try:
                job.config = self._config.of_run(job.id)
            except ValueError as exc:
                return Ended(outcome=Outcome.FAILED, error=f"The id of the run cannot be looked for: {exc}")
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
            return self._lose(exc, has_begun=feed.has_begun)
        if not answer.is_ok:
            return self._judge_refusal(answer)
        try:
            job.id = _id_at(answers.read_output(answer, is_mapped=True), self._config.id_field)
        except answers.Unreadable as exc:
            return answers.unreadable("The model server's answer is", exc, answer.body, is_framed=answer.is_framed)
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
            path = self._path_of(config.result_endpoint_template if job.is_done else config.poll_endpoint_template, job)
            was_done = job.is_done
            answer = await self._ask_for_run(path, job)
            pause_s = config.interval_s
            match self._read_result(answer, job) if job.is_done else self._read(answer, job):
                case Ended() as ended:
                    return ended
                case _Trouble() as trouble:
                    # not since the last answer, which may be an interval ago
                    silent_since = math.inf if silent_since < job.heard_at else silent_since
                    silent_since = min(silent_since, max(asked_at, job.heard_at))
                    if now() - silent_since >= config.away_s and not (trouble.may_pass and await self._is_ready()):
                        await self._stop(job)  # it may go on, and the prediction may run again
                        is_away = trouble.seen is Observation.BROKEN
                        self._starts += is_away
                        return replace(outcomes.end(trouble.seen, trouble.words), server_is_dead=is_away)
                    pause_s = max(min(pause_s, config.away_s), trouble.retry_after_s)
                case None:
                    silent_since = math.inf
                    if job.is_done and not was_done:
                        continue  # its result is there
            await job.pause(min(pause_s, job.until - now()))
        await self._stop(job)
        return Ended(outcome=Outcome.FAILED, error=f"It ran for longer than {config.longest_s:g} s")

    async def _is_ready(self) -> bool:
        health = await self.health()
        return health.can_run or health.is_silent

    async def _ask_for_run(self, path: str, job: "_Job") -> "answers.Answer | _Said | _Trouble":
        """Ask for the state of a run. An event stream is followed to the event that ends it, or until the run is not
        wanted any more.
        """
        response = None
        try:
            async with asyncio.timeout(self._config.away_s):
                response = await self._server.send("GET", path, accept=STATES)
                if not response.is_success or answers.kind_in(response.headers) != answers.EVENT_STREAM:
                    return await receive(response, self._max_body)
            following = asyncio.create_task(self._last_event(response, job))
            woken = asyncio.create_task(job.wake.wait())
            try:
                left_s = max(0.0, job.until - asyncio.get_running_loop().time())
                await asyncio.wait({following, woken}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                return following.result() if following.done() else _Said("")
            finally:
                following.cancel()
                woken.cancel()
                await asyncio.wait({following, woken})
        except TimeoutError:
            return answers.Answer(trouble=f"The model server did not answer within {self._config.away_s:g} s")
        except httpx.TransportError as exc:
            why = answers.one_line(str(exc)) or type(exc).__name__
            return answers.Answer(trouble=f"The model server cannot be reached: {why}")
        finally:
            if response is not None:
                response.close()

    async def _last_event(self, response: Exchange, job: "_Job") -> "answers.Answer | _Said | _Trouble":
        """Follow an event stream to the event that ends the run, or to its last state if it ends before."""
        parser, now = answers.SseParser(self._max_body), asyncio.get_running_loop().time
        opened_at, last = now(), None
        try:
            async with aclosing(unpack(response, self._max_body)) as chunks:
                async for chunk in chunks:
                    last = self._state_in(parser.feed(chunk)) or last
                    if last is not None and self._status(last.word) is not PollStatus.RUNNING:
                        return last
            rest = parser.end() if response.is_framed else []  # else it may be half of an event
            return self._state_in(rest) or last or _Trouble(Observation.ENDLESS, ENDLESS)
        except answers.FrameTooLarge:
            return answers.Answer(status=response.status_code, complete=False)
        except answers.Unreadable as exc:
            return answers.Answer(status=response.status_code, packed=str(exc))
        finally:
            if now() - opened_at >= self._config.away_s:  # a server that was away would not have kept it open
                job.heard_at = now()

    def _state_in(self, frames: Sequence[answers.Frame]) -> "_Said | None":
        """Return the first event that ends the run, or else the last one with a state."""
        found = [_Said(frame.event, frame.data) for frame in frames if self._status(frame.event) is not None]
        ending = (said for said in found if self._status(said.word) is not PollStatus.RUNNING)
        return next(ending, found[-1] if found else None)

    def _status(self, word: str) -> PollStatus | None:
        return self._words.get(word.casefold())

    def _read_result(self, answer: "answers.Answer | _Said | _Trouble", job: "_Job") -> "Ended | _Trouble | None":
        """Read the answer of the result path. It is the output, whole or where the configuration points to, or a stream
        that ends with it.
        """
        if isinstance(answer, _Trouble):
            return answer
        if isinstance(answer, _Said):
            return self._judge_event(answer, job)
        if answer.trouble:
            return _Trouble(Observation.BROKEN, answer.trouble)
        if not answer.is_ok:
            return _status_trouble(answer.status, answers.judge_refusal(answer, error=self._config.error))
        if not answer.complete:
            return answers.too_large(self._max_body)
        if answer.is_file:
            return answers.unproven(answers.file_end(answer), is_whole=answer.is_framed)
        try:
            document = answers.read_output(answer, is_mapped=False)
            is_whole = answers.is_whole(answer, document)
            return answers.unproven(answers.map_end(document, self._config), is_whole=is_whole)
        except answers.Unreadable as exc:
            return _unreadable_trouble(exc, answer)

    def _read(self, answer: "answers.Answer | _Said | _Trouble", job: "_Job") -> "Ended | _Trouble | None":
        if isinstance(answer, _Trouble):
            return answer
        if isinstance(answer, _Said):
            return self._judge_event(answer, job)
        if answer.trouble:
            return _Trouble(Observation.BROKEN, answer.trouble)
        if answer.status in FORGOTTEN:
            why = f"{answers.judge_refusal(answer).error}: the run is not known there any more"
            return outcomes.end(Observation.FORGOTTEN, why)
        if answer.status in answers.NO_ENTRY:  # the run goes on, for a director with the right key
            return outcomes.lock_out(answer.status)
        if not answer.is_ok:
            return _status_trouble(answer.status, answers.judge_refusal(answer))
        if not answer.complete:
            return answers.too_large(self._max_body)
        try:
            document = answers.read_output(answer, is_mapped=True)
        except answers.Unreadable as exc:
            return _unreadable_trouble(exc, answer)
        said = job.config.status.find(document)
        if said is None and not job.config.without_status:
            what = f"The model server's answer has nothing at {job.config.status.text}"
            return _Trouble(Observation.UNREADABLE, f"{what}: {answers.excerpt(bytes(document))}")
        return self._judge(job.config.without_status if said is None else _word(said), document, job)

    def _judge_event(self, said: "_Said", job: "_Job") -> Ended | None:
        if not said.word:
            return None
        try:
            document, fault = answers.document_or_text(said.data), None
        except answers.Unreadable as exc:
            document, fault = answers.text_of_event(said.data), exc
        if self._status(said.word) is PollStatus.FAILED and UNKNOWN.match(_text(document)):
            return outcomes.end(Observation.FORGOTTEN, f"{_text(document)}: the run is not known there any more")
        ended = self._judge(said.word, document, job)
        if fault is None or ended is None or self._status(said.word) is not PollStatus.DONE:
            return ended
        return answers.unreadable("The event that ends the run is", fault, said.data)

    def _judge(self, word: str, document: Raw, job: "_Job") -> Ended | None:
        config = job.config
        match self._status(word):
            case PollStatus.RUNNING:
                return None
            case PollStatus.DONE if config.result_endpoint_template and not job.is_done:
                job.is_done = True
                return None
            case PollStatus.DONE:
                return answers.map_end(document, config)
            case PollStatus.FAILED:
                why = answers.map_error(document, config.error) or _text(document)
                return outcomes.end(outcomes.read_error(why), why or "The model failed without saying why")
            case PollStatus.CANCELED:
                return Ended(outcome=Outcome.CANCELED, error=answers.map_error(document, config.error) or None)
            case _:
                said = f"The model server says that the run is {answers.one_line(word)!r}"
                return Ended(outcome=Outcome.FAILED, error=f"{said}, a word that is not configured")

    async def _stop(self, job: "_Job") -> bool:
        if not self._config.cancel_endpoint_template:
            return False
        path = self._path_of(self._config.cancel_endpoint_template, job)
        body = self._config.cancel_body
        content = b"" if body is None else msgspec.json.encode(_place_id(body, job.id))
        return (await self._ask(self._config.cancel_method, path, content=content)).is_ok

    def _path_of(self, template: str, job: "_Job") -> str:
        return self._path_in(template).replace("{id}", quote(job.id, safe=""))


make = PollingRunner


class _Said(Struct, frozen=True):
    """The last state in an event stream; no word if the stream was left."""

    word: str
    data: bytes = b""


class _Job(Struct, eq=False):
    """A run on the server. `id`: the server's name for it, '' while unknown. `until`: when its time is up. `config`:
    with its id in the pointers. `is_done`: it has ended well, and its result is to be fetched. `is_left`: the
    prediction has ended before it. `heard_at`: when a long event stream of it ended. `wake`:
    poll now.
    """

    id: str
    until: float
    config: PollingConfig
    is_done: bool = False
    unwanted_since: float = math.inf
    is_left: bool = False
    heard_at: float = -math.inf
    wake: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    async def pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            return
        self.wake.clear()


class _Trouble(Struct, frozen=True):
    """A poll without a state. It is asked again, and decides the end only if that lasts. `may_pass`: not even then, as
    long as the server is ready.
    """

    seen: Observation
    words: str
    may_pass: bool = False
    retry_after_s: float = 0.0


def _status_trouble(status: int, ended: Ended) -> _Trouble:
    """Take a status of what stands before the server, or of a full one, for what it is: it says nothing of the run."""
    said = outcomes.STATUSES.get(status)
    is_silent = said in SAYS_NOTHING or ended.outcome is Outcome.LOST
    seen = Observation.GATEWAY if is_silent else Observation.FAULT
    return _Trouble(seen, ended.error or "", may_pass=said in COME_AGAIN, retry_after_s=ended.retry_after_s or 0.0)


def _unreadable_trouble(exc: answers.Unreadable, answer: answers.Answer) -> _Trouble:
    ended = answers.unreadable("The model server's answer is", exc, answer.body)
    return _Trouble(Observation.UNREADABLE, ended.error or "")


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


def _place_id(value: Any, run_id: str) -> Any:
    match value:
        case str():
            return value.replace("{id}", run_id)
        case dict():
            return {name: _place_id(each, run_id) for name, each in value.items()}
        case list():
            return [_place_id(each, run_id) for each in value]
        case _:
            return value


def _text(document: Raw) -> str:
    """Return the reason of a failure that is a text of its own, as in the last event of a stream."""
    try:
        return answers.one_line(answers.read_json(bytes(document), str))
    except answers.Unreadable:
        return ""


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
