"""Who may ask, and with what we sign for them.

Tokens are kept by their digest only, so nothing stored here can ask. The secrets of webhooks are kept as they are,
since signing takes them: whoever reads them can sign as we do.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from redis.asyncio import Redis

from director.core import keys
from director.core.errors import SettingsError
from director.core.keys import LANES
from director.core.redis_client import ask, text, texts
from director.core.signing import new_secret

__all__ = ("ACCOUNT_NAME", "SCOPES", "Account", "Accounts", "digest")

ACCOUNT_NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,63}$"
# read: see what is there; run: make and cancel predictions; admin: what operators do, over all accounts
SCOPES: Final = ("read", "run", "admin")
TOKEN_PREFIX: Final = "dr_"  # noqa: S105 - marks a secret for scanners, is none


class Account(Struct, frozen=True):
    """Who a token speaks for, and which lanes it may use."""

    name: str
    lanes: tuple[str, ...] = ("normal",)
    scopes: tuple[str, ...] = ("read", "run")


class Accounts:
    """Accounts and tokens in Redis. All methods raise BackendUnavailable while it cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def create_token(
        self,
        account: str,
        *,
        lanes: Sequence[str] = LANES,
        scopes: Sequence[str] = ("read", "run"),
        token: str | None = None,
    ) -> str:
        """A new token of this account, which is made where it does not exist. It is shown here and never again."""
        if not re.fullmatch(ACCOUNT_NAME, account) or not lanes or not set(lanes) <= set(LANES):
            raise SettingsError(f"An account has a name like team-1, and lanes of {', '.join(LANES)}.")
        token = token or TOKEN_PREFIX + secrets.token_urlsafe(32)
        fields = ["account", account, "lanes", ",".join(lanes), "scopes", ",".join(scopes)]

        async def write() -> None:
            await self._redis.hsetnx(keys.account(account), "webhook_secret", new_secret())
            await self._redis.hset(keys.token(digest(token)), items=fields)

        await ask(write)
        return token

    async def revoke(self, token: str) -> bool:
        """Make a token speak for nobody; False when it did not speak for anybody before."""
        return bool(await ask(lambda: self._redis.delete(keys.token(digest(token)))))

    async def authenticate(self, token: str) -> Account | None:
        """Who this token speaks for; None for nobody. Looked up by digest, so timing tells nothing of other tokens."""
        found = texts(await ask(lambda: self._redis.hgetall(keys.token(digest(token)))))
        if not found:
            return None
        lanes, scopes = found["lanes"].split(","), found["scopes"].split(",")
        return Account(found["account"], tuple(lanes), tuple(scopes))

    async def webhook_secrets(self, account: str) -> list[str]:
        """The secrets that this account's webhooks are signed with; the first is the current one."""
        found = await ask(lambda: self._redis.hget(keys.account(account), "webhook_secret"))
        return [text(found)] if found else []


def digest(token: str) -> str:
    """How a token is kept: its SHA-256. Tokens have 256 bits of their own, so no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()
