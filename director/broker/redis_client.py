"""Create Redis clients, make round trips with them, and decide which of their errors mean "try again later".

The protocol is RESP2: maintenance notifications need RESP3 and disable the pool's check for dirty connections. redis-py
does no retries: the gatherer retries lost replies, since every script is idempotent.

The client's own pipeline takes several times as long for one command as `Pipes`: it takes a connection from the pool
and returns it each time.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.cluster import DOUBTS, Cluster, ClusterPool, asks, cluster_pool, in_parts, moving
from director.broker.connections import (
    NO_RETRIES,
    Patience,
    Patient,
    direct_pool,
    sentinel_pool,
    unsent,
    without_frames,
)
from director.core.errors import BackendFull, BackendUnavailable, SettingsError

Reply = TypeVar("Reply")
Item = TypeVar("Item")

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
FULL: Final = "Redis is full: it refuses new work until data has expired"

SOCKET_TIMEOUT_S: Final = 3.0
CONNECT_TIMEOUT_S: Final = 2.0

# A restarted server leaves a pool of dead connections: the first attempts may be lost, the next are not
TRIES: Final = 3
PAUSE_S: Final = 0.05
# A server that hangs is not asked again, since the caller has a time limit too
GIVE_UP_S: Final = 2.0

KEPT_S: Final = 0.05
# connections of the pool left for the client's own commands, since the client does not know of the kept ones
SPARE: Final = 2


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
                try:
                    raise away from exc
                finally:
                    del away  # see without_frames
            await asyncio.sleep(PAUSE_S * attempt)
    raise AssertionError("the last try returns or raises")


async def pipelined(
    redis: Redis, fill: Callable[[Any], object], *, raise_on_error: bool = True, transaction: bool = False
) -> list[Any]:
    """Send in one write, as `ask` does, the commands that `fill` puts on a pipeline. No command: nothing is sent."""

    async def send() -> list[Any]:
        pipe = redis.pipeline(transaction=transaction)
        fill(pipe)
        return list(await pipe.execute(raise_on_error=raise_on_error))

    return await ask(send)


async def read_all(redis: Redis, each: Iterable[Item], command: Callable[[Any, Item], object]) -> list[Any]:
    """Return the reply to the command that `command` puts on a pipeline for each item. All are sent in one write."""
    return await pipelined(redis, lambda pipe: [command(pipe, item) for item in each])


async def is_cluster(redis: Redis) -> bool:
    cluster = await ask(lambda: redis.info("cluster"))
    return bool(cluster["cluster_enabled"])


async def existing(redis: Redis, groups: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the groups of keys of which at least one exists. In a Cluster the keys of a group have one slot."""
    counts = await pipelined(redis, lambda pipe: [pipe.exists(*group) for group in groups])
    return [group for group, count in zip(groups, counts, strict=True) if count]


async def read_or_make_secret(redis: Redis, purpose: str, new: str) -> str:
    """Return the secret of all processes for a purpose. A missing one is made of `new`, by the first process to ask."""
    key = keys.secret(purpose)

    async def read() -> str:
        if (found := await redis.get(key)) is None:
            await redis.set(key, new, nx=True)
            found = await redis.get(key)
        if not found:  # Redis lost its data this very moment: never sign with an empty secret
            raise BackendUnavailable(f"the secret for {purpose} is missing")
        return text(found)

    return await ask(read)


async def require_answer(redis: Redis) -> None:
    """Raise BackendUnavailable unless Redis answers."""
    await ask(redis.ping)


async def ping(redis: Redis) -> None:
    """Send one PING, once. Raises RedisError."""
    await redis.ping()


