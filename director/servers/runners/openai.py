"""Run predictions on a server with OpenAI's API for text: vLLM, TGI, llama.cpp and others.

The text is streamed, each piece an output of its own. A run is stopped by hanging up. Inputs that the API lacks are
left out, as Cog does. A stream that breaks off is not an end, and no run is sent twice that may have come there.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, Literal

import httpx
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.runner_config import OpenAiConfig
from director.core.schema import TraceHeaders
from director.core.view import join
from director.servers.runners import answers, openapi, outcomes
from director.servers.runners.http_base import HttpBase, OutputReader, Reporter, RunnerOptions, receive, unpack
from director.servers.runners.outcomes import Observation
from director.servers.runners.runner import (
    Capabilities,
    Ended,
    Health,
    Hear,
    Measured,
    OneAnswer,
    Outcome,
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

MOST_MODELS_BYTES: Final = 1 << 20
# Reasons to finish a text that is no answer: vLLM's and SGLang's engines, OpenRouter
FAILURES: Final = frozenset({"error", "abort", "aborted", "failed"})
# A piece without choices is an error by the word in one of these fields, or if one of the others has anything
KINDS_OF_PIECE: Final = ("object", "type", "status")
ERRORS: Final = ("errors", "error_code")
PATHS: Final = {"chat": "/chat/completions", "completions": "/completions"}
NO_OUTPUT: Final = Raw(b"[]")

NOT_STREAMED: Final = "The model server ignores `stream`: it answered neither an event stream nor a completion"
ENDLESS: Final = "The model server's event stream stopped before the run had ended"
SILENT: Final = "The model failed without saying why"
TOO_DEEP: Final = "nested too deeply"
NO_CHOICE: Final = "The model server's stream ended without a choice"


class InvalidInput(ValueError):
    """The input cannot be sent. The message is for the caller."""


class _Delta(Struct):
    content: str | None = None
    tool_calls: Raw = answers.NULL
    function_call: Raw = answers.NULL
    refusal: Raw = answers.NULL
    audio: Raw = answers.NULL
    reasoning: Raw = answers.NULL
    reasoning_content: Raw = answers.NULL


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None  # in place of a delta in an answer that is not streamed
    text: str | None = None
    finish_reason: str | None = None
    error: Raw = answers.NULL


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @property
    def counts(self) -> dict[str, int]:
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        found = {
            "input_tokens": self.prompt_tokens,
            "output_tokens": self.completion_tokens,
            "cached_tokens": cached or None,  # none is no figure worth showing
        }
        return {name: count for name, count in found.items() if count is not None and answers.fits(count)}


class _Chunk(Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: Raw = answers.NULL


# Fields of a message beside its text. Those that a caller cannot do without make the answer an object
BESIDE_TEXT: Final = ("tool_calls", "function_call", "refusal", "audio")
EMPTY: Final = frozenset({b"null", b'""', b"[]", b"{}"})


class Chunk(Struct, frozen=True, kw_only=True):
    text: str = ""
    is_finished: bool = False
    tokens: dict[str, int] = msgspec.field(default_factory=dict)
    error: str | None = None
    code: int = 0
    is_more: bool = False  # than one text
    has_choices: bool = False


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
    """Read a piece of an answer. What has another type than OpenAI's is skipped. Raises Unreadable for no object."""
    try:
        chunk = answers.read_json(data, _Chunk)
    except answers.Unreadable:
        chunk = _leniently(data)
    errors = [chunk.error, *(choice.error for choice in chunk.choices)]
    if not chunk.choices:
        errors.append(_error_itself(data))
    for error in errors:
        if bytes(error) not in answers.NO_ERROR:
            why, code = _error(error)
            return Chunk(error=why or SILENT, code=code)
    for choice in chunk.choices:
        if choice.finish_reason is not None and choice.finish_reason.lower() in FAILURES:
            return Chunk(error=f"The model server ended the text with the reason {choice.finish_reason!r}")
    first = next((choice for choice in chunk.choices if choice.index == 0), None) or _Choice()
    said = first.delta or first.message
    text = (said.content if said is not None else first.text) or ""
    beside = said is not None and any(bytes(getattr(said, name)) not in EMPTY for name in BESIDE_TEXT)
    return Chunk(
        text=text,
        is_finished=first.finish_reason is not None,
        tokens=chunk.usage.counts if chunk.usage else {},
        is_more=beside or any(choice.index > 0 for choice in chunk.choices),
        has_choices=bool(chunk.choices),
    )


