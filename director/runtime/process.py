"""Start and end a director, keeper or audit process: errors, drain, the check of Redis."""

import importlib.util
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import anyio
from redis.asyncio import Redis

from director.broker.durability import check
from director.broker.redis_client import describe
from director.broker.rights import check_rights
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, DirectorError, UnsafeBackend
from director.core.settings import CommonSettings
from director.runtime.health import Health
from director.runtime.logs import configure
from director.runtime.startup import collect_garbage_rarely, release_sigterm

log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 1.0

AnySettings = TypeVar("AnySettings", bound=CommonSettings)


def serve(name: str, command: str, main: Callable[[AnySettings], Awaitable[None]], settings: AnySettings) -> None:
    """Run a process until it ends. An error for the operator ends it with one line that names the command."""
    configure(settings.log_level, process=name)
    collect_garbage_rarely()
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    try:
        anyio.run(main, settings, backend="asyncio", backend_options={"use_uvloop": has_uvloop})
    except DirectorError as exc:
        raise SystemExit(f"director {command}: {exc}") from exc


@contextmanager
def one_error() -> Iterator[None]:
    """Raise only the first of a task group's deliberate errors: an operator mends one thing at a time."""
    try:
        yield
    except ExceptionGroup as group:
        on_purpose, rest = group.split(DirectorError)
        if on_purpose is None or rest is not None:
            raise
        raise _first(on_purpose) from None


async def drained(signals: AsyncIterator[signal.Signals], drain: Callable[[], Awaitable[None]]) -> None:
    """Wait for the first signal, then drain. A second signal ends the drain at once."""
    release_sigterm()
    async for _ in signals:
        break
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_signal, signals, tasks.cancel_scope)
        await drain()
        tasks.cancel_scope.cancel()


async def look_at_redis(redis: Redis, settings: CommonSettings, health: Health, clock: Clock) -> None:
    """Wait until Redis answers. Raises UnsafeBackend if it would lose accepted work, or refuses us a right.

    From then on /readyz shows its durability level, read again for each request: after a failover it is another
    server's.
    """
    address = describe(settings.redis_url)
    while True:
        try:
            server = await check(redis, settings)
            await check_rights(redis)
        except BackendUnavailable as exc:
            log.warning("waiting for redis", extra={"address": address, "error": str(exc)})
            await clock.sleep(ASK_AGAIN_S)
        else:
            break
    health.facts["durability"] = server.level
    health.checks["durability"] = lambda: _safe(redis, settings, health)
    facts = {"address": address, "server": f"{server.kind} {server.version}", "durability": server.level}
    log.info("redis is ready", extra=facts)


async def _cancel_on_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for _ in signals:
        log.warning("drain cut short")
        scope.cancel()


async def _safe(redis: Redis, settings: CommonSettings, health: Health) -> str:
    try:
        health.facts["durability"] = (await check(redis, settings)).level
    except UnsafeBackend as exc:
        return str(exc)
    except BackendUnavailable:
        return ""  # the check of Redis itself reports that
    return ""


def _first(group: ExceptionGroup[DirectorError]) -> DirectorError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, ExceptionGroup) else inner
