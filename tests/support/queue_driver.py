"""Drive one queue in a test: submit, claim and finish through the typed calls, with a clock that the test moves."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count as counter
from typing import Any, Final

import anyio

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.replies import Accepted, Admission, Claims, Hold, QueueStats, Repair, Requeued
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId, QueueName, new_prediction_id, partition_of
from director.core.policy import Policy, shard
from director.core.schema import Claim, NewPrediction, Outlook, Record
from director.core.states import Status
from director.store.catalog import OPEN_SCHEMA, Catalog

MODEL: Final = "acme/echo"
VERSION: Final = "a1" * 32
ACCOUNT: Final = "acme"
START_MS: Final = 1_800_000_000_000


async def enqueue(
    scripts: Scripts,
    prediction_id: PredictionId,
    *,
    shard: Sequence[int],
    now_ms: int | None = None,
    **fields: Any,
) -> Accepted:
    given = {"input": b"{}", **fields}
    return await scripts.enqueue(
        NewPrediction(id=prediction_id, shard=",".join(map(str, shard)), **given), now_ms=now_ms
    )


class QueueDriver:
    """`now_ms` is the time of every call; `pass_time` moves it."""

    def __init__(self, redis: Any, scripts: Scripts, queue: QueueName) -> None:
        self.redis = redis  # Any: its types say str or bytes, and ours answers in bytes
        self.scripts = scripts
        self.queue = queue
        self.now_ms = START_MS
        self._nonces = counter(1)

    def pass_time(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)

    def new_id(self) -> PredictionId:
        return new_prediction_id(model=MODEL, now_ms=self.now_ms)

    async def submit(
        self,
        prediction_id: PredictionId | None = None,
        *,
        account: str = ACCOUNT,
        streams: Sequence[int] | None = None,
        data: bytes = b'{"text":"hi"}',
        **options: Any,
    ) -> PredictionId:
        """Enqueue one prediction of `account`. `streams` is its shard, by default that of a queue of default size."""
        accepted = await enqueue(
            self.scripts,
            prediction_id or self.new_id(),
            queue=self.queue,
            account=account,
            model=MODEL,
            version=VERSION,
            shard=shard(account, streams=16, size=2) if streams is None else streams,
            input=data,
            now_ms=self.now_ms,
            **options,
        )
        return accepted.id

    async def claim(
        self, count: int = 1, *, consumer: str = "d1", nonce: str | None = None, lease_s: float = 15, **options: Any
    ) -> Claims:
        return await self.scripts.claim(
            self.queue,
            consumer=consumer,
            nonce=nonce or f"nonce{next(self._nonces)}",
            count=count,
            lease_s=lease_s,
            now_ms=self.now_ms,
            **options,
        )

    async def claim_one(self, **options: Any) -> Claim:
        [claim] = await self.claim(**options)
        return claim

    async def claim_all(self, *, consumer: str = "d1", at_once: int = 50) -> list[Claim]:
        claims: list[Claim] = []
        while claimed := await self.claim(at_once, consumer=consumer):
            claims += claimed
        return claims

    async def submit_many(self, count: int, **options: Any) -> list[PredictionId]:
        return [await self.submit(**options) for _ in range(count)]

    async def claimed(self, *, consumer: str = "d1", lease_s: float = 15, **options: Any) -> Claim:
        """Submit a prediction with these options and claim it. Nothing else may wait in the queue."""
        await self.submit(**options)
        return await self.claim_one(consumer=consumer, lease_s=lease_s)

    async def extend(self, *claims: Claim, consumer: str = "d1", lease_s: float = 15) -> list[Hold]:
        return await self.scripts.extend(
            self.queue,
            consumer=consumer,
            lease_s=lease_s,
            claims=[(claim.id, claim.token) for claim in claims],
            now_ms=self.now_ms,
        )

    async def have_slots(self, slots: int, *, consumer: str = "d1") -> None:
        """Report a director's slots: while one is free, a submit goes straight into a stream."""
        await self.scripts.extend(self.queue, consumer=consumer, lease_s=15, claims=[], slots=slots, now_ms=self.now_ms)

    async def begin(self, claim: Claim, *events: tuple[str, bytes]) -> int:
        advanced = await self.scripts.advance(
            claim.id,
            token=claim.token,
            seq=claim.record.seq,
            ran_ms=0,
            events=[("started", b""), *events],
            now_ms=self.now_ms,
        )
        assert advanced.hold == "held"
        return advanced.seq

    async def finish(self, claim: Claim, status: Status = Status.SUCCEEDED, **options: Any) -> bool:
        """Finish a claim. `seq` is by default the claim's; a test that wrote events gives its own."""
        options = {"seq": claim.record.seq, **options}
        return await self.scripts.finish(
            claim.id, queue=self.queue, token=claim.token, status=status, now_ms=self.now_ms, **options
        )

    async def run(self, claim: Claim, seconds: float) -> None:
        self.pass_time(seconds)
        assert await self.finish(claim, ran_ms=int(seconds * 1000))

    async def release(self, claim: Claim, *, spent: bool = False, **options: Any) -> Requeued:
        return await self.scripts.release(claim.id, token=claim.token, spent=spent, now_ms=self.now_ms, **options)

    async def reap(self, *, limit: int = 100) -> dict[PredictionId, Requeued]:
        return dict(await self.scripts.reap(self.queue, limit=limit, now_ms=self.now_ms))

    async def cancel(self, prediction_id: PredictionId, *, account: str = ACCOUNT) -> str:
        return await self.scripts.cancel(prediction_id, account=account, now_ms=self.now_ms)

    async def pause(self, *, paused: bool = True, account: str = "", revision: int | None = None, by: str = "") -> None:
        await self.scripts.pause(
            self.queue, paused=paused, account=account, revision=revision, by=by, now_ms=self.now_ms
        )

    async def limit(self, tenant: str = ACCOUNT, *, weight: float = 1, most_running: int | None = None) -> None:
        await self.scripts.limit(self.queue, tenant, weight=weight, most_running=most_running)

    async def bound(self, mode: Admission, max_queued: int | None = None) -> None:
        await self.scripts.bound(self.queue, mode=mode, max_queued=max_queued)

    async def promote(self, *, limit: int = 100) -> int:
        return await self.scripts.promote(self.queue, limit=limit, now_ms=self.now_ms)

    async def expire(self, *, limit: int = 100) -> tuple[int, int]:
        return await self.scripts.expire(self.queue, limit=limit, now_ms=self.now_ms)

    async def reconcile(self, *, start: int = 0, count: int = 200) -> tuple[int, dict[PredictionId, Repair]]:
        """Reconcile one slice. Return where the next one starts, and the repairs."""
        following, repaired = await self.scripts.reconcile(
            self.queue, start=start, count=count, lease_s=15, now_ms=self.now_ms
        )
        return following, dict(repaired)

    async def recover(
        self, number: int, *, lane: str = "normal", cursor: str = "0-0", count: int = 100, idle_s: float = 0
    ) -> tuple[str, dict[PredictionId, Requeued]]:
        """Look at one stream once. Idle time is by the server's own clock, which the test cannot move."""
        last, recovered = await self.scripts.recover(
            self.queue, lane, number, cursor=cursor, count=count, idle_s=idle_s, now_ms=self.now_ms
        )
        return last, dict(recovered)

    async def retire(self, *, silent_s: float = 3600) -> str:
        return await self.scripts.retire(self.queue, silent_s=silent_s, now_ms=self.now_ms)

    async def revive(self, prediction_id: PredictionId) -> bool:
        return await self.scripts.revive(prediction_id, now_ms=self.now_ms)

    async def drop(self, prediction_id: PredictionId) -> bool:
        return await self.scripts.drop(prediction_id, self.queue, now_ms=self.now_ms)

    async def due(self) -> list[PredictionId]:
        partition = partition_of(self.new_id())
        return await self.scripts.due(partition, limit=99, hold_s=30, now_ms=self.now_ms)

    async def deliver(
        self, prediction_id: PredictionId, outcome: str = "delivered", delay_s: float | None = None, **options: Any
    ) -> str:
        options = {"outcome": outcome, "delay_s": delay_s, "now_ms": self.now_ms, **options}
        return await self.scripts.deliver(prediction_id, **options)

    async def die(self, **options: Any) -> PredictionId:
        """Make a dead letter: submit, and fail each attempt. Nothing else may wait in the queue."""
        prediction_id = await self.submit(**options)
        while await self.release(await self.claim_one(), spent=True, error="It broke.", code="broken") != "dead":
            pass
        return prediction_id

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────

    async def record(self, prediction_id: PredictionId) -> Record:
        fields = await self.redis.hgetall(keys.record(prediction_id))
        return Record.parse(prediction_id, [part for field in fields.items() for part in field])

    async def field(self, prediction_id: PredictionId, name: str) -> str:
        return (await self.redis.hget(keys.record(prediction_id), name) or b"").decode()

    async def meta(self, name: str) -> str:
        return (await self.redis.hget(keys.meta(self.queue), name) or b"").decode()

    async def outlook(self, prediction_id: PredictionId) -> Outlook:
        stored = await self.scripts.get(prediction_id, now_ms=self.now_ms)
        assert stored is not None
        assert stored.outlook is not None
        return stored.outlook

    async def stats(self) -> QueueStats:
        return await self.scripts.stats(self.queue, now_ms=self.now_ms)

    async def backlog(self, account: str = ACCOUNT, *, lane: str = "normal") -> list[str]:
        ids = await self.redis.zrange(keys.backlog(self.queue, lane, account), 0, -1)
        return [name.decode() for name in ids]

    async def counts(self, key: str) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in (await self.redis.hgetall(key)).items()}

    async def members(self, key: str) -> dict[str, int]:
        return {name.decode(): int(score) for name, score in await self.redis.zrange(key, 0, -1, withscores=True)}

    async def entries(self, lane: str = "normal") -> dict[int, list[str]]:
        """Return stream number → ids in it, waiting or claimed, without empty streams."""
        found = {}
        for number in range(32):
            rows = await self.redis.xrange(keys.stream(self.queue, lane, number))
            if rows:
                found[number] = [fields[b"id"].decode() for _, fields in rows]
        return found

    async def pending(self, lane: str = "normal") -> dict[str, str]:
        """Return prediction id → consumer of every pending entry of a lane."""
        held = {}
        for number in range(32):
            stream = keys.stream(self.queue, lane, number)
            for group in await self.redis.xinfo_groups(stream) if await self.redis.exists(stream) else []:
                for row in await self.redis.xpending_range(stream, group["name"], "-", "+", 1000):
                    for _, fields in await self.redis.xrange(stream, row["message_id"], row["message_id"]):
                        held[fields[b"id"].decode()] = row["consumer"].decode()
        return held

    async def kinds(self, prediction_id: PredictionId) -> list[str]:
        entries = await self.redis.lrange(keys.events(prediction_id), 0, -1)
        return [entry.decode().partition(" ")[0] for entry in entries]

    async def bell(self) -> int:
        return int(await self.redis.llen(keys.bell(self.queue)))

    async def hear_bell(self) -> bool:
        return await self.redis.lpop(keys.bell(self.queue)) is not None

    async def lifetime_s(self, key: str) -> int:
        """Return the lifetime rounded up; -1 for a key without one, -2 for no key."""
        ttl: int = await self.redis.pttl(key)
        return ttl if ttl < 0 else -(-ttl // 1000)


@asynccontextmanager
async def driving(url: str, policy: Policy | None = None) -> AsyncGenerator[QueueDriver]:
    """Register acme/echo on this server and yield a driver of its queue with a client of its own."""
    redis = client(url)
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    try:
        catalog = Catalog(redis, scripts, SystemClock())
        queue = await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=policy or Policy())
        yield QueueDriver(redis, scripts, queue)
    finally:
        with anyio.CancelScope(shield=True):
            await gatherer.aclose()
            await redis.aclose()
