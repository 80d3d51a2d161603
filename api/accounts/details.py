"""Show accounts with their limits and usage, and tokens without their secrets, to their owners and to operators."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from api.web.http import Request
from api.web.route import Answer
from director.core.account_limits import AccountLimits
from director.core.hours import DAY_MS
from director.core.schema import Page
from director.core.view import iso
from director.store.accounts import AccountType, Policy, Reason, Suspension, Token, Usage


class TokenView(Struct, frozen=True, kw_only=True):
    """A token on the wire, without its secret."""

    id: str
    label: str
    last4: str
    scopes: tuple[str, ...]
    lanes: tuple[str, ...]
    created_at: str | None
    expires_at: str | None

    @classmethod
    def of(cls, token: Token) -> "TokenView":
        return cls(
            id=token.id,
            label=token.label,
            last4=token.last4,
            scopes=token.scopes,
            lanes=token.lanes,
            created_at=None if token.created_ms is None else iso(token.created_ms),
            expires_at=None if token.expires_ms is None else iso(token.expires_ms),
        )


class SuspensionView(Struct, frozen=True):
    """Why an account may run nothing, since when, and what becomes of what it has."""

    policy: Policy
    reason: Reason
    since: str

    @classmethod
    def of(cls, suspension: Suspension | None) -> "SuspensionView | None":
        return None if suspension is None else cls(suspension.policy, suspension.reason, iso(suspension.since_ms))


class AccountDetail(Struct, frozen=True, kw_only=True):
    """An account, its limits and how much of them is used."""

    name: str
    type: AccountType
    suspension: SuspensionView | None
    limits: AccountLimits
    usage: Usage


ABOUT_LIMITS: Final = (
    "Limits that the account does not have of its own are those of the API's settings. null is no limit."
)
ABOUT_TOKENS: Final = "A token is shown by its label and the last four characters of its secret."
ACCOUNT_ANSWERS: Final = {200: Answer("The account.", AccountDetail)}
TOKEN_ANSWERS: Final = {200: Answer("All of them, oldest first.", Page[TokenView])}


async def show_account(request: Request, name: str) -> AccountDetail:
    return (await show_accounts(request, [name]))[0]


async def show_accounts(request: Request, names: Sequence[str]) -> list[AccountDetail]:
    services = request.services
    seen = await services.accounts.read_with_usage(names, day=services.clock.now_ms() // DAY_MS)
    return [
        AccountDetail(
            name=name,
            type=written.type,
            suspension=SuspensionView.of(written.suspension),
            limits=services.accounts.limits_of(written),
            usage=usage,
        )
        for name, (written, usage) in zip(names, seen, strict=True)
    ]
