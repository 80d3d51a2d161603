"""Read which webhooks are owed. All are counted; hosts are told apart only among those with the next attempts."""

import asyncio
from collections import Counter
from collections.abc import Sequence, Sized
from functools import partial
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import pipelined, server_ms, text
from director.broker.replies import event
from director.broker.scripts import Scripts
from director.core.ids import Partition, PredictionId, QueueName
from director.core.policy import LATE_MS
from director.core.view import delivery_attempt, iso
from director.core.webhooks import host_of
from director.store.catalog import Catalog
from director.store.changes import Changes
from director.store.records import record_fields

MOST_LOOKED_AT: Final = 2_000  # of all partitions together, an equal part of each
MOST_SHOWN: Final = 100
MOST_GLANCED_AT: Final = 200
NEWEST_EVENTS: Final = 4
AT_ONCE: Final = 100
FIELDS: Final = ("queue", "account", "webhook", "completed", "owed_since", "tellings", "told")


class FailingHost(Struct, frozen=True, kw_only=True):
    """A receiver that failed repeatedly. `id` is the prediction that was tried most often, `attempts` times.

    `last` says how the last of them failed, '' if its events are gone.
    """

    host: str
    count: int
    id: str
    attempts: int
    oldest_at: str
    last: str = ""


class OwedWebhook(Struct, frozen=True, kw_only=True):
    """A terminal prediction whose receiver was not notified yet. `outcome` is of the last attempt, if there was one."""

    id: PredictionId
    queue: QueueName
    account: str
    host: str
    owed_since: str
    attempts: int
    outcome: str | None
    next_at: str


class OwedHost(Struct, frozen=True, kw_only=True):
    """One receiver, counted over the webhooks that were looked at."""

    host: str
    count: int
    oldest_at: str
    next_at: str


class OwedView(Struct, frozen=True, kw_only=True):
    """`late` webhooks are due and were not tried, so perhaps no keeper runs. `hosts` counts within `looked_at`."""

    count: int
    late: int
    oldest_at: str | None
    looked_at: int
    hosts: list[OwedHost]
    results: list[OwedWebhook]


class Owed:
    def __init__(self, redis: Redis, catalog: Catalog) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._catalog = catalog

    async def look(self, *, host: str = "") -> OwedView:
        """Return all that is owed. With `host`, only the webhooks and the summary of that host are shown."""
        counts, late = await self._count()
        found = sorted(await self._find(list(counts), MOST_LOOKED_AT), key=lambda one: one.next_at)
        hosts = _by_host(found)
        shown = [one for one in found if host in ("", one.host)]
        return OwedView(
            count=sum(counts.values()),
            late=late,
            oldest_at=min((one.owed_since for one in found), default=None),
            looked_at=len(found),
            hosts=[each for each in hosts if host in ("", each.host)][:MOST_SHOWN],
            results=shown[:MOST_SHOWN],
        )

    async def to_host(self, host: str) -> tuple[list[PredictionId], bool]:
        """Return the predictions that this host is owed, of the next attempts that are looked at, and whether there are
        attempts that are not looked at.
        """
        counts, _ = await self._count()
        found = await self._find(list(counts), MOST_LOOKED_AT)
        # not by what was found: one may be delivered after the count, or its record be gone
        more = any(count > _part_of(MOST_LOOKED_AT, counts) for count in counts.values())
        return [one.id for one in found if one.host == host], more

    async def failing(self, *, after: int) -> list[FailingHost]:
        """Return receivers with a webhook that failed `after` times, most owed first. Few webhooks are looked at."""
        counts, _ = await self._count()
        found = await self._find(list(counts), MOST_GLANCED_AT)
        tried: dict[str, OwedWebhook] = {}
        for one in sorted(found, key=lambda one: one.attempts):
            if one.attempts >= after:
                tried[one.host] = one
        failing = [(each, tried[each.host]) for each in _by_host(found) if each.host in tried]
        ends = await pipelined(
            self._redis, lambda pipe: [pipe.lrange(keys.events(most.id), -NEWEST_EVENTS, -1) for _, most in failing]
        )
        return [
            FailingHost(
                host=each.host,
                count=each.count,
                id=most.id,
                attempts=most.attempts,
                oldest_at=each.oldest_at,
                last=_last_failure(newest),
            )
            for (each, most), newest in zip(failing, ends, strict=True)
        ]

    async def count(self) -> tuple[int, int]:
        counts, late = await self._count()
        return sum(counts.values()), late

    async def _count(self) -> tuple[dict[Partition, int], int]:
        """Return how many are owed in each partition that owes any, and how many of all are late."""
        partitions = await self._catalog.partitions()
        before_ms = await server_ms(self._redis) - LATE_MS  # they are due by the server's clock

        def read(pipe: Any) -> None:
            for partition in partitions:
                pipe.zcard(keys.owed(partition))
                pipe.zcount(keys.owed(partition), "-inf", before_ms)

        replies = await pipelined(self._redis, read)
        counts = {each: count for each, count in zip(partitions, replies[::2], strict=True) if count}
        return counts, sum(replies[1::2])

    async def _find(self, partitions: Sequence[Partition], most: int) -> list[OwedWebhook]:
        each = _part_of(most, partitions)
        due = await pipelined(
            self._redis,
            lambda pipe: [pipe.zrange(keys.owed(part), 0, each - 1, withscores=True) for part in partitions],
        )
        found = [(PredictionId(text(name)), int(at)) for part in due for name, at in part]
        records = await record_fields(self._redis, [name for name, _ in found], FIELDS)
        views = (
            _view(name, at, [text(value or b"") for value in fields])
            for (name, at), fields in zip(found, records, strict=True)
        )
        return [view for view in views if view is not None]


