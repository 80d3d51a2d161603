"""Read requests and build responses.

A request's body is checked JSON within limits of size, time and depth. Routes that need no body must not read it:
official clients send a cancel as JSON with nothing in it. A `Raw` in the body of a response is sent as it came in.
Headers that a request carries are sent with any response to it.
"""

import asyncio
import base64
import binascii
import codecs
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import islice
from typing import Any, Final, Protocol, TypeVar, cast
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Raw, Struct
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.requests import Request as BaseRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.services.lookups import VersionRef
from api.services.services import Services
from api.web.errors import (
    MAX_INVALID_FIELDS,
    InvalidField,
    Refusal,
    encoded_body,
    invalid_field,
    invalid_host,
    invalid_input,
    make_printable,
    malformed,
    not_found,
    too_large,
    too_slow,
)
from director.core.account_limits import Bucket
from director.core.errors import SettingsError
from director.core.ids import PredictionId, is_prediction_id
from director.core.nesting import is_deeper
from director.core.schema import Page
from director.core.settings import ApiSettings
from director.store.accounts import Account
from director.store.catalog import Version

T = TypeVar("T")
RawHeaders = Sequence[tuple[bytes, bytes]]
MEDIA_TYPE: Final = "application/json"

# a model server in Rust reads at most 128 levels, and the envelope takes a few of them
MAX_NESTING: Final = 100
LONGEST_S: Final = 30.0
MOST_DIGITS: Final = 20
QUOTED: Final = re.compile(r"(?<=^Invalid enum value) .*?( - at `[^`]*`)?$", re.DOTALL)
# UTF-32 before UTF-16, whose mark it begins with
BYTE_ORDER_MARKS: Final = {
    "UTF-8": codecs.BOM_UTF8,
    "UTF-32, little-endian": codecs.BOM_UTF32_LE,
    "UTF-32, big-endian": codecs.BOM_UTF32_BE,
    "UTF-16, little-endian": codecs.BOM_UTF16_LE,
    "UTF-16, big-endian": codecs.BOM_UTF16_BE,
}
MARKS: Final = tuple(BYTE_ORDER_MARKS.values())
TYPES: Final = {
    ord("{"): "object",
    ord("["): "array",
    ord('"'): "string",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("n"): "null",
}

# X-Forwarded-Proto and X-Forwarded-Host count only from the proxies in the settings: any client can send them, and
# clients send their token to the host that a response names.

HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
SCHEMES: Final = ("http", "https")
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")

PAGE_SIZE: Final = 100
# of an HTML page of ours; each adds a Content-Security-Policy
PAGE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated each time, usually with a 304: an upgrade shows at once
}
PLACE: Final = re.compile(r"([np])([0-9A-Za-z._/:~-]{1,300})")


class Versions(Protocol):
    """Finds the version that an account means, at the one server or at several sites."""

    async def find_named(self, ref: VersionRef, account: Account) -> Version | None: ...


class Request(BaseRequest):
    """A request as handlers get it. The route says which attributes are set: see `api.web.route.Route`. Its headers are
    indexed once: a handler looks for a dozen, and most are missing. Names are looked up in lower case only.
    """

    headers: "_Indexed" = cast(Any, None)  # hides Starlette's property
    account: Account
    rate_token: tuple[Bucket, str] | None
    services: Services
    prediction_id: PredictionId

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self.headers = _Indexed(raw=scope["headers"])

    @property
    def sites(self) -> Any:
        """Return the `Sites` of `api.sites`, or None with one Redis server."""
        return self.scope["state"]["sites"]

    @property
    def versions(self) -> Versions:
        versions: Versions = self.scope["state"]["versions"]
        return versions

    @property
    def names_one_host(self) -> bool:
        """Whether there is one Host header. HTTP/1.0 may leave it out."""
        if self.headers.get("host") is None:
            return bool(self.scope["http_version"] < "1.1")
        return self.headers.are_unique or len(self.headers.getlist("host")) == 1


