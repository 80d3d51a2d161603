"""Let operators create, change, suspend and resume accounts, and create and revoke tokens. Changes need the scope
`admin`. A token's secret is in the response that creates it and in no other.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict
from starlette.responses import Response

from api.accounts.auth import name_operator
from api.accounts.details import (
    ABOUT_LIMITS,
    ABOUT_TOKENS,
    ACCOUNT_ANSWERS,
    TOKEN_ANSWERS,
    AccountDetail,
    TokenView,
    show_account,
    show_accounts,
)
from api.sites.sites import others
from api.web.errors import account_exists, invalid_field, not_found
from api.web.http import Request, cursor_of, decode_body, json_response, page_after, page_response
from api.web.route import CURSOR, NO_BODY, OVERSEES, Answer, Body, Route, Scope
from director.core.account_limits import DEFAULT, NO_LIMIT, AccountLimits, check_limits
from director.core.errors import SettingsError
from director.core.hours import LONGEST
from director.core.ids import LANES
from director.core.schema import Page
from director.store.accounts import ACCOUNT_NAME, LABEL, SCOPES, AccountType, Policy, Reason, Token, TokenChange
from director.store.administration import OF_QUEUES, Administration, Ended

PATH: Final = "/admin/accounts"
MAX_BODY: Final = 16_384
LONGEST_S: Final = 10.0  # how long the call itself ends the predictions of a suspended account; a keeper does the rest
Name = Annotated[str, Meta(pattern=ACCOUNT_NAME)]
Limit = float | Annotated[str, Meta(max_length=LONGEST)] | None
Lane = Literal["high", "normal", "low", "idle"]
Label = Annotated[str, Meta(pattern=LABEL)]
Scopes = Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=len(SCOPES))]
Lanes = Annotated[tuple[Lane, ...], Meta(min_length=1, max_length=4)]


class NewAccount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that makes an account."""

    name: Name
    type: AccountType = "organization"


class AccountChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changeable fields. A limit is a number, null for none, or "default" for what the API's settings say. `open_hours`
    is a text.
    """

    type: AccountType | UnsetType = UNSET
    limits: dict[str, Limit] = {}


class AskedSuspension(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that suspends an account."""

    policy: Policy
    reason: Reason = "review"


class AskedToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body that makes a token. Without `expires_at` it is good until it is revoked."""

    label: Label = ""
    scopes: Scopes = ("read", "run")
    lanes: Lanes = LANES
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None


class TokenUpdate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New rights of a token, its label and its end. `expires_at`: null for never."""

    label: Label | UnsetType = UNSET
    scopes: Scopes | UnsetType = UNSET
    lanes: Lanes | UnsetType = UNSET
    expires_at: Annotated[datetime, Meta(tz=True)] | UnsetType | None = UNSET


class MadeToken(TokenView, frozen=True, kw_only=True):
    """A new token, this once with its secret."""

    token: str


class SuspendedAccount(AccountDetail, frozen=True, kw_only=True):
    """An account that was just suspended. Its predictions: ended in their queue, asked to stop, `left` for a keeper."""

    ended: int
    asked: int
    left: int


serves: Final = partial(Route, scopes=("admin",))
shows: Final = partial(Route, "GET", scopes=OVERSEES)
DETAIL: Final = {200: Answer("The account as it is then.", AccountDetail)}


@shows(
    "/admin/accounts",
    name="admin.accounts.list",
    summary="List accounts",
    about="Each account comes with its limits and how much of them is used.",
    parameters=(CURSOR,),
    answers={200: Answer("A page, by name.", Page[AccountDetail])},
)
async def list_accounts(request: Request) -> Response:
    cursor = cursor_of(request)
    page, more = page_after(await request.services.accounts.names(), cursor, str)
    return page_response(request, PATH, await show_accounts(request, page), older=more)


