"""Where the caller finds us: the base of all URLs in answers, without /v1.

Believes a configured public URL first. Never believes X-Forwarded-*: anybody can send it, and clients send their token
to whatever host an answer names.
"""

import re
from typing import Final

from starlette.requests import Request

from api.parts import parts_of
from api.problems import invalid_host

__all__ = ("base_url",)

HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")


def base_url(request: Request) -> str:
    """The public URL, else the scheme and host that the request was sent to; 400 where that is no host at all."""
    if public := parts_of(request).settings.public_url:
        return public.rstrip("/")
    host = request.headers.get("host", "")
    if not HOST.fullmatch(host):
        raise invalid_host()
    return f"{request.url.scheme}://{host}"
