"""What Redis holds once a run is over and all is at rest: the predictions, and what should not be there any more.

Reads only, and asks no code that it is there to judge: plain commands on the keys as core/keys/ spells them. It walks
the whole keyspace, which no path of the product does.
"""

import re
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.chaos.cog import FILL
from director.chaos.journal import Final as Prediction
from director.chaos.journal import now_ms
from director.core.ids import PredictionId, QueueName

__all__ = ("LEFTOVERS", "Leftovers", "QueueRest", "leftovers", "predictions")

LEFTOVERS: Final = "leftovers.json"

BATCH: Final = 500
ALIVE_S: Final = 20  # a director that was heard in this time serves its queue
LISTING: Final = "{a:*}:listing"
QUEUE: Final = re.compile(r"^\{p\d+\}:q:(.+):meta$")
STREAM: Final = re.compile(r"^\{p\d+\}:q:(.+):[a-z]+:s\d+$")
OWED: Final = re.compile(r"^\{p\d+\}:owed$")
OF_PREDICTION: Final = re.compile(r"^\{p\d+\}:(?:rec|in|out|ev):(\w{26})$")
# the last word of a key of a queue, or the first of any other one behind its tag, by which PERMANENT names it
OF_QUEUE: Final = re.compile(r"^\{p\d+\}:q:.+:([a-z]+)\d*$")
OUTSIDE: Final = re.compile(r"^(?:\{(?:a:[^}]+|p\d+)\}:)?([a-z]+)(?::.*)?$")


class QueueRest(Struct, kw_only=True):
    """What one queue still has. `lost_by`: the registries that miss it though a director serves it."""

    queue: str
    entries: int = 0
    pending: int = 0
    lease: int = 0
    delayed: int = 0
    deadline: int = 0
    live: int = 0
    lost_by: list[str] = []


class Leftovers(Struct, frozen=True, kw_only=True):
    """What is left: by queue, webhooks that are owed, and keys that nothing will ever remove."""

    queues: list[QueueRest]
    owed: int
    endless: list[str]


async def predictions(redis: Redis, ids: Iterable[str]) -> AsyncIterator[Prediction]:
    """All that the accounts' lists name and all of `ids`, as they are now."""
    client: Any = redis  # its types say str or bytes, and ours answers in bytes
    wanted = set(ids)
    async for name in client.scan_iter(LISTING, count=BATCH):
        wanted |= {member.decode() for member in await client.zrange(name, 0, -1)}
    ordered = sorted(wanted)
    for start in range(0, len(ordered), BATCH):
        batch = [PredictionId(each) for each in ordered[start : start + BATCH]]
        pipe = client.pipeline(transaction=False)
        for each in batch:
            pipe.hgetall(keys.record(each))
            pipe.lrange(keys.events(each), 0, -1)
            pipe.hget(keys.output_data(each), "output")
        replies = iter(await pipe.execute())
        for each, record, events, output in zip(batch, replies, replies, replies, strict=False):
            yield Prediction(
                at=now_ms(),
                id=each,
                record={name.decode(): value.decode() for name, value in record.items()},
                events=[_event(entry) for entry in events],
                output=_short(output or b"").decode(),
            )


async def leftovers(redis: Redis) -> Leftovers:
    """Everything on the server that is not empty, or has no lifetime and no reason for it."""
    client: Any = redis
    lifetimes = {name: ttl async for name, ttl in _lifetimes(client)}  # a key may be seen twice
    queues = {match[1]: QueueRest(queue=match[1]) for name in lifetimes if (match := QUEUE.match(name))}
    dead: set[str] = set()
    owed = 0
    for name, rest in queues.items():
        queue = QueueName(name)
        rest.lease = await client.zcard(keys.lease(queue))
        rest.delayed = await client.zcard(keys.delayed(queue))
        rest.deadline = await client.zcard(keys.deadline(queue))
        rest.live = await client.zcard(keys.live(queue))
        rest.lost_by = await _lost_by(client, queue)
        dead |= {member.decode() for member in await client.zrange(keys.dead(queue), 0, -1)}
    for name in lifetimes:
        if match := STREAM.match(name):
            rest = queues.setdefault(match[1], QueueRest(queue=match[1]))
            rest.entries += await client.xlen(name)
            rest.pending += sum([group["pending"] for group in await client.xinfo_groups(name)])
        elif OWED.match(name):
            owed += await client.zcard(name)
    endless = sorted(name for name, ttl in lifetimes.items() if ttl == -1 and not _may_stay(name, dead))
    return Leftovers(queues=list(queues.values()), owed=owed, endless=endless)


async def _lost_by(client: Any, queue: QueueName) -> list[str]:
    """Which registries miss a queue with a director that was heard lately."""
    seconds, _ = await client.time()
    if not await client.zcount(keys.directors(queue), (seconds - ALIVE_S) * 1000, "+inf"):
        return []
    model, version = queue.rpartition(":")[0], (await client.hget(keys.meta(queue), "version")).decode()
    named = {
        "the queues": await client.sismember(keys.queues(), queue),
        "the versions": await client.hexists(keys.versions(), version),
        "the catalogue": await client.hexists(keys.version(model, version), "created"),
    }
    return [registry for registry, is_named in named.items() if not is_named]


async def _lifetimes(client: Any) -> AsyncIterator[tuple[str, int]]:
    """Every key and its PTTL."""
    cursor = 0
    while True:
        cursor, names = await client.scan(cursor, count=BATCH)
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.pttl(name)
        for name, ttl in zip(names, await pipe.execute(), strict=True):
            yield name.decode(), ttl
        if not cursor:
            return


def _may_stay(name: str, dead: set[str]) -> bool:
    """Dead letters wait for a person, and so does what belongs to them."""
    if match := OF_PREDICTION.match(name):
        return match[1] in dead
    match = OF_QUEUE.match(name) or OUTSIDE.match(name)
    return match is not None and match[1] in keys.PERMANENT


def _event(entry: bytes) -> tuple[str, int, str]:
    kind, at, data = _short(entry).decode().split(" ", 2)
    return kind, int(at), data


def _short(output: bytes) -> bytes:
    """An output without what only makes it large."""
    return output.replace(FILL.encode(), b"")
