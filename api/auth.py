"""Who is asking, may they, and have they asked too often? Every route but health and streams comes here first."""

from typing import Final, Literal

from starlette.requests import Request

from api.limits import admit
from api.parts import parts_of
from api.problems import account_suspended, forbidden, unauthenticated
from director.core.account_limits import BucketName
from director.core.accounts import Account

__all__ = ("Scope", "authenticate")

Scope = Literal["read", "run", "admin"]

# `Token` is the older form, which official clients before 2024 still send
SCHEMES: Final = frozenset({"bearer", "token"})


async def authenticate(request: Request, *scopes: Scope, takes: BucketName = "read") -> Account:
    """The account whose token came with the request; 401 where there is none, 403 where it has none of these scopes
    or is suspended and wants more than to look, 429 where its rate is exceeded: before a body is read.
    """
    header = request.headers.get("authorization")
    if header is None:
        raise unauthenticated(passed=False)
    scheme, _, token = header.strip().partition(" ")
    token = token.strip()
    if scheme.lower() not in SCHEMES or not token:
        raise unauthenticated(passed=True)
    account = await parts_of(request).lookups.account(token)
    if account is None:
        raise unauthenticated(passed=True)
    await admit(request, account, takes)
    if not set(scopes) & set(account.scopes):
        raise forbidden(f"This token does not have the scope {' or '.join(map(repr, scopes))}.")
    if takes == "create" and account.suspension is not None:
        raise account_suspended(account.suspension.reason)
    return account
