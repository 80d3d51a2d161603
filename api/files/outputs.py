"""Serve the files of outputs at signed addresses without a token, and take such files from our own directors. A model
made their content: browsers may not guess its type, and what a browser could run is served only as a download. A
director's order is signed for one action and minutes. A file must match the digest in its name, so a stolen order is
good for nothing else.
"""

import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Final

from anyio import to_thread
from msgspec import Meta
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from api.sites.sites import refuse_moved
from api.web import errors
from api.web.errors import Problem
from api.web.http import Request, prediction_id_of
from api.web.route import Answer, Parameter, Route
from director.core.ids import PredictionId
from director.files.store import PLAIN_TYPE, FileName, FileStore, OpenFile

log = logging.getLogger(__name__)
RETRY_S: Final = 5
Bytes = Annotated[str, Meta(extra_json_schema={"format": "binary"})]
ANY_TYPE: Final = "*/*"
PARTS: Final = ("Accept-Ranges", "ETag")
BYTES: Final = {
    200: Answer("The bytes.", Bytes, ANY_TYPE, headers=PARTS),
    206: Answer("The part that was asked for.", Bytes, ANY_TYPE, headers=(*PARTS, "Content-Range")),
}
PART: Final = (
    Parameter("Range", "The part that is wanted, such as `bytes=0-999`.", place="header"),
    Parameter("If-Range", "The `ETag` of what is there already: of anything else, all of it.", place="header"),
)
LONGEST_TYPE: Final = 200


def _name(request: Request, *, of_data: bool = False) -> FileName:
    name = FileName.parse(request.path_params["name"], of_data=of_data)
    if name is None:
        raise errors.not_found()
    return name


def _prediction_of(request: Request) -> PredictionId:
    return _name(request, of_data=True).prediction_id


@Route("GET", "/internal/files")
async def look_at_files(request: Request) -> Response:
    """Answer 204 where files are stored, 501 where they are not, and 503 where the store does not work."""
    services, _ = request.services, store_of(request)
    if services.store_check is not None and await services.store_check.missing():
        raise errors.file_not_stored(retry_after=RETRY_S)
    return Response(status_code=204)


@Route("GET", "/internal/outputs/{name}", of=_prediction_of)
async def get_data(request: Request) -> Response:
    """Answer with a stored file, which a director asks for if it is an input or output as a whole."""
    name = _name(request, of_data=True)
    store = await _check_order(request, "get", str(name))
    if (file := await store.open(name)) is None:
        raise errors.not_found()
    return serve_file(request, file, digest=name.digest, headers={"Content-Type": file.content_type})


@Route("PUT", "/internal/outputs/{name}", of=_prediction_of)
async def put_output(request: Request) -> Response:
    """Answer 204 once the file is stored, and 422 for other bytes than its name says."""
    name = _name(request, of_data=True)
    store = await _check_order(request, "put", str(name))
    kind = request.headers.get("content-type", PLAIN_TYPE)
    if not kind.isascii() or len(kind) > LONGEST_TYPE:
        raise errors.invalid_header("Content-Type", f"at most {LONGEST_TYPE} characters of ASCII")
    body = _Body(request, name.digest)
    try:
        await store.put(name, body.blocks(), content_type=kind)
    except Exception as exc:  # a store is third-party code: whatever it raises, the file was not stored
        if body.is_cut_short:
            raise ClientDisconnect from exc
        if body.is_wrong:
            raise errors.invalid_field("other", "body", "These are not the bytes of this name.") from exc
        log.exception("a file could not be stored", extra={"prediction": name.prediction_id})
        raise errors.file_not_stored(retry_after=RETRY_S) from exc
    return Response(status_code=204)


@Route("DELETE", "/internal/predictions/{id}/outputs", of=prediction_id_of)
async def delete_outputs(request: Request) -> Response:
    store = await _check_order(request, "remove", request.prediction_id)
    await store.remove(request.prediction_id)
    return Response(status_code=204)


async def _check_order(request: Request, verb: str, what: str) -> FileStore:
    query = request.query_params
    given = {"expires": query.get("expires", ""), "signature": query.get("signature", "")}
    if not await request.services.links.is_ordered(verb, what, **given):
        await _refuse_moved(request)
        raise errors.forbidden("This address is not good, or not good any more.")
    return store_of(request)


