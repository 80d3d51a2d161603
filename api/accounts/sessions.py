"""Log people in at the page and out: a one-time link, or a token, becomes a session that all tabs of a browser share.

A session has the account and the scopes of its token, or fewer, and ends with it. Links are made for the caller's own
token, or by an administrator for a person of any account, who then gets a token without a known secret.
"""

import re
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import quote

from msgspec import Meta, Struct
from starlette.responses import Response

from api.accounts.auth import authenticate, name_operator
from api.accounts.people import find_person, is_of_page, session_cookies, set_cookie
from api.web.errors import forbidden, invalid_field, invalid_token, not_found
from api.web.http import Request, base_url, decode_body, json_response, services_of
from api.web.route import OPERATES, Answer, Body, Route, administers
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import LANES
from director.core.view import iso
from director.store.accounts import ACCOUNT_NAME, ID_DIGITS, LABEL, ROLES, SCOPES, Account, Role, digest, limit_scopes
from director.store.sessions import LINK_S, Granted

MAX_BODY: Final = 4_096
FEW: Final = 4  # cookies of one name
LONGEST_S: Final = 7 * 86_400
LinkLife = Annotated[float, Meta(ge=60, le=LONGEST_S)]
# one slash first, so no browser can read it as another host; a backslash is a slash for some
PagePath = Annotated[str, Meta(pattern=r"^(/([^/\\\s\x00-\x1f\x7f][^\\\s\x00-\x1f\x7f]*)?)?(?![\s\S])", max_length=500)]


class LogIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that logs in: the end of a link. Without it, the token of the request counts."""

    link: Annotated[str, Meta(max_length=200)] = ""


class LinkSecret(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that asks whether a link still works. `link`: its end, which is secret."""

    link: Annotated[str, Meta(max_length=200)]


class Person(Struct, frozen=True, kw_only=True):
    """A person who has logged in, and when the session ends."""

    username: str
    scopes: tuple[str, ...]
    expires_at: str


class AskedLink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link for the caller itself. `role`: less than the token may do. `life_s`: how long the link waits. `to`: the
    path at the page that is shown after the log-in.
    """

    role: Role | None = None
    life_s: LinkLife = LINK_S
    to: PagePath = ""


class AskedInvitation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link for a person. `label` names the person in the log of changes. Without `expires_at` the new token ends with
    the longest session that the link can make. Without a role it is for the account's own predictions.
    """

    role: Role | None = None
    label: Annotated[str, Meta(pattern=LABEL)] = "page"
    life_s: LinkLife = LINK_S
    to: PagePath = ""
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None


class LinkView(Struct, frozen=True, kw_only=True):
    """A link that logs in once. `token_id`: the token whose end ends its session."""

    url: str
    expires_at: str
    scopes: tuple[str, ...]
    token_id: str


@Route("GET", "/session")
async def show_person(request: Request) -> Response:
    """Say who is logged in at the page; 204 without a log-in, where a cookie that is over is taken back."""
    who = await find_person(request)
    if who is not None:
        return json_response({"username": who.name, "scopes": who.scopes})
    response = Response(status_code=204)
    if is_of_page(request) and session_cookies(request):
        set_cookie(request, response, None)
    return response


@Route("POST", "/session")
async def log_in(request: Request) -> Response:
    """Log in at the page by a link or a token. The browser's former session ends, so no session outlives a log-in."""
    _refuse_other_sites(request)
    services = services_of(request)
    asked = await decode_body(request, LogIn, max_bytes=MAX_BODY)
    life_s = services.settings.session_s
    made: Granted | None = None
    who: Account | None = None
    if asked.link:
        # before the link is used up: then an outage leaves it for a second try
        who = await services.log_ins.of_link(asked.link)
        made = None if who is None else await services.sessions.follow(asked.link, life_s=life_s)
    elif "authorization" in request.headers:
        who = await authenticate(request, *SCOPES, bucket="create")
        made = await services.sessions.open(who.name, who.token_digest, who.scopes, life_s=life_s)
    if made is None or who is None:
        raise invalid_token()
    with suppress(BackendUnavailable):  # the new session is stored and must reach the browser
        await _end(request)
    view = Person(username=who.name, scopes=who.scopes, expires_at=iso(made.expires_ms))
    response = json_response(view, 201, {"Cache-Control": "no-store"})
    set_cookie(request, response, made)
    return response


