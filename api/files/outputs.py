"""Hand out the files of outputs, at addresses that are signed and need no token.

A model made what is in them, so it is never trusted: no browser may guess at its type, and what a browser could run
is only ever saved.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.files.stored import stored_response
from api.refusals import forbidden, not_found
from api.sites.sites import parts_at
from director.files.names import FileName
from director.files.store import OpenFile

__all__ = ("get_output",)

SHOWN: Final = ("audio/", "video/", "image/", "text/plain")
RUN_BY_BROWSERS: Final = frozenset({"image/svg+xml"})


async def get_output(request: Request) -> Response:
    """GET /outputs/{name}?expires=&signature=: the bytes, or a `Range` of them; 403 where the signature is not good
    or is over, 404 where it is gone.
    """
    name, query = FileName.parse(request.path_params["name"]), request.query_params
    if name is None or (parts := parts_at(request, name.prediction_id)).files is None:
        raise not_found()
    expires, signature = query.get("expires", ""), query.get("signature", "")
    if not await parts.links.are_good(str(name), of=name.prediction_id, expires=expires, signature=signature):
        raise forbidden("This address is not good, or not good any more.")
    file = await parts.files.open(name)
    if file is None:
        raise not_found()
    return stored_response(request, file, digest=name.digest, headers=_headers(name, file))


def _headers(name: FileName, file: OpenFile) -> dict[str, str]:
    kind = file.content_type
    is_shown = kind.startswith(SHOWN) and kind not in RUN_BY_BROWSERS
    return {
        "Content-Type": kind,
        "Content-Disposition": f'{"inline" if is_shown else "attachment"}; filename="{name}"',
    }
