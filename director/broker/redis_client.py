"""Create Redis clients, and decide which of their errors mean "try again later".

The protocol is RESP2: maintenance notifications need RESP3 and disable the pool's check for dirty connections. redis-py
does no retries: the gatherer retries lost replies, since every script is idempotent.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from redis import exceptions
from redis.asyncio import Redis

from director.broker.cluster import Cluster, cluster_pool
from director.broker.connections import NO_RETRIES, direct_pool, sentinel_pool
from director.core.errors import BackendUnavailable, SettingsError

Reply = TypeVar("Reply")

# Ordinary errors: callers get 503 with Retry-After, and the service recovers by itself
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
# Plain ResponseErrors of the same kind, for which redis-py has no class. In a pipeline it puts its own words in front
AWAY_WORDS: Final = re.compile(r"(?:^|caused error: \W*)(NOREPLICAS|MISCONF|OOM|LOADING|READONLY|MASTERDOWN|BUSY) ")

REFUSED: Final = "Redis refuses the user or the password in its URL"

SOCKET_TIMEOUT_S: Final = 3.0
CONNECT_TIMEOUT_S: Final = 2.0

# A restarted server leaves a pool of dead connections: the first attempts may be lost, the next are not
TRIES: Final = 3
PAUSE_S: Final = 0.05
# A server that hangs is not asked again, since the caller has a time limit too
GIVE_UP_S: Final = 2.0


def client(url: str, *, connections: int = 16, name: str = "director") -> Redis:
    """Return a client for commands that answer at once. It waits while all `connections` are in use."""
    return _client(url, connections=connections, name=name, socket_timeout_s=SOCKET_TIMEOUT_S)


def blocking_client(url: str, *, block_s: float, connections: int = 2, name: str = "director-waits") -> Redis:
    """Return a client for BLPOP and subscriptions. The server has time to answer, and no wait is endless."""
    return _client(url, connections=connections, name=name, socket_timeout_s=block_s + 5)


def _client(url: str, *, connections: int, name: str, socket_timeout_s: float) -> Redis:
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": socket_timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "retry": NO_RETRIES,
        "health_check_interval": 0,
        "client_name": name,
        # CLIENT SETINFO: two more calls per connection, which the ACL user may not even be allowed
        "driver_info": None,
        "max_connections": connections,
        "timeout": SOCKET_TIMEOUT_S,
    }
    try:
        match url.partition("://")[0].partition("+")[2]:
            case "cluster":
                return Cluster.from_pool(cluster_pool(url, **options))
            case "sentinel":
                return Redis.from_pool(sentinel_pool(url, **options))
            case _:
                return Redis.from_pool(direct_pool(url, **options))
    except (ValueError, TypeError):
        raise SettingsError(
            f"The Redis URL is malformed ({describe(url)}). Use redis://host:port/db, rediss://…, unix:///path, "
            "redis+sentinel://host:port,host:port/name or redis+cluster://host:port,host:port"
        ) from None  # the parser's message may quote a piece of the password


async def servers(redis: Redis) -> list[Redis]:
    return await redis.slots.masters() if isinstance(redis, Cluster) else [redis]


async def infos(redis: Redis, section: str) -> list[dict[str, Any]]:

    async def read() -> list[dict[str, Any]]:
        return [await server.info(section) for server in await servers(redis)]

    return await ask(read)


async def ask(send: Callable[[], Awaitable[Reply]]) -> Reply:
    """Send repeatable commands and return the reply. Raises BackendUnavailable while Redis cannot answer."""
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
    """Return the error to raise instead of `exc` if Redis is only away for now, or None for an error of ours."""
    # an error reply during connect comes wrapped in a plain ConnectionError
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
    """Return a URL without its secrets, for logs and messages."""
    scheme, _, rest = url.partition("://")
    # cut all before the last @: a password that was not escaped must not come through
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}" if rest else "no scheme"


def has_password(url: str) -> bool:
    user, at, _ = url.partition("://")[2].rpartition("@")
    return bool(at) and ":" in user


def text(reply: bytes | str) -> str:
    return reply if isinstance(reply, str) else reply.decode()


def texts(reply: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[bytes | str, bytes | str]) -> dict[str, str]:
    return {text(name): text(value) for name, value in reply.items()}
