"""Read how many bytes each account has in Redis, and keep what each may have while memory is short.

`lua/lib/data.lua` has what is counted. Of what outlives that count, the keeper measures each prediction here.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, read_all, text, texts
from director.core.data_bytes import FOR_EVER_MS, count_bytes
from director.core.ids import Kind, Partition, PredictionId, QueueName, lowest_id_at, partition_of
from director.runtime.sweep import LIMIT
from director.store.accounts import Accounts, each_account

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
ACCOUNTS_AT_ONCE: Final = 500
MEASURED: Final = ("account", "queue", "completed", "data_ttl_ms")


class Holder(Struct, frozen=True, kw_only=True):
    """The account with the most data in Redis, its bytes, and those of all `accounts`."""

    account: str
    bytes: int
    total: int
    accounts: int


async def data_of_accounts(redis: Redis, *, now_ms: int) -> dict[str, int]:
    """Return the bytes of each account that has any."""
    held = {}
    async for name, fields in each_account(redis, lambda pipe, name: pipe.hgetall(keys.data(name))):
        if size := count_bytes(texts(fields).items(), now_ms=now_ms):
            held[name] = size
    return held


async def data_share(redis: Redis) -> int | None:
    """Return the bytes that each account may have, None while memory is not short or no keeper says so."""
    client: Any = redis
    share = await ask(lambda: client.get(keys.data_share()))
    return None if share is None else int(share)


async def put_data_share(redis: Redis, share: int, *, kept_ms: int) -> None:
    await ask(lambda: redis.set(keys.data_share(), share, px=kept_ms))


async def put_holder(redis: Redis, holder: Holder, *, kept_ms: int) -> None:
    await ask(lambda: redis.set(keys.data_first(), msgspec.json.encode(holder), px=kept_ms))


async def keep_share_and_holder(redis: Redis, *, kept_ms: int) -> None:
    """Keep both as they are for longer. A server that is full refuses even another value."""
    last = (keys.data_share(), keys.data_first())
    await pipelined(redis, lambda pipe: [pipe.pexpire(key, kept_ms) for key in last])


async def holder_and_expiring(
    redis: Redis, *, from_ms: int, until_ms: int, most: int
) -> tuple[Holder | None, list[tuple[str, str, int]]]:
    """Return the account with the most data, as a keeper found it, and tokens that were used and expire in this time:
    (account, token, when).
    """

    def read(pipe: Any) -> None:
        pipe.get(keys.data_first())
        pipe.zrangebyscore(keys.expiring(), from_ms, until_ms, 0, most, True)

    written, soon = await pipelined(redis, read)
    named = [(*text(member).partition(" "), int(at_ms)) for member, at_ms in soon]
    expiring = [(account, token, at_ms) for account, _, token, at_ms in named]
    return None if written is None else msgspec.json.decode(written, type=Holder), expiring


async def accounts_with_a_sum(redis: Redis) -> set[str]:
    """Return the accounts that have a sum of an earlier recount, perhaps of another keeper."""
    asked = each_account(redis, lambda pipe, name: pipe.hexists(keys.data(name), "old"))
    return {name async for name, has_sum in asked if has_sum}


async def lasting_bytes(redis: Redis) -> dict[str, int]:
    """Return for each account the bytes that are counted without an end."""
    read = each_account(redis, lambda pipe, name: pipe.hget(keys.data(name), FOR_EVER_MS))
    return {name: int(size or 0) async for name, size in read}


async def deployment_counts(redis: Redis) -> dict[str, int]:
    return {
        name: count async for name, count in each_account(redis, lambda pipe, name: pipe.zcard(keys.deployments(name)))
    }


async def record_counts(redis: Redis, *, from_ms: int, before_ms: int) -> dict[str, int]:
    """Return how many records of this time each account has. The ranks of the first and the last on its lists say so,
    so that many cost no more than few.
    """
    low, high = f"[{lowest_id_at(max(0, from_ms))}", f"({lowest_id_at(max(0, before_ms))}"
    names, found = await Accounts(redis).names(), dict[str, int]()
    for start in range(0, len(names), ACCOUNTS_AT_ONCE):
        lists = {keys.listing(name, kind): name for name in names[start : start + ACCOUNTS_AT_ONCE] for kind in KINDS}

        def read_ends(pipe: Any) -> None:
            for key in lists:  # noqa: B023
                pipe.zrangebylex(key, low, high, start=0, num=1)
                pipe.zrevrangebylex(key, high, low, start=0, num=1)

        ends = await pipelined(redis, read_ends)
        pairs = zip(lists, ends[::2], ends[1::2], strict=True)
        spans = [(key, first[0], last[0]) for key, first, last in pairs if first and last]
        pairs_of_ends = [(key, name) for key, *both in spans for name in both]
        ranks = await read_all(redis, pairs_of_ends, lambda pipe, end: pipe.zrank(*end))
        for (key, *_), first, last in zip(spans, ranks[::2], ranks[1::2], strict=True):
            if first is not None and last is not None:
                found[lists[key]] = found.get(lists[key], 0) + last - first + 1
    return found


async def live_or_dead(redis: Redis, queue: QueueName, *, until_ms: int) -> AsyncIterator[list[PredictionId]]:
    """Yield slices of the predictions of a queue that were accepted, or became dead letters, until then. In `live` one
    that is planned is as old as its plan says, and a revived one as its revival: so their ids say when they came.
    """
    later = lowest_id_at(max(0, until_ms + 1))
    async for ids in _slices(redis, keys.live(queue), None):
        yield [each for each in ids if each < later]
    async for ids in _slices(redis, keys.dead(queue), until_ms):
        yield ids


def read_owed(redis: Redis, partition: Partition) -> AsyncIterator[list[PredictionId]]:
    """Yield slices of the predictions whose terminal webhook is owed."""
    return _slices(redis, keys.owed(partition), None)


async def _slices(redis: Redis, index: str, most: int | None) -> AsyncIterator[list[PredictionId]]:
    """Yield the ids of an index with at most this score. If one leaves meanwhile, this pass may miss another."""
    start = 0
    client: Any = redis
    while True:
        at = start  # by rank: with a score as its bound, Redis would walk to each slice from the first one
        found = await ask(lambda: client.zrange(index, at, at + LIMIT - 1, withscores=True))  # noqa: B023
        yield [PredictionId(text(name)) for name, score in found if most is None or score <= most]
        if len(found) < LIMIT or (most is not None and found[-1][1] > most):
            return
        start += LIMIT


class Measured(Struct, frozen=True, kw_only=True):
    """A prediction and its data. `completed`: ms, None without an end. `ttl_ms`: lifetime of its data, if its account
    has its own. `bytes`: of input, output and logs in Redis.
    """

    id: PredictionId
    account: str
    queue: QueueName
    completed: int | None
    ttl_ms: int | None
    is_owed: bool
    bytes: int


async def measure(redis: Redis, ids: Sequence[PredictionId]) -> list[Measured]:
    """Measure those of these predictions that have a record."""

    def read(pipe: Any) -> None:
        for name in ids:
            pipe.hmget(keys.record(name), MEASURED)
            pipe.zscore(keys.owed(partition_of(name)), name)
            pipe.strlen(keys.input_data(name))
            pipe.hstrlen(keys.output_data(name), "output")
            pipe.hstrlen(keys.output_data(name), "logs")

    replies = await pipelined(redis, read)
    return [
        Measured(
            id=name,
            account=text(account),
            queue=QueueName(text(queue or b"")),
            completed=int(completed) if completed else None,
            ttl_ms=int(ttl_ms) if ttl_ms else None,
            is_owed=due is not None,
            bytes=sum(sizes),
        )
        for name, (account, queue, completed, ttl_ms), due, *sizes in zip(
            ids, *(replies[part::5] for part in range(5)), strict=True
        )
        if account is not None
    ]


class Remains(Struct, frozen=True):
    """The remains of a prediction in Redis. Without a record, `status` is None and `account` is ''."""

    status: str | None
    account: str
    has_moved: bool
    has_output: bool
    input_bytes: int


async def remains(redis: Redis, ids: Sequence[PredictionId]) -> Mapping[PredictionId, Remains]:
    def read(pipe: Any) -> None:
        for prediction_id in ids:
            pipe.hmget(keys.record(prediction_id), ["status", "account", "moved"])
            pipe.exists(keys.output_data(prediction_id))
            pipe.strlen(keys.input_data(prediction_id))

    replies = iter(await pipelined(redis, read))
    return {
        each: Remains(
            None if status is None else text(status), text(account or b""), bool(moved), bool(has_output), input_bytes
        )
        for each, (status, account, moved), has_output, input_bytes in zip(ids, replies, replies, replies, strict=True)
    }
