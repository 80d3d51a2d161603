"""Serve the caller's own account, and the secret that its webhooks are signed with."""

from msgspec import Struct
from starlette.responses import Response

from api.errors import not_found
from api.request import Request
from api.response import json_response
from api.route import Answer, Route
from director.store.accounts import AccountType


class AccountView(Struct, frozen=True):
    """An account on the wire. Official clients need the first three."""

    username: str
    name: str
    type: AccountType = "organization"
    github_url: str | None = None
    avatar_url: str | None = None


class OwnAccountView(AccountView, frozen=True):
    """The account of the caller. `scopes`: what its token may do."""

    scopes: tuple[str, ...] = ()


class WebhookSecret(Struct, frozen=True):
    """`whsec_` and standard base64."""

    key: str


@Route(
    "GET",
    "/account",
    name="account.get",
    summary="Tell who the caller is",
    scopes=("read",),
    answers={200: Answer("The account.", OwnAccountView)},
)
async def get_account(request: Request) -> Response:
    account = request.account
    return json_response(
        OwnAccountView(username=account.name, name=account.name, type=account.type, scopes=account.scopes)
    )


@Route(
    "GET",
    "/webhooks/default/secret",
    name="webhooks.default.secret.get",
    summary="Get what the account's webhooks are signed with",
    scopes=("run",),
    answers={200: Answer("The secret.", WebhookSecret)},
    refusals={404},
)
async def get_webhook_secret(request: Request) -> Response:
    """Answer 403 to a token that may only read: with the secret a caller can sign as we do."""
    account = request.account
    secrets = await request.services.accounts.webhook_secrets(account.name)
    if not secrets:
        raise not_found()
    return json_response(WebhookSecret(secrets[0]), headers={"Cache-Control": "no-store"})