@Route("POST", "/session/link")
async def look_at_link(request: Request) -> Response:
    """Say whether a link can still log in, and leave it as it is. One that was used or has expired does not work."""
    _refuse_other_sites(request)
    asked = await decode_body(request, LinkSecret, max_bytes=MAX_BODY)
    works = await services_of(request).log_ins.of_link(asked.link) is not None
    return json_response({"works": works}, 200, {"Cache-Control": "no-store"})


@Route("DELETE", "/session")
async def log_out(request: Request) -> Response:
    """Log out in all tabs of this browser. Other API processes accept the session until their cache expires."""
    _refuse_other_sites(request)
    await _end(request)
    response = Response(status_code=204)
    set_cookie(request, response, None)
    return response


async def _end(request: Request) -> None:
    services = services_of(request)
    for secret in session_cookies(request)[:FEW]:
        await services.sessions.end(secret)
        services.log_ins.forget(secret)


def _refuse_other_sites(request: Request) -> None:
    if not is_of_page(request):
        raise forbidden("Only the page itself logs in and out.")


@Route(
    "POST",
    "/account/login-link",
    name="account.login_link",
    summary="Make a link that logs you in at the page",
    about=(
        "The link works once. Its session has the account and the scopes of the token, or those of `role` if that is "
        "less, and ends with the token."
    ),
    scopes=("run", *OPERATES),
    bucket="create",
    body=Body(AskedLink),
    answers={201: Answer("The link, this once.", LinkView)},
)
async def make_link(request: Request) -> Response:
    if "authorization" not in request.headers:
        raise forbidden("A session makes no further one: send a token.")
    asked = await decode_body(request, AskedLink, max_bytes=MAX_BODY)
    account = request.account
    scopes = account.scopes if asked.role is None else limit_scopes(ROLES[asked.role], account.scopes)
    if not scopes:
        raise forbidden(f"This token has nothing of the role {asked.role}.")
    made = await request.services.sessions.link(account.name, account.token_digest, scopes, life_s=asked.life_s)
    return _show(request, made, asked.to)


@administers(
    "POST",
    "/admin/accounts/{name}/login-links",
    site="home",
    name="admin.accounts.login_links",
    summary="Make a link that logs a person in at the page",
    about=(
        "The account gets a new token for this person, whose secret no one sees. Revoke that token, and the person "
        "is logged out. The link works once."
    ),
    body=Body(AskedInvitation),
    answers={201: Answer("The link, this once.", LinkView)},
)
async def invite(request: Request) -> Response:
    services, name = request.services, str(request.path_params["name"])
    if not re.fullmatch(ACCOUNT_NAME, name) or not await services.accounts.exists(name):
        raise not_found()
    asked = await decode_body(request, AskedInvitation, max_bytes=MAX_BODY)
    # no one has the secret, so after the session the token is of no use
    over_ms = services.clock.now_ms() + int((asked.life_s + services.settings.session_s) * 1000)
    expires_ms = over_ms if asked.expires_at is None else int(asked.expires_at.timestamp() * 1000)
    scopes = ("read", "run") if asked.role is None else ROLES[asked.role]
    by = name_operator(request.account)
    try:
        token = await services.administration.create_token(
            name, scopes=scopes, lanes=LANES, label=asked.label, expires_ms=expires_ms, by=by
        )
    except SettingsError as exc:
        raise invalid_field("invalid", "", str(exc)) from exc
    made = await services.sessions.link(name, digest(token.secret), scopes, life_s=asked.life_s)
    return _show(request, made, asked.to)


def _show(request: Request, made: Granted, to: str) -> Response:
    # behind # it is sent to no server and to no other site
    view = LinkView(
        url=f"{base_url(request)}/#/login/{made.secret}{f'?to={quote(to)}' if to else ''}",
        expires_at=iso(made.expires_ms),
        scopes=made.scopes,
        token_id=made.token_digest[:ID_DIGITS],
    )
    return json_response(view, 201, {"Cache-Control": "no-store"})
