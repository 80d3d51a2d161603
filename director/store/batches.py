"""Store batches of OpenAI's API: what was asked, how far each is, and which keeper has it.

A batch is one hash. A keeper leases it, and each of its writes carries the token of that lease. The lines of a batch
are numbered from 0, without blank ones. `written` has a bit for each line that a committed part has.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.replies import BatchOpened, BatchWritten
from director.broker.scripts import Scripts
from director.core.errors import IdempotencyMismatch
from director.core.ids import FileId, PredictionId, created_ms_of
from director.files.store import CallerFileName

MOST: Final = 2_000  # of one account
MOST_LIVE: Final = 100  # that have not ended, of one account
LEASE_S: Final = 15.0
CLOSED: Final = 5 * 10**14  # the turn of a batch out of its hours is this and the time when they begin, ms
OVER: Final = 10**15  # the turn of a batch that has ended is this and the time when its webhook is due, ms
AT_ONCE: Final = 20  # that one account makes in one millisecond, for the place where a page begins
ERASED_AT_ONCE: Final = 100
PARTS_AT_ONCE: Final = 1_000  # that one write forgets
MOST_SURVEYED: Final = 1_000
PART: Final = "part"  # ending of a part in the file store

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
End = Literal["failed", "completed", "expired", "cancelled"]
LIVE: Final[Sequence[BatchStatus]] = ("validating", "in_progress", "finalizing", "cancelling")
CANCELABLE: Final[Sequence[BatchStatus]] = ("validating", "in_progress")
Kind = Literal["output", "error"]
Fields = Mapping[str, str | bytes | int]


class Part(Struct, frozen=True):
    """A stored piece of the output or of the error file."""

    kind: Kind
    id: FileId
    size: int

    def __str__(self) -> str:
        return f"{self.kind} {self.id} {self.size}"

    def name_for(self, account: str) -> CallerFileName:
        return CallerFileName(account, self.id, PART)


class Batch(Struct, frozen=True, kw_only=True):
    """A batch. `api_token`: digest of the token that made it. `headers` and `metadata` are JSON. Times are in ms.
    `place`: number and byte of the first line that is not written. `filed`: lines from here on were never filed.
    `ends_as`: set once no more lines are run. `settled`: 1 once its files are listed and its parts are gone.
    `hook_at`: when the next webhook is due. `causes`: a JSON object of the lines that failed, by cause. `counted`: when
    the counts last changed. `hours`: in which lines start. `opens`: when it goes on, if it waits for them.
    `output_life_s`: of its files, 0 for that of the batch. `waits`: JSON of why its lines are not accepted just now.
    """

    id: FileId
    account: str
    api_token: str
    endpoint: str
    input: FileId
    window: str
    headers: bytes
    metadata: bytes = b""
    base: str
    created: int
    expires: int
    status: BatchStatus
    webhook: str = ""
    total: int = 0
    completed: int = 0
    failed: int = 0
    causes: bytes = b""
    counted: int = 0
    output_life_s: int = 0
    waits: bytes = b""
    hours: str = ""
    opens: int = 0
    errors: bytes = b""
    place: str = "0 0"
    filed: int = 0
    written: bytes = b""
    parts: int = 0
    ends_as: str = ""
    output: str = ""
    error: str = ""
    settled: int = 0
    hook_at: int = 0
    hook_tries: int = 0
    times: dict[str, int] = {}
    stored_parts: tuple[Part, ...] = ()

    @property
    def is_live(self) -> bool:
        return self.status in LIVE


class Survey(Struct, frozen=True):
    """Batches that have not ended, by status, and the age of the oldest one that waits for a keeper. Those of accounts
    of which a keeper runs one wait for their share.
    """

    counts: dict[str, int]
    oldest_waiting_ms: int


OF_BATCH: Final = {name: kind for name, kind in Batch.__annotations__.items() if name not in ("times", "stored_parts")}
STATUSES: Final[Sequence[str]] = get_args(BatchStatus)
SHOWN: Final = [*(name for name in OF_BATCH if name != "written"), *(f"at:{status}" for status in STATUSES)]


class Batches:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self._redis: Any = redis  # it answers in bytes
        self._scripts = scripts

    async def open(
        self, new: Batch, *, ttl_s: float, idempotency: tuple[str, str] | None = None
    ) -> BatchOpened | FileId:
        """Return what came of it, or the id of the batch that the key made. `idempotency`: digests of key and request.
        Raises IdempotencyMismatch.
        """
        fields: dict[str, str | bytes | int] = {name: getattr(new, name) for name in OF_BATCH}
        fields = {name: value for name, value in fields.items() if value not in (b"", "", 0)}
        return await self._scripts.open_batch(
            *(new.account, new.id),
            created_ms=new.created,
            ttl_s=ttl_s,
            most=MOST,
            most_live=MOST_LIVE,
            fields=fields,
            idempotency=idempotency,
        )

    async def stands_for(self, account: str, idempotency: tuple[str, str]) -> FileId | None:
        """Return the batch that this key made, or None. Raises IdempotencyMismatch for another request."""
        digest, fingerprint = idempotency
        held = await ask(lambda: self._redis.get(keys.batch_key(account, digest)))
        if held is None:
            return None
        known, _, of = text(held).partition(" ")
        if of != fingerprint:
            raise IdempotencyMismatch("This Idempotency-Key was used with another body.")
        return FileId(known)

    async def get(self, account: str, batch_id: FileId) -> Batch | None:
        return (await self.many(account, [batch_id]))[0]

    async def many(self, account: str, ids: Sequence[FileId], *, whole: bool = True) -> list[Batch | None]:
        """Return batches of this account, without those of others. Unless `whole`, what only a keeper needs is left
        out: parts, and the bits of the lines that are written.
        """
        return await self.of_any([(account, each) for each in ids], whole=whole)

    async def of_any(self, pairs: Sequence[tuple[str, FileId]], *, whole: bool = True) -> list[Batch | None]:
        """Return the batches with these accounts and ids, as `many`."""
        found = await self._read_all([each for _, each in pairs], whole=whole)
        owned = zip(found, pairs, strict=True)
        return [batch if batch and batch.account == account else None for batch, (account, _) in owned]

    async def find(self, batch_id: FileId) -> Batch | None:
        """Return a batch of any account, without what only a keeper needs."""
        return (await self._read_all([batch_id], whole=False))[0]

    async def _read_all(self, ids: Sequence[FileId], *, whole: bool) -> list[Batch | None]:
        def read(pipe: Any) -> None:
            for each in ids:
                pipe.hgetall(keys.batch(each)) if whole else pipe.hmget(keys.batch(each), SHOWN)

        found = await pipelined(self._redis, read)
        if not whole:
            found = [{name.encode(): value for name, value in zip(SHOWN, each, strict=True) if value} for each in found]
        return [_read(fields) if fields else None for fields in found]

    async def newest(self, account: str, *, after: FileId | None = None, count: int) -> list[FileId]:
        """Return ids of the account's batches, the newest first. `after`: those that follow it."""
        return [each for each, _ in await self._newest(keys.batches_of(account), after=after, count=count)]

    async def newest_of_all(self, *, after: FileId | None = None, count: int) -> list[tuple[str, FileId]]:
        """Return account and id of the batches of all accounts, the newest first. `after`: those that follow it."""
        return [(account, each) for each, account in await self._newest(keys.all_batches(), after=after, count=count)]

    async def _newest(self, listing: str, *, after: FileId | None, count: int) -> list[tuple[FileId, str]]:
        """Return the ids on a list, and what its members have behind them."""
        high = "+inf" if after is None else created_ms_of(after)
        found = await ask(
            lambda: self._redis.zrange(listing, high, "-inf", desc=True, byscore=True, offset=0, num=count + AT_ONCE)
        )
        pairs = [text(member).partition(" ") for member in found]
        return [(FileId(each), rest) for each, _, rest in pairs if after is None or each < after][:count]

    async def waiting(self, most: int, *, now_ms: int) -> tuple[list[tuple[str, FileId]], list[tuple[str, FileId]]]:
        """Return account and id of up to `most` batches that have not ended, in the order of their turns, as many whose
        hours have begun, and the same of those that have ended and whose webhook is due.
        """

        def read(pipe: Any) -> None:
            pipe.zrange(keys.batches(), "-inf", f"({CLOSED}", byscore=True, offset=0, num=most)
            pipe.zrange(keys.batches(), CLOSED, CLOSED + now_ms, byscore=True, offset=0, num=most)
            pipe.zrange(keys.batches(), OVER, OVER + now_ms, byscore=True, offset=0, num=most)

        live, opened, due = await pipelined(self._redis, read)
        return _members([*live, *opened]), _members(due)

    async def survey(self, *, now_ms: int) -> Survey:
        """Count the batches that have not ended, by status."""
        live = f"({OVER}"
        found = await ask(
            lambda: self._redis.zrange(keys.batches(), "-inf", live, byscore=True, offset=0, num=MOST_SURVEYED)
        )
        pairs = _members(found)
        names = ("status", "until", "opens", "created")
        read = await pipelined(self._redis, lambda pipe: [pipe.hmget(keys.batch(each), names) for _, each in pairs])
        counts, running, since_ms = dict.fromkeys((*LIVE, "closed"), 0), set[str](), dict[str, int]()
        for (account, _), (status, until, opens, created) in zip(pairs, read, strict=True):
            if status is None or text(status) not in LIVE:
                continue
            is_closed = int(opens or 0) > now_ms
            counts["closed" if is_closed else text(status)] += 1
            if int(until or 0) >= now_ms:
                running.add(account)
            elif not is_closed:
                since_ms[account] = min(since_ms.get(account, now_ms), max(int(created), int(opens or 0)))
        waits = [now_ms - at_ms for account, at_ms in since_ms.items() if account not in running]
        return Survey(counts, max(waits, default=0))

    async def note_line(self, batch: Batch, number: int, prediction_id: PredictionId, *, ttl_s: float) -> None:
        """Note the prediction that a line has, until the line is written."""
        key, life_ms = keys.batch_lines(batch.id), int(ttl_s * 1000)
        await pipelined(
            self._redis, lambda pipe: (pipe.hset(key, str(number), prediction_id), pipe.pexpire(key, life_ms))
        )

    async def read_lines(self, batch: Batch) -> dict[int, PredictionId]:
        found = await ask(lambda: self._redis.hgetall(keys.batch_lines(batch.id)))
        return {int(number): PredictionId(text(each)) for number, each in found.items()}

    async def forget_lines(self, batch: Batch, numbers: Sequence[int]) -> None:
        await ask(lambda: self._redis.hdel(keys.batch_lines(batch.id), *map(str, numbers)))

    async def drop_parts(self, batch: Batch) -> None:
        """Forget the parts and the lines of a batch that has ended."""
        await ask(lambda: self._redis.unlink(keys.batch_lines(batch.id)))
        for start in range(0, batch.parts, PARTS_AT_ONCE):
            names = [f"part:{number}" for number in range(start, min(batch.parts, start + PARTS_AT_ONCE))]
            await ask(lambda names=names: self._redis.hdel(keys.batch(batch.id), *names))  # type: ignore[misc]

    async def erase(self, account: str) -> int:
        """Delete all batches of an account, and return how many these were. A keeper that has one finds it gone."""
        listing, erased = keys.batches_of(account), 0
        while ids := await ask(lambda: self._redis.zrange(listing, 0, ERASED_AT_ONCE - 1)):

            def erase(pipe: Any, ids: Sequence[bytes] = ids) -> None:
                pipe.unlink(*(keys.batch(FileId(text(each))) for each in ids))
                pipe.unlink(*(keys.batch_lines(FileId(text(each))) for each in ids))
                pipe.zrem(keys.batches(), *(f"{account} {text(each)}" for each in ids))
                pipe.zrem(keys.all_batches(), *(f"{text(each)} {account}" for each in ids))
                for name in (keys.batches_live(account), listing):
                    pipe.zrem(name, *ids)

            erased += (await pipelined(self._redis, erase, transaction=True))[0]
        return erased

    async def cancel(self, batch: Batch, *, now_ms: int) -> BatchWritten:
        """Ask the keeper to stop, also out of its hours. It answers `changed` for one that is past that."""
        fields: Fields = {"status": "cancelling", "at:cancelling": now_ms, "opens": 0}
        return await self._scripts.write_batch(
            *(batch.account, batch.id),
            token="",
            allowed=CANCELABLE,
            nonce=secrets.token_hex(8),
            fields=fields,
            turn=batch.created,
        )