@serves(
    "POST",
    "/admin/accounts",
    name="admin.accounts.create",
    summary="Create an account",
    about="The account can do nothing until it has a token: see `POST /admin/accounts/{name}/tokens`.",
    body=Body(NewAccount),
    answers={201: Answer("The account.", AccountDetail)},
    refusals={409},
)
async def create_account(request: Request) -> Response:
    administration, by = request.services.administration, name_operator(request.account)
    asked = await decode_body(request, NewAccount, max_bytes=MAX_BODY)
    if not await administration.create(asked.name, asked.type, by=by):
        raise account_exists()
    return json_response(await show_account(request, asked.name), 201)


@shows(
    "/admin/accounts/{name}",
    name="admin.accounts.get",
    summary="Get an account, its limits and how much of them is used",
    about=ABOUT_LIMITS,
    answers=ACCOUNT_ANSWERS,
)
async def get_account_of_all(request: Request) -> Response:
    return json_response(await show_account(request, (await _target(request)).account))


@serves(
    "PATCH",
    "/admin/accounts/{name}",
    name="admin.accounts.update",
    summary="Change an account's type, its limits, or both",
    about=(
        'A limit is a number, null for no limit, or `"default"` for the API\'s setting. The whole body is checked '
        "before anything changes."
    ),
    body=Body(AccountChange),
    answers=DETAIL,
)
async def change_account(request: Request) -> Response:
    administration, name, by = await _target(request)
    asked = await decode_body(request, AccountChange, max_bytes=MAX_BODY)
    limits = _format_limits(asked.limits)
    if limits:
        written = await administration.set_limits(name, limits, by=by)
        for site in others(request) if OF_QUEUES & set(limits) else ():  # as for a suspension
            await site.services.administration.tell_queues(name, written, limits)
    if asked.type is not UNSET:
        await administration.set_type(name, asked.type, by=by)
    return json_response(await show_account(request, name))


@serves(
    "POST",
    "/admin/accounts/{name}/suspend",
    name="admin.accounts.suspend",
    summary="Suspend an account",
    about=(
        "Nothing of the account starts after the answer. The policy `hold` keeps what waits and lets runs go on; "
        "`end` cancels both. Its tokens may still read and cancel."
    ),
    body=Body(AskedSuspension),
    answers={200: Answer("The account, and what became of its predictions.", SuspendedAccount)},
)
async def suspend_account(request: Request) -> Response:
    administration, name, by = await _target(request)
    asked = await decode_body(request, AskedSuspension, max_bytes=MAX_BODY)
    ended = [await administration.suspend(name, asked.policy, asked.reason, by=by, within_s=LONGEST_S)]
    for site in others(request):  # if a site is away, the caller gets an error and asks again
        await site.introduce(name)
        there = site.services.administration
        ended.append(await there.suspend(name, asked.policy, asked.reason, by=by, within_s=LONGEST_S))
    counts = {field: sum(getattr(each, field) for each in ended) for field in Ended.__struct_fields__}
    return json_response(SuspendedAccount(**asdict(await show_account(request, name)), **counts))


@serves(
    "POST",
    "/admin/accounts/{name}/resume",
    name="admin.accounts.resume",
    summary="Resume a suspended account",
    about="What was held runs again. What was ended does not come back.",
    answers=DETAIL,
)
async def resume_account(request: Request) -> Response:
    administration, name, by = await _target(request)
    await administration.resume(name, by=by)
    for site in others(request):
        if await site.services.accounts.exists(name):
            await site.services.administration.resume(name, by=by)
    return json_response(await show_account(request, name))


@shows(
    "/admin/accounts/{name}/tokens",
    name="admin.accounts.tokens.list",
    summary="List the tokens of an account, without their secrets",
    about=ABOUT_TOKENS,
    answers=TOKEN_ANSWERS,
)
async def list_tokens(request: Request) -> Response:
    administration, name, _ = await _target(request)
    tokens = await administration.accounts.tokens.of(name)
    return page_response(request, PATH, [TokenView.of(token) for token in tokens])


