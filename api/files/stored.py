"""Answer with a file of the store: all of it, the one part that was asked for, or what a HEAD wants to know.

A stranger made what is in it, so no browser may guess at its type or run it. Reads only what it sends, a piece at a
time. Never judges who may have it.
"""

import re
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api.refusals import no_such_part
from director.files.store import OpenFile

__all__ = ("part_of", "stored_response")

# Several parts at once may be answered with all of it, and are
RANGE: Final = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))")
UNTRUSTED: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "cross-origin",
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "Accept-Ranges, Content-Range, ETag",
    "Cache-Control": "private, max-age=3600, immutable",  # a name never means other bytes
    "Referrer-Policy": "no-referrer",
}


def stored_response(request: Request, file: OpenFile, *, digest: str, headers: Mapping[str, str]) -> Response:
    """200 with the file, or 206 with a part; 416 where it has none such. `digest`: of what is in it."""
    etag = f'"{digest}"'
    described = UNTRUSTED | {"Accept-Ranges": "bytes", "ETag": etag} | dict(headers)
    if request.method == "HEAD":
        return Response(headers=described | {"Content-Length": str(file.size)})
    asked = request.headers.get("range", "") if request.headers.get("if-range", etag) == etag else ""
    part = part_of(asked, file.size)
    start, stop = (0, file.size) if part is None else part
    if part is not None:
        if start >= stop:
            raise no_such_part(file.size)
        described["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    described["Content-Length"] = str(stop - start)
    return StreamingResponse(file.read(start, stop), 200 if part is None else 206, described)


def part_of(asked: str, size: int) -> tuple[int, int] | None:
    """Where the part that a `Range` asks for begins and ends; None for all of it. One without a byte is not there."""
    found = RANGE.fullmatch(asked.strip())
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        return max(0, size - int(suffix)), size
    if last and int(last) < int(first):
        return None  # no range at all
    return int(first), min(size, int(last) + 1) if last else size
