"""Hand out the files of outputs, at addresses that are signed and need no token.

A model made what is in them, so it is never trusted: no browser may guess at its type, and what a browser could run
is only ever saved.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api.parts import parts_of
from api.problems import forbidden, not_found
from director.core.files import FileName, OpenFile

__all__ = ("UNTRUSTED", "get_output")

SHOWN: Final = ("audio/", "video/", "image/", "text/plain")
RUN_BY_BROWSERS: Final = frozenset({"image/svg+xml"})
# Of any answer that is a stranger's file
UNTRUSTED: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "cross-origin",
    "Access-Control-Allow-Origin": "*",
    "Cache-Control": "private, max-age=3600, immutable",  # a name never means other bytes
    "Referrer-Policy": "no-referrer",
}


async def get_output(request: Request) -> Response:
    """GET /outputs/{name}?expires=&signature=: 403 where the signature is not good or over, 404 where it is gone."""
    parts, query = parts_of(request), request.query_params
    name = FileName.parse(request.path_params["name"])
    if name is None or parts.files is None:
        raise not_found()
    expires, signature = query.get("expires", ""), query.get("signature", "")
    if not await parts.links.are_good(str(name), expires=expires, signature=signature):
        raise forbidden("This address is not good, or not good any more.")
    file = await parts.files.open(name)
    if file is None:
        raise not_found()
    return StreamingResponse(file.chunks, headers=_headers(name, file), media_type=None)


def _headers(name: FileName, file: OpenFile) -> dict[str, str]:
    kind = file.content_type
    is_shown = kind.startswith(SHOWN) and kind not in RUN_BY_BROWSERS
    return UNTRUSTED | {
        "Content-Type": kind,
        "Content-Length": str(file.size),
        "Content-Disposition": f'{"inline" if is_shown else "attachment"}; filename="{name}"',
    }
