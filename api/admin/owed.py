"""What operators see of webhooks that are owed, over HTTP: how many, since when, to which hosts.

For tokens with the scope `admin` alone. Changes nothing: one is told again by `redeliver` of its prediction.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.answers import json_response
from api.auth import authenticate
from api.problems import InvalidField
from api.refusals import invalid_input
from api.sites.sites import parts_asked

__all__ = ("LONGEST_HOST", "get_owed")

LONGEST_HOST: Final = 300


async def get_owed(request: Request) -> Response:
    """GET /admin/owed?host=: all of it, and those whose next attempt comes first."""
    await authenticate(request, "admin")
    host = request.query_params.get("host", "")
    if len(host) > LONGEST_HOST:
        raise invalid_input([InvalidField("max_length", "host", f"Has at most {LONGEST_HOST} characters")])
    return json_response(await parts_asked(request).owed.look(host=host))
