"""What is said to a server with OpenAI's API, and what its stream says back, chunk by chunk.

Pure: it never sends anything. An input has the names of that API; one that it does not have is refused here, and what
stands under the others is judged by the server.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from director.servers.runners.untrusted import one_line, read_json

__all__ = ("Chunk", "Unaskable", "create_body", "read_chunk", "schemas")

Endpoint = Literal["chat", "completions"]

# Name → schema, in the order in which a form shows them; those of chat alone come first
CHAT_ONLY: Final[dict[str, dict[str, Any]]] = {
    "messages": {
        "type": "array",
        "items": {"type": "object"},
        "minItems": 1,
        "description": "The conversation so far, with role and content. Without it, a prompt.",
    },
    "system_prompt": {"type": "string", "description": "How the model is to behave, before a prompt."},
}
COMMON: Final[dict[str, dict[str, Any]]] = {
    "prompt": {"type": "string", "description": "What the model is told."},
    "max_tokens": {"type": "integer", "minimum": 1, "description": "Most tokens that it may put out."},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2, "description": "0: always the likeliest token."},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1, "description": "Only tokens that together are so likely."},
    "stop": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Texts at which it stops.",
    },
    "seed": {"type": "integer", "description": "The same seed gives the same dice."},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2, "description": "Against what came often."},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2, "description": "Against what came at all."},
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
NULL: Final = Raw(b"null")


class Unaskable(ValueError):
    """The server cannot be asked that. The message is for the caller."""


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Error(Struct):
    message: str = ""
    code: Raw = NULL


class _Chunk(Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: _Error | str | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    """What one event of the stream adds. `tokens`: numbers by the name of their metric. `error`: it went wrong."""

    text: str = ""
    is_finished: bool = False
    tokens: dict[str, int] = msgspec.field(default_factory=dict)
    error: str | None = None
    code: int = 0


def create_body(given: Raw, *, endpoint: Endpoint, model: str, include_usage: bool) -> bytes:
    """The request for an input. Raises `Unaskable`."""
    fields = {name: value for name, value in msgspec.json.decode(given, type=dict[str, Raw]).items() if value != NULL}
    if unknown := next((name for name in fields if name not in NAMES[endpoint]), None):
        raise Unaskable(f"There is no input {one_line(unknown)!r}")
    body: dict[str, Any] = {"model": model} if model else {}
    body |= {"stream": True, "stream_options": {"include_usage": True}} if include_usage else {"stream": True}
    body |= {name: value for name, value in fields.items() if name not in BUILT_OF}
    if endpoint == "chat" and "messages" in fields:
        body["messages"] = fields["messages"]
    elif "prompt" not in fields:
        raise Unaskable("It needs a prompt, or messages" if endpoint == "chat" else "It needs a prompt")
    elif endpoint == "chat":
        said = (("system", fields.get("system_prompt")), ("user", fields["prompt"]))
        body["messages"] = [{"role": role, "content": content} for role, content in said if content is not None]
    else:
        body["prompt"] = fields["prompt"]
    return msgspec.json.encode(body)


def read_chunk(data: bytes) -> Chunk:
    """One event. Raises `Unreadable`."""
    chunk = read_json(data, _Chunk)
    if chunk.error is not None:
        error = _Error(chunk.error) if isinstance(chunk.error, str) else chunk.error
        code = bytes(error.code)
        return Chunk(
            error=one_line(error.message) or "The model failed without saying why",
            code=int(code) if code.isdigit() and len(code) == 3 else 0,
        )
    usage = chunk.usage or _Usage()
    counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    first = next((choice for choice in chunk.choices if choice.index == 0), _Choice())
    return Chunk(
        text=(first.delta.content if first.delta is not None else first.text) or "",
        is_finished=first.finish_reason is not None,
        tokens={name: count for name, count in counts.items() if count is not None},
    )


def schemas(endpoint: Endpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of input and output, for callers."""
    known = CHAT_ONLY | COMMON
    properties = {
        name: {"title": name.replace("_", " ").title(), "x-order": order, **known[name]}
        for order, name in enumerate(NAMES[endpoint])
    }
    required = {} if endpoint == "chat" else {"required": ["prompt"]}
    return {"type": "object", "title": "Input", "properties": properties, **required}, OUTPUT