@serves(
    "POST",
    "/admin/accounts/{name}/tokens",
    name="admin.accounts.tokens.create",
    summary="Create a token",
    about=(
        "This answer is the only one that has the secret, as `token`. Scopes say what the token may do, lanes which"
        " priorities it may ask for."
    ),
    body=Body(AskedToken),
    answers={201: Answer("The token, this once with its secret.", MadeToken)},
)
async def create_token(request: Request) -> Response:
    administration, name, by = await _target(request)
    asked = await decode_body(request, AskedToken, max_bytes=MAX_BODY)
    expires_ms = None if asked.expires_at is None else _ms(asked.expires_at)
    try:
        made = await administration.create_token(
            name, scopes=asked.scopes, lanes=asked.lanes, label=asked.label, expires_ms=expires_ms, by=by
        )
    except SettingsError as exc:
        raise invalid_field("invalid", "", str(exc)) from exc
    made_token = MadeToken(**asdict(TokenView.of(made.token)), token=made.secret)
    return json_response(made_token, 201, {"Cache-Control": "no-store"})


@serves(
    "PATCH",
    "/admin/accounts/{name}/tokens/{id}",
    name="admin.accounts.tokens.update",
    summary="Change what a token may do, and until when",
    about=(
        "The secret stays, and a member that is left out keeps what it has. Every process follows within "
        "`DIRECTOR_CACHE_S`, for sessions of the page too."
    ),
    body=Body(TokenUpdate),
    answers={200: Answer("The token as it is then.", TokenView)},
)
async def change_token(request: Request) -> Response:
    administration, name, by = await _target(request)
    found = await _find_token(request, administration, name)
    asked = await decode_body(request, TokenUpdate, max_bytes=MAX_BODY)
    change = TokenChange(
        **{field: value for field in ("label", "scopes", "lanes") if (value := getattr(asked, field)) is not UNSET},
        expires_ms=None if asked.expires_at is UNSET else 0 if asked.expires_at is None else _ms(asked.expires_at),
    )
    try:
        changed = await administration.change_token(found, change, by=by)
    except SettingsError as exc:
        raise invalid_field("invalid", "", str(exc)) from exc
    if changed is None:
        raise not_found()
    return json_response(TokenView.of(changed))


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


@serves(
    "DELETE",
    "/admin/accounts/{name}/tokens/{id}",
    name="admin.accounts.tokens.revoke",
    summary="Revoke a token",
    about="API processes that have the token in their cache accept it for a few seconds more: `DIRECTOR_CACHE_S`.",
    answers={204: NO_BODY},
)
async def revoke_token(request: Request) -> Response:
    administration, name, by = await _target(request)
    if not await administration.revoke(await _find_token(request, administration, name), by=by):
        raise not_found()
    return Response(status_code=204)


async def _find_token(request: Request, administration: Administration, account: str) -> Token:
    """Return the token of the path. Raises a 404."""
    tokens = await administration.accounts.tokens.of(account)
    found = next((token for token in tokens if token.id == request.path_params["id"]), None)
    if found is None:
        raise not_found()
    return found


class _Target(NamedTuple):
    administration: Administration
    account: str
    by: str


async def _target(request: Request) -> _Target:
    services, name = request.services, str(request.path_params["name"])
    if not re.fullmatch(ACCOUNT_NAME, name) or not await services.accounts.exists(name):
        raise not_found()
    return _Target(services.administration, name, name_operator(request.account))


def _format_limits(limits: Mapping[str, Limit]) -> dict[str, str]:
    if not set(limits) <= set(AccountLimits.__struct_fields__):
        known = ", ".join(AccountLimits.__struct_fields__)
        raise invalid_field("enum", "limits", f"Has only {known}")
    for name, value in limits.items():
        if isinstance(value, str) and name != "open_hours" and value != DEFAULT:
            raise invalid_field("type", f"limits.{name}", 'Is a number, null or "default"')
    written = {
        name: NO_LIMIT if value is None else value if isinstance(value, str) else f"{value:.15g}"
        for name, value in limits.items()
    }
    try:
        check_limits({name: value for name, value in written.items() if value != DEFAULT})
    except SettingsError as exc:
        raise invalid_field("invalid", "limits", str(exc)) from exc
    return written
