"""Make the body of a request to a server with OpenAI's API. Pure.

A call of that API brings its own body, which goes on byte for byte but for the name of the model and the wish for token
counts. An input in the form of Replicate's API becomes a body here, and `schemas` says what it may hold.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from director.core.nesting import MOST_LEVELS, is_deeper
from director.core.runner_config import MOST_MEMBERS, Endpoint, OpenAiConfig
from director.servers.runners import answers

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
EMBEDDED: Final[dict[str, dict[str, Any]]] = {
    "input": {
        "anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}],
        "description": "A text, or a list of texts.",
    },
    "dimensions": {"type": "integer", "minimum": 1, "description": "Of each embedding."},
    "encoding_format": {
        "type": "string",
        "enum": ["float", "base64"],
        "description": "Numbers, or a text of their bytes.",
    },
}
KNOWN: Final = CHAT_ONLY | COMMON | EMBEDDED
NAMES: Final[dict[Endpoint, tuple[str, ...]]] = {
    "chat": (*CHAT_ONLY, *COMMON),
    "completions": tuple(COMMON),
    "embeddings": tuple(EMBEDDED),
}
REQUIRED: Final[dict[Endpoint, dict[str, Any]]] = {
    "chat": {"anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}]},
    "completions": {"required": ["prompt"]},
    "embeddings": {"required": ["input"]},
}
TEXT: Final[dict[str, Any]] = {
    "title": "Output",
    "type": "array",
    "items": {"type": "string"},
    "x-cog-array-type": "iterator",
    "x-cog-array-display": "concatenate",
}
VECTORS: Final[dict[str, Any]] = {
    "title": "Output",
    "anyOf": [
        {"type": "array", "items": {"type": "number"}},
        {"type": "string"},
        {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        {"type": "array", "items": {"type": "string"}},
    ],
}
BUILT_OF: Final = frozenset({"messages", "prompt", "system_prompt"})
# Names of text models on Replicate, which LiteLLM and LlamaIndex send to all of them; the first that is given is used
ALIASES: Final = {"max_tokens": ("max_new_tokens", "max_length"), "stop": ("stop_sequences",)}
UNSET: Final = Raw(b'""')  # their default for stop_sequences, which vLLM refuses as a stop

LACKS: Final[dict[Endpoint, str]] = {
    "chat": "It needs a prompt, or messages",
    "completions": "It needs a prompt",
    "embeddings": "It needs an input",
}
NO_OBJECT: Final = "Its body is no JSON object"
TOO_DEEP: Final = "Its body is nested too deeply"


class InvalidInput(ValueError):
    """The input cannot be sent. The message is for the caller."""


def schemas(endpoint: Endpoint, passed: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    properties = {
        name: {"title": name.replace("_", " ").title(), "x-order": order, **KNOWN.get(name, {})}
        for order, name in enumerate(dict.fromkeys((*NAMES[endpoint], *passed)))
    }
    given = {"type": "object", "title": "Input", "properties": properties, **REQUIRED[endpoint]}
    return given, VECTORS if endpoint == "embeddings" else TEXT


def create_body(given: Raw, config: OpenAiConfig, *, model: str) -> bytes:
    """Return the request for an input in the form of Replicate's API. Raises `InvalidInput`."""
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
    if endpoint != "embeddings":
        body |= (
            {"stream": True, "stream_options": {"include_usage": True}} if config.include_usage else {"stream": True}
        )
    sent = {*NAMES[endpoint], *config.passed} - BUILT_OF
    body |= {name: value for name, value in fields.items() if name in sent}
    if endpoint == "embeddings":
        if "input" not in body:
            raise InvalidInput(LACKS[endpoint])
    elif endpoint == "chat" and "messages" in fields:
        body["messages"] = fields["messages"]
    elif "prompt" not in fields:
        raise InvalidInput(LACKS[endpoint])
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


# A call's own body. It is never decoded and encoded again: that would lose what only the caller and the server know

