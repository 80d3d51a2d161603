"""Take in a request's body: counted while it arrives, then read as JSON that nothing behind us can choke on.

Never holds more than the limit, never waits longer than the limit, never goes deeper than the limit, and raises
nothing but a Problem. Requests that need no body (a cancel, which official clients send as application/json with
nothing in it) must not come here.
"""

import asyncio
import re
from functools import cache
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from api.refusals import malformed, too_large, too_slow

__all__ = ("MAX_NESTING", "decode_json", "read_body")

T = TypeVar("T")

# a model server in Rust reads at most 128 levels, and ours are a few of them
MAX_NESTING: Final = 100

LONGEST_S: Final = 30.0
QUOTED: Final = re.compile(r"(?<=^Invalid enum value) .*?( - at `[^`]*`)?$", re.DOTALL)

OPEN, CLOSE = b"[{", b"]}"
STRUCTURE: Final = OPEN + CLOSE + b'"'
NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in STRUCTURE)
STEPS: Final = {**dict.fromkeys(OPEN, 1), **dict.fromkeys(CLOSE, -1)}


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The whole body. 413 as soon as its announced or its counted length is over `max_bytes`; 408 if it is slow."""
    announced = request.headers.get("content-length", "")
    # cut, since Python refuses to read a number of thousands of digits
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise too_large(max_bytes)
    if request.scope["state"].get("is_whole"):  # it waits for us, and not we for it
        return await _counted(request, max_bytes)
    try:
        async with asyncio.timeout(LONGEST_S):
            return await _counted(request, max_bytes)
    except TimeoutError as exc:
        raise too_slow(LONGEST_S) from exc


def decode_json(body: bytes, kind: type[T]) -> T:
    """One JSON text as `kind`; 400 for anything else. Of two equal keys the last wins."""
    if not body.strip():
        raise malformed("The body is empty: a JSON object is required.")
    try:
        # a Raw is passed on unread, so this is the only place that would notice
        body.decode()
    except UnicodeDecodeError as exc:
        raise malformed(f"The body is not UTF-8 (byte {exc.start}).") from exc
    if _depth(body) > MAX_NESTING:
        raise malformed(f"The body is nested too deeply: at most {MAX_NESTING} levels are accepted.")
    try:
        decoded: T = _decoder(kind).decode(body)  # type: ignore[arg-type] # a class can be hashed
        return decoded
    except msgspec.DecodeError as exc:
        # it names a place and a reason, and quotes nothing of the text once a word that is none of a closed set is cut
        said = QUOTED.sub(r"\1", str(exc))
        raise malformed(f"The body cannot be read: {said}.") from exc


@cache
def _decoder(kind: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


async def _counted(request: Request, max_bytes: int) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large(max_bytes)
        more = message.get("more_body", False)
    return bytes(body)


def _depth(body: bytes) -> int:
    """How deep arrays and objects nest, in linear time and without recursion. An upper bound where there are few."""
    openings = sum(map(body.count, OPEN))
    if openings <= MAX_NESTING:
        return openings
    # escapes first (in pairs, from the left), so that every quote left is one that opens or closes a string
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    outside = unescaped.translate(None, NOT_STRUCTURE).split(b'"')[::2]
    return max(accumulate(map(STEPS.__getitem__, b"".join(outside))), default=0)
