"""Read what accounts have reserved of compute and tokens, and what ended predictions spent and is not settled yet."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.core.ids import Partition, PredictionId, partition_of
from director.store.accounts import each_account

TOTALS: Final = (b"day", b"spent", b"reserved", b"minute", b"month", b"compute")


async def unspent(redis: Redis, partition: Partition, *, most: int) -> list[tuple[PredictionId, str, float]]:
    """Return (prediction, account, seconds that its runs took) of some that ended and whose reservation stands."""
    client: Any = redis
    found = await ask(lambda: client.zrange(keys.unspent(partition), 0, most - 1, withscores=True))
    named = [(*text(member).partition(" "), ran_ms / 1000) for member, ran_ms in found]
    return [(PredictionId(of), account, ran_s) for of, _, account, ran_s in named]


async def forget_unspent(redis: Redis, partition: Partition, settled: Sequence[tuple[PredictionId, str]]) -> None:
    if settled:
        members = [f"{each} {account}" for each, account in settled]
        await ask(lambda: redis.zrem(keys.unspent(partition), *members))


async def read_unsettled(
    redis: Redis, partition: Partition, *, most: int
) -> dict[tuple[PredictionId, str], tuple[int, int]]:
    """Return (prediction, account) → (ms of its runs, tokens) of some that ended and whose budget is not settled."""
    client: Any = redis
    _, found = await ask(lambda: client.hscan(keys.unsettled(partition), 0, count=most))
    named = {text(member).partition(" "): text(used).split() for member, used in found.items()}
    return {(PredictionId(of), account): (int(ms), int(tokens)) for (of, _, account), (ms, tokens) in named.items()}


async def forget_unsettled(redis: Redis, partition: Partition, settled: Sequence[tuple[PredictionId, str]]) -> None:
    if settled:
        members = [f"{each} {account}" for each, account in settled]
        await ask(lambda: redis.hdel(keys.unsettled(partition), *members))


async def read_reserved(redis: Redis, *, at_once: int) -> AsyncIterator[tuple[str, list[PredictionId]]]:
    """Yield the predictions that each account has reserved compute for, a few at a time."""
    client: Any = redis
    for of_account in (keys.compute, keys.credit, keys.budget):
        async for account, has_limit in each_account(redis, lambda pipe, name: pipe.exists(of_account(name))):  # noqa: B023
            cursor = -1
            while has_limit and cursor:
                scan = partial(client.hscan, of_account(account), max(0, cursor), count=at_once)
                cursor, held = await ask(scan)
                yield account, [PredictionId(text(name)) for name in held if name not in TOTALS]


async def without_end(redis: Redis, account: str, ids: Sequence[PredictionId]) -> list[PredictionId]:
    """Return those of these predictions of an account that have no record, and whose end is not to be settled."""

    def read(pipe: Any) -> None:
        for each in ids:
            # In this order: a prediction that ends now and is deleted is noted as ended before its record goes.
            pipe.exists(keys.record(each))
            pipe.zscore(keys.unspent(partition_of(each)), f"{each} {account}")
            pipe.hexists(keys.unsettled(partition_of(each)), f"{each} {account}")

    replies = iter(await pipelined(redis, read))
    return [
        each
        for each, has_record, ran_ms, is_unsettled in zip(ids, replies, replies, replies, strict=True)
        if not has_record and ran_ms is None and not is_unsettled
    ]
