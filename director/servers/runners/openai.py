"""Run predictions on a server with OpenAI's API: vLLM, TGI, llama.cpp and others.

A call of OpenAI's API goes to the server as it is, and so do chunks and answers to the caller. An input in the form of
Replicate's API becomes a call, and the text of its answer is streamed, each piece an output of its own. A run is
stopped by hanging up. A stream that breaks off is not an end, and no run is sent twice that may have come there.
"""

import asyncio
from abc import abstractmethod
from contextlib import aclosing, suppress
from typing import Any, Final, get_args

import httpx
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.runner_config import Endpoint, OpenAiConfig
from director.core.schema import TraceHeaders
from director.core.view import join
from director.servers.runners import answers, openapi, outcomes
from director.servers.runners.http_base import (
    NO_SUCH_PAGE,
    HttpBase,
    OutputReader,
    Reporter,
    RunnerOptions,
    receive,
    unpack,
)
from director.servers.runners.openai_answers import (
    Assembly,
    Piece,
    encode,
    legible,
    read_error_event,
    read_piece,
    read_vectors,
    says_anything,
)
from director.servers.runners.openai_body import InvalidInput, create_body, schemas, splice
from director.servers.runners.outcomes import Observation
from director.servers.runners.runner import (
    CHUNKS_OF_OUTPUT,
    Capabilities,
    Counted,
    Ended,
    Health,
    Hear,
    Logged,
    Measured,
    OneAnswer,
    Outcome,
    Produced,
    RunRequest,
)

MOST_MODELS_BYTES: Final = 1 << 20
PATHS: Final[dict[Endpoint, str]] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "embeddings": "/embeddings",
}
NO_OUTPUT: Final = Raw(b"[]")

NOT_STREAMED: Final = "The model server ignores `stream`: it answered neither an event stream nor a completion"
NO_ANSWER: Final = "The model server answered no completion"
ENDLESS: Final = "The model server's event stream stopped before the run had ended"
NO_CHOICE: Final = "The model server's stream ended without a choice"


class _Models(Struct):
    data: list["_Model"] = msgspec.field(default_factory=list)


class _Model(Struct):
    id: str = ""


