"""Who may ask, what they may use, and with what we sign for them.

Tokens are kept by their digest only (`tokens.py`), so nothing stored here can ask. The secrets of webhooks are kept as
they are, since signing takes them: whoever reads them can sign as we do.
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
"""Of a suspended account. hold: what waits is kept, what runs goes on; end: what waits is canceled, what runs too."""
Reason = Literal["unpaid", "abuse", "security", "asked", "review"]
"""A closed set, so that whoever is refused is told in words of ours."""
ACCOUNT_NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,63}$(?!\n)"  # `$` is before a last line break too
SIGNING: Final = "webhook_secret"
FORMER: Final = "webhook_secret_until:"
OF_LIMITS: Final = AccountLimits.__struct_fields__
WRITTEN: Final = (*OF_LIMITS, "limits_rev", "type", "suspended", "suspension_rev")
MOST_OVER: Final = 1_000  # files that expired and are still counted: the next one that comes forgets them


class Suspension(Struct, frozen=True, kw_only=True):
    """Why an account may run nothing, since when, and what becomes of what it has."""

    policy: Policy
    reason: Reason
    since_ms: int


class Account(Struct, frozen=True):
    """Who a token speaks for, which lanes it may use, and what its account may use, as of which change of that.

    `token_id` and `expires_ms` are the token's own; None: it does not expire.
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
    """What is written down of an account: the limits that an operator set, how often any was changed; its type; whether
    it is suspended, and how often it was suspended or resumed.
    """

    limits: dict[str, str]
    revision: int
    type: AccountType = "organization"
    suspension: Suspension | None = None
    suspension_rev: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """What became of an account's limits lately: denied bursts of each, and seconds of compute of one day, and in all
    since that has a limit; bytes of files that it keeps.
    """

    bursts: dict[str, int]
    spent_s: float
    reserved_s: float
    total_spent_s: float
    total_reserved_s: float
    stored_bytes: int

    @property
    def compute_s(self) -> float:
        return self.spent_s + self.reserved_s


