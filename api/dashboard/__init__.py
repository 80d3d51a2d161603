"""Serve the operators' page: its files as they are, with headers that keep everything else out. All its links are
relative: a proxy may serve it below a path of its own.
"""

import gzip
import re
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from msgspec import Struct
from starlette.responses import Response

from api.web.errors import not_found
from api.web.http import PAGE_HEADERS, Request, answer_unless_known, etag_of
from api.web.route import Route

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",  # licences of what others made
}
# Everything is loaded from this site, and no text becomes HTML or code, because the page shows what a model put out.
# Pictures, audio and video of outputs may be data URIs of the response itself.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "media-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)
HEADERS: Final = {**PAGE_HEADERS, "Content-Security-Policy": POLICY}


MODEL_PATH: Final = re.compile("/(?!v1/)[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*")


class Asset(Struct, frozen=True):
    """A file of the page. `packed`: the body compressed with gzip, about a third of its size."""

    body: bytes
    packed: bytes
    media_type: str
    etag: str


def _assets() -> dict[str, Asset]:
    found: dict[str, Asset] = {}
    folder = files("api.dashboard") / "static"
    waiting = [(PurePosixPath(), folder)]
    while waiting:
        path, place = waiting.pop()
        for entry in place.iterdir():
            if entry.is_dir():
                waiting.append((path / entry.name, entry))
            elif (kind := TYPES.get(PurePosixPath(entry.name).suffix)) is not None:
                body = entry.read_bytes()
                packed = gzip.compress(body, mtime=0)
                found[str(path / entry.name)] = Asset(body, packed, kind, etag_of(body))
    return found


ASSETS: Final = _assets()


@Route("GET", "/")
async def page(request: Request) -> Response:
    return _serve(request, ASSETS["index.html"])


@Route("GET", "/p/{id}")
async def for_people(request: Request) -> Response:
    """Redirect the address of a prediction for people to the page that shows it."""
    return _redirect(f"predictions/{quote(request.path_params['id'], safe='')}")


async def elsewhere(request: Request) -> Response:
    """Redirect /{owner}/{name}, a model's address for people, to the page. Raises a 404 for any other path."""
    wants_page = request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")
    if not wants_page or not MODEL_PATH.fullmatch(request.url.path):
        raise not_found()
    return _redirect(f"models{request.url.path}")


@Route("GET", "/dashboard/{path:path}")
async def asset(request: Request) -> Response:
    found = ASSETS.get(request.path_params["path"])
    if found is None:
        raise not_found()
    return _serve(request, found)


def _redirect(view: str) -> Response:
    """Redirect to a view. The page is one level up from these addresses, whatever path a proxy puts before them."""
    return Response(
        status_code=302, headers={"Location": f"../#/{view}", "Cache-Control": "no-store", "Vary": "Accept"}
    )


def _serve(request: Request, found: Asset) -> Response:
    headers = {**HEADERS, "Vary": "Accept-Encoding"}
    if not GZIP.search(request.headers.get("accept-encoding", "")):
        return answer_unless_known(request, found.body, etag=found.etag, headers=headers, media_type=found.media_type)
    headers["Content-Encoding"] = "gzip"
    etag = f'{found.etag[:-1]}-gzip"'  # other bytes have another tag
    return answer_unless_known(request, found.packed, etag=etag, headers=headers, media_type=found.media_type)