def _error_itself(data: bytes) -> Raw:
    """Return a piece without choices if it is an error by itself, as FastChat and older vLLMs send it, or null."""
    try:
        found = answers.read_json(data, dict[str, Any])
    except answers.Unreadable:
        return answers.NULL
    is_error = any(f"{found.get(name)}".lower() in FAILURES for name in KINDS_OF_PIECE)
    return Raw(data) if is_error or any(found.get(name) for name in ERRORS) else answers.NULL


def _error(said: Raw) -> tuple[str, int]:
    """Return the words of an error of any shape, and its own status, or 0."""
    try:
        found: Any = answers.read_json(bytes(said), object)
    except answers.Unreadable:  # a number in it: its words may still be those of a dead engine
        return answers.excerpt(bytes(said)), 0
    if not isinstance(found, dict):
        return answers.one_line(found if isinstance(found, str) else answers.excerpt(bytes(said))), 0
    named = ("message", "detail", "error", "msg", "text")
    words = next((found[name] for name in named if isinstance(found.get(name), str)), "")
    codes = (f"{found.get(name)}" for name in ("code", "status", "status_code", "http_status_code"))
    code = next((int(code) for code in codes if len(code) == 3 and code.isdecimal() and code.isascii()), 0)
    return answers.one_line(words) or answers.excerpt(bytes(said)), code


def _leniently(data: bytes) -> _Chunk:
    """Read a piece with fields of other types than OpenAI's, or with numbers that JSON lacks, where they do not matter.
    Raises Unreadable.
    """
    try:
        found = _decode(data)
        if isinstance(found, dict):
            usage = found.get("usage")
            return _Chunk(
                choices=[_choice(each) for each in _choices_in(found)],
                usage=_usage(usage) if isinstance(usage, dict) else None,
                error=_raw(found.get("error")),
            )
    except (ValueError, RecursionError) as exc:
        raise answers.Unreadable(TOO_DEEP if isinstance(exc, RecursionError) else f"not JSON: {exc}") from exc
    raise answers.Unreadable("not of the expected shape: it is no object")


def _usage(found: dict[str, Any]) -> _Usage:
    return _Usage(
        _count(found, "prompt_tokens"),
        _count(found, "completion_tokens"),
        _Details(_count(found.get("prompt_tokens_details"), "cached_tokens")),
    )


def _choices_in(found: dict[str, Any]) -> list[dict[str, Any]]:
    choices = found.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _choice(found: dict[str, Any]) -> _Choice:
    index, finish = found.get("index"), found.get("finish_reason")
    if isinstance(finish, dict):  # SGLang's own
        finish = finish.get("type")
    return _Choice(
        index=index if isinstance(index, int) else 0,
        delta=_delta(found.get("delta")),
        message=_delta(found.get("message")),
        text=text if isinstance(text := found.get("text"), str) else None,
        finish_reason=None if finish in (None, False, "") else f"{finish}",
        error=_raw(found.get("error")),
    )


def _delta(found: Any) -> _Delta | None:
    if not isinstance(found, dict):
        return None
    beside = {name: _raw(found.get(name)) for name in _Delta.__struct_fields__[1:]}
    return _Delta(_text_in(found.get("content")), **beside)