class Redelivered(Struct, frozen=True, kw_only=True):
    """How many webhooks are sent again at once, and how many are not: their data is gone. One that was delivered
    meanwhile is neither. With `more`, not all that is owed was looked at.
    """

    done: int
    left: int
    more: bool


class Redelivery:
    """Retry now the webhooks that are owed to one receiver, for an operator whose rights the caller has checked. They
    are looked for among at most `MOST_LOOKED_AT` next attempts, an equal part of each partition.
    """

    def __init__(self, owed: Owed, scripts: Scripts, changes: Changes) -> None:
        self._owed = owed
        self._scripts = scripts
        self._changes = changes

    async def redeliver(self, host: str, *, by: str) -> Redelivered:
        """Bring the next attempt of each forward to now. Safe to repeat: a delivery under way is not doubled."""
        async with self._changes.noting("webhooks_redelivered", by=by, host=host) as noted:
            (ids, more), words = await self._owed.to_host(host), Counter[str]()
            for start in range(0, len(ids), AT_ONCE):
                some = ids[start : start + AT_ONCE]
                # only what is still owed: a courier may have delivered one since it was found
                asked = (self._scripts.redeliver(one, account=None, only_owed=True) for one in some)
                words.update(await asyncio.gather(*asked))
            if not words["owed"]:
                noted.void()
        return Redelivered(done=words["owed"], left=words["removed"] + words["unknown"], more=more)


def _part_of(most: int, partitions: Sized) -> int:
    return max(1, most // max(1, len(partitions)))


def _view(name: PredictionId, at_ms: int, fields: Sequence[str]) -> OwedWebhook | None:
    queue, account, webhook, completed, owed_since, tellings, told = fields
    if not completed:  # its record is gone, and the courier will drop it
        return None
    return OwedWebhook(
        id=name,
        queue=QueueName(queue),
        account=account,
        host=host_of(webhook),
        owed_since=iso(int(owed_since or completed)),
        attempts=int(tellings or 0),
        outcome=told or None,
        next_at=iso(at_ms),
    )


def _last_failure(entries: Sequence[bytes]) -> str:
    """Return how the newest attempt among these events failed, as the end of a sentence."""
    attempts = [delivery_attempt(one) for one in map(partial(event, 0), entries) if one.kind == "webhook"]
    if not attempts:
        return ""
    last = attempts[-1]
    if last.rule:
        return "its address was refused"
    return "without an answer" if last.status is None else f"with status {last.status}"


def _by_host(found: Sequence[OwedWebhook]) -> list[OwedHost]:
    of_host: dict[str, list[OwedWebhook]] = {}
    for one in found:
        of_host.setdefault(one.host, []).append(one)
    hosts = [
        OwedHost(host=host, count=len(ones), oldest_at=min(one.owed_since for one in ones), next_at=ones[0].next_at)
        for host, ones in of_host.items()
    ]
    return sorted(hosts, key=lambda each: (-each.count, each.host))


async def count_owed_since(redis: Redis, partitions: Sequence[Partition], *, looked_at: int) -> tuple[int, list[int]]:
    """Return how many webhooks are owed, and since when, in ms, those that may be the oldest: those with the first and
    the last next attempts of each partition.
    """

    def read(pipe: Any) -> None:
        for partition in partitions:
            pipe.zcard(keys.owed(partition))
            pipe.zrange(keys.owed(partition), 0, looked_at - 1)
            pipe.zrange(keys.owed(partition), -looked_at, -1)

    replies = await pipelined(redis, read)
    ids = {PredictionId(text(member)) for members in (*replies[1::3], *replies[2::3]) for member in members}
    records = await record_fields(redis, list(ids), ("owed_since", "completed"))
    return sum(replies[::3]), [int(since or completed or 0) for since, completed in records if since or completed]
