"""Run predictions on a server with OpenAI's API for text: vLLM, TGI, llama.cpp and others.

The text is streamed, each piece an output of its own. A run is stopped by hanging up. Inputs that the API lacks are
left out, as Cog does. A stream that breaks off is not an end, and a run is never sent twice.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, Literal

import httpx
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.runner_config import OpenAiConfig
from director.core.schema import TraceHeaders
from director.core.view import joined
from director.servers.runners import answers, openapi
from director.servers.runners.http_base import HttpBase, Reporter, RunnerOptions, StreamReader, receive
from director.servers.runners.runner import (
    Capabilities,
    Ended,
    Health,
    Hear,
    Measured,
    OneAnswer,
    Outcome,
    Produced,
    RunRequest,
)

Endpoint = Literal["chat", "completions"]

# Name → schema, in the order in which a form shows them, those of chat alone first
CHAT_ONLY: Final[dict[str, dict[str, Any]]] = {
    "messages": {
        "type": "array",
        "items": {"type": "object"},
        "minItems": 1,
        "description": "The conversation so far, with role and content. Without it, a prompt.",
    },
    "system_prompt": {"type": "string", "description": "How the model is to behave. It comes before a prompt."},
}
COMMON: Final[dict[str, dict[str, Any]]] = {
    "prompt": {"type": "string", "description": "The text to answer or to continue."},
    "max_tokens": {"type": "integer", "minimum": 1, "description": "The most tokens in the output."},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2, "description": "0: always the likeliest token."},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1, "description": "Only the likeliest tokens up to this sum."},
    "stop": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Texts that end the output.",
    },
    "seed": {"type": "integer", "description": "The same seed gives the same random choices."},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2, "description": "Against frequent tokens."},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2, "description": "Against earlier tokens."},
}
OUTPUT: Final[dict[str, Any]] = {
    "title": "Output",
    "type": "array",
    "items": {"type": "string"},
    "x-cog-array-type": "iterator",
    "x-cog-array-display": "concatenate",
}
NAMES: Final[dict[Endpoint, tuple[str, ...]]] = {"chat": (*CHAT_ONLY, *COMMON), "completions": tuple(COMMON)}
BUILT_OF: Final = frozenset({"messages", "prompt", "system_prompt"})
# Names of text models on Replicate, which LiteLLM and LlamaIndex send to all of them; the first that is given is used
ALIASES: Final = {"max_tokens": ("max_new_tokens", "max_length"), "stop": ("stop_sequences",)}
UNSET: Final = Raw(b'""')  # their default for stop_sequences, which vLLM refuses as a stop

DONE: Final = b"[DONE]"
MOST_MODELS_BYTES: Final = 1 << 20
PATHS: Final = {"chat": "/chat/completions", "completions": "/completions"}
NO_OUTPUT: Final = Raw(b"[]")

# Every attempt would end like this
NOT_STREAMED: Final = Ended(
    outcome=Outcome.FAILED,
    error="The model server ignores `stream`: it answered neither an event stream nor a completion",
)
CUT_OFF: Final = Ended(outcome=Outcome.LOST, error="The model server's event stream stopped before the run had ended")


class InvalidInput(ValueError):
    """The input cannot be sent. The message is for the caller."""


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None  # in place of a delta in an answer that is not streamed
    text: str | None = None
    finish_reason: str | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Error(Struct):
    message: str = ""
    code: Raw = answers.NULL


class _Chunk(Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: _Error | str | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    text: str = ""
    is_finished: bool = False
    tokens: dict[str, int] = msgspec.field(default_factory=dict)
    error: str | None = None
    code: int = 0


def create_body(given: Raw, config: OpenAiConfig, *, model: str) -> bytes:
    """Return the request for an input. Raises `InvalidInput`."""
    endpoint = config.endpoint
    fields = {
        name: value for name, value in msgspec.json.decode(given, type=dict[str, Raw]).items() if value != answers.NULL
    }
    for name, aliases in ALIASES.items():
        asked = (alias for alias in aliases if fields.get(alias, UNSET) != UNSET and alias not in config.passed)
        alias = next(asked, None)
        if alias is not None and name not in fields:
            fields[name] = _stops(fields[alias]) if name == "stop" else fields[alias]
    body: dict[str, Any] = {"model": model} if model else {}
    body |= {"stream": True, "stream_options": {"include_usage": True}} if config.include_usage else {"stream": True}
    sent = {*NAMES[endpoint], *config.passed} - BUILT_OF
    body |= {name: value for name, value in fields.items() if name in sent}
    if endpoint == "chat" and "messages" in fields:
        body["messages"] = fields["messages"]
    elif "prompt" not in fields:
        raise InvalidInput("It needs a prompt, or messages" if endpoint == "chat" else "It needs a prompt")
    elif endpoint == "chat":
        said = (("system", fields.get("system_prompt")), ("user", fields["prompt"]))
        body["messages"] = [{"role": role, "content": content} for role, content in said if content is not None]
    else:
        body["prompt"] = fields["prompt"]
    return msgspec.json.encode(body)


def _stops(given: Raw) -> Raw:
    """Return the stops of `stop_sequences`: Replicate's text models have them in one text, separated by commas."""
    said = msgspec.json.decode(given)
    parts = [part for part in said.split(",") if part] if isinstance(said, str) else []
    return Raw(msgspec.json.encode(parts)) if parts else given