class OpenAiRunner(HttpBase, OneAnswer):
    def __init__(self, config: OpenAiConfig, options: RunnerOptions) -> None:
        self._base = config.path.rstrip("/")
        self._models_path = f"{self._base}/models"
        schema = openapi.document(*schemas(config.endpoint, config.passed), title=config.model)
        super().__init__(options, name="openai", health_paths=[config.health, self._models_path], schema=schema)
        # which of them the server has, its answers say
        self.capabilities = Capabilities(
            streams=config.endpoint != "embeddings", endpoints=frozenset(get_args(Endpoint))
        )
        self._config = config
        self._model = config.model
        self._asked_at = ""

    async def health(self) -> Health:
        health = await super().health()
        is_unknown = health.can_run and not self._config.model and self._asked_at != health.since
        if is_unknown and (name := await self._first_model()):
            self._model, self._asked_at = name, health.since
        return health

    async def _first_model(self) -> str:
        answer = await self._ask("GET", self._models_path, limit=MOST_MODELS_BYTES)
        with suppress(answers.Unreadable):
            if answer.is_ok:
                return next((model.id for model in answers.read_json(answer.body, _Models).data), "")
        return ""

    async def hear(self, request: RunRequest, hear: Hear) -> None:
        await self._runs.hear(request, self._follow_to_end, hear)

    async def _follow(self, request: RunRequest, feed: Reporter) -> Ended:
        try:
            endpoint, body, reader = await self._prepare(request, feed)
        except (InvalidInput, msgspec.DecodeError) as exc:
            return Ended(outcome=Outcome.INVALID, error=str(exc))
        feed.complete = reader.with_output
        try:
            return await self._send(self._base + PATHS[endpoint], body, reader, feed, trace=request.trace)
        except answers.Unreadable as exc:
            return answers.unreadable("The model server's stream is", exc, b"")
        except httpx.TransportError as exc:
            return self._lose(exc, has_begun=feed.has_begun)

    async def _prepare(self, request: RunRequest, feed: Reporter) -> tuple[Endpoint, bytes, "_Reader"]:
        """Raises InvalidInput, msgspec.DecodeError."""
        config, most = self._config, self._max_body
        model = self._model or await self._first_model()
        reader: _Reader
        if request.endpoint:
            endpoint = msgspec.convert(request.endpoint, Endpoint)
            if endpoint == "embeddings":
                spliced = splice(bytes(request.input), model=model, adds_usage=False)
                return endpoint, spliced.body, VectorReader(request, feed, most, is_call=True)
            spliced = splice(bytes(request.input), model=model, adds_usage=config.include_usage)
            reader = CallReader(request, feed, most, is_streamed=spliced.is_streamed, holds_usage=spliced.adds_usage)
            return endpoint, spliced.body, reader
        body = create_body(request.input, config, model=model)
        if config.endpoint == "embeddings":
            reader = VectorReader(request, feed, most, is_call=False, is_one=_is_text(request.input))
        else:
            reader = TextReader(request, feed, most, asks_logprobs=_asks_logprobs(body))
        return config.endpoint, body, reader

    async def _send(self, path: str, body: bytes, reader: "_Reader", feed: Reporter, *, trace: TraceHeaders) -> Ended:
        accept = answers.EVENT_STREAM if reader.is_streamed else answers.JSON
        response = await self._server.send("POST", path, content=body, accept=accept, trace=trace, sent=feed.note_sent)
        async with aclosing(response):
            feed.note_answered()
            if not response.is_success:
                return self._refuse(await receive(response, self._max_body), is_call=reader.is_call)
            feed.begin()
            if answers.kind_in(response.headers) != answers.EVENT_STREAM:
                return reader.whole(await receive(response, self._max_body))
            return await reader.follow(unpack(response, self._max_body)) or reader.closed()

    def _refuse(self, answer: answers.Answer, *, is_call: bool) -> Ended:
        """Return the end for an answer with another status than 2xx. A call gets the server's body, up to 64 KiB."""
        ended = answers.judge_refusal(answer)
        if not is_call:
            return ended
        if answer.status in NO_SUCH_PAGE:
            ended = outcomes.end(Observation.INVALID, ended.error or "")
        body = self._server.without_secrets(answer.body.decode(errors="replace")).encode()
        with suppress(answers.Unreadable):
            answers.read_json(body, dict[str, Any])
            ended = replace(ended, output=answers.legible_or_none(answers.read_document(body)))
        return replace(ended, metrics={"http_status": Raw(b"%d" % answer.status)})


make = OpenAiRunner


def _is_text(given: Raw) -> bool:
    return bytes(msgspec.json.decode(given, type=dict[str, Raw])["input"])[:1] == b'"'


def _asks_logprobs(body: bytes) -> bool:
    asked = msgspec.json.decode(body, type=dict[str, Raw]).get("logprobs", answers.NULL)
    return asked not in (answers.NULL, Raw(b"false"))


