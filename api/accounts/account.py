"""Serve the caller's own account, its limits, its tokens, and the secret of its webhooks."""

from msgspec import Struct
from starlette.responses import Response

from api.accounts.details import ABOUT_LIMITS, ABOUT_TOKENS, ACCOUNT_ANSWERS, TOKEN_ANSWERS, TokenView, show_account
from api.web.errors import not_found
from api.web.http import Request, json_response, page_response
from api.web.route import Answer, changes, reads
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


@reads(
    "/account",
    name="account.get",
    summary="Get the caller's account",
    about="The answer names the account of the token and the scopes that the token has.",
    answers={200: Answer("The account.", OwnAccountView)},
)
async def get_account(request: Request) -> Response:
    account = request.account
    return json_response(
        OwnAccountView(username=account.name, name=account.name, type=account.type, scopes=account.scopes)
    )


@reads(
    "/account/limits",
    name="account.limits.get",
    summary="Get the caller's limits and how much of them is used",
    about=ABOUT_LIMITS,
    answers=ACCOUNT_ANSWERS,
)
async def get_own_limits(request: Request) -> Response:
    return json_response(await show_account(request, request.account.name))


@reads(
    "/account/tokens",
    name="account.tokens.list",
    summary="List the tokens of the caller's account, without their secrets",
    about=f"{ABOUT_TOKENS} An administrator makes them.",
    answers=TOKEN_ANSWERS,
)
async def list_own_tokens(request: Request) -> Response:
    tokens = await request.services.accounts.tokens.of(request.account.name)
    return page_response(request, "/account/tokens", [TokenView.of(token) for token in tokens])


@changes(
    "GET",
    "/webhooks/default/secret",
    name="webhooks.default.secret.get",
    summary="Get the secret that signs the account's webhooks",
    about=(
        "Receivers verify the `webhook-signature` header with it, as Standard Webhooks describes. The token needs "
        "the scope `run`, because who has the secret can sign as the service does."
    ),
    answers={200: Answer("The secret.", WebhookSecret)},
    refusals={404},
)
async def get_webhook_secret(request: Request) -> Response:
    account = request.account
    secrets = await request.services.accounts.webhook_secrets(account.name)
    if not secrets:
        raise not_found()
    return json_response(WebhookSecret(secrets[0]), headers={"Cache-Control": "no-store"})
