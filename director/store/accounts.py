"""Store accounts: who may ask, what they may use, and the secrets that sign their webhooks.

Tokens are kept as digests only (`tokens.py`), so stored data cannot authenticate a caller. Webhook secrets are kept as
they are, because signing needs them: a reader of them can sign as this service does.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast, get_args

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text, texts
from director.core.account_limits import DEFAULT, UNLIMITED, AccountLimits
from director.core.clock import Clock, SystemClock
from director.core.errors import SettingsError
from director.core.ids import LANES
from director.core.signing import new_secret
from director.store.tokens import NewToken, Token, Tokens

AccountType = Literal["organization", "user"]
TYPES: Final[tuple[AccountType, ...]] = get_args(AccountType)
Policy = Literal["hold", "end"]
"""Of a suspended account. hold: waiting predictions are kept, running ones continue. end: both are canceled."""
Reason = Literal["unpaid", "abuse", "security", "asked", "review"]
"""A closed set, so that a refused caller reads our words."""
ACCOUNT_NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,63}$(?!\n)"  # `$` also matches before a final line break
SIGNING: Final = "webhook_secret"
FORMER: Final = "webhook_secret_until:"
OF_LIMITS: Final = AccountLimits.__struct_fields__
WRITTEN: Final = (*OF_LIMITS, "limits_rev", "type", "suspended", "suspension_rev")
MOST_OVER: Final = 1_000  # expired files that are still counted; the next file that arrives removes them


class Suspension(Struct, frozen=True, kw_only=True):
    """Why an account may run nothing, since when, and what happens to its predictions."""

    policy: Policy
    reason: Reason
    since_ms: int


class Account(Struct, frozen=True):
    """The account of a token, with its lanes and limits. `limits_rev` counts the changes of the limits.

    `token_id` and `expires_ms` belong to the token. `expires_ms` is None if the token does not expire.
    """

    name: str
    lanes: tuple[str, ...] = ("normal",)
    scopes: tuple[str, ...] = ("read", "run")
    limits: AccountLimits = UNLIMITED
    limits_rev: int = 0
    type: AccountType = "organization"
    token_id: str = ""
    expires_ms: int | None = None
    suspension: Suspension | None = None


class Written(Struct, frozen=True):
    """The stored facts of an account: the limits that an operator set, its type and its suspension.

    `revision` counts changes of limits. `suspension_rev` counts suspensions and resumptions.
    """

    limits: dict[str, str]
    revision: int
    type: AccountType = "organization"
    suspension: Suspension | None = None
    suspension_rev: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """How an account uses its limits: `bursts` of refusals by limit, seconds of compute, bytes of stored files.

    `spent_s` and `reserved_s` are of one day. The totals count since the account has a credit.
    """

    bursts: dict[str, int]
    spent_s: float
    reserved_s: float
    total_spent_s: float
    total_reserved_s: float
    stored_bytes: int


class Accounts:
    """Accounts and tokens in Redis. All methods raise BackendUnavailable while Redis cannot answer.

    `defaults` are the limits of accounts that have none of their own.
    """

    def __init__(self, redis: Redis, defaults: AccountLimits = UNLIMITED, clock: Clock | None = None) -> None:
        self._redis = redis
        self._defaults = defaults
        self._clock = clock or SystemClock()
        self.tokens = Tokens(redis, self._clock)

    async def create(self, account: str, kind: AccountType = "organization") -> bool:
        """Create the account. Return False, and change nothing, if it exists."""
        refuse_name(account)
        return await self._make(account, kind)

    async def set_type(self, account: str, kind: AccountType) -> None:
        """Raises SettingsError if the account does not exist."""
        await self.refuse_unknown(account)
        await ask(lambda: self._redis.hset(keys.account(account), "type", kind))

    async def create_token(
        self,
        account: str,
        *,
        lanes: Sequence[str] = LANES,
        scopes: Sequence[str] = ("read", "run"),
        label: str = "",
        expires_ms: int | None = None,
        token: str | None = None,
    ) -> str:
        """Create a token, and its account if missing. Return the secret, which is never shown again.

        Raises SettingsError for an invalid name, lane, scope, label or time.
        """
        refuse_name(account)
        made = self.tokens.new(lanes=lanes, scopes=scopes, label=label, expires_ms=expires_ms, token=token)
        await self.give_token(account, made)
        return made.secret

    async def give_token(self, account: str, made: NewToken) -> Token:
        """Store a new token for this account, which is created if missing."""
        refuse_name(account)
        await self._make(account)
        return await self.tokens.add(account, made)

    async def _make(self, account: str, kind: AccountType = TYPES[0]) -> bool:
        """Create the account. The caller whose secret is stored created it, even if the reply was lost."""
        key, secret = keys.account(account), new_secret()

        async def write() -> bool:
            pipe = self._redis.pipeline(transaction=False)
            pipe.hsetnx(key, "webhook_secret", secret)
            pipe.hget(key, "webhook_secret")
            pipe.sadd(keys.accounts(), account)
            _, stands, _ = await pipe.execute()
            is_ours = text(stands) == secret
            if is_ours and kind != TYPES[0]:
                await self._redis.hset(key, "type", kind)
            return is_ours

        return await ask(write)

    async def revoke(self, token: str) -> bool:
        """Revoke a token. Return False if it was not valid before."""
        found = await self.tokens.found(token)
        return found is not None and await self.tokens.remove(found)

    async def authenticate(self, token: str) -> Account | None:
        """Return the account, or None if the token is unknown. The lookup is by digest, so its time reveals no other
        token.
        """
        found = await self.tokens.found(token)
        if found is None:
            return None
        written = await self.written(found.account)
        return Account(
            name=found.account,
            lanes=found.lanes,
            scopes=found.scopes,
            limits=self.limits_of(written),
            limits_rev=written.revision,
            type=written.type,
            token_id=found.id,
            expires_ms=found.expires_ms,
            suspension=written.suspension,
        )

    async def names(self) -> list[str]:
        """Return all accounts, sorted."""
        return sorted(text(name) for name in await ask(lambda: self._redis.smembers(keys.accounts())))

    async def exists(self, account: str) -> bool:
        return bool(await ask(lambda: self._redis.exists(keys.account(account))))

    async def refuse_unknown(self, account: str) -> None:
        """Raises SettingsError if the account does not exist."""
        refuse_name(account)
        if not await self.exists(account):
            raise SettingsError(
                f"there is no account {account}: `director account list` shows all accounts, "
                "`director account create` makes one."
            )

    async def written(self, account: str) -> Written:
        found: Any = await ask(lambda: self._redis.hmget(keys.account(account), WRITTEN))
        return _written(found)

    def limits_of(self, written: Written) -> AccountLimits:
        """Return the limits that result from what is stored. Raises SettingsError if a stored limit is invalid."""
        return self._defaults.over(written.limits)

    async def set_suspension(self, account: str, suspension: Suspension | None) -> None:
        """Store a suspension, or its end (None). `Suspensions` brings the queues into line."""

        async def write() -> None:
            # In one transaction with the number: a queue follows the latest number.
            pipe = self._redis.pipeline(transaction=True)
            if suspension is None:
                pipe.hdel(keys.account(account), "suspended")
            else:
                pipe.hset(keys.account(account), "suspended", msgspec.json.encode(suspension).decode())
            pipe.hincrby(keys.account(account), "suspension_rev", 1)
            await pipe.execute()

        await ask(write)

    async def set_limits(self, account: str, limits: Mapping[str, str]) -> None:
        """Set limits of this account: a number, `none` or `default`. An API applies them once its cache has expired.

        Raises SettingsError if the account does not exist. For an invalid value it names the limit and what is allowed.
        """
        await self.refuse_unknown(account)
        written = {name: value for name, value in limits.items() if value != DEFAULT}
        UNLIMITED.over({**(await self.written(account)).limits, **written})
        taken_back = [name for name in limits if name not in written]

        async def write() -> None:
            # In one transaction with the number: a reader of the new number has read the new limits.
            pipe = self._redis.pipeline(transaction=True)
            if written:
                pipe.hset(keys.account(account), items=[part for pair in written.items() for part in pair])
            if taken_back:
                pipe.hdel(keys.account(account), *taken_back)
            pipe.hincrby(keys.account(account), "limits_rev", 1)
            await pipe.execute()

        await ask(write)

    async def usage(self, account: str, *, day: int) -> Usage:
        """Return the usage of one account. `day` counts days since 1970."""
        [(_, usage)] = await self.seen([account], day=day)
        return usage

    async def seen(self, names: Sequence[str], *, day: int) -> list[tuple[Written, Usage]]:
        """Return what is stored of each account and its usage, in one write to the socket."""
        now_ms = self._clock.now_ms()

        def read(pipe: Any) -> None:
            for name in names:
                pipe.hmget(keys.account(name), WRITTEN)
                pipe.hgetall(keys.usage(name))
                pipe.hmget(keys.compute(name), ["day", "spent", "reserved"])
                pipe.hmget(keys.credit(name), ["spent", "reserved"])
                pipe.hget(keys.stored(name), "total")
                pipe.zrangebyscore(keys.stored_until(name), "-inf", now_ms, start=0, num=MOST_OVER)

        replies = await pipelined(self._redis, read)
        found = [replies[start : start + 6] for start in range(0, len(replies), 6)]
        over = await self._bytes_of({name: each[5] for name, each in zip(names, found, strict=True) if each[5]})
        return [
            (_written(each[0]), _usage(each[1:5], day=day, over=over.get(name, 0)))
            for name, each in zip(names, found, strict=True)
        ]

    async def _bytes_of(self, files: Mapping[str, Sequence[bytes]]) -> dict[str, int]:
        """Return the total size of these files of each account."""
        sizes = await pipelined(
            self._redis, lambda pipe: [pipe.hmget(keys.stored(name), list(ids)) for name, ids in files.items()]
        )
        return {name: sum(int(size or 0) for size in each) for name, each in zip(files, sizes, strict=True)}

    async def signing(self, account: str) -> dict[str, str]:
        """Return all secrets that sign its webhooks, in the form that `adopt` takes."""
        found = texts(await ask(lambda: self._redis.hgetall(keys.account(account))))
        return {field: value for field, value in found.items() if field.startswith(SIGNING)}

    async def adopt(self, account: str, signing: Mapping[str, str]) -> None:
        """Make this account of another server known here. Its webhooks are then signed with exactly these secrets."""
        if not signing:
            return
        key, known = keys.account(account), await self.signing(account)
        if known == signing:
            return

        async def write() -> None:
            pipe = self._redis.pipeline(transaction=False)
            for field, value in signing.items():
                pipe.hset(key, field, value)
            if over := known.keys() - signing.keys():
                pipe.hdel(key, *over)
            pipe.sadd(keys.accounts(), account)
            await pipe.execute()

        await ask(write)

    async def webhook_secrets(self, account: str) -> list[str]:
        """Return the secrets that sign this account's webhooks, the current one first.

        Former secrets also sign until their time has passed (see lua/rotate.lua). Then they are deleted.
        """
        found = texts(await ask(lambda: self._redis.hgetall(keys.account(account))))
        former = {field: int(field.rpartition(":")[2]) for field in found if field.startswith(FORMER)}
        now_ms = self._clock.now_ms()
        over = [field for field, until in former.items() if until <= now_ms]
        if over:
            await ask(lambda: self._redis.hdel(keys.account(account), *over))
        living = sorted(set(former) - set(over), key=lambda field: -former[field])
        return [found[field] for field in ("webhook_secret", *living) if field in found]


def _written(found: Sequence[bytes | None]) -> Written:
    *limits, revision, kind, suspended, suspension_rev = found
    return Written(
        {name: text(value) for name, value in zip(OF_LIMITS, limits, strict=True) if value is not None},
        int(revision or 0),
        cast(AccountType, text(kind or TYPES[0])),
        msgspec.json.decode(suspended, type=Suspension) if suspended else None,
        int(suspension_rev or 0),
    )


def _usage(found: Sequence[Any], *, day: int, over: int) -> Usage:
    usage, compute, credit, stored = found
    of_day, spent_ms, reserved_ms, total_spent_ms, total_reserved_ms = (int(part or 0) for part in (*compute, *credit))
    is_today = of_day == day
    return Usage(
        bursts={name.removesuffix(":bursts"): int(count) for name, count in texts(usage).items() if ":bursts" in name},
        spent_s=spent_ms / 1000 if is_today else 0,
        reserved_s=reserved_ms / 1000 if is_today else 0,
        total_spent_s=total_spent_ms / 1000,
        total_reserved_s=total_reserved_ms / 1000,
        stored_bytes=max(0, int(stored or 0) - over),
    )


def refuse_name(account: str) -> None:
    """Raises SettingsError for an invalid account name."""
    if not re.fullmatch(ACCOUNT_NAME, account):
        raise SettingsError(f"{account!r} is no account name: use a-z, 0-9, - and _, at most 64, such as team-a.")
