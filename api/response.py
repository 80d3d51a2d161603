"""Build responses: JSON bodies, carried headers, absolute addresses, and the links between pages. A `Raw` in a body is
sent as it came in. Headers that a request carries are sent with any response to it.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from api.errors import invalid_field, invalid_host
from api.services import services_of
from director.core.errors import SettingsError
from director.core.schema import Page

T = TypeVar("T")
RawHeaders = Sequence[tuple[bytes, bytes]]
MEDIA_TYPE: Final = "application/json"


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers=headers, media_type=MEDIA_TYPE)


def raw(headers: Mapping[str, str]) -> RawHeaders:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def carry(request: Request, headers: RawHeaders) -> None:
    request.scope["state"]["carried"] = headers


def carried(scope: Scope, response: Response) -> Response:
    response.raw_headers += scope["state"].get("carried", ())
    return response


# X-Forwarded-Proto and X-Forwarded-Host count only from the proxies in the settings: any client can send them, and
# clients send their token to the host that a response names.

HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
SCHEMES: Final = ("http", "https")


def base_url(request: Request) -> str:
    """Return the public URL, else the scheme and host of the request, without /v1. 400 for an invalid host."""
    if public := services_of(request).settings.public_url:
        return public.rstrip("/")
    scheme, host = request.scope["scheme"], request.headers.get("host", "")
    if _is_from_proxy(request):
        scheme = _last(request, "x-forwarded-proto") or scheme
        host = _last(request, "x-forwarded-host") or host
    if scheme not in SCHEMES or not HOST.fullmatch(host):
        raise invalid_host()
    return f"{scheme}://{host}"


@cache
def proxy_networks(trusted: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(map(ip_network, trusted))
    except ValueError as exc:
        raise SettingsError(
            f"DIRECTOR_TRUSTED_PROXIES: {exc}: name addresses, or networks such as 10.0.0.0/8."
        ) from exc


def _is_from_proxy(request: Request) -> bool:
    networks = proxy_networks(services_of(request).settings.trusted_proxies)
    if not networks or request.client is None:
        return False
    try:
        address = ip_address(request.client.host)
    except ValueError:
        return False  # a socket without an address
    if isinstance(address, IPv6Address):
        # a dual-stack socket shows IPv4 clients so, and no IPv4 network contains such an address
        address = address.ipv4_mapped or address
    return any(address in network for network in networks)


def _last(request: Request, name: str) -> str:
    """Return the value that the nearest proxy added: values before it came from outside."""
    return request.headers.get(name, "").rpartition(",")[2].strip()


PAGE_SIZE: Final = 100
PLACE: Final = re.compile(r"([np])([0-9A-Za-z._/:~-]{1,300})")


class Cursor(Struct, frozen=True):
    """Where a page begins: after the id `at` in the list's order; before it and `backwards` for a previous page."""

    at: str
    backwards: bool = False


def cursor_of(request: Request, *, is_place: Callable[[str], bool] = lambda _: True) -> Cursor | None:
    """Return the request's cursor, or None. Raises a 422 unless a page of this list may begin there: `is_place`."""
    text = request.query_params.get("cursor")
    if not text:
        return None
    try:
        match = PLACE.fullmatch(base64.urlsafe_b64decode(text).decode())
    except (binascii.Error, ValueError):
        match = None
    if match is None or not is_place(match[2]):
        raise invalid_field("format", "cursor", "Is not a cursor of this list")
    return Cursor(at=match[2], backwards=match[1] == "p")


def link(request: Request, path: str, cursor: Cursor | None, kept: Mapping[str, str] | None = None) -> str:
    """Return the absolute address of a page. Clients send their token to it, so it is never relative."""
    query = dict(kept or {})
    if cursor is not None:
        place = ("p" if cursor.backwards else "n") + cursor.at
        query["cursor"] = base64.urlsafe_b64encode(place.encode()).decode()
    return f"{base_url(request)}/v1{path}" + (f"?{urlencode(query)}" if query else "")


def page_response(
    request: Request,
    path: str,
    results: Sequence[Any],
    *,
    older: Cursor | None = None,
    newer: Cursor | None = None,
    kept: Mapping[str, str] | None = None,
) -> Response:
    """Answer with a page. `older`, `newer`: where the next and previous page begin. `kept`: filters in their links."""
    following, previous = (None if cursor is None else link(request, path, cursor, kept) for cursor in (older, newer))
    return json_response(Page(next=following, previous=previous, results=results))


def walked_page(
    request: Request,
    path: str,
    results: Sequence[Any],
    walked: Sequence[str],
    *,
    has_more: bool,
    kept: Mapping[str, str] | None = None,
) -> Response:
    """Answer with a page that was read from the request's cursor on, backwards if the cursor says so. `walked`: the
    places that were read, in that order. `has_more`: beyond the last. An empty page leads to the beginning of the list.
    """
    cursor = cursor_of(request)
    if cursor is not None and cursor.backwards:
        results, walked = results[::-1], walked[::-1]
        has_older, has_newer = True, has_more
    else:
        has_older, has_newer = has_more, cursor is not None
    after, before = (Cursor(walked[-1]), Cursor(walked[0], backwards=True)) if walked else (None, None)
    following = link(request, path, after, kept) if has_older else None
    previous = link(request, path, before, kept) if has_newer else None
    return json_response(Page(next=following, previous=previous, results=results))


def page_after(things: Iterable[T], cursor: Cursor | None, name: Callable[[T], str]) -> tuple[list[T], Cursor | None]:
    """Return one page of things in ascending order of their names, and where the page after it begins."""
    rest = [thing for thing in things if cursor is None or name(thing) > cursor.at]
    page = rest[:PAGE_SIZE]
    return page, Cursor(name(page[-1])) if len(rest) > PAGE_SIZE else None


def slice_of(
    marks: Sequence[str], cursor: Cursor | None, *, most: int = PAGE_SIZE
) -> tuple[Sequence[str], Cursor | None, Cursor | None]:
    """Return one page of a list that is in memory, and the cursors of the page after and the page before it. `marks`:
    one for each thing, unique and descending, as the list is. A cursor's own mark may be gone.
    """
    if cursor is not None and cursor.backwards:
        page = [mark for mark in marks if mark > cursor.at][-most:]
    else:
        page = [mark for mark in marks if cursor is None or mark < cursor.at][:most]
    if not page:
        return page, None, None
    older = Cursor(page[-1]) if page[-1] != marks[-1] else None
    newer = Cursor(page[0], backwards=True) if page[0] != marks[0] else None
    return page, older, newer