async def _refuse_moved(request: Request) -> None:
    """Raise Moved if another of our sites may have signed this address, since it has the prediction now."""
    if request.sites is not None:
        await refuse_moved(request)


def store_of(request: Request) -> FileStore:
    if request.services.files is None:
        raise errors.no_files()
    return request.services.files


class _Body:
    """A request's body, and whether it arrived whole and with the expected digest."""

    def __init__(self, request: Request, digest: str) -> None:
        self.is_cut_short = False
        self.is_wrong = False
        self._request = request
        self._digest = digest

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body. Raises if it is cut short or wrong, so that the store drops all of it."""
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


# One range alone: a request for several may be answered with the whole file, and is
RANGE: Final = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))")
UNTRUSTED: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "cross-origin",
    "Cache-Control": "private, max-age=3600, immutable",  # the bytes of a name never change
    "Referrer-Policy": "no-referrer",
}


def serve_file(request: Request, file: OpenFile, *, digest: str, headers: Mapping[str, str]) -> Response:
    """Answer 200 with the file, or 206 with a part, read a piece at a time. Raises a 416 for a part without a byte. The
    caller checks first who may have the file. `digest`: of the whole file.
    """
    etag = f'"{digest}"'
    described = UNTRUSTED | {"Accept-Ranges": "bytes", "ETag": etag} | dict(headers)
    if request.method == "HEAD":
        return Response(headers=described | {"Content-Length": str(file.size)})
    asked = request.headers.get("range", "") if request.headers.get("if-range", etag) == etag else ""
    part = part_of(asked, file.size)
    start, stop = (0, file.size) if part is None else part
    if part is not None:
        if start >= stop:
            raise errors.no_such_part(size=file.size)
        described["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    described["Content-Length"] = str(stop - start)
    return StreamingResponse(file.read(start, stop), 200 if part is None else 206, described)


def part_of(asked: str, size: int) -> tuple[int, int] | None:
    """Return begin and end of the part that a `Range` header asks for, or None for the whole file. Begin is not below
    end where the file is too short.
    """
    found = RANGE.fullmatch(asked.strip())
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        return max(0, size - int(suffix)), size
    if last and int(last) < int(first):
        return None  # not a valid range
    return int(first), min(size, int(last) + 1) if last else size


SHOWN: Final = ("audio/", "video/", "image/", "text/plain")
RUN_BY_BROWSERS: Final = frozenset({"image/svg+xml"})


@Route(
    "GET",
    "/outputs/{name}",
    name="outputs.get",
    summary="Download a file of an output",
    about=(
        "The address stands in the output of a prediction, and no token is needed. It is good until the data is "
        "removed. 403 means that it expired or was changed, 404 that the file is deleted."
    ),
    parameters=(
        Parameter("expires", "Until when the address is good, in seconds since 1970."),
        Parameter("signature", "What makes it good."),
        *PART,
    ),
    answers=BYTES,
    refusals={403, 416, 503},
    is_open=True,
    of=_prediction_of,
)
async def get_output(request: Request) -> Response:
    name = _name(request)
    try:
        file = await _open_signed(request, name)
    except Problem:
        await _refuse_moved(request)
        raise
    return serve_file(request, file, digest=name.digest, headers=_headers(name, file))


async def _open_signed(request: Request, name: FileName) -> OpenFile:
    query, services = request.query_params, request.services
    if services.files is None:
        raise errors.not_found()
    expires, signature = query.get("expires", ""), query.get("signature", "")
    if not await services.links.are_good(str(name), of=name.prediction_id, expires=expires, signature=signature):
        raise errors.forbidden("This address is not good, or not good any more.")
    if (file := await services.files.open(name)) is None:
        raise errors.not_found()
    return file


def _headers(name: FileName, file: OpenFile) -> dict[str, str]:
    kind = file.content_type
    is_shown = kind.startswith(SHOWN) and kind not in RUN_BY_BROWSERS
    return {"Content-Type": kind, "Content-Disposition": f'{"inline" if is_shown else "attachment"}; filename="{name}"'}
