"""Check a request's token, its scopes and the account's rate. Every route that declares scopes does this first."""

from typing import Final, Literal

from msgspec.structs import replace
from starlette.requests import Request

from api.errors import account_suspended, forbidden, unauthenticated
from api.limits import admit
from api.services import services_of
from director.core.account_limits import BucketName
from director.core.errors import BackendUnavailable
from director.store.accounts import Account

Scope = Literal["read", "run", "admin"]

# `Token` is the older form, which official clients before 2024 still send
SCHEMES: Final = frozenset({"bearer", "token"})


async def authenticate(request: Request, *scopes: Scope, takes: BucketName = "read") -> Account:
    """Return the account of the request's token, before a body is read.

    Raises a 401 without a valid token, a 429 above the account's rate, and a 403 without one of these scopes. Also
    raises a 403 if a suspended account wants something run. A suspended account loses the scope admin: with it, it
    could resume itself, or go on as another account.
    """
    header = request.headers.get("authorization")
    if header is None:
        raise unauthenticated(passed=False)
    account = await _known(request, header)
    if account is None:
        raise unauthenticated(passed=True)
    await admit(request, account, takes)
    if not set(scopes) & set(account.scopes):
        raise forbidden(f"This token does not have the scope {' or '.join(map(repr, scopes))}.")
    if account.suspension is None:
        return account
    left = tuple(scope for scope in account.scopes if scope != "admin")
    if takes == "create" or not set(scopes) & set(left):
        refuse_suspended(account)
    return replace(account, scopes=left)


async def may_still(request: Request, scope: Scope) -> bool:
    """Return whether the token of a request that is still being answered has this scope now.

    While Redis is away, the token is believed to have it.
    """
    try:
        account = await _known(request, request.headers.get("authorization", ""))
    except BackendUnavailable:
        return True
    return account is not None and account.suspension is None and scope in account.scopes


async def _known(request: Request, header: str) -> Account | None:
    scheme, _, token = header.strip().partition(" ")
    token = token.strip()
    if scheme.lower() not in SCHEMES or not token:
        return None
    return await services_of(request).lookups.account(token)


def refuse_suspended(account: Account) -> None:
    if account.suspension is not None:
        raise account_suspended(account.suspension.reason)


def named(operator: Account) -> str:
    """Name the operator for the log of changes: account, and the token's id, which is no secret."""
    return f"{operator.name}/{operator.token_id}"