class Lost(Exception):
    """Another keeper has the batch now, or it is gone: this one writes nothing more."""


class Lease:
    """A keeper's right to one batch. Its token is random: a keeper that comes back late writes nothing."""

    def __init__(self, scripts: Scripts, account: str, batch_id: FileId) -> None:
        self._scripts = scripts
        self._batch = (account, batch_id)
        self._token = secrets.token_hex(16)

    async def hold(self) -> str:
        """Take or extend it. Returns the batch's status, 'busy' or 'gone'."""
        return await self._scripts.lease_batch(*self._batch, token=self._token, lease_s=LEASE_S)

    async def give_back(self) -> None:
        await self._scripts.lease_batch(*self._batch, token=self._token, lease_s=0)

    async def write(
        self,
        fields: Fields,
        *,
        nonce: str,
        allowed: Sequence[BatchStatus] = LIVE,
        parts: int | None = None,
        is_over: bool = False,
        turn: int | Literal["", "-"] = "",
    ) -> bool:
        """Write if the status is one of `allowed`, and return whether it was. `turn`: as in the script. Repeat it with
        the same nonce after a lost reply. Raises Lost.
        """
        word = await self._scripts.write_batch(
            *self._batch,
            token=self._token,
            allowed=allowed,
            nonce=nonce,
            fields=fields,
            parts=parts,
            is_over=is_over,
            turn=OVER if is_over else turn,
        )
        if word == "lost":
            raise Lost
        return word == "written"


def _members(found: Sequence[bytes]) -> list[tuple[str, FileId]]:
    pairs = [text(member).partition(" ") for member in found]
    return [(account, FileId(batch_id)) for account, _, batch_id in pairs]


def _read(found: Mapping[bytes, bytes]) -> Batch:
    fields: dict[str, Any] = {"times": {}, "stored_parts": []}
    for name, value in ((text(name), value) for name, value in found.items()):
        what, _, of = name.partition(":")
        if what == "at":
            fields["times"][of] = int(value)
        elif what == "part":
            kind, part_id, size = text(value).split(" ")
            fields["stored_parts"].append((int(of), Part(kind, FileId(part_id), int(size))))  # type: ignore[arg-type]
        elif name in OF_BATCH:
            kind = OF_BATCH[name]
            fields[name] = value if kind is bytes else int(value) if kind is int else text(value)
    fields["stored_parts"] = tuple(part for _, part in sorted(fields["stored_parts"], key=lambda each: each[0]))
    return msgspec.convert(fields, Batch)