async def server_ms(redis: Redis) -> int:
    """Return the time of the server's clock, which may differ from ours."""
    seconds, micros = await ask(redis.time)
    return int(seconds * 1000 + micros // 1000)


class Pipes:
    """Round trips to the server of one client: many commands leave in one write, and nothing is sent twice.

    A connection stays borrowed while it is busy and for a moment after. If nothing moves on it for `timeout_s`, it is
    closed.
    """

    def __init__(self, redis: Redis, *, timeout_s: float) -> None:
        self._pool = redis.connection_pool
        self._timeout_s = timeout_s
        self._kept: list[Patient] = []
        self._most = max(0, self._pool.max_connections - SPARE)
        self._wanting = 0
        self._used = False
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def ask(self, commands: Sequence[bytes], names: Sequence[str] = ()) -> list[Any]:
        """Send packed commands and return an answer to each, which may be an error reply. `names` are not needed.

        Raises redis' ConnectionError or TimeoutError; whether the commands were carried out is then unknown.
        """
        connection = await self._take()
        is_good = False
        try:
            with Patience(connection, self._timeout_s, sending=sum(map(len, commands))):
                await connection.send_packed_command(commands, check_health=False)
                replies = [await _reply(connection) for _ in commands]
            is_good = not connection.should_reconnect()  # type: ignore[no-untyped-call]
        except TimeoutError as exc:
            raise exceptions.TimeoutError("Redis did not answer in time") from exc
        finally:
            if is_good and not self._wanting and len(self._kept) < self._most:
                self._keep(connection)
            else:
                await self._give_back(connection, is_good=is_good)
        return replies

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._kept:
            await self._give_back(self._kept.pop())
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _take(self) -> Patient:
        while self._kept:
            connection = self._kept.pop()
            if not connection.should_reconnect() and not await _has_ended(connection):  # type: ignore[no-untyped-call]
                return connection
            await self._give_back(connection, is_good=False)
        self._wanting += 1
        try:
            connection = cast(Patient, await self._pool.get_connection())  # type: ignore[no-untyped-call]
        except exceptions.RedisError as exc:
            raise unsent(exc)  # noqa: B904 - the same one
        finally:
            self._wanting -= 1
        # one timer for a whole round trip, not one for each read and write
        connection.silence_s = None
        return connection

    def _keep(self, connection: Patient) -> None:
        self._kept.append(connection)
        self._used = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_S, self._tidy)

    def _tidy(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(KEPT_S, self._tidy) if self._used else None
        if not self._used:
            while self._kept:
                task = loop.create_task(self._give_back(self._kept.pop()))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        self._used = False

    async def _give_back(self, connection: Patient, *, is_good: bool = True) -> None:
        if not is_good:
            await connection.disconnect(nowait=True)
        connection.silence_s = self._pool.connection_kwargs.get("socket_timeout")
        await self._pool.release(connection)


class ClusterPipes:
    """Pipes to each master of a Cluster. Only commands refused as moved are sent again, wherever a slot went."""

    def __init__(self, slots: ClusterPool, *, timeout_s: float) -> None:
        self._slots = slots
        self._timeout_s = timeout_s
        self._pipes: dict[Redis, Pipes] = {}

    async def ask(self, commands: Sequence[bytes], names: Sequence[str]) -> list[Any]:
        """Send each command to the master of its key (`names`). Raises if nothing was sent at all."""

        def send(node: Redis, indexes: Sequence[int]) -> Awaitable[list[Any]]:
            return self._ask(node, [commands[index] for index in indexes])

        return await in_parts(self._slots, names, send)

    async def aclose(self) -> None:
        for pipes in self._pipes.values():
            await pipes.aclose()

    async def _ask(self, node: Redis, commands: list[bytes]) -> list[Any]:
        """Return an error as the answer to its own commands: another master may have carried out the others."""
        pipes = self._pipes.get(node)
        if pipes is None:
            pipes = self._pipes[node] = Pipes(node, timeout_s=self._timeout_s)
        try:
            replies = self._slots.note_replies(await pipes.ask(commands))
        except DOUBTS as exc:
            self._slots.doubt()
            return [exc] * len(commands)
        return [moving() if asks(reply) else reply for reply in replies]


def unavailable(exc: Exception) -> BackendUnavailable | None:
    """Return the error to raise instead of `exc` if Redis is only away for now, or None for an error of ours."""
    # an error reply during connect comes wrapped in a plain ConnectionError
    wraps = type(exc) is exceptions.ConnectionError and isinstance(exc.__cause__, exceptions.RedisError)
    said = exc.__cause__ if wraps else exc
    if isinstance(said, exceptions.AuthenticationError):
        return BackendUnavailable(REFUSED)
    if isinstance(exc, exceptions.OutOfMemoryError):
        return BackendFull(FULL)
    if isinstance(exc, AWAY):
        system = exc.__context__  # such as "Connection refused", which names no address and no secret
        number = (system.errno or 0) if isinstance(system, OSError) else 0  # not above 0 for a name that is not known
        why = os.strerror(number) if number > 0 else type(said).__name__
        return BackendUnavailable(f"Redis is away: {why}")
    if isinstance(exc, exceptions.ResponseError) and (word := AWAY_WORDS.search(str(exc))):
        return BackendFull(FULL) if word[1] == "OOM" else BackendUnavailable(f"Redis is away: {word[1]}")
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


async def _reply(connection: Patient) -> Any:
    try:
        return await connection.read_response()
    except exceptions.ResponseError as exc:
        return without_frames(exc)


async def _has_ended(connection: Patient) -> bool:
    """Return whether the server has closed an idle connection: nothing else can be there to read."""
    try:
        return await connection.can_read()
    except exceptions.ConnectionError:
        return True
