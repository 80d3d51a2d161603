"""Look at one Redis server as an operator would: its settings, how fast it answers, its clock and its certificate."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.broker.redis_client import ask, servers
from director.core.clock import Clock

PINGS: Final = 50
SCRIPTS: Final = 20
SCRIPT: Final = "#!lua flags=no-writes\nreturn 1"


class Inspected(Struct, frozen=True, kw_only=True):
    """`config` is None if the server forbids the question. `time_ms`, `script_ms`: how long a small command and a small
    script took, some times each. `skew_s`: how far its clock is ahead of ours. `certificate_left_s`: None without TLS,
    or if the certificate is not verified.
    """

    info: dict[str, Any]
    config: dict[str, str] | None
    cluster: dict[str, str]
    time_ms: list[float]
    script_ms: list[float]
    skew_s: float
    certificate_left_s: float | None = None


async def first_master(redis: Redis) -> Redis:
    """Return the client itself, or that of one master of a Cluster."""
    return (await ask(lambda: servers(redis)))[0]


async def inspect(one: Redis, clock: Clock) -> Inspected:
    """Raises BackendUnavailable if it does not answer."""
    untyped: Any = one
    info: dict[str, Any] = await ask(one.info)
    try:
        config = {str(name): str(value) for name, value in (await ask(lambda: one.config_get("*"))).items()}
    except exceptions.ResponseError:
        config = None
    sha = await ask(lambda: one.script_load(SCRIPT))
    return Inspected(
        info=info,
        config=config,
        cluster=await ask(lambda: untyped.execute_command("CLUSTER INFO")) if info.get("cluster_enabled") else {},
        time_ms=[await _time_ms(one.time) for _ in range(PINGS)],  # a server with a full disk refuses even PING
        script_ms=[await _time_ms(lambda: one.evalsha(sha, 0)) for _ in range(SCRIPTS)],
        skew_s=await _skew_s(one, clock),
        certificate_left_s=await _certificate_left_s(one, clock),
    )


async def _time_ms(send: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await ask(send)
    return (time.perf_counter() - began) * 1000


async def _skew_s(redis: Redis, clock: Clock) -> float:
    before_ms = clock.now_ms()
    seconds, microseconds = await ask(redis.time)
    ours_s = (before_ms + clock.now_ms()) / 2000
    return float(seconds + microseconds / 1e6 - ours_s)


async def _certificate_left_s(redis: Redis, clock: Clock) -> float | None:
    """Return how long the server's certificate is good. The caller's connections are new: one that has been open for
    long shows a certificate that may have been replaced since.
    """
    pool: Any = redis.connection_pool
    connection = await ask(pool.get_connection)
    try:
        end_s = connection.certificate_end_s
    finally:
        await pool.release(connection)
    return None if end_s is None else end_s - clock.now_ms() / 1000
