"""Read a request: its body as checked JSON within limits of size, time and depth, its headers, and the ids in its path.
Routes that need no body must not read it: official clients send a cancel as JSON with nothing in it.
"""

import asyncio
import re
from collections.abc import Mapping
from functools import cache
from itertools import accumulate, islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.requests import Request as BaseRequest
from starlette.types import Receive, Scope, Send

from api.errors import (
    MAX_INVALID_FIELDS,
    InvalidField,
    invalid_field,
    invalid_input,
    malformed,
    not_found,
    shown,
    too_large,
    too_slow,
)
from api.services import Services
from director.core.account_limits import Bucket
from director.core.ids import PredictionId, is_prediction_id
from director.store.accounts import Account

T = TypeVar("T")
# a model server in Rust reads at most 128 levels, and the envelope takes a few of them
MAX_NESTING: Final = 100
LONGEST_S: Final = 30.0
QUOTED: Final = re.compile(r"(?<=^Invalid enum value) .*?( - at `[^`]*`)?$", re.DOTALL)
OPEN, CLOSE = b"[{", b"]}"
STRUCTURE: Final = OPEN + CLOSE + b'"'
NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in STRUCTURE)
STEPS: Final = {**dict.fromkeys(OPEN, 1), **dict.fromkeys(CLOSE, -1)}


async def read_body(request: BaseRequest, *, max_bytes: int) -> bytes:
    """Return the whole body. 413 as soon as its announced or counted length exceeds `max_bytes`; 408 if it is slow."""
    announced = request.headers.get("content-length", "")
    # cut, because Python refuses to read a number of thousands of digits
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise too_large(limit=max_bytes)
    if request.scope["state"].get("is_whole"):  # the body is here already, so there is nothing to wait for
        return await _counted(request, max_bytes)
    try:
        async with asyncio.timeout(LONGEST_S):
            return await _counted(request, max_bytes)
    except TimeoutError as exc:
        raise too_slow(seconds=LONGEST_S) from exc


def decode_json(body: bytes, kind: type[T]) -> T:
    """Decode one JSON text as `kind`. Raises a 400 for anything else. Of two equal keys the last wins."""
    if not body.strip():
        raise malformed("The body is empty: a JSON object is required.")
    try:
        # a Raw is passed on undecoded, so this is the only check of its encoding
        body.decode()
    except UnicodeDecodeError as exc:
        raise malformed(f"The body is not UTF-8 (byte {exc.start}).") from exc
    if _depth(body) > MAX_NESTING:
        raise malformed(f"The body is nested too deeply: at most {MAX_NESTING} levels are accepted.")
    try:
        decoded: T = _decoder(kind).decode(body)  # type: ignore[arg-type] # a class can be hashed
        return decoded
    except msgspec.DecodeError as exc:
        # msgspec's message names a place and a reason; the only text it may quote, a wrong word of an enum, is cut
        said = QUOTED.sub(r"\1", str(exc))
        raise malformed(f"The body cannot be read: {said}.") from exc


async def decoded(request: BaseRequest, kind: type[T], *, max_bytes: int) -> T:
    return decode_json(await read_body(request, max_bytes=max_bytes), kind)


