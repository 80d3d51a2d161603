"""The caller's own account, and the secret that its webhooks are signed with."""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from api.auth import authenticate
from api.errors import not_found
from api.response import json_response
from api.services import parts_of
from director.store.accounts import AccountType


class AccountView(Struct, frozen=True):
    """An account on the wire. Official clients need the first three."""

    username: str
    name: str
    type: AccountType = "organization"
    github_url: str | None = None
    avatar_url: str | None = None


class OwnAccountView(AccountView, frozen=True):
    """The account of whoever asks. `scopes`: what its token may do."""

    scopes: tuple[str, ...] = ()


class WebhookSecret(Struct, frozen=True):
    """`whsec_` and standard base64."""

    key: str


async def get_account(request: Request) -> Response:
    """GET /account."""
    account = await authenticate(request, "read")
    return json_response(
        OwnAccountView(username=account.name, name=account.name, type=account.type, scopes=account.scopes)
    )


async def get_webhook_secret(request: Request) -> Response:
    """GET /webhooks/default/secret. Not for tokens that may only look: whoever has it can sign as we do."""
    account = await authenticate(request, "run")
    secrets = await parts_of(request).accounts.webhook_secrets(account.name)
    if not secrets:
        raise not_found()
    return json_response(WebhookSecret(secrets[0]), headers={"Cache-Control": "no-store"})
