"""Serve the calls of OpenAI's API: chat, completions and embeddings. A call is one prediction, whose input is the body
as it came. Its answer is that of the model server, unchanged: whole, or in chunks as they come.

The head of a stream is held for two seconds, so that an early end has a status. A caller that hangs up cancels its
call, unless it asks for something else.
"""

import re
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.responses import Response

from api.openai.call_streams import stream
from api.openai.find import find_called
from api.openai.lenient import count_members, read_leniently
from api.openai.runs import Run, answer
from api.predictions import bodies
from api.web import errors
from api.web.http import Request, decode_json, read_body, type_of
from api.web.route import Answer, Body, Parameter, changes, one_of
from director.core.runner_config import MOST_MEMBERS, Endpoint

LANES: Final = {"priority": "high", "default": "normal", "flex": "low"}
AUTO: Final = ("normal", "low")
TIERS: Final = ("auto", *LANES)
SURROGATE: Final = re.compile("[\ud800-\udfff]")
FIELD: Final = re.compile(r"`\$\.(\w+)")


class OpenAiCall(Struct, kw_only=True):
    """A body of OpenAI's API, as far as it is read. All other fields go to the model server as they are."""

    model: str
    stream: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None


# The next types are for the OpenAPI document


class ChatCompletionRequest(OpenAiCall, kw_only=True):
    """Beside these fields any other one, as the model server takes it."""

    messages: list[dict[str, Any]]


class CompletionRequest(OpenAiCall, kw_only=True):
    """Beside these fields any other one, as the model server takes it."""

    prompt: Any


class EmbeddingRequest(OpenAiCall, kw_only=True):
    """Beside these fields any other one, as the model server takes it."""

    input: Any


ON_DISCONNECT: Final = Parameter(
    "X-On-Disconnect",
    "`cancel` ends the run of a caller that hangs up, and `continue` does not. Default: `cancel`, or with an "
    "`Idempotency-Key` `continue`.",
    one_of("cancel", "continue"),
    "header",
)
ON_LOST: Final = Parameter(
    "X-On-Lost",
    "`fail` ends a stream whose model server dies after the first chunk. With `restart` it begins again after the "
    "comment `: retried`.",
    one_of("fail", "restart"),
    "header",
)
KEPT: Final = ("x-request-id", "X-Queue-Ahead", "X-Queue-Estimate", "X-Queue-Reason", "Idempotency-Replayed")
WHOLE: Final = Answer("The model server's own answer.", dict[str, Any], headers=KEPT)
ANSWERS: Final = {200: replace(WHOLE, or_events=True)}
STREAMED: Final = (
    "With `stream` the answer is a stream of its chunks, which ends with `[DONE]` or with an object that has `error`."
)
calls: Final = partial(
    changes,
    "POST",
    bucket="create",
    parameters=(*bodies.HOW, ON_DISCONNECT, ON_LOST),
    answers=ANSWERS,
    refusals={402, 404, 409, 500, 503},
)


@calls(
    "/openai/v1/chat/completions",
    body=Body(ChatCompletionRequest),
    name="openai.chat.completions",
    summary="Create a chat completion",
    about=f"The body goes to the model server as it is, with its own name of the model. {STREAMED}",
)
async def chat(request: Request) -> Response:
    return await _call(request, "chat")


@calls(
    "/openai/v1/completions",
    body=Body(CompletionRequest),
    name="openai.completions",
    summary="Create a completion",
    about=f"The body goes to the model server as it is, with its own name of the model. {STREAMED}",
)
async def completions(request: Request) -> Response:
    return await _call(request, "completions")


@calls(
    "/openai/v1/embeddings",
    body=Body(EmbeddingRequest),
    answers={200: WHOLE},
    name="openai.embeddings",
    summary="Create embeddings",
    about="The body goes to the model server as it is, with its own name of the model.",
)
async def embeddings(request: Request) -> Response:
    return await _call(request, "embeddings")


async def _call(request: Request, endpoint: Endpoint) -> Response:
    services = request.services
    body = await read_body(request, max_bytes=services.settings.max_body_bytes, refusal=errors.too_large)
    call = read_call(body)
    on_lost = _read_choice(request, "X-On-Lost", ("fail", "restart"), "fail")
    keeps = "continue" if "idempotency-key" in request.headers else "cancel"
    continues = _read_choice(request, "X-On-Disconnect", ("cancel", "continue"), keeps) == "continue"
    lane = _lane_of(call, request.account.lanes)
    is_streamed = bool(call.stream) and endpoint != "embeddings"
    asked = bodies.CreatePrediction(
        body=body,
        input=Raw(body),
        endpoint=endpoint,
        once_shown=is_streamed and on_lost == "fail",
        lane=lane,
        affinity=bodies.digest_of(call.prompt_cache_key) if call.prompt_cache_key else "",
    )
    called = await find_called(request, call.model)
    run = Run(request, called, asked, continues=continues)
    return await (stream(run, restarts=on_lost == "restart") if is_streamed else answer(run))


def read_call(body: bytes) -> OpenAiCall:
    """Read what is decided here. Raises a 400 that names the field which is wrong."""
    if type_of(body) != "object":
        decode_json(body, Raw)
        raise errors.malformed("The body must be a JSON object.")
    try:
        call = _decode(body)
        if body.count(b":") > MOST_MEMBERS and (count := count_members(body)) > MOST_MEMBERS:
            raise errors.malformed(f"The body has {count} members: at most {MOST_MEMBERS} are accepted.")
        return call
    except errors.Problem as exc:
        fault = exc.__cause__
        if not isinstance(fault, msgspec.ValidationError):
            raise
        found = FIELD.search(str(fault))
        reason = str(fault).partition(" - at ")[0].replace("`", "")
        raise errors.invalid_field("invalid_type", found[1] if found else "model", reason) from exc


def _decode(body: bytes) -> OpenAiCall:
    """Decode a body. Half of a surrogate pair is taken outside of the fields that are read: clients write it for an
    emoji that was cut, and model servers take it.
    """
    try:
        return decode_json(body, OpenAiCall)
    except errors.Problem as exc:
        if isinstance(exc.__cause__, msgspec.ValidationError) or (members := read_leniently(body)) is None:
            raise
    fields = {name: members[name] for name in OpenAiCall.__struct_fields__ if name in members}
    for name, value in fields.items():
        if isinstance(value, str) and SURROGATE.search(value):
            raise errors.invalid_field("invalid_type", name, "must be a text of whole characters")
    try:
        return msgspec.convert(fields, OpenAiCall)
    except msgspec.ValidationError as exc:
        raise errors.malformed("The body cannot be read.") from exc


def _lane_of(call: OpenAiCall, allowed: tuple[str, ...]) -> str:
    """Return the lane that the tier stands for. `auto` is the best of the account's lanes that is at most normal."""
    tier = call.service_tier or "auto"
    if tier not in TIERS:
        raise errors.invalid_field("enum", "service_tier", f"must be one of {', '.join(TIERS)}")
    return LANES.get(tier) or next((lane for lane in AUTO if lane in allowed), allowed[0])


def _read_choice(request: Request, header: str, choices: tuple[str, ...], default: str) -> str:
    choice = request.headers.get(header.lower(), default)
    if choice not in choices:
        raise errors.invalid_header(header, " or ".join(choices))
    return choice