async def read_body(request: BaseRequest, *, max_bytes: int, refusal: Refusal = too_large) -> bytes:
    """Return the whole body. Raises `refusal`, a 413, as soon as its announced or counted length exceeds `max_bytes`;
    a 408 if it is slow; a 415 if it is compressed.
    """
    if (encoding := request.headers.get("content-encoding")) and encoding.lower() != "identity":
        raise encoded_body()
    announced = request.headers.get("content-length", "")
    # cut, because Python refuses to read a number of thousands of digits
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise refusal(limit=max_bytes)
    if request.scope["state"].get("is_whole"):  # the body is here already, so there is nothing to wait for
        return await _read_up_to(request, max_bytes, refusal)
    try:
        async with asyncio.timeout(LONGEST_S):
            return await _read_up_to(request, max_bytes, refusal)
    except TimeoutError as exc:
        raise too_slow(seconds=LONGEST_S) from exc


def decode_json(body: bytes, kind: type[T]) -> T:
    """Decode one JSON text as `kind`. Raises a 400 for anything else. Of two equal keys the last wins."""
    if not body.strip():
        raise malformed("The body is empty: a JSON object is required.")
    if body.startswith(MARKS):
        mark = next(name for name, mark in BYTE_ORDER_MARKS.items() if body.startswith(mark))
        raise malformed(f"The body begins with a byte order mark of {mark}: send UTF-8 without one.")
    try:
        # a Raw is passed on undecoded, so this is the only check of its encoding
        body.decode()
    except UnicodeDecodeError as exc:
        raise malformed(f"The body is not UTF-8 (byte {exc.start}).") from exc
    if is_deeper(body, MAX_NESTING):
        raise malformed(f"The body is nested too deeply: at most {MAX_NESTING} levels are accepted.")
    try:
        decoded: T = _decoder(kind).decode(body)  # type: ignore[arg-type] # a class can be hashed
        return decoded
    except msgspec.DecodeError as exc:
        # msgspec's message names a place and a reason; the only text it may quote, a wrong word of an enum, is cut
        said = QUOTED.sub(r"\1", str(exc))
        raise malformed(f"The body cannot be read: {said}.") from exc


async def decode_body(request: BaseRequest, kind: type[T], *, max_bytes: int) -> T:
    return decode_json(await read_body(request, max_bytes=max_bytes), kind)


class Members:
    """The members of a body's object, taken one by one, and every fault found in them, in gojsonschema's words. Raises
    a 422 for a body that is no object.
    """

    def __init__(self, body: bytes) -> None:
        self.faults: list[InvalidField] = []
        if (given := type_of(body)) != "object":
            decode_json(body, Raw)  # text that is not JSON is malformed, not of a wrong type
            raise invalid_input([wrong_type("", "object", given)])
        self._members: Mapping[str, Raw] = decode_json(body, dict[str, Raw])

    def fault(self, kind: str, field: str, description: str) -> None:
        self.faults.append(InvalidField(kind, field, description))

    def take(self, name: str, expected: str, *, required: bool = False) -> Raw | None:
        """Return a member of the expected type, or None. An optional member may be null."""
        value = self._members.get(name)
        if value is None:
            if required:
                self.fault("required", "", f"{name} is required")
            return None
        given = type_of(bytes(value))
        if given == expected:
            return value
        if required or given != "null":
            self.faults.append(wrong_type(name, expected, given))
        return None

    def text(self, name: str, *, required: bool = False) -> str | None:
        value = self.take(name, "string", required=required)
        return None if value is None else msgspec.json.decode(value, type=str)

    def matching(self, name: str, pattern: re.Pattern[str], *, required: bool = False) -> str | None:
        value = self.text(name, required=required)
        if value is None or pattern.fullmatch(value):
            return value
        self.fault("pattern", name, f"Does not match pattern '{pattern.pattern}'")
        return None

    def integer(self, name: str, *, least: int = 0, most: int, required: bool = False) -> int | None:
        value = self.take(name, "number", required=required)
        if value is None:
            return None
        try:
            number = msgspec.json.decode(value, type=int)
        except msgspec.ValidationError:
            self.faults.append(wrong_type(name, "integer", "number"))
            return None
        if least <= number <= most:
            return number
        self.fault("number_gte" if number < least else "number_lte", name, f"Must be between {least} and {most}")
        return None

    def boolean(self, name: str) -> bool | None:
        value = self.take(name, "boolean")
        return None if value is None else bytes(value) == b"true"

    def refuse_unknown(self, known: frozenset[str], *, headers: Mapping[str, str] = {}) -> None:
        """Note each member that is not known. `headers`: what a header says instead, by the name of such a member."""
        if self._members.keys() <= known:
            return
        for name in islice((name for name in self._members if name not in known), MAX_INVALID_FIELDS):
            header = headers.get(name.lower().replace("-", "_"), "")
            instead = f": send the header {header}" if header else ""
            self.fault(
                "additional_property_not_allowed",
                "",
                f"Additional property {make_printable(name)} is not allowed{instead}",
            )


