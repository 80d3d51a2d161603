"""Know people who are logged in at the page, cached for seconds as tokens are. A session has its token's rights, and a
person whom a proxy names the role of a group.
"""

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from api.services.lookups import Cache, Lookups
from director.core.clock import Clock
from director.core.errors import SettingsError
from director.core.settings import ApiSettings
from director.store.accounts import ACCOUNT_NAME, ROLES, Account, Accounts, Role, digest, limit_scopes
from director.store.sessions import Session, Sessions

MOST_SESSIONS: Final = 10_000
EVERYONE: Final = "*"
RANKS: Final = list(ROLES)


class Proxy(Struct, frozen=True):
    """How a proxy says who a person is. `roles`: of each group, and of everyone as `*`. `secret`: what it has to send
    too, or '' if its address is enough.
    """

    user: str
    groups: str
    account: str
    roles: dict[str, Role]
    secret: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self.user!r}, {self.groups!r}, {self.account!r}, {self.roles!r})"

    @classmethod
    def of(cls, settings: ApiSettings) -> "Proxy | None":
        """Return None if no proxy logs people in. Raises SettingsError."""
        if not settings.proxy_user_header:
            return None
        if not settings.trusted_proxies:
            raise SettingsError("DIRECTOR_PROXY_USER_HEADER: name the proxy in DIRECTOR_TRUSTED_PROXIES too.")
        if not re.fullmatch(ACCOUNT_NAME, settings.proxy_account):
            raise SettingsError(f"DIRECTOR_PROXY_ACCOUNT: {settings.proxy_account!r} is no name of an account.")
        roles: dict[str, Role] = {}
        for given in settings.proxy_roles:
            group, _, role = given.rpartition("=")
            if not group or role not in ROLES:
                raise SettingsError(f"DIRECTOR_PROXY_ROLES: {given!r} is not GROUP=ROLE; roles: {', '.join(ROLES)}.")
            roles[group] = role  # type: ignore[assignment] # it was looked up
        return cls(
            *(settings.proxy_user_header.lower(), settings.proxy_groups_header.lower(), settings.proxy_account),
            roles,
            settings.proxy_secret,
        )

    def role(self, groups: str) -> Role | None:
        """Return the highest role that one of these groups has, separated by commas."""
        named = [EVERYONE, *(group.strip() for group in groups.split(","))]
        found = [self.roles[group] for group in named if group in self.roles]
        return max(found, key=RANKS.index, default=None)


class LogIns:
    """Values of the last hour hold while `is_away` returns true. Raises BackendUnavailable for others."""

    def __init__(
        self,
        sessions: Sessions,
        accounts: Accounts,
        lookups: Lookups,
        *,
        proxy: Proxy | None,
        clock: Clock,
        cache_s: float,
        is_away: Callable[[], bool] | None = None,
    ) -> None:
        self.proxy = proxy
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
