"""Change accounts and tokens on behalf of operators, for commands and for HTTP requests alike.

Every change is logged with its operator. Secrets are never logged. The caller has checked that the operator may.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from director.broker.replies import Rotated
from director.broker.scripts import Scripts
from director.core.account_limits import UNLIMITED
from director.core.ids import QueueName
from director.core.signing import new_secret
from director.store.accounts import Accounts, AccountType, Policy, Reason, Written, refuse_name
from director.store.catalog import Catalog
from director.store.changes import Changes
from director.store.suspensions import Ended, Suspensions
from director.store.tokens import Token

OF_QUEUES: Final = frozenset({"weight", "max_running"})


class MadeToken(Struct, frozen=True):
    """A new token and its secret, which is not shown again."""

    token: Token
    secret: str

    def __repr__(self) -> str:
        return f"MadeToken({self.token!r})"


class Administration:
    """Changes to accounts. `by` names the operator. All methods raise BackendUnavailable while Redis cannot answer.

    They raise SettingsError for an unknown account or an invalid value.
    """

    def __init__(
        self, accounts: Accounts, catalog: Catalog, scripts: Scripts, suspensions: Suspensions, changes: Changes
    ) -> None:
        self.accounts = accounts
        self._changes = changes
        self._suspensions = suspensions
        self._catalog = catalog
        self._scripts = scripts

    async def create(self, name: str, kind: AccountType, *, by: str) -> bool:
        """Create an account. Return False, and change nothing, if it exists."""
        refuse_name(name)
        async with self._changes.noting("account_created", by=by, account=name, type=kind) as noted:
            is_new = await self.accounts.create(name, kind)
            if not is_new:
                noted.void()
        return is_new

    async def set_type(self, name: str, kind: AccountType, *, by: str) -> None:
        async with self._changes.noting("account_type_set", by=by, account=name, type=kind):
            await self.accounts.set_type(name, kind)

    async def set_limits(self, name: str, limits: Mapping[str, str], *, by: str) -> Written:
        """Store limits, and apply them in the queues where this account has predictions. Return all that is then
        stored.
        """
        async with self._changes.noting("limits_set", by=by, account=name, limits=limits):
            await self.accounts.set_limits(name, limits)
            written = await self.accounts.written(name)
            if OF_QUEUES & set(limits):
                await self._tell_queues(name, written)
        return written

    async def suspend(self, name: str, policy: Policy, reason: Reason, *, by: str, within_s: float) -> Ended:
        """Let no prediction of the account start. With `end`, cancel what it has for up to `within_s`; a keeper does
        the rest.
        """
        async with self._changes.noting("account_suspended", by=by, account=name, policy=policy, reason=reason):
            return await self._suspensions.suspend(name, policy, reason, within_s=within_s)

    async def resume(self, name: str, *, by: str) -> None:
        """Let the account run and create predictions again."""
        async with self._changes.noting("account_resumed", by=by, account=name):
            await self._suspensions.resume(name)

    async def rotate_secret(self, name: str, *, keep_s: float, by: str) -> Rotated:
        """Sign its webhooks with a new secret, and for `keep_s` also with the former one."""
        await self.accounts.refuse_unknown(name)
        async with self._changes.noting("secret_rotated", by=by, account=name, keep_s=keep_s) as noted:
            rotated = await self._scripts.rotate(name, secret=new_secret(), keep_s=keep_s)
            if rotated != "rotated":
                noted.void()
        return rotated

    async def create_token(
        self, name: str, *, scopes: Sequence[str], lanes: Sequence[str], label: str, expires_ms: int | None, by: str
    ) -> MadeToken:
        """Create a token, and its account if missing."""
        refuse_name(name)
        made = self.accounts.tokens.new(lanes=lanes, scopes=scopes, label=label, expires_ms=expires_ms)
        may = {"scopes": made.scopes, "lanes": made.lanes}
        async with self._changes.noting(
            "token_created", by=by, account=name, token=made.id, label=label, expires_ms=expires_ms, may=may
        ):
            return MadeToken(await self.accounts.give_token(name, made), made.secret)

    async def revoke(self, token: Token, *, by: str) -> bool:
        """Revoke a token. Return False if it was not valid before."""
        async with self._changes.noting(
            "token_revoked", by=by, account=token.account, token=token.id, label=token.label
        ) as noted:
            is_gone = await self.accounts.tokens.remove(token)
            if not is_gone:
                noted.void()
        return is_gone

    async def _tell_queues(self, name: str, written: Written) -> None:
        """Apply limits to what already waits. Only the API knows the default of `max_running`: the next create brings
        it.
        """
        limits = UNLIMITED.over(written.limits)
        most_running: int | Literal["kept"] | None = limits.max_running if "max_running" in written.limits else "kept"

        async def tell(queue: QueueName) -> None:
            await self._scripts.limit(
                queue, name, weight=limits.weight, most_running=most_running, revision=written.revision
            )

        await asyncio.gather(*map(tell, await self._catalog.queues()))
