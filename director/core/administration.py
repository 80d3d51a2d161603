"""What an operator does with accounts and tokens, whichever way it was asked for: by command or over HTTP.

Every change is a line in the log, with who made it. Never logs a secret, and judges nobody: whoever calls has asked
whether the operator may.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from director.core.account_limits import UNLIMITED
from director.core.accounts import Accounts, AccountType, Policy, Reason, Written
from director.core.catalog import Catalog
from director.core.errors import SettingsError
from director.core.ids import QueueName
from director.core.scripts import Scripts
from director.core.suspensions import Ended, Suspensions
from director.core.tokens import Token

__all__ = ("Administration", "MadeToken")

log = logging.getLogger(__name__)

OF_QUEUES: Final = frozenset({"weight", "max_running"})


class MadeToken(Struct, frozen=True):
    """A new token, and its secret: the only time that anybody sees it."""

    token: Token
    secret: str

    def __repr__(self) -> str:
        return f"MadeToken({self.token!r})"


class Administration:
    """Changes to accounts. `by` says who makes one. All methods raise BackendUnavailable while Redis cannot answer, and
    SettingsError for an account that there is not, or what no account can have.
    """

    def __init__(self, accounts: Accounts, catalog: Catalog, scripts: Scripts, suspensions: Suspensions) -> None:
        self.accounts = accounts
        self._suspensions = suspensions
        self._catalog = catalog
        self._scripts = scripts

    async def create(self, name: str, kind: AccountType, *, by: str) -> bool:
        """Make an account; False where there is one of this name, which stays as it is."""
        is_new = await self.accounts.create(name, kind)
        if is_new:
            _note("account created", name, by, type=kind)
        return is_new

    async def set_type(self, name: str, kind: AccountType, *, by: str) -> None:
        """An organisation, or one person."""
        await self.accounts.set_type(name, kind)
        _note("account changed", name, by, type=kind)

    async def set_limits(self, name: str, limits: Mapping[str, str], *, by: str) -> Written:
        """Write limits down, and tell the queues where this account has something; all that is written then."""
        await self.accounts.set_limits(name, limits)
        written = await self.accounts.written(name)
        _note("account limits changed", name, by, **limits)
        if OF_QUEUES & set(limits):
            await self._tell_queues(name, written)
        return written

    async def suspend(self, name: str, policy: Policy, reason: Reason, *, by: str, within_s: float) -> Ended:
        """Let nothing of it start any more; with `end`, end what it has, for so long: a keeper does the rest."""
        _note("account is to be suspended", name, by, policy=policy, reason=reason)
        ended = await self._suspensions.suspend(name, policy, reason, within_s=within_s)
        _note("account suspended", name, by, policy=policy, reason=reason, ended=ended.ended, asked=ended.asked)
        return ended

    async def resume(self, name: str, *, by: str) -> None:
        """Let what it has run, and take more in."""
        await self._suspensions.resume(name)
        _note("account resumed", name, by)

    async def create_token(
        self, name: str, *, scopes: Sequence[str], lanes: Sequence[str], label: str, expires_ms: int | None, by: str
    ) -> MadeToken:
        """Make a token, and its account where there is none."""
        secret = await self.accounts.create_token(name, lanes=lanes, scopes=scopes, label=label, expires_ms=expires_ms)
        token = await self.accounts.tokens.found(secret)
        if token is None:
            raise SettingsError("The token expired, or was revoked, as soon as it was made.")
        _note("token created", name, by, token=token.id, label=label, scopes=scopes, lanes=lanes, expires=expires_ms)
        return MadeToken(token, secret)

    async def revoke(self, token: Token, *, by: str) -> bool:
        """Make a token speak for nobody; False where it did not before."""
        is_gone = await self.accounts.tokens.remove(token)
        if is_gone:
            _note("token revoked", token.account, by, token=token.id, label=token.label)
        return is_gone

    async def _tell_queues(self, name: str, written: Written) -> None:
        """What waits goes by it too. A default of `max_running` only the API knows: the next create brings it."""
        limits = UNLIMITED.over(written.limits)
        most_running: int | Literal["kept"] | None = limits.max_running if "max_running" in written.limits else "kept"

        async def tell(queue: QueueName) -> None:
            await self._scripts.limit(
                queue, name, weight=limits.weight, most_running=most_running, revision=written.revision
            )

        await asyncio.gather(*map(tell, await self._catalog.queues()))


def _note(message: str, account: str, by: str, **facts: Any) -> None:
    log.info(message, extra={"account": account, "by": by, **facts})