def read_chunk(data: bytes) -> Chunk:
    chunk = answers.read_json(data, _Chunk)
    if chunk.error is not None:
        error = _Error(chunk.error) if isinstance(chunk.error, str) else chunk.error
        code = bytes(error.code)
        return Chunk(
            error=answers.one_line(error.message) or "The model failed without saying why",
            code=int(code) if code.isdigit() and len(code) == 3 else 0,
        )
    usage = chunk.usage
    counts = {} if usage is None else {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    first = next((choice for choice in chunk.choices if choice.index == 0), None) or _Choice()
    said = first.delta or first.message
    return Chunk(
        text=(said.content if said is not None else first.text) or "",
        is_finished=first.finish_reason is not None,
        tokens={name: count for name, count in counts.items() if count is not None},
    )


def schemas(endpoint: Endpoint, passed: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    known = CHAT_ONLY | COMMON
    properties = {
        name: {"title": name.replace("_", " ").title(), "x-order": order, **known.get(name, {})}
        for order, name in enumerate(dict.fromkeys((*NAMES[endpoint], *passed)))
    }
    either = {"anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}]}
    required = either if endpoint == "chat" else {"required": ["prompt"]}
    return {"type": "object", "title": "Input", "properties": properties, **required}, OUTPUT


class _Model(Struct):
    id: str = ""


class _Models(Struct):
    data: list[_Model] = msgspec.field(default_factory=list)


class OpenAiRunner(HttpBase, OneAnswer):
    capabilities = Capabilities(streams=True)

    def __init__(self, config: OpenAiConfig, options: RunnerOptions) -> None:
        base = config.path.rstrip("/")
        schema = openapi.document(*schemas(config.endpoint, config.passed), title=config.model)
        super().__init__(options, name="openai", health_paths=[config.health, f"{base}/models"], schema=schema)
        self._config = config
        self._path = base + PATHS[config.endpoint]
        self._models_path = f"{base}/models"
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
        await self._runs.hear(request, self._follow, hear)

    async def _follow(self, request: RunRequest, feed: Reporter) -> Ended:
        config = self._config
        try:
            model = self._model or await self._first_model()
            body = create_body(request.input, config, model=model)
        except (InvalidInput, msgspec.DecodeError) as exc:
            return Ended(outcome=Outcome.INVALID, error=str(exc))
        reader = _Reader(request, feed, self._max_body)
        try:
            return await self._stream(body, reader, feed, trace=request.trace)
        except httpx.TransportError as exc:
            return reader.with_output(self._lost(exc, has_begun=feed.has_begun))

    async def _stream(self, body: bytes, reader: "_Reader", feed: Reporter, *, trace: TraceHeaders) -> Ended:
        response = await self._server.send(
            "POST", self._path, content=body, accept=answers.EVENT_STREAM, trace=trace, sent=feed.sent
        )
        async with aclosing(response):
            feed.answered()
            if not response.is_success:
                return answers.refused(await receive(response, self._max_body))
            feed.begin()
            if not response.headers.get("content-type", "").startswith(answers.EVENT_STREAM):
                return reader.with_output(reader.whole(await receive(response, self._max_body)))
            return reader.with_output(await reader.follow(response.chunks()) or reader.closed())


make = OpenAiRunner


class _Reader(StreamReader[Ended]):
    def __init__(self, request: RunRequest, feed: Reporter, max_body: int) -> None:
        super().__init__(request, feed, max_body)
        self._items: list[bytes] = []
        self._bytes = 0
        self._metrics: dict[str, Raw] = {}
        self._is_finished = False
        self._now = asyncio.get_running_loop().time
        self._sent_at = self._now()

    def closed(self) -> Ended:
        """Return the end for a stream that stopped. Some servers send no DONE, but all send a reason to finish."""
        return Ended(outcome=Outcome.SUCCEEDED) if self._is_finished else CUT_OFF

    def whole(self, answer: answers.Answer) -> Ended:
        """Return the end by the answer of a server that does not stream."""
        if not answer.complete:
            return answers.too_large(self._max_body)
        try:
            ended = self._take(answers.Frame("message", answer.body))
        except answers.Unreadable:
            return NOT_STREAMED
        return ended or (self.closed() if self._is_finished else NOT_STREAMED)

    def with_output(self, ended: Ended) -> Ended:
        output = joined(self._items)
        if output is None and ended.outcome is Outcome.SUCCEEDED:
            output = NO_OUTPUT
        return replace(ended, output=output, metrics=self._metrics)

    def _take(self, frame: answers.Frame) -> Ended | None:
        if frame.data.strip() == DONE:
            return self.closed()
        chunk = read_chunk(frame.data)
        if chunk.error is not None:
            outcome = answers.OUTCOMES.get(chunk.code, Outcome.FAILED)
            # The run had begun, so that is not a refusal
            return Ended(outcome=Outcome.LOST if outcome is Outcome.REFUSED else outcome, error=chunk.error)
        for name, count in chunk.tokens.items():
            self._measure(name, count)
        self._is_finished = self._is_finished or chunk.is_finished
        return self._produce(chunk.text) if chunk.text else None

    def _produce(self, text: str) -> Ended | None:
        item = msgspec.json.encode(text)
        if not self._items:
            self._measure("time_to_first_token", round(self._now() - self._sent_at, 4))
        self._bytes += len(item) + 1
        if self._bytes > self._max_body:
            return answers.too_large(self._max_body)
        if self._request.wants_progress:
            self._feed.add(Produced(Raw(item), len(self._items)), size=len(item))
        self._items.append(item)
        return None

    def _measure(self, name: str, value: float) -> None:
        self._metrics[name] = Raw(msgspec.json.encode(value))
        if self._request.wants_progress:
            self._feed.add(Measured(name, self._metrics[name]), size=0)
