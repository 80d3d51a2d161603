"""Know people who are logged in at the page, cached for seconds as tokens are. A session has its token's rights."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from api.services.lookups import Cache, Lookups
from director.core.clock import Clock
from director.store.accounts import Account, Accounts, digest, limit_scopes
from director.store.sessions import Session, Sessions

MOST_SESSIONS: Final = 10_000


class LogIns:
    """Values of the last hour hold while `is_away` returns true. Raises BackendUnavailable for others."""

    def __init__(
        self,
        sessions: Sessions,
        accounts: Accounts,
        lookups: Lookups,
        *,
        clock: Clock,
        cache_s: float,
        is_away: Callable[[], bool] | None = None,
    ) -> None:
        self._sessions = sessions
        self._accounts = accounts
        self._lookups = lookups
        self._clock = clock
        self._found: Cache[str, Session] = Cache(
            clock=clock, ttl_s=cache_s, most=MOST_SESSIONS, is_away=is_away, whose=lambda _, session: session.account
        )
        self._named: Cache[str, Account] = Cache(clock=clock, ttl_s=cache_s, most=1, is_away=is_away)

    async def of_session(self, secret: str) -> Account | None:
        """Return the account of a session, with those of its scopes that its token has now."""
        return await self._of(await self._found.get(digest(secret), lambda: self._sessions.find(secret)))

    async def of_link(self, link: str) -> Account | None:
        """Return the account that this link logs in, and leave the link as it is."""
        return await self._of(await self._sessions.find_link(link))

    async def _of(self, session: Session | None) -> Account | None:
        if session is None or session.expires_ms <= self._clock.now_ms():
            return None
        account = await self._lookups.account_of(session.token_digest)
        if account is None or account.name != session.account:
            return None
        return replace(account, scopes=limit_scopes(session.scopes, account.scopes))

    async def of_page(self, name: str) -> Account | None:
        """Return the account of people that a proxy names, or None if it does not exist."""

        async def find() -> Account | None:
            return await self._accounts.account(name) if await self._accounts.exists(name) else None

        return await self._named.get(name, find)

    def forget(self, secret: str) -> None:
        self._found.forget(digest(secret))
