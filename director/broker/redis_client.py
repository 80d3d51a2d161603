"""The only factory of Redis clients, and the one place that knows which of its errors mean "ask again later".

Explicit time-outs everywhere, RESP2 (maintenance notifications need RESP3 and disable the pool's check for dirty
connections), no retries inside redis-py: a lost reply is retried by the gatherer, where every script is idempotent.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis

from director.broker.cluster import Cluster, cluster_pool, is_cluster_url
from director.broker.connections import NO_RETRIES, direct_pool, is_sentinel_url, sentinel_pool
from director.core.errors import BackendUnavailable, SettingsError

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
# Plain ResponseErrors of the same kind: redis-py has no class for them. In a pipeline it puts words of its own before.
AWAY_WORDS: Final = re.compile(r"(?:^|caused error: \W*)(NOREPLICAS|MISCONF|OOM|LOADING|READONLY|MASTERDOWN|BUSY) ")

# What an operator has to mend, although it heals without a restart here.
REFUSED: Final = "Redis refuses the user or the password in its URL"

SOCKET_TIMEOUT_S: Final = 3.0
CONNECT_TIMEOUT_S: Final = 2.0

# A restarted server leaves a pool full of dead connections: the first answers may be lost, the next are not.
TRIES: Final = 3
PAUSE_S: Final = 0.05
# … but a server that hangs is not asked again: whoever waits for us has a limit too
GIVE_UP_S: Final = 2.0


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
        "retry": NO_RETRIES,
        "health_check_interval": 0,
        "client_name": name,
        "driver_info": None,  # CLIENT SETINFO: two more calls of each connection, which our user may not even make
        "max_connections": connections,
        "timeout": SOCKET_TIMEOUT_S,
    }
    make: Callable[..., BlockingConnectionPool] = sentinel_pool if is_sentinel_url(url) else direct_pool
    try:
        if is_cluster_url(url):
            return Cluster.from_pool(cluster_pool(url, **options))
        return Redis.from_pool(make(url, **options))
    except (ValueError, TypeError):
        raise SettingsError(
            f"The Redis URL is not one ({describe(url)}): redis://host:port/db, rediss://…, unix:///path "
            "redis+sentinel://host:port,host:port/name or redis+cluster://host:port,host:port"
        ) from None  # what the parser complains of may be a piece of the password


async def servers(redis: Redis) -> list[Redis]:
    """A client for each server behind this one: every master of a Cluster, else itself."""
    return await redis.slots.masters() if isinstance(redis, Cluster) else [redis]


async def infos(redis: Redis, section: str) -> list[dict[str, Any]]:
    """What each of them says of itself. Raises BackendUnavailable where one of them does not."""

    async def read() -> list[dict[str, Any]]:
        return [await server.info(section) for server in await servers(redis)]

    return await ask(read)


async def ask(send: Callable[[], Awaitable[Reply]]) -> Reply:
    """The reply to plain commands that may be sent twice. Raises BackendUnavailable while Redis cannot answer."""
    give_up = asyncio.get_running_loop().time() + GIVE_UP_S
    for attempt in range(1, TRIES + 1):
        try:
            return await send()
        except exceptions.RedisError as exc:
            away = unavailable(exc)
            if away is None:
                raise
            if attempt == TRIES or asyncio.get_running_loop().time() > give_up:
                raise away from exc
            await asyncio.sleep(PAUSE_S * attempt)
    raise AssertionError("the last try returns or raises")


async def pipelined(redis: Redis, fill: Callable[[Any], object], *, raise_on_error: bool = True) -> list[Any]:
    """Send in one write, as `ask` does, the commands that `fill` puts on a pipeline. No command: nothing is sent."""

    async def send() -> list[Any]:
        pipe = redis.pipeline(transaction=False)
        fill(pipe)
        return list(await pipe.execute(raise_on_error=raise_on_error))

    return await ask(send)


def unavailable(exc: Exception) -> BackendUnavailable | None:
    """The error to raise instead of `exc` where Redis is only away for now; None where it is a fault of ours."""
    # what a server says while a connection is made comes wrapped in a plain one
    wraps = type(exc) is exceptions.ConnectionError and isinstance(exc.__cause__, exceptions.RedisError)
    said = exc.__cause__ if wraps else exc
    if isinstance(said, exceptions.AuthenticationError):
        return BackendUnavailable(REFUSED)
    if isinstance(exc, AWAY):
        return BackendUnavailable(f"Redis is away: {type(said).__name__}")
    if isinstance(exc, exceptions.ResponseError) and (word := AWAY_WORDS.search(str(exc))):
        return BackendUnavailable(f"Redis is away: {word[1]}")
    return None


def describe(url: str) -> str:
    """The address in a URL without its secrets, for logs and messages."""
    scheme, _, rest = url.partition("://")
    # all before the last @, wherever it stands: a password that was not escaped must not come through
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}" if rest else "no scheme"


def has_password(url: str) -> bool:
    """Does this URL bring a password along?"""
    user, at, _ = url.partition("://")[2].rpartition("@")
    return bool(at) and ":" in user


def text(reply: bytes | str) -> str:
    """A reply as text, however the client was told to decode."""
    return reply if isinstance(reply, str) else reply.decode()


def texts(reply: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[bytes | str, bytes | str]) -> dict[str, str]:
    """A hash as text."""
    return {text(name): text(value) for name, value in reply.items()}
