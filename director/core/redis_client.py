"""The only factory of Redis clients, and the one place that knows which of its errors mean "ask again later".

Explicit time-outs everywhere, RESP2 (maintenance notifications need RESP3 and disable the pool's check for dirty
connections), no retries inside redis-py: a lost reply is retried by the gatherer, where every script is idempotent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from director.core.errors import BackendUnavailable, SettingsError

__all__ = ("AWAY", "PAUSE_S", "TRIES", "ask", "blocking_client", "client", "describe", "text", "texts", "unavailable")

Reply = TypeVar("Reply")

# Replies that are an ordinary day: 503 with Retry-After, and it heals by itself.
AWAY: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.MasterDownError,
)
# Plain ResponseErrors of the same kind: redis-py has no class for them.
AWAY_WORDS: Final = ("NOREPLICAS", "MISCONF", "OOM", "LOADING", "READONLY", "MASTERDOWN", "BUSY")

SOCKET_TIMEOUT_S: Final = 3.0
CONNECT_TIMEOUT_S: Final = 2.0

# A restarted server leaves a pool full of dead connections: the first answers may be lost, the next are not.
TRIES: Final = 3
PAUSE_S: Final = 0.05


def client(url: str, *, connections: int = 16, name: str = "director") -> Redis:
    """A client for commands that answer at once; waits for a connection where all `connections` are in use."""
    return _client(url, connections=connections, name=name, socket_timeout_s=SOCKET_TIMEOUT_S)


def blocking_client(url: str, *, block_s: float, connections: int = 2, name: str = "director-waits") -> Redis:
    """A client for BLPOP and subscriptions: its time-out leaves the server time to answer; no wait is endless."""
    return _client(url, connections=connections, name=name, socket_timeout_s=block_s + 5)


def _client(url: str, *, connections: int, name: str, socket_timeout_s: float) -> Redis:
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": socket_timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "client_name": name,
    }
    try:
        pool = BlockingConnectionPool.from_url(url, max_connections=connections, timeout=SOCKET_TIMEOUT_S, **options)
    except ValueError as exc:
        raise SettingsError(f"The Redis URL is not one ({describe(url)}): redis://, rediss:// or unix:// …") from exc
    return Redis.from_pool(pool)


async def ask(send: Callable[[], Awaitable[Reply]]) -> Reply:
    """The reply to plain commands that may be sent twice. Raises BackendUnavailable while Redis cannot answer."""
    for attempt in range(1, TRIES + 1):
        try:
            return await send()
        except exceptions.RedisError as exc:
            away = unavailable(exc)
            if away is None:
                raise
            if attempt == TRIES:
                raise away from exc
            await asyncio.sleep(PAUSE_S * attempt)
    raise AssertionError("the last try returns or raises")


def unavailable(exc: Exception) -> BackendUnavailable | None:
    """The error to raise instead of `exc` where Redis is only away for now; None where it is a fault of ours."""
    if isinstance(exc, AWAY) or str(exc).startswith(AWAY_WORDS):
        return BackendUnavailable(f"Redis is away: {type(exc).__name__}")
    return None


def describe(url: str) -> str:
    """The address in a URL without its secrets, for logs and messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def text(reply: bytes | str) -> str:
    """A reply as text, however the client was told to decode."""
    return reply if isinstance(reply, str) else reply.decode()


def texts(reply: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[bytes | str, bytes | str]) -> dict[str, str]:
    """A hash as text."""
    return {text(name): text(value) for name, value in reply.items()}
