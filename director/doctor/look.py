"""Read everything that the checks judge, once. Writes nothing but a small script into the server's cache.

Where the server forbids to ask (CONFIG on managed ones), that part stays empty, and the checks say so.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.core import keys
from director.core.catalog import Catalog
from director.core.clock import Clock
from director.core.gatherer import Gatherer
from director.core.ids import QueueName
from director.core.redis_client import ask, describe
from director.core.scripts import QueueStats, Scripts
from director.core.settings import CommonSettings

__all__ = ("LATE_MS", "Look", "Queue", "look")

PINGS: Final = 50
SCRIPTS: Final = 20
SCRIPT: Final = "#!lua flags=no-writes\nreturn 1"
# A keeper looks every second; what is this late was seen by none
LATE_MS: Final = 5_000


class Queue(Struct, frozen=True, kw_only=True):
    """One queue, and what of it a keeper should have looked after by now."""

    name: QueueName
    stats: QueueStats
    expired_leases: int
    due_retries: int
    due_deadlines: int


class Look(Struct, frozen=True, kw_only=True):
    """A server and its service at one moment. `config` is None where the server forbids to ask."""

    address: str
    settings: CommonSettings
    info: dict[str, Any]
    config: dict[str, str] | None
    cluster: dict[str, str]
    ping_ms: list[float]
    script_ms: list[float]
    skew_s: float
    queues: list[Queue]
    owed_late: int

    @property
    def kind(self) -> str:
        return "valkey" if "valkey_version" in self.info else "redis"

    @property
    def version(self) -> str:
        return str(self.info.get("valkey_version") or self.info["redis_version"])


async def look(redis: Redis, settings: CommonSettings, clock: Clock) -> Look:
    """Look at the server. Raises BackendUnavailable where it does not answer."""
    untyped: Any = redis
    info: dict[str, Any] = await ask(redis.info)
    sha = await ask(lambda: redis.script_load(SCRIPT))
    skew_s = await _skew_s(redis, clock)
    gatherer = Gatherer(redis)
    try:
        queues, owed_late = await _queues(redis, Scripts(gatherer), clock)
    finally:
        await gatherer.aclose()
    return Look(
        address=describe(settings.redis_url),
        settings=settings,
        info=info,
        config=await _config(redis),
        cluster=await ask(lambda: untyped.execute_command("CLUSTER INFO")) if info.get("cluster_enabled") else {},
        ping_ms=[await _timed_ms(redis.ping) for _ in range(PINGS)],
        script_ms=[await _timed_ms(lambda: redis.evalsha(sha, 0)) for _ in range(SCRIPTS)],
        skew_s=skew_s,
        queues=queues,
        owed_late=owed_late,
    )


async def _config(redis: Redis) -> dict[str, str] | None:
    try:
        found = await ask(lambda: redis.config_get("*"))
    except exceptions.ResponseError:
        return None
    return {str(name): str(value) for name, value in found.items()}


async def _timed_ms(send: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await ask(send)
    return (time.perf_counter() - began) * 1000


async def _skew_s(redis: Redis, clock: Clock) -> float:
    """How far its clock is ahead of ours, as it was half-way through the call."""
    before_ms = clock.now_ms()
    seconds, microseconds = await ask(redis.time)
    ours_s = (before_ms + clock.now_ms()) / 2000
    return float(seconds + microseconds / 1e6 - ours_s)


async def _queues(redis: Redis, scripts: Scripts, clock: Clock) -> tuple[list[Queue], int]:
    queues = await Catalog(redis, scripts, clock).queues()
    seconds, _ = await ask(redis.time)
    late = seconds * 1000 - LATE_MS
    found = []
    for queue in queues:
        zsets = (keys.lease(queue), keys.delayed(queue), keys.deadline(queue))
        leases, retries, deadlines = [await _older(redis, key, late) for key in zsets]
        found.append(
            Queue(
                name=queue,
                stats=await scripts.stats(queue),
                expired_leases=leases,
                due_retries=retries,
                due_deadlines=deadlines,
            )
        )
    partitions = sorted({keys.queue_partition(queue) for queue in queues})
    return found, sum([await _older(redis, keys.owed(partition), late) for partition in partitions])


async def _older(redis: Redis, key: str, than_ms: int) -> int:
    return int(await ask(lambda: redis.zcount(key, "-inf", than_ms)))
