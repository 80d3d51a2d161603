"""Who is asking, may they, and have they asked too often? Every route but health and streams comes here first."""

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
    """The account whose token came with the request; 401 where there is none, 403 where it has none of these scopes
    or is suspended and wants something run, 429 where its rate is exceeded: before a body is read.

    An account that is suspended operates nothing: it could resume itself, or go on as another.
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
    """Has the token of a request that is still being answered this scope now? While Redis is away, as it had."""
    try:
        account = await _known(request, request.headers.get("authorization", ""))
    except BackendUnavailable:
        return True
    return account is not None and account.suspension is None and scope in account.scopes


async def _known(request: Request, header: str) -> Account | None:
    """Whose token this is, None where it is nobody's."""
    scheme, _, token = header.strip().partition(" ")
    token = token.strip()
    if scheme.lower() not in SCHEMES or not token:
        return None
    return await services_of(request).lookups.account(token)


def refuse_suspended(account: Account) -> None:
    """403 where it is, with the reason."""
    if account.suspension is not None:
        raise account_suspended(account.suspension.reason)


def named(operator: Account) -> str:
    """Who changes something, as the log of changes has it: account and token, and of the token its id, no secret."""
    return f"{operator.name}/{operator.token_id}"