class _Reader(OutputReader):
    """Reads the answer to one request. `is_call`: of OpenAI's API. `is_streamed`: a stream was asked for."""

    is_call = False
    is_streamed = True

    def __init__(self, request: RunRequest, feed: Reporter, max_body: int) -> None:
        super().__init__(request, feed, max_body)
        self._assembly = Assembly()
        self._first_frame = b""
        self._received = 0  # bytes: each piece is kept until the end
        self._begun = frozenset[int]()  # choices
        self._finished = frozenset[int]()
        self._has_said = False
        self._now = asyncio.get_running_loop().time
        self._sent_at = self._now()

    @abstractmethod
    def _show(self, piece: Piece) -> Ended | None:
        """Show what the caller sees of a piece. Raises Unreadable."""

    @abstractmethod
    def _whole_output(self, ended: Ended) -> Raw | None:
        """Return the output of a run that ended so. Raises Unreadable."""

    def with_output(self, ended: Ended) -> Ended:
        metrics = self._metrics | ended.metrics
        if ended.output is not None:
            return replace(ended, metrics=metrics)
        try:
            output = self._whole_output(ended)
        except answers.Unreadable as exc:
            output = None
            if ended.outcome is Outcome.SUCCEEDED:
                ended = outcomes.end(Observation.UNREADABLE, f"The model server's answer is {exc}")
        return replace(ended, output=output, metrics=metrics)

    def closed(self) -> Ended:
        """Return the end for a stream that stopped without DONE: then each of its texts needs a reason to finish."""
        if not self._begun or self._begun - self._finished:
            return outcomes.end(Observation.ENDLESS, ENDLESS)
        return Ended(outcome=Outcome.SUCCEEDED)

    def whole(self, answer: answers.Answer) -> Ended:
        """Return the end by an answer that is no stream."""
        if not answer.complete:
            return self._too_large(self._max_body)
        what = NOT_STREAMED if self.is_streamed else NO_ANSWER
        try:
            ended = self._take_whole(self._find_document(answer))
        except answers.Unreadable as exc:
            return answers.unreadable(f"{what}, and it is", exc, answer.body, is_framed=answer.is_framed)
        return ended or outcomes.end(Observation.UNREADABLE, f"{what}: {answers.excerpt(answer.body)}")

    def _find_document(self, answer: answers.Answer) -> Raw:
        """Return the document of a whole answer, for a call with all its bytes. Raises Unreadable."""
        try:
            document = answers.read_output(answer, is_mapped=True)
        except answers.Unreadable:
            if not self.is_call or answer.packed:
                raise
            return Raw(answer.body)  # it may have numbers that JSON lacks
        return Raw(answer.body) if self.is_call and answer.body.strip() == bytes(document) else document

    def _too_large(self, most: int) -> Ended:
        ended = answers.too_large(most)
        return replace(ended, code="output_too_large") if self.is_call else ended

    def _take_whole(self, document: Raw) -> Ended | None:
        """Return the end by a whole answer, or None if it is not a completion. Raises Unreadable."""
        ended = self._take(answers.Frame("message", bytes(document)))
        return ended or (self.closed() if self._finished else None)

    def _take(self, frame: answers.Frame) -> Ended | None:
        data = frame.data.strip()
        if data == answers.DONE:
            return self._take_done()
        # heartbeats: nothing, or words that cannot be the beginning of a piece
        is_error = frame.event.lower() in answers.ERROR_EVENTS
        if not data or (data[:1] not in (b"{", b"[") and not is_error):
            return None
        self._received += len(data)
        if self._received > CHUNKS_OF_OUTPUT * self._max_body:
            return self._too_large(CHUNKS_OF_OUTPUT * self._max_body)
        piece = read_error_event(data) if is_error else read_piece(frame.data)
        if piece.error is not None:
            return outcomes.end(outcomes.read_stream_error(piece.code, piece.error), piece.error)
        for name, count in piece.tokens.items():
            if piece.is_usage_alone or piece.finished:
                self._measure(name, count)
            else:  # a server may count again with each chunk
                self._metrics[name] = Raw(msgspec.json.encode(count))
        self._first_frame = self._first_frame or data
        self._begun |= piece.begun
        self._finished |= piece.finished
        if piece.says and not self._has_said:
            self._has_said = True
            if self.is_streamed:
                self._measure("time_to_first_token", round(self._now() - self._sent_at, 4))
        self._assembly.add(piece)
        return self._show(piece)

    def _take_done(self) -> Ended:
        """Return the end for a stream that says that it is whole: a reason to finish may lack then."""
        if self._begun:
            return Ended(outcome=Outcome.SUCCEEDED)
        said = f": {answers.excerpt(self._first_frame)}" if self._first_frame not in (b"", b"{}") else ""
        return outcomes.end(Observation.UNREADABLE, NO_CHOICE + said)

    def _count(self) -> None:
        """Count a token that is not shown as it comes."""
        if self._request.wants_progress:
            self._feed.add(Counted(1))

    def _measure(self, name: str, value: float) -> None:
        self._metrics[name] = Raw(msgspec.json.encode(value))
        if self._request.wants_progress:
            self._feed.add(Measured(name, self._metrics[name]), size=0)


