"""Take files of outputs from our own directors, which do not see our folder, and delete them for those.

An order is signed for one thing and for minutes. What comes is kept only where it is the bytes of its name, so that an
order that somebody saw is good for nothing else. Never asks for a token, and no caller has use for any of this.
"""

import hashlib
import logging
from collections.abc import AsyncGenerator
from typing import Final

from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.parts import Parts, parts_of
from api.problems import InvalidField
from api.refusals import file_not_stored, forbidden, invalid_header, invalid_input, no_files, not_found
from api.sites.sites import parts_at
from director.core.ids import PredictionId, is_prediction_id
from director.files.names import FileName
from director.files.store import PLAIN_TYPE, FileStore

__all__ = ("delete_outputs", "look_at_files", "put_output")

log = logging.getLogger(__name__)

RETRY_S: Final = 5
LONGEST_TYPE: Final = 200


async def look_at_files(request: Request) -> Response:
    """GET /internal/files: 204 where they are stored; 501 where none are, 503 where their store does not work."""
    parts = parts_of(request)
    _store(parts)
    if parts.store_check is not None and await parts.store_check.missing():
        raise file_not_stored(RETRY_S)
    return Response(status_code=204)


async def put_output(request: Request) -> Response:
    """PUT /internal/outputs/{name}?expires=&signature=: 204 once it is kept, 422 for other bytes than its name says."""
    name = FileName.parse(request.path_params["name"])
    if name is None:
        raise not_found()
    store = await _ordered(parts_at(request, name.prediction_id), request, "put", str(name))
    kind = request.headers.get("content-type", PLAIN_TYPE)
    if not kind.isascii() or len(kind) > LONGEST_TYPE:
        raise invalid_header("Content-Type", f"at most {LONGEST_TYPE} characters of ASCII")
    body = _Body(request, name.digest)
    try:
        await store.take(name, body.blocks(), content_type=kind)
    except Exception as exc:  # a store is somebody else's: whatever it raises, it did not store
        if body.is_cut_short:
            raise ClientDisconnect from exc
        if body.is_wrong:
            raise invalid_input([InvalidField("other", "body", "These are not the bytes of this name.")]) from exc
        log.exception("a file could not be stored", extra={"prediction": name.prediction_id})
        raise file_not_stored(RETRY_S) from exc
    return Response(status_code=204)


async def delete_outputs(request: Request) -> Response:
    """DELETE /internal/predictions/{id}/outputs?expires=&signature=: 204, also where there were none."""
    prediction_id = request.path_params["id"]
    if not is_prediction_id(prediction_id):
        raise not_found()
    holder = PredictionId(prediction_id)
    store = await _ordered(parts_at(request, holder), request, "remove", holder)
    await store.remove(holder)
    return Response(status_code=204)


async def _ordered(parts: Parts, request: Request, verb: str, what: str) -> FileStore:
    """The store, for whoever has an order for this; 403 for others."""
    query = request.query_params
    given = {"expires": query.get("expires", ""), "signature": query.get("signature", "")}
    if not await parts.links.is_ordered(verb, what, **given):
        raise forbidden("This address is not good, or not good any more.")
    return _store(parts)


def _store(parts: Parts) -> FileStore:
    if parts.files is None:
        raise no_files()
    return parts.files


class _Body:
    """What comes, and whether it was what was said to come."""

    def __init__(self, request: Request, digest: str) -> None:
        self.is_cut_short = False
        self.is_wrong = False
        self._request = request
        self._digest = digest

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        """The store drops all of it where this raises."""
        summed = hashlib.sha256()
        try:
            async for block in self._request.stream():
                await to_thread.run_sync(summed.update, block)
                yield block
        except ClientDisconnect:
            self.is_cut_short = True
            raise
        if summed.hexdigest()[: len(self._digest)] != self._digest:
            self.is_wrong = True
            raise ValueError("these are not the bytes of this name")