def type_of(value: bytes) -> str:
    text = value.lstrip(b" \t\r\n")[:1]
    return TYPES.get(text[0], "number") if text else "null"


def wrong_type(field: str, expected: str, given: str) -> InvalidField:
    return InvalidField("invalid_type", field, f"Invalid type. Expected: {expected}, given: {given}")


@contextmanager
def watching(request: BaseRequest) -> Iterator["asyncio.Future[None]"]:
    """Yield a future that is done when the client has left."""
    gone = request.scope["state"].get("gone") or asyncio.create_task(until_gone(request.receive))
    try:
        yield gone
    finally:
        if isinstance(gone, asyncio.Task):  # not behind our own HTTP protocol
            gone.cancel()


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def prediction_id_of(request: BaseRequest) -> PredictionId:
    """Return the prediction id of the path. 404 for a text that cannot be an id, without asking Redis."""
    text = request.path_params["id"]
    if not is_prediction_id(text):
        raise not_found()
    return PredictionId(text)


def number_of(request: BaseRequest, name: str, *, default: int, least: int, most: int) -> int:
    """Read a whole number from the query. Raises a 422 for another text and for a number out of bounds."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (len(text) <= MOST_DIGITS and text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise invalid_field("number", name, f"Must be a whole number from {least} to {most}")
    return int(text)


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers=headers, media_type=MEDIA_TYPE)


def etag_of(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def answer_unless_known(
    request: BaseRequest, body: bytes, *, etag: str, headers: Mapping[str, str], media_type: str
) -> Response:
    """Answer 304 to a client that has these very bytes."""
    headers = {**headers, "ETag": etag}
    known = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
    if known & {etag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=media_type)


def raw(headers: Mapping[str, str]) -> RawHeaders:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def carry(request: BaseRequest, headers: RawHeaders) -> None:
    state = request.scope["state"]
    state["carried"] = (*state.get("carried", ()), *headers)


def services_of(request: BaseRequest) -> Services:
    services: Services = request.scope["state"]["services"]  # called often, and `request.state` is slow
    return services


def base_url(request: BaseRequest) -> str:
    """Return the public URL, else the scheme and host of the request, without /v1. 400 for an invalid host."""
    if public := services_of(request).settings.public_url:
        return public.rstrip("/")
    scheme, host = read_host(request)
    if scheme not in SCHEMES or not HOST.fullmatch(host):
        raise invalid_host()
    return f"{scheme}://{host}"


def names_allowed_host(request: BaseRequest, allowed: frozenset[str]) -> bool:
    """Whether the request names one of the hosts, on any port, or none, as HTTP/1.0 may."""
    _, host = read_host(request)
    return not host or ((found := HOST.fullmatch(host)) is not None and _bare(found[1]) in allowed)


def list_allowed_hosts(settings: ApiSettings) -> frozenset[str]:
    """Return the hosts that requests may name, in lower case; an empty set allows any. Raises SettingsError."""
    for name in settings.allowed_hosts:
        if (found := HOST.fullmatch(name)) is None or found[2]:
            raise SettingsError(f"DIRECTOR_ALLOWED_HOSTS: {name!r} is no host. Leave out the scheme and the port.")
    if not settings.allowed_hosts:
        return frozenset()
    public = HOST.fullmatch(urlsplit(settings.public_url).netloc)
    named = (*settings.allowed_hosts, *LOOPBACK, *([public[1]] if public else ()))
    return frozenset(map(_bare, named))


def _bare(host: str) -> str:
    return host.lower().removesuffix(".")  # a name with its final dot is the same one, in full


def read_host(request: BaseRequest) -> tuple[str, str]:
    """Return the scheme and the host that the client named; a trusted proxy may name others."""
    scheme, host = request.scope["scheme"], request.headers.get("host", "")
    if is_from_proxy(request):
        scheme = _last(request, "x-forwarded-proto") or scheme
        host = _last(request, "x-forwarded-host") or host
    return scheme, host


@cache
def proxy_networks(trusted: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(map(ip_network, trusted))
    except ValueError as exc:
        raise SettingsError(
            f"DIRECTOR_TRUSTED_PROXIES: {exc}: name addresses, or networks such as 10.0.0.0/8."
        ) from exc


class Cursor(Struct, frozen=True):
    """Where a page begins: after the id `at` in the list's order; before it and `backwards` for a previous page."""

    at: str
    backwards: bool = False


