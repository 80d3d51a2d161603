"""Store tokens: what each one may do, until when, and how an operator recognizes it without seeing the secret.

Only digests are kept, so stored data cannot authenticate a caller. Redis expires a token by itself.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text, texts
from director.core.clock import Clock
from director.core.errors import SettingsError
from director.core.ids import LANES

# read: see what is there; run: create and cancel predictions; admin: operate on all accounts
SCOPES: Final = ("read", "run", "admin")
PREFIX: Final = "dr_"
ID_DIGITS: Final = 16
LAST: Final = 4
LABEL: Final = r"^[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,63}$"
MOST_TOKENS: Final = 1_000  # of one account, since one answer lists them all
LONGEST_MS: Final = 100 * 366 * 86_400_000  # a date after the year 9999 could not be shown
# an entry of the list that has had no token for this long was never completed, or its token is gone
HALF_MADE_MS: Final = 60_000


class Token(Struct, frozen=True, kw_only=True):
    """A token as operators see it. `id` is the start of its digest. Times are in ms; None is unknown or never."""

    id: str
    account: str
    label: str
    last4: str
    scopes: tuple[str, ...]
    lanes: tuple[str, ...]
    created_ms: int | None
    expires_ms: int | None
    digest: str

    def is_named(self, name: str) -> bool:
        """Does an operator mean this token by its label, its last four characters or the start of its digest?"""
        is_prefix = len(name) >= LAST and self.digest.startswith(name.lower())
        return bool(name) and (name in (self.label, self.last4) or is_prefix)


class NewToken(Struct, frozen=True, kw_only=True):
    """A token before it is stored, with its secret. The secret is never logged or stored."""

    secret: str
    label: str
    scopes: tuple[str, ...]
    lanes: tuple[str, ...]
    created_ms: int
    expires_ms: int | None

    @property
    def id(self) -> str:
        return digest(self.secret)[:ID_DIGITS]

    def __repr__(self) -> str:
        return f"NewToken({self.id})"


class Tokens:
    """Tokens in Redis. All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
        self._clock = clock

    def new(
        self,
        *,
        lanes: Sequence[str],
        scopes: Sequence[str],
        label: str,
        expires_ms: int | None,
        token: str | None = None,
    ) -> NewToken:
        """Return a token with a fresh secret, or with `token` as its secret. Raises SettingsError that says what is
        allowed.
        """
        now_ms = self._clock.now_ms()
        if not lanes or not set(lanes) <= set(LANES):
            raise SettingsError(f"A token has lanes of {', '.join(LANES)}.")
        if not scopes or not set(scopes) <= set(SCOPES):
            raise SettingsError(f"A token has scopes of {', '.join(SCOPES)}.")
        if label and not re.fullmatch(LABEL, label):
            raise SettingsError("A label has letters, digits, spaces and . _ @ / -, and at most 64 of them.")
        if expires_ms is not None and not now_ms < expires_ms <= now_ms + LONGEST_MS:
            raise SettingsError("A token expires in the future, within a hundred years, or never.")
        return NewToken(
            secret=token or PREFIX + secrets.token_hex(20),
            label=label,
            scopes=tuple(dict.fromkeys(scopes)),
            lanes=tuple(dict.fromkeys(lanes)),
            created_ms=now_ms,
            expires_ms=expires_ms,
        )

    async def add(self, account: str, made: NewToken) -> Token:
        """Store a new token for this account. Raises SettingsError if the account has too many."""
        name = digest(made.secret)
        if len(others := await self.of(account)) >= MOST_TOKENS and all(one.digest != name for one in others):
            raise SettingsError(f"An account has at most {MOST_TOKENS:,} tokens: revoke some first.")
        fields = {
            "account": account,
            "lanes": ",".join(made.lanes),
            "scopes": ",".join(made.scopes),
            "label": made.label,
            "last4": made.secret[-LAST:],
            "created": str(made.created_ms),
            "expires": "" if made.expires_ms is None else str(made.expires_ms),
        }

        async def write() -> None:
            # The list first, so that a working token is never missing from it.
            await self._redis.zadd(keys.tokens(account), {name: made.created_ms}, nx=True)
            pipe = self._redis.pipeline(transaction=True)
            pipe.hset(keys.token(name), mapping=fields)
            if made.expires_ms is None:
                pipe.persist(keys.token(name))
            else:
                pipe.pexpireat(keys.token(name), made.expires_ms)
            await pipe.execute()
            await self._redis.zadd(keys.tokens(account), {name: made.created_ms}, nx=True)  # a removal came between

        await ask(write)
        return _token(name, fields)

    async def found(self, token: str) -> Token | None:
        """Return the token with this secret, or None if it is unknown or expired."""
        name = digest(token)
        fields = texts(await ask(lambda: self._redis.hgetall(keys.token(name))))
        if not fields:
            return None
        found = _token(name, fields)
        if found.created_ms is None:  # release 0.1.0 made it, which kept no list
            await ask(lambda: self._redis.zadd(keys.tokens(found.account), {name: 0}, nx=True))
        is_over = found.expires_ms is not None and found.expires_ms <= self._clock.now_ms()
        return None if is_over else found

    async def of(self, account: str) -> list[Token]:
        """Return all tokens of this account, oldest first. Entries without a token are removed from the list."""
        listed = await ask(lambda: self._redis.zrange(keys.tokens(account), 0, -1, withscores=True))

        async def read() -> list[dict[bytes, bytes]]:
            pipe = self._redis.pipeline(transaction=False)
            for name, _ in listed:
                pipe.hgetall(keys.token(text(name)))
            return list(await pipe.execute())

        replies = await ask(read) if listed else []
        since_ms = self._clock.now_ms() - HALF_MADE_MS
        gone = [name for (name, at_ms), fields in zip(listed, replies, strict=True) if not fields and at_ms < since_ms]
        if gone:
            await self._take_off(account, gone)
        return [_token(text(name), texts(fields)) for (name, _), fields in zip(listed, replies, strict=True) if fields]

    async def remove(self, token: Token) -> bool:
        """Revoke the token. Return False if it was not valid before."""
        is_gone = bool(await ask(lambda: self._redis.delete(keys.token(token.digest))))
        await self._take_off(token.account, [token.digest.encode()])
        return is_gone

    async def _take_off(self, account: str, gone: Sequence[bytes]) -> None:
        """Take tokens off the list, but for those that were made again since they were looked for."""
        await ask(lambda: self._redis.zrem(keys.tokens(account), *gone))

        async def look() -> list[bytes | None]:
            pipe = self._redis.pipeline(transaction=False)
            for name in gone:
                pipe.hget(keys.token(text(name)), "created")
            return list(await pipe.execute())

        made = await ask(look)
        again = {name: int(at_ms) for name, at_ms in zip(gone, made, strict=True) if at_ms is not None}
        if again:
            await ask(lambda: self._redis.zadd(keys.tokens(account), again, nx=True))


def digest(token: str) -> str:
    """Return the SHA-256 under which a token is stored. Tokens are 160 random bits, so no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def _token(name: str, fields: dict[str, str]) -> Token:
    """Read a token from its hash. A token of 0.1.0 has no label, no expiry and no time of creation."""
    created, expires = fields.get("created"), fields.get("expires")
    return Token(
        id=name[:ID_DIGITS],
        account=fields["account"],
        label=fields.get("label", ""),
        last4=fields.get("last4", ""),
        scopes=tuple(fields["scopes"].split(",")),
        lanes=tuple(fields["lanes"].split(",")),
        created_ms=int(created) if created else None,
        expires_ms=int(expires) if expires else None,
        digest=name,
    )