@cache
def _decoder(kind: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


async def _counted(request: BaseRequest, max_bytes: int) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large(limit=max_bytes)
        more = message.get("more_body", False)
    return bytes(body)


def _depth(body: bytes) -> int:
    """Return how deep arrays and objects nest, in linear time; at least that, with at most MAX_NESTING openings."""
    openings = sum(map(body.count, OPEN))
    if openings <= MAX_NESTING:
        return openings
    # escapes first (in pairs, from the left), so that every remaining quote opens or closes a string
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    outside = unescaped.translate(None, NOT_STRUCTURE).split(b'"')[::2]
    return max(accumulate(map(STEPS.__getitem__, b"".join(outside))), default=0)


TYPES: Final = {
    ord("{"): "object",
    ord("["): "array",
    ord('"'): "string",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("n"): "null",
}


class Members:
    """The members of a body's object, taken one by one, and every fault found in them, in gojsonschema's words. Raises
    a 422 for a body that is no object.
    """

    def __init__(self, body: bytes) -> None:
        self.faults: list[InvalidField] = []
        if (given := type_of(body)) != "object":
            decode_json(body, Raw)  # text that is not JSON is malformed, not of a wrong type
            raise invalid_input([wrong_type("", "object", given)])
        self._members: Mapping[str, Raw] = decode_json(body, dict[str, Raw])

    def fault(self, kind: str, field: str, description: str) -> None:
        self.faults.append(InvalidField(kind, field, description))

    def take(self, name: str, expected: str, *, required: bool = False) -> Raw | None:
        """Return a member of the expected type, or None. An optional member may be null."""
        value = self._members.get(name)
        if value is None:
            if required:
                self.fault("required", "", f"{name} is required")
            return None
        given = type_of(bytes(value))
        if given == expected:
            return value
        if required or given != "null":
            self.faults.append(wrong_type(name, expected, given))
        return None

    def text(self, name: str, *, required: bool = False) -> str | None:
        value = self.take(name, "string", required=required)
        return None if value is None else msgspec.json.decode(value, type=str)

    def matching(self, name: str, pattern: re.Pattern[str], *, required: bool = False) -> str | None:
        value = self.text(name, required=required)
        if value is None or pattern.fullmatch(value):
            return value
        self.fault("pattern", name, f"Does not match pattern '{pattern.pattern}'")
        return None

    def integer(self, name: str, *, most: int, required: bool = False) -> int | None:
        value = self.take(name, "number", required=required)
        if value is None:
            return None
        try:
            number = msgspec.json.decode(value, type=int)
        except msgspec.ValidationError:
            self.faults.append(wrong_type(name, "integer", "number"))
            return None
        if 0 <= number <= most:
            return number
        self.fault("number_gte" if number < 0 else "number_lte", name, f"Must be between 0 and {most}")
        return None

    def refuse_unknown(self, known: frozenset[str]) -> None:
        for name in islice((name for name in self._members if name not in known), MAX_INVALID_FIELDS):
            self.fault("additional_property_not_allowed", "", f"Additional property {shown(name)} is not allowed")


def type_of(value: bytes) -> str:
    text = value.lstrip(b" \t\r\n")[:1]
    return TYPES.get(text[0], "number") if text else "null"


def wrong_type(field: str, expected: str, given: str) -> InvalidField:
    return InvalidField("invalid_type", field, f"Invalid type. Expected: {expected}, given: {given}")


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def prediction_id_of(request: BaseRequest) -> PredictionId:
    """Return the prediction id of the path. 404 for a text that cannot be an id, without asking Redis."""
    text = request.path_params["id"]
    if not is_prediction_id(text):
        raise not_found()
    return PredictionId(text)


def number_of(request: BaseRequest, name: str, *, default: int, least: int, most: int) -> int:
    """Read a whole number from the query. Raises a 422 for another text and for a number out of bounds."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and least <= int(text[:20]) <= most):
        raise invalid_field("number", name, f"Must be a whole number from {least} to {most}")
    return int(text)


class Request(BaseRequest):
    """A request as handlers get it. The route says which attributes are set: see `api.route.Route`. Its headers are
    indexed once: a handler looks for a dozen, and most are missing.
    """

    account: Account
    rate_token: tuple[Bucket, str] | None
    services: Services
    prediction_id: PredictionId

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self._indexed = _Indexed(raw=scope["headers"])

    @property
    def headers(self) -> Headers:
        return self._indexed


class _Indexed(Headers):
    def __init__(self, *, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._first = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)}

    def get(self, key: str, default: Any = None) -> Any:
        return self._first.get(key.lower(), default)

    def getlist(self, key: str) -> list[str]:
        return super().getlist(key) if key in self else []

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower()]

    def __contains__(self, key: object) -> bool:
        return str(key).lower() in self._first
