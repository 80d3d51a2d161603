"""Find the account of each request, and check scopes and rate before the body is read."""

from typing import Final

from msgspec.structs import replace

from api.accounts.limits import take
from api.accounts.people import find_person
from api.web import errors
from api.web.http import Request, services_of
from api.web.route import Scope
from director.core.account_limits import BucketName
from director.core.errors import BackendUnavailable
from director.store.accounts import OVERSEES, Account

# `Token` is the older form, which official clients before 2024 still send
SCHEMES: Final = frozenset({"bearer", "token"})


async def authenticate(request: Request, *scopes: Scope, bucket: BucketName = "read", frees: bool = False) -> Account:
    """Return the account of the request, before a body is read. Raises a 401 without a valid token, a 429 above
    the account's rate, and a 403 without one of these scopes. A suspended account may only read, and call what `frees`.
    It loses the scopes over all accounts: with them, it could resume itself or use another account.
    """
    account = await _find_caller(request)
    if account is None:
        raise errors.no_token() if "authorization" not in request.headers else errors.invalid_token()
    request.rate_token = await take(request, account, bucket)
    if not set(scopes) & set(account.scopes):
        *others, last = map(repr, scopes)
        named = f"{', '.join(others)} or {last}" if others else last
        raise errors.forbidden(f"This token does not have the scope {named}.")
    if account.suspension is None:
        return account
    left = tuple(scope for scope in account.scopes if scope not in OVERSEES)
    if not (frees or "read" in scopes) or not set(scopes) & set(left):
        raise errors.account_suspended(why=errors.WHY_SUSPENDED[account.suspension.reason])
    return replace(account, scopes=left)


async def may_still(request: Request, *scopes: Scope) -> bool:
    """Return whether the token has one of these scopes now. While Redis is away, it is assumed to have it."""
    try:
        account = await _find_caller(request)
    except BackendUnavailable:
        return True
    except errors.Problem:  # of a person at the page, whose account is gone
        return False
    return account is not None and account.suspension is None and bool(set(scopes) & set(account.scopes))


async def _find_caller(request: Request) -> Account | None:
    """Return the account of the token, or of the person at the page. A token comes first, whatever cookie is there."""
    header = request.headers.get("authorization")
    if header is None:
        return await find_person(request)
    scheme, _, token = header.strip().partition(" ")
    token = token.strip()
    if scheme.lower() not in SCHEMES or not token:
        return None
    return await services_of(request).lookups.account(token)


def name_operator(operator: Account) -> str:
    """Name the operator for the log of changes: account, and the token's id, which is no secret."""
    return f"{operator.name}/{operator.token_id}"