def _text_in(content: Any) -> str | None:
    """Return the text of a content: a string, or a list of parts of which some are text."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else None


def _count(found: Any, name: str) -> int | None:
    count = found.get(name) if isinstance(found, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def _decode(data: bytes) -> Any:
    """Return JSON with the numbers that it lacks as None. One beyond a double is infinite, however many digits it has.
    Raises ValueError, RecursionError.
    """
    return json.loads(data, parse_constant=lambda name: None, parse_int=_number)


def _number(text: str) -> int | float:
    return int(text) if len(text) < answers.MANY_DIGITS else float(text)


def _encode(value: Any) -> bytes:
    """Raises ValueError for a number that is no JSON."""
    return json.dumps(value, allow_nan=False).encode()


def _raw(value: Any) -> Raw:
    return answers.NULL if value is None else Raw(_encode(value))


# Texts that come in pieces. Any other is whole each time
GROWING: Final = frozenset(
    {"content", "text", "arguments", "refusal", "reasoning", "reasoning_content", "data", "transcript"}
)


def merge(into: Any, more: Any, name: str = "") -> Any:
    """Return a message with one more delta: texts follow each other, and items of a list go by their `index`."""
    match into, more:
        case str(), str():
            return into + more if name in GROWING else more or into
        case dict(), dict():
            parts = {key: merge(into[key], part, key) if key in into else part for key, part in more.items()}
            return into | parts
        case list(), list():
            return _merge_list(into, more)
        case _:
            return into if more is None else more


def _merge_list(into: list[Any], more: list[Any]) -> list[Any]:
    found = list(into)
    for item in more:
        index = item.get("index") if isinstance(item, dict) else None
        places = (n for n, each in enumerate(found) if isinstance(each, dict) and each.get("index") == index)
        place = None if index is None else next(places, None)
        if place is None:
            found.append(item)
        else:
            found[place] = merge(found[place], item)
    return found


def _as_delta(choice: Any) -> dict[str, Any]:
    parts = (choice.get("delta"), choice.get("message"))
    said = next((each for each in parts if each and isinstance(each, dict)), {"content": choice.get("text")})
    return {"index": choice.get("index") or 0, "delta": said, "finish_reason": choice.get("finish_reason")}


def _says_anything(choice: dict[str, Any]) -> bool:
    return any(value for name, value in choice["delta"].items() if name != "role")


def _as_error(data: bytes) -> bytes:
    """Return the data of an `error` event as a piece with an error, whatever shape it has."""
    try:
        found: Any = _decode(data)
        is_piece = isinstance(found, dict) and found.get("error")
        return data if is_piece else _encode({"error": found or SILENT})
    except (ValueError, RecursionError):
        return _encode({"error": data.decode(errors="replace")})


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
        await self._runs.hear(request, self._follow_to_end, hear)

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
        except answers.Unreadable as exc:
            return answers.unreadable("The model server's stream is", exc, b"")
        except httpx.TransportError as exc:
            return reader.with_output(self._lose(exc, has_begun=feed.has_begun))

    async def _stream(self, body: bytes, reader: "_Reader", feed: Reporter, *, trace: TraceHeaders) -> Ended:
        response = await self._server.send(
            "POST", self._path, content=body, accept=answers.EVENT_STREAM, trace=trace, sent=feed.note_sent
        )
        async with aclosing(response):
            feed.note_answered()
            if not response.is_success:
                return answers.judge_refusal(await receive(response, self._max_body))
            feed.begin()
            if answers.kind_in(response.headers) != answers.EVENT_STREAM:
                return reader.with_output(reader.whole(await receive(response, self._max_body)))
            return reader.with_output(await reader.follow(unpack(response, self._max_body)) or reader.closed())


make = OpenAiRunner


class _Reader(OutputReader):
    """Shows each piece of text. An answer with more than one text, or with none, is kept as a whole and shown at its
    end as OpenAI's API has it: one object with its choices.
    """

    def __init__(self, request: RunRequest, feed: Reporter, max_body: int) -> None:
        super().__init__(request, feed, max_body)
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self._is_more = False
        self._has_choices = False
        self._is_finished = False
        self._now = asyncio.get_running_loop().time
        self._sent_at = self._now()

    def closed(self) -> Ended:
        """Return the end for a stream that stopped. Some servers send no DONE, others no reason to finish."""
        if not self._is_finished:
            return outcomes.end(Observation.ENDLESS, ENDLESS)
        return Ended(outcome=Outcome.SUCCEEDED)

    def whole(self, answer: answers.Answer) -> Ended:
        """Return the end by the answer of a server that does not stream."""
        if not answer.complete:
            return answers.too_large(self._max_body)
        try:
            document = answers.read_output(answer, is_mapped=True)
            ended = self._take(answers.Frame("message", bytes(document)))
        except answers.Unreadable as exc:
            return answers.unreadable(f"{NOT_STREAMED}, and it is", exc, answer.body, is_framed=answer.is_framed)
        if ended is not None or self._is_finished:
            return ended or self.closed()
        return outcomes.end(Observation.UNREADABLE, f"{NOT_STREAMED}: {answers.excerpt(answer.body)}")

    def with_output(self, ended: Ended) -> Ended:
        output = join(self._items)
        if ended.outcome is Outcome.SUCCEEDED and (self._is_more or output is None):
            try:
                output = self._object()
            except RecursionError:
                ended = outcomes.end(Observation.UNREADABLE, f"The model server's answer is {TOO_DEEP}")
            except ValueError as exc:
                ended = outcomes.end(
                    Observation.UNREADABLE, f"The model server's answer is {answers.BEYOND_JSON}: {exc}"
                )
        return replace(ended, output=output, metrics=self._metrics)

    def _object(self) -> Raw:
        """Return all choices as one object. An answer with nothing in it is no output. Raises RecursionError,
        and ValueError for a number that not each reader of JSON can hold.
        """
        found: dict[str, Any] = {}
        for frame in self._frames:
            found = merge(found, {"choices": [_as_delta(each) for each in _choices_in(_decode(frame))]})
        choices = found.get("choices", [])
        if not any(_says_anything(choice) for choice in choices):
            return NO_OUTPUT
        for choice in choices:
            choice["message"] = choice.pop("delta")
            if choice["index"] == 0 and self._items:  # the pieces that were shown, of which not all were kept
                choice["message"]["content"] = "".join(map(msgspec.json.decode, self._items))
        return Raw(_encode({"choices": choices}))

    def _take(self, frame: answers.Frame) -> Ended | None:
        data = frame.data.strip()
        if data == answers.DONE:
            return Ended(outcome=Outcome.SUCCEEDED) if self._has_choices else self._nothing()
        # heartbeats: nothing, or words that cannot be the beginning of a piece
        is_error = frame.event.lower() in answers.ERROR_EVENTS
        if not data or (data[:1] not in (b"{", b"[") and not is_error):
            return None
        if is_error:
            data = _as_error(data)
        chunk = read_chunk(data)
        if chunk.error is not None:
            return outcomes.end(outcomes.read_stream_error(chunk.code, chunk.error), chunk.error)
        for name, count in chunk.tokens.items():
            self._measure(name, count)
        self._has_choices = self._has_choices or chunk.has_choices
        self._is_finished = self._is_finished or chunk.is_finished
        self._is_more = self._is_more or chunk.is_more
        if self._is_more or not self._items:
            self._keep(data)
        if not chunk.text:
            return None
        if not self._items:
            self._measure("time_to_first_token", round(self._now() - self._sent_at, 4))
        return self._produce(msgspec.json.encode(chunk.text), tokens=1)

    def _nothing(self) -> Ended:
        said = next((f": {answers.excerpt(frame)}" for frame in self._frames if frame not in EMPTY), "")
        return outcomes.end(Observation.UNREADABLE, NO_CHOICE + said)

    def _keep(self, data: bytes) -> None:
        """Keep a piece, in case that the answer is shown as a whole. Beyond the limit its rest is left out."""
        self._frames_bytes += len(data)
        if self._frames_bytes <= self._max_body:
            self._frames.append(data)

    def _measure(self, name: str, value: float) -> None:
        self._metrics[name] = Raw(msgspec.json.encode(value))
        if self._request.wants_progress:
            self._feed.add(Measured(name, self._metrics[name]), size=0)