SPACE: Final = r"[ \t\n\r]*+"
KEY: Final = re.compile(rf'{SPACE}("(?:[^"\\]++|\\.)*+"){SPACE}:{SPACE}', re.DOTALL)
AFTER: Final = re.compile(rf"{SPACE}([,}}])")
OPEN: Final = re.compile(rf"{SPACE}\{{{SPACE}(\}})?")
# Finds where a value ends, in C: a step of Python for each bracket took 0.26 s for 1 MiB of them. Numbers stay texts,
# since one of a million digits takes seconds to read
VALUES: Final = json.JSONDecoder(parse_int=str, parse_float=str)
TRUE: Final = "true"
USAGE_WANTED: Final = '{"include_usage":true}'


class Member(Struct, frozen=True):
    """A member of an object of JSON. `start` and `end`: where its value lies in the text."""

    name: str
    start: int
    end: int


class Spliced(Struct, frozen=True, kw_only=True):
    """`is_streamed`: its caller asked for a stream. `adds_usage`: only the director asked for the token counts, so the
    chunk with them is not for the caller.
    """

    body: bytes
    is_streamed: bool
    adds_usage: bool


def splice(body: bytes, *, model: str, adds_usage: bool) -> Spliced:
    """Return the body with `model`, unless that is empty, in place of its model, and with a wish for token counts if it
    asks for a stream. All other bytes stay as they are, and a value of a wrong type is left to the server. Where a name
    comes twice, each is replaced and the last one counts, as in most readers of JSON. Raises InvalidInput.
    """
    if is_deeper(body, MOST_LEVELS):
        raise InvalidInput(TOO_DEEP)
    try:
        text = body.decode()
    except UnicodeDecodeError as exc:
        raise InvalidInput(NO_OBJECT) from exc
    members = _members(text, 0)
    last = {member.name: member for member in members}
    stream, edits = last.get("stream"), dict[int, tuple[int, str]]()
    if model:
        named = json.dumps(model, ensure_ascii=False)
        edits |= {member.start: (member.end, named) for member in members if member.name == "model"}
    is_streamed = stream is not None and text[stream.start : stream.end] == TRUE
    wants = adds_usage and is_streamed
    if wants and stream is not None and (options := last.get("stream_options")) is not None:
        change = _usage_edit(text, options)
        wants = change is not None
        edits |= {} if change is None else {change[0]: change[1:]}
    elif wants and stream is not None:
        edits[stream.end] = (stream.end, ',"stream_options":' + USAGE_WANTED)
    parts, at = list[str](), 0
    for start, (until, instead) in sorted(edits.items()):
        parts += (text[at:start], instead)
        at = until
    return Spliced(body="".join((*parts, text[at:])).encode(), is_streamed=is_streamed, adds_usage=wants)


def _usage_edit(text: str, options: Member) -> tuple[int, int, str] | None:
    """Return what to replace of the stream's options so that they ask for token counts: start, end, the new text. None
    if they ask for them already, or if the server has to judge them.
    """
    given = text[options.start : options.end]
    if given == "null":
        return options.start, options.end, USAGE_WANTED
    if not given.startswith("{"):
        return None
    members = _members(text, options.start)
    asked = [member for member in members if member.name == "include_usage"]
    if asked:
        start, end = asked[-1].start, asked[-1].end
        return (start, end, TRUE) if text[start:end] in ("false", "null") else None
    first = options.start + 1
    return first, first, USAGE_WANTED[1:-1] + ("," if members else "")


def _members(text: str, at: int) -> list[Member]:
    """Return the members of the object that begins here, in order. Raises InvalidInput."""
    opened = OPEN.match(text, at)
    if opened is None:
        raise InvalidInput(NO_OBJECT)
    at, found = opened.end(), list[Member]()
    if opened[1]:
        return found
    while (key := KEY.match(text, at)) is not None:
        try:
            name = json.loads(key[1])
            end = VALUES.raw_decode(text, key.end())[1]
        except ValueError as exc:
            raise InvalidInput(NO_OBJECT) from exc
        found.append(Member(name, key.end(), end))
        after = AFTER.match(text, end)
        if after is None:
            break
        if after[1] == "}":
            return found
        if len(found) == MOST_MEMBERS:
            raise InvalidInput(f"Its body has more than {MOST_MEMBERS:,} members")
        at = after.end()
    raise InvalidInput(NO_OBJECT)
