"""Store accounts and their tokens: who may ask, what they may use, and the secrets that sign their webhooks.

Of tokens only digests are kept. Webhook secrets are kept as they are, because signing needs them: a reader of them can
sign as this service does.
"""

import contextlib
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast, get_args

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, read_all, text, texts
from director.core.account_limits import DEFAULT, UNLIMITED, AccountLimits, check_limits
from director.core.clock import Clock, SystemClock
from director.core.data_bytes import count_bytes
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import ALL_LANES, LANES
from director.core.webhooks import new_secret

# read: see what is there; run: create and cancel predictions; view: see all accounts; operate: act on queues and
# predictions of all accounts too; admin: change accounts, tokens and models too
Scope = Literal["read", "run", "view", "operate", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
# Each scope over all accounts includes those before it
OVERSEES: Final[tuple[Scope, ...]] = ("view", "operate", "admin")
OPERATES: Final[tuple[Scope, ...]] = OVERSEES[1:]
Role = Literal["viewer", "operator", "admin"]
ROLES: Final[Mapping[Role, tuple[str, ...]]] = {
    "viewer": ("read", "view"),
    "operator": ("read", "run", "operate"),
    "admin": ("read", "run", "admin"),
}
"""The scopes of a person with this role."""
# what each scope includes
WORTH: Final[Mapping[str, frozenset[str]]] = {
    **{scope: frozenset({scope}) for scope in SCOPES},
    "operate": frozenset(OVERSEES[:2]),
    "admin": frozenset(OVERSEES),
}


def limit_scopes(asked: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return what of the asked scopes the given ones include."""
    worths = [frozenset[str]().union(*(WORTH.get(scope, ()) for scope in scopes)) for scopes in (asked, given)]
    return tuple(scope for scope in SCOPES if all(scope in worth for worth in worths))


PREFIX: Final = "dr_"
ID_DIGITS: Final = 16
LAST: Final = 4
LABEL: Final = r"^[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,63}$"
MOST_TOKENS: Final = 1_000  # of one account, since one answer lists them all
LONGEST_MS: Final = 100 * 366 * 86_400_000  # a date after the year 9999 could not be shown
NO_END: Final = "A token expires in the future, within a hundred years, or never."
HALF_MADE_MS: Final = 60_000
SOON_MS: Final = 7 * 86_400_000
LASTING_MS: Final = 4 * SOON_MS
MOST_EXPIRING: Final = 1_000
AT_ONCE: Final = 500  # accounts in one write


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
        is_prefix = len(name) >= LAST and self.digest.startswith(name.lower())
        return bool(name) and (name in (self.label, self.last4) or is_prefix)


class TokenChange(Struct, frozen=True, kw_only=True):
    """New facts of a token; None keeps what it has. `expires_ms`: 0 for never."""

    scopes: Sequence[str] | None = None
    lanes: Sequence[str] | None = None
    label: str | None = None
    expires_ms: int | None = None

    @property
    def fields(self) -> dict[str, str]:
        """Return the fields of the token that change, as they are stored, without its end."""
        lists = {"scopes": self.scopes, "lanes": self.lanes}
        texts_ = {name: ",".join(dict.fromkeys(words)) for name, words in lists.items() if words is not None}
        return texts_ | ({} if self.label is None else {"label": self.label})


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
    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis: Any = redis  # ours answers in bytes
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
        """Return a token with a fresh secret, or with `token` as its secret. Raises SettingsError."""
        if expires_ms == 0:
            raise SettingsError(NO_END)
        self.check(TokenChange(scopes=scopes, lanes=lanes, label=label, expires_ms=expires_ms))
        return NewToken(
            secret=token or PREFIX + secrets.token_hex(20),
            label=label,
            scopes=tuple(dict.fromkeys(scopes)),
            lanes=tuple(dict.fromkeys(lanes)),
            created_ms=self._clock.now_ms(),
            expires_ms=expires_ms,
        )

    def check(self, change: TokenChange) -> None:
        """Raises SettingsError for what no token can have."""
        now_ms = self._clock.now_ms()
        if change.lanes is not None and not (change.lanes and set(change.lanes) <= set(ALL_LANES)):
            raise SettingsError(f"A token has lanes of {', '.join(ALL_LANES)}.")
        if change.scopes is not None and not (change.scopes and set(change.scopes) <= set(SCOPES)):
            raise SettingsError(f"A token has scopes of {', '.join(SCOPES)}.")
        if change.label and not re.fullmatch(LABEL, change.label):
            raise SettingsError("A label has letters, digits, spaces and . _ @ / -, and at most 64 of them.")
        if change.expires_ms and not now_ms < change.expires_ms <= now_ms + LONGEST_MS:
            raise SettingsError(NO_END)

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

    async def find(self, token: str) -> Token | None:
        """Return the token with this secret, or None if it is unknown or expired."""
        return await self.find_digest(digest(token))

    async def find_digest(self, name: str) -> Token | None:
        fields = texts(await ask(lambda: self._redis.hgetall(keys.token(name))))
        if not fields:
            return None
        found = _token(name, fields)
        if found.expires_ms is None:
            return found
        now_ms = self._clock.now_ms()
        is_lasting = found.expires_ms - (found.created_ms or 0) >= LASTING_MS  # programs renew others themselves
        if is_lasting and now_ms < found.expires_ms <= now_ms + SOON_MS:
            await self._note_expiry(found, found.expires_ms, now_ms)
        return found if now_ms < found.expires_ms else None

    async def _note_expiry(self, token: Token, at_ms: int, now_ms: int) -> None:
        """Tell operators that a token which is used expires soon. At most a thousand are kept, the first to expire."""

        def note(pipe: Any) -> None:
            pipe.zadd(keys.expiring(), {f"{token.account} {token.id}": at_ms})
            pipe.zremrangebyscore(keys.expiring(), "-inf", now_ms)
            pipe.zremrangebyrank(keys.expiring(), MOST_EXPIRING, -1)
            pipe.pexpire(keys.expiring(), SOON_MS)

        with contextlib.suppress(BackendUnavailable):  # the token is good, and a full server refuses the note
            await pipelined(self._redis, note)

    async def of(self, account: str) -> list[Token]:
        """Return all tokens of this account, oldest first. Entries without a token are removed from the list."""
        listed = await ask(lambda: self._redis.zrange(keys.tokens(account), 0, -1, withscores=True))
        replies = await pipelined(
            self._redis, lambda pipe: [pipe.hgetall(keys.token(text(name))) for name, _ in listed]
        )
        since_ms = self._clock.now_ms() - HALF_MADE_MS
        gone = [name for (name, at_ms), fields in zip(listed, replies, strict=True) if not fields and at_ms < since_ms]
        if gone:
            await self._take_off(account, gone)
        return [_token(text(name), texts(fields)) for (name, _), fields in zip(listed, replies, strict=True) if fields]

    async def remove(self, token: Token) -> bool:
        tries = 0

        async def delete() -> bool:
            nonlocal tries
            tries += 1
            return bool(await self._redis.delete(keys.token(token.digest)))

        # If the reply of the first try was lost, the next one finds nothing
        is_gone = await ask(delete) or tries > 1
        await self.forget_expiry(token)
        await self._take_off(token.account, [token.digest.encode()])
        return is_gone

    async def forget_expiry(self, token: Token) -> None:
        """Take back what operators are told of the end of this token."""
        if token.expires_ms is not None:
            await ask(lambda: self._redis.zrem(keys.expiring(), f"{token.account} {token.id}"))

    async def _take_off(self, account: str, gone: Sequence[bytes]) -> None:
        await ask(lambda: self._redis.zrem(keys.tokens(account), *gone))
        made = await pipelined(
            self._redis, lambda pipe: [pipe.hget(keys.token(text(name)), "created") for name in gone]
        )
        again = {name: int(at_ms) for name, at_ms in zip(gone, made, strict=True) if at_ms is not None}
        if again:
            await ask(lambda: self._redis.zadd(keys.tokens(account), again, nx=True))


def digest(token: str) -> str:
    """Return the SHA-256 under which a token is stored. Tokens are 160 random bits, so no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def _token(name: str, fields: dict[str, str]) -> Token:
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
    policy: Policy
    reason: Reason
    since_ms: int


class Account(Struct, frozen=True):
    """The account of a token. `token_id`, `token_digest` and `expires_ms` are the token's; `limits_rev` counts changes
    of limits.
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
    token_digest: str = ""

    @property
    def oversees(self) -> bool:
        """Whether it may see what all accounts have."""
        return not set(OVERSEES).isdisjoint(self.scopes)

    def may_look_into(self, owner: str) -> bool:
        """Whether it may see what only the owner and overseers of all accounts may see."""
        return owner == self.name or self.oversees

    @property
    def operates(self) -> bool:
        """Whether it may act on queues and predictions of all accounts."""
        return not set(OPERATES).isdisjoint(self.scopes)


class Written(Struct, frozen=True):
    """The stored facts of an account. `revision` counts changes of limits, `suspension_rev` of its suspension."""

    limits: dict[str, str]
    revision: int
    type: AccountType = "organization"
    suspension: Suspension | None = None
    suspension_rev: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """How an account uses its limits: `bursts` of refusals by limit, seconds of compute, bytes of stored files.

    `spent_s` and `reserved_s` are of one day. The totals count since the account has a credit. `data_bytes`: of its
    predictions in Redis, waiting and ended; an estimate, see `lua/lib/data.lua`.
    """

    bursts: dict[str, int]
    spent_s: float
    reserved_s: float
    total_spent_s: float
    total_reserved_s: float
    stored_bytes: int
    data_bytes: int


class Accounts:
    def __init__(self, redis: Redis, defaults: AccountLimits = UNLIMITED, clock: Clock | None = None) -> None:
        self._redis = redis
        self._defaults = defaults
        self._clock = clock or SystemClock()
        self.tokens = Tokens(redis, self._clock)

    async def create(self, account: str, kind: AccountType = TYPES[0]) -> bool:
        """Create the account. Return False if it exists. After a lost reply the stored secret tells who made it."""
        refuse_name(account)
        key, secret = keys.account(account), new_secret()

        async def write() -> bool:
            pipe = self._redis.pipeline(transaction=False)
            pipe.hsetnx(key, SIGNING, secret)
            pipe.hget(key, SIGNING)
            pipe.sadd(keys.accounts(), account)
            _, stands, _ = await pipe.execute()
            is_ours = text(stands) == secret
            if is_ours and kind != TYPES[0]:
                await self._redis.hset(key, "type", kind)
            return is_ours

        return await ask(write)

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
        """Create a token, and its account if missing. Return the secret, which is never shown again."""
        refuse_name(account)
        made = self.tokens.new(lanes=lanes, scopes=scopes, label=label, expires_ms=expires_ms, token=token)
        await self.give_token(account, made)
        return made.secret

    async def give_token(self, account: str, made: NewToken) -> Token:
        await self.create(account)
        return await self.tokens.add(account, made)

    async def authenticate(self, token: str) -> Account | None:
        """Return the account, or None. The lookup is by digest, so its time reveals no other token."""
        return await self.find(digest(token))

    async def find(self, token_digest: str) -> Account | None:
        """Return the account of the token with this digest, or None."""
        found = await self.tokens.find_digest(token_digest)
        if found is None:
            return None
        account = await self.account(found.account)
        return msgspec.structs.replace(
            account,
            lanes=found.lanes,
            scopes=found.scopes,
            token_id=found.id,
            token_digest=token_digest,
            expires_ms=found.expires_ms,
        )

    async def account(self, name: str) -> Account:
        """Return an account without a token."""
        written = await self.read_written(name)
        return Account(
            name=name,
            limits=self.limits_of(written),
            limits_rev=written.revision,
            type=written.type,
            suspension=written.suspension,
        )

    async def names(self) -> list[str]:
        return sorted(text(name) for name in await ask(lambda: self._redis.smembers(keys.accounts())))

    async def exists(self, account: str) -> bool:
        return bool(await ask(lambda: self._redis.exists(keys.account(account))))

    async def refuse_unknown(self, account: str) -> None:
        refuse_name(account)
        if not await self.exists(account):
            raise SettingsError(
                f"there is no account {account}: `director account list` shows all accounts, "
                "`director account create` makes one."
            )

    async def read_written(self, account: str) -> Written:
        found: Any = await ask(lambda: self._redis.hmget(keys.account(account), WRITTEN))
        return _parse_written(found)

    async def read_each_written(self, accounts: Sequence[str]) -> list[Written]:
        """Return what is written of each of these accounts."""
        found = list[Written]()
        for start in range(0, len(accounts), AT_ONCE):
            some = accounts[start : start + AT_ONCE]
            replies = await read_all(self._redis, some, lambda pipe, name: pipe.hmget(keys.account(name), WRITTEN))
            found += map(_parse_written, replies)
        return found

    def limits_of(self, written: Written) -> AccountLimits:
        """Return the limits that result from what is stored. Raises SettingsError if a stored limit is invalid."""
        return self._defaults.over(written.limits)

    async def set_suspension(self, account: str, suspension: Suspension | None) -> None:
        """Store a suspension, or its end (None). `Suspensions` brings the queues into line."""

        def write(pipe: Any) -> None:
            if suspension is None:
                pipe.hdel(keys.account(account), "suspended")
            else:
                pipe.hset(keys.account(account), "suspended", msgspec.json.encode(suspension).decode())
            pipe.hincrby(keys.account(account), "suspension_rev", 1)

        # In one transaction with the number: a queue follows the latest number.
        await pipelined(self._redis, write, transaction=True)

    async def set_limits(self, account: str, limits: Mapping[str, str]) -> None:
        """Set limits: a number, `none`, `default`. APIs apply them once their cache expires. Raises SettingsError."""
        await self.refuse_unknown(account)
        written = {name: value for name, value in limits.items() if value != DEFAULT}
        check_limits({**(await self.read_written(account)).limits, **written})
        taken_back = [name for name in limits if name not in written]

        def write(pipe: Any) -> None:
            if written:
                pipe.hset(keys.account(account), items=[part for pair in written.items() for part in pair])
            if taken_back:
                pipe.hdel(keys.account(account), *taken_back)
            pipe.hincrby(keys.account(account), "limits_rev", 1)

        # In one transaction with the number: a reader of the new number has read the new limits.
        await pipelined(self._redis, write, transaction=True)

    async def usage(self, account: str, *, day: int) -> Usage:
        [(_, usage)] = await self.read_with_usage([account], day=day)
        return usage

    async def read_with_usage(self, names: Sequence[str], *, day: int) -> list[tuple[Written, Usage]]:
        """Return what is stored of each account and its usage, in one write to the socket."""
        now_ms = self._clock.now_ms()

        def read(pipe: Any) -> None:
            for name in names:
                pipe.hmget(keys.account(name), WRITTEN)
                pipe.hgetall(keys.usage(name))
                pipe.hmget(keys.compute(name), ["day", "spent", "reserved"])
                pipe.hmget(keys.credit(name), ["spent", "reserved"])
                pipe.hget(keys.stored(name), "total")
                pipe.hgetall(keys.data(name))
                pipe.zrangebyscore(keys.stored_until(name), "-inf", now_ms, start=0, num=MOST_OVER)

        replies = await pipelined(self._redis, read)
        found = [replies[start : start + 7] for start in range(0, len(replies), 7)]
        over = await self._bytes_of({name: each[6] for name, each in zip(names, found, strict=True) if each[6]})
        return [
            (_parse_written(each[0]), _usage(each[1:6], day=day, over=over.get(name, 0), now_ms=now_ms))
            for name, each in zip(names, found, strict=True)
        ]

    async def _bytes_of(self, files: Mapping[str, Sequence[bytes]]) -> dict[str, int]:
        sizes = await pipelined(
            self._redis, lambda pipe: [pipe.hmget(keys.stored(name), list(ids)) for name, ids in files.items()]
        )
        return {name: sum(int(size or 0) for size in each) for name, each in zip(files, sizes, strict=True)}

    async def signing(self, account: str) -> dict[str, str]:
        found = texts(await ask(lambda: self._redis.hgetall(keys.account(account))))
        return {field: value for field, value in found.items() if field.startswith(SIGNING)}

    async def adopt(self, account: str, signing: Mapping[str, str]) -> None:
        """Make this account of another server known here. Its webhooks are then signed with exactly these secrets."""
        if not signing:
            return
        key, known = keys.account(account), await self.signing(account)
        if known == signing:
            return

        def write(pipe: Any) -> None:
            for field, value in signing.items():
                pipe.hset(key, field, value)
            if over := known.keys() - signing.keys():
                pipe.hdel(key, *over)
            pipe.sadd(keys.accounts(), account)

        await pipelined(self._redis, write)

    async def webhook_secrets(self, account: str) -> list[str]:
        """Return the secrets that sign its webhooks, the current one first. Former ones end: see lua/rotate.lua.

        An ended one stays stored until the next rotation. Nothing is written here, since directors may only read.
        """
        found = texts(await ask(lambda: self._redis.hgetall(keys.account(account))))
        former = {field: int(field.rpartition(":")[2]) for field in found if field.startswith(FORMER)}
        now_ms = self._clock.now_ms()
        living = sorted((field for field, until in former.items() if until > now_ms), key=lambda field: -former[field])
        return [found[field] for field in (SIGNING, *living) if field in found]


def _parse_written(found: Sequence[bytes | None]) -> Written:
    *limits, revision, kind, suspended, suspension_rev = found
    return Written(
        {name: text(value) for name, value in zip(OF_LIMITS, limits, strict=True) if value is not None},
        int(revision or 0),
        cast(AccountType, text(kind or TYPES[0])),
        msgspec.json.decode(suspended, type=Suspension) if suspended else None,
        int(suspension_rev or 0),
    )


def _usage(found: Sequence[Any], *, day: int, over: int, now_ms: int) -> Usage:
    usage, compute, credit, stored, data = found
    of_day, spent_ms, reserved_ms, total_spent_ms, total_reserved_ms = (int(part or 0) for part in (*compute, *credit))
    is_today = of_day == day
    return Usage(
        bursts={name.removesuffix(":bursts"): int(count) for name, count in texts(usage).items() if ":bursts" in name},
        spent_s=spent_ms / 1000 if is_today else 0,
        reserved_s=reserved_ms / 1000 if is_today else 0,
        total_spent_s=total_spent_ms / 1000,
        total_reserved_s=total_reserved_ms / 1000,
        stored_bytes=max(0, int(stored or 0) - over),
        data_bytes=count_bytes(texts(data).items(), now_ms=now_ms),
    )


def refuse_name(account: str) -> None:
    if not re.fullmatch(ACCOUNT_NAME, account):
        raise SettingsError(f"{account!r} is no account name: use a-z, 0-9, - and _, at most 64, such as team-a.")


async def each_account(redis: Redis, command: Callable[[Any, str], object]) -> AsyncIterator[tuple[str, Any]]:
    """Yield the name of each account and the reply to the command that `command` puts on a pipeline for it."""
    names = await Accounts(redis).names()
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        replies = await read_all(redis, some, command)
        for name, reply in zip(some, replies, strict=True):
            yield name, reply
