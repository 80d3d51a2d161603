"""Files have no room here: whoever wants to upload one is told so, in the way that official clients can act on."""

from starlette.requests import Request
from starlette.responses import Response

from api.auth import authenticate
from api.problems import no_files

__all__ = ("create_file",)


async def create_file(request: Request) -> Response:
    """POST /files: 501. The JavaScript client then sends data URIs instead, which it does not after a 4xx."""
    await authenticate(request, "run")
    raise no_files()