class TextReader(_Reader):
    """Shows each piece of text as an output, and reasoning as logs. An answer with more than one text, or with none, is
    shown at its end: one object with the choices as OpenAI's API has them.
    """

    def __init__(self, request: RunRequest, feed: Reporter, max_body: int, *, asks_logprobs: bool) -> None:
        super().__init__(request, feed, max_body)
        self._asks_logprobs = asks_logprobs
        self._is_more = False
        self._logs: list[str] = []

    def _show(self, piece: Piece) -> Ended | None:
        self._is_more = (
            self._is_more
            or piece.is_more
            or (self._asks_logprobs and any(choice.get("logprobs") for choice in piece.choices))
        )
        if piece.reasoning:
            self._logs.append(piece.reasoning)
            if self._request.wants_progress:
                self._feed.add(Logged(piece.reasoning), size=len(piece.reasoning))
        if piece.text:
            return self._produce(msgspec.json.encode(piece.text), tokens=1)
        if piece.says:
            self._count()
        return None

    def with_output(self, ended: Ended) -> Ended:
        return replace(super().with_output(ended), logs="".join(self._logs) or None)

    def _whole_output(self, ended: Ended) -> Raw | None:
        output = join(self._items)
        if ended.outcome is not Outcome.SUCCEEDED or not (self._is_more or output is None):
            return output
        choices = self._assembly.choices()
        return encode({"choices": choices}) if any(map(says_anything, choices)) else NO_OUTPUT


class CallReader(_Reader):
    """Shows each chunk as it came, and at the end the answer that they add up to. An answer that is not streamed is the
    output as it came, also from a server that ignores `stream`: then no chunk is shown. `holds_usage`: a chunk with
    token counts alone is not for the caller.
    """

    is_call = True

    def __init__(
        self, request: RunRequest, feed: Reporter, max_body: int, *, is_streamed: bool, holds_usage: bool
    ) -> None:
        super().__init__(request, feed, max_body)
        self.is_streamed = is_streamed
        self._holds_usage = holds_usage
        self._shown = 0
        self._answer: Raw | None = None

    def _show(self, piece: Piece) -> Ended | None:
        if not self.is_streamed:
            if piece.says:
                self._count()
            return None
        if self._holds_usage and piece.is_usage_alone:
            return None
        chunk = legible(piece)
        self._feed.add(Produced(chunk, self._shown, int(piece.says), is_role=piece.is_role), size=len(chunk))
        self._shown += 1
        return None

    def _take_whole(self, document: Raw) -> Ended | None:
        piece = read_piece(bytes(document))
        if piece.error is not None:
            return outcomes.end(outcomes.read_stream_error(piece.code, piece.error), piece.error)
        if not piece.choices:
            return None
        for name, count in piece.tokens.items():
            self._measure(name, count)
        self._answer = legible(piece)
        return Ended(outcome=Outcome.SUCCEEDED)

    def _whole_output(self, ended: Ended) -> Raw | None:
        return self._answer or self._assembly.whole()


class VectorReader(_Reader):
    """Reads the answer of the endpoint for embeddings. The output is the vectors, or the vector of one text (`is_one`);
    for a call the answer as it came.
    """

    is_streamed = False

    def __init__(
        self, request: RunRequest, feed: Reporter, max_body: int, *, is_call: bool, is_one: bool = False
    ) -> None:
        super().__init__(request, feed, max_body)
        self.is_call = is_call
        self._is_one = is_one

    def _show(self, piece: Piece) -> Ended | None:
        return None

    def _take_whole(self, document: Raw) -> Ended | None:
        if said := answers.told_error(document):
            return outcomes.end(outcomes.read_stream_error(0, said), said)
        vectors, tokens = read_vectors(document)
        for name, count in tokens.items():
            self._measure(name, count)
        if self.is_call:
            return Ended(outcome=Outcome.SUCCEEDED, output=document)
        if self._is_one and len(vectors) == 1:
            return Ended(outcome=Outcome.SUCCEEDED, output=vectors[0])
        return Ended(outcome=Outcome.SUCCEEDED, output=join([bytes(vector) for vector in vectors]) or NO_OUTPUT)

    def _whole_output(self, ended: Ended) -> Raw | None:
        return None
