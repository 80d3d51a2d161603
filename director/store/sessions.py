"""Keep sessions of people who use the page, and one-time links that make one. Only digests are stored, as of tokens.

A session comes from a token and is never worth more: it ends with the token, and has its scopes at most.
"""

import re
import secrets
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.broker.scripts import Scripts
from director.store.accounts import digest

MOST: Final = 100  # sessions of one account, and links
SECRET_BYTES: Final = 20
LINK_S: Final = 600.0
HANDED_OUT: Final = re.compile(rf"([a-z0-9][a-z0-9_-]{{0,63}})\.([0-9a-f]{{{2 * SECRET_BYTES}}})")


class UnknownLink(Exception):
    """The link was used, or is over, or never was."""


class Session(Struct, frozen=True, kw_only=True):
    """`scopes`: what it has at most. Its token may have fewer by now."""

    account: str
    token_digest: str
    scopes: tuple[str, ...]
    expires_ms: int


class Granted(Session, frozen=True, kw_only=True):
    """A session or a link with its secret, which is not stored: the value of a cookie, or the end of a link."""

    secret: str


class Sessions:
    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self._redis: Any = redis
        self._scripts = scripts

    async def link(self, account: str, token_digest: str, scopes: Sequence[str], *, life_s: float = LINK_S) -> Granted:
        """Return a link that makes one session of this token, with these scopes at most."""
        return await self._grant("l", account, token_digest, scopes, life_s=life_s)

    async def open(self, account: str, token_digest: str, scopes: Sequence[str], *, life_s: float) -> Granted:
        """Return a new session of this token. Of more than a hundred of an account one ends: the oldest of the token
        that has the most, so no token logs others out.
        """
        return await self._grant("s", account, token_digest, scopes, life_s=life_s)

    async def follow(self, link: str, *, life_s: float) -> Granted | None:
        """Return the session that this link makes, and use the link up. None if it was used, or is over or unknown."""
        if (match := HANDED_OUT.fullmatch(link)) is None:
            return None
        try:
            return await self._grant("s", match[1], life_s=life_s, link=f"l:{digest(match[2])}")
        except UnknownLink:
            return None

    async def find(self, secret: str) -> Session | None:
        """Return the session with this secret, which may be over."""
        return await self._read("s", secret)

    async def find_link(self, link: str) -> Session | None:
        """Return the session that this link would make until its own end, which may be over."""
        return await self._read("l", link)

    async def _read(self, kind: str, secret: str) -> Session | None:
        if (match := HANDED_OUT.fullmatch(secret)) is None:
            return None
        value = await ask(lambda: self._redis.hget(keys.sessions(match[1]), f"{kind}:{digest(match[2])}"))
        return None if value is None else Session(**_read(match[1], value))

    async def end(self, secret: str) -> None:
        if (match := HANDED_OUT.fullmatch(secret)) is not None:
            await ask(lambda: self._redis.hdel(keys.sessions(match[1]), f"s:{digest(match[2])}"))

    async def _grant(
        self,
        kind: str,
        account: str,
        token_digest: str = "",
        scopes: Sequence[str] = (),
        *,
        life_s: float,
        link: str = "",
    ) -> Granted:
        secret = secrets.token_hex(SECRET_BYTES)
        value = await self._scripts.grant(
            account,
            f"{kind}:{digest(secret)}",
            link=link,
            token_digest=token_digest,
            scopes=",".join(scopes),
            life_s=life_s,
            most=MOST,
        )
        if value is None:
            raise UnknownLink(account)
        return Granted(**_read(account, value), secret=f"{account}.{secret}")


def _read(account: str, value: bytes) -> dict[str, Any]:
    until, _, token_digest, scopes = text(value).split(" ")
    return {
        "account": account,
        "token_digest": token_digest,
        "scopes": tuple(scopes.split(",")),
        "expires_ms": int(until),
    }