class Accounts:
    """Accounts and tokens in Redis. All methods raise BackendUnavailable while it cannot answer.

    `defaults`: the limits of accounts that nobody set any for.
    """

    def __init__(self, redis: Redis, defaults: AccountLimits = UNLIMITED, clock: Clock | None = None) -> None:
        self._redis = redis
        self._defaults = defaults
        self._clock = clock or SystemClock()
        self.tokens = Tokens(redis, self._clock)

    async def create(self, account: str, kind: AccountType = "organization") -> bool:
        """Make this account; False where there is one of this name, which stays as it is."""
        refuse_name(account)
        return await self._make(account, kind)

    async def set_type(self, account: str, kind: AccountType) -> None:
        """An organisation, or one person. Raises SettingsError where there is no such account."""
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
        """A new token of this account, which is made where it does not exist. It is shown here and never again.

        Raises SettingsError for a name, lane, scope, label or time that is none.
        """
        refuse_name(account)
        made = self.tokens.new(lanes=lanes, scopes=scopes, label=label, expires_ms=expires_ms, token=token)
        await self.give_token(account, made)
        return made.secret

    async def give_token(self, account: str, made: NewToken) -> Token:
        """Let a new token speak for this account, which is made where it does not exist."""
        refuse_name(account)
        await self._make(account)
        return await self.tokens.add(account, made)

    async def _make(self, account: str, kind: AccountType = TYPES[0]) -> bool:
        """Whoever's secret stands there has made it, also where the reply to that was lost."""
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
        """Make a token speak for nobody; False when it did not speak for anybody before."""
        found = await self.tokens.found(token)
        return found is not None and await self.tokens.remove(found)

    async def authenticate(self, token: str) -> Account | None:
        """Who this token speaks for; None for nobody. Looked up by digest, so timing tells nothing of other tokens."""
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
        """Every account there is, sorted."""
        return sorted(text(name) for name in await ask(lambda: self._redis.smembers(keys.accounts())))

    async def exists(self, account: str) -> bool:
        """Is there an account of this name?"""
        return bool(await ask(lambda: self._redis.exists(keys.account(account))))

    async def refuse_unknown(self, account: str) -> None:
        """Raises SettingsError where there is no such account."""
        refuse_name(account)
        if not await self.exists(account):
            raise SettingsError(
                f"there is no account {account}: `director account list` shows those that there are, "
                "`director account create` makes one."
            )

    async def written(self, account: str) -> Written:
        """What differs from everybody's."""
        found: Any = await ask(lambda: self._redis.hmget(keys.account(account), WRITTEN))
        return _written(found)

    def limits_of(self, written: Written) -> AccountLimits:
        """What an account may use of which this is written down. Raises SettingsError where that is none."""
        return self._defaults.over(written.limits)

    async def set_suspension(self, account: str, suspension: Suspension | None) -> None:
        """Write down that it is suspended, or no more. `Suspensions` sees to its queues."""

        async def write() -> None:
            # together with their number: a queue goes by the latest
            pipe = self._redis.pipeline(transaction=True)
            if suspension is None:
                pipe.hdel(keys.account(account), "suspended")
            else:
                pipe.hset(keys.account(account), "suspended", msgspec.json.encode(suspension).decode())
            pipe.hincrby(keys.account(account), "suspension_rev", 1)
            await pipe.execute()

        await ask(write)

    async def set_limits(self, account: str, limits: Mapping[str, str]) -> None:
        """Write down limits of this account: a number, none or default. An API goes by it once its cache is over.

        Raises SettingsError where there is no such account, or that names the limit and what it should be.
        """
        await self.refuse_unknown(account)
        written = {name: value for name, value in limits.items() if value != DEFAULT}
        UNLIMITED.over({**(await self.written(account)).limits, **written})
        taken_back = [name for name in limits if name not in written]

        async def write() -> None:
            # together with their number: who reads the new one has read the new limits too
            pipe = self._redis.pipeline(transaction=True)
            if written:
                pipe.hset(keys.account(account), items=[part for pair in written.items() for part in pair])
            if taken_back:
                pipe.hdel(keys.account(account), *taken_back)
            pipe.hincrby(keys.account(account), "limits_rev", 1)
            await pipe.execute()

        await ask(write)

    async def usage(self, account: str, *, day: int) -> Usage:
        """What was denied lately, the compute of a day, which is counted in days since 1970, and in all, and files."""
        [(_, usage)] = await self.seen([account], day=day)
        return usage

    async def seen(self, names: Sequence[str], *, day: int) -> list[tuple[Written, Usage]]:
        """What is written down of each of these, and what became of its limits, by one write to the socket."""
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
        """Of each account, what these of its files take together."""
        sizes = await pipelined(
            self._redis, lambda pipe: [pipe.hmget(keys.stored(name), list(ids)) for name, ids in files.items()]
        )
        return {name: sum(int(size or 0) for size in each) for name, each in zip(files, sizes, strict=True)}

    async def signing(self, account: str) -> dict[str, str]:
        """All that its webhooks are signed with, as `adopt` takes it."""
        found = texts(await ask(lambda: self._redis.hgetall(keys.account(account))))
        return {field: value for field, value in found.items() if field.startswith(SIGNING)}

    async def adopt(self, account: str, signing: Mapping[str, str]) -> None:
        """Let this account of another server be known here, and its webhooks be signed with these and nothing else."""
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
        """The secrets that this account's webhooks are signed with; the first is the current one.

        Those that were current before sign along until their time is over: see lua/rotate.lua. Then they are dropped.
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
    """Raises SettingsError where that is no account's name."""
    if not re.fullmatch(ACCOUNT_NAME, account):
        raise SettingsError(f"{account!r} is no account name: use a-z, 0-9, - and _, at most 64, such as team-a.")
