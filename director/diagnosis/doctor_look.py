"""Read everything that the doctor's checks judge, once. Writes only a small script into the server's cache.

Managed servers forbid some questions, such as CONFIG. That part stays empty, and the checks say so.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.broker.redis_client import ask, describe, servers
from director.broker.rights import refused
from director.core.clock import Clock
from director.core.settings import CommonSettings
from director.diagnosis.findings import Finding
from director.diagnosis.overview import Overview
from director.store.services import Services

PINGS: Final = 50
SCRIPTS: Final = 20
SCRIPT: Final = "#!lua flags=no-writes\nreturn 1"


class Look(Struct, frozen=True, kw_only=True):
    """A server and its service at one moment. `config` and `refused` are None if the server forbids the question.

    `findings` are of the service, by the same judgement as on the dashboard.
    """

    address: str
    settings: CommonSettings
    info: dict[str, Any]
    config: dict[str, str] | None
    refused: list[str] | None
    cluster: dict[str, str]
    ping_ms: list[float]
    script_ms: list[float]
    skew_s: float
    queues: int
    findings: Sequence[Finding]

    @property
    def kind(self) -> str:
        return "valkey" if "valkey_version" in self.info else "redis"

    @property
    def version(self) -> str:
        return str(self.info.get("valkey_version") or self.info["redis_version"])


async def look(redis: Redis, settings: CommonSettings, clock: Clock) -> Look:
    """Look at the server, or at one master of a Cluster. Raises BackendUnavailable if it does not answer."""
    one = (await ask(lambda: servers(redis)))[0]
    untyped: Any = one
    info: dict[str, Any] = await ask(one.info)
    sha = await ask(lambda: one.script_load(SCRIPT))
    skew_s = await _skew_s(one, clock)
    services = Services(redis, clock)
    try:
        seen = await Overview.of(services).look()
    finally:
        await services.gatherer.aclose()
    return Look(
        address=describe(settings.redis_url),
        settings=settings,
        info=info,
        config=await _config(one),
        refused=await refused(one),
        cluster=await ask(lambda: untyped.execute_command("CLUSTER INFO")) if info.get("cluster_enabled") else {},
        ping_ms=[await _timed_ms(one.ping) for _ in range(PINGS)],
        script_ms=[await _timed_ms(lambda: one.evalsha(sha, 0)) for _ in range(SCRIPTS)],
        skew_s=skew_s,
        queues=len(seen.queues) + seen.more_queues,
        findings=seen.findings,
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
    """Return how far the server's clock is ahead of ours, measured half-way through the call."""
    before_ms = clock.now_ms()
    seconds, microseconds = await ask(redis.time)
    ours_s = (before_ms + clock.now_ms()) / 2000
    return float(seconds + microseconds / 1e6 - ours_s)