def cursor_of(request: BaseRequest, *, is_place: Callable[[str], bool] = lambda _: True) -> Cursor | None:
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


def link(request: BaseRequest, path: str, cursor: Cursor | None, kept: Mapping[str, str] | None = None) -> str:
    """Return the absolute address of a page. Clients send their token to it, so it is never relative."""
    query = dict(kept or {})
    if cursor is not None:
        place = ("p" if cursor.backwards else "n") + cursor.at
        query["cursor"] = base64.urlsafe_b64encode(place.encode()).decode()
    return f"{base_url(request)}/v1{path}" + (f"?{urlencode(query)}" if query else "")


def page_response(
    request: BaseRequest,
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


def answer_page(
    request: BaseRequest,
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


class _Indexed(Headers):
    def __init__(self, *, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._first = first = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)}
        self.get = first.get  # type: ignore[method-assign]
        self.are_unique: Final = len(first) == len(raw)

    def getlist(self, key: str) -> list[str]:
        return super().getlist(key) if key in self._first else []


@cache
def _decoder(kind: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


async def _read_up_to(request: BaseRequest, max_bytes: int, refusal: Refusal) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise refusal(limit=max_bytes)
        more = message.get("more_body", False)
    return bytes(body)


def is_from_proxy(request: BaseRequest) -> bool:
    trusted = services_of(request).settings.trusted_proxies
    if not trusted or request.client is None:  # each look at `client` makes an object
        return False
    return is_address_in(proxy_networks(trusted), request.client.host)


def is_address_in(networks: Sequence[IPv4Network | IPv6Network], host: str) -> bool:
    if not networks:
        return False
    try:
        address = ip_address(host)
    except ValueError:
        return False  # a socket without an address
    if isinstance(address, IPv6Address):
        # a dual-stack socket shows IPv4 clients so, and no IPv4 network contains such an address
        address = address.ipv4_mapped or address
    return any(address in network for network in networks)


def _last(request: BaseRequest, name: str) -> str:
    """Return the value that the nearest proxy added: values before it came from outside."""
    return request.headers.get(name, "").rpartition(",")[2].strip()
