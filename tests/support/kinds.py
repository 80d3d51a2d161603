"""Start the kinds of servers that the tests run on: one server, a master behind Sentinels, a Cluster."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, Protocol

from redis.asyncio import Redis

from director.broker.cluster import Cluster
from director.broker.redis_client import client, servers
from tests.support.clusters import redis_cluster
from tests.support.sentinels import failover_group
from tests.support.servers import redis_server

RedisKind = Literal["valkey", "redis7", "sentinel", "cluster"]


class Started(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def admin_url(self) -> str: ...


class Mortal(Started, Protocol):
    def kill(self) -> None: ...

    def start(self) -> None: ...


class Cut:
    """A stand-in for a crash: it cuts each connection, because several servers take seconds to recover from a death."""

    def __init__(self, server: Started) -> None:
        self.url = server.url
        self.admin_url = server.admin_url

    def kill(self) -> None:
        asyncio.run(self._cut())

    def start(self) -> None:
        """Do nothing: the servers never stopped."""

    async def _cut(self) -> None:
        async with client(self.admin_url) as redis:
            for server in await servers(redis):
                await server.client_kill_filter(_type="normal", skipme=True)


# Long enough that no busy machine is mistaken for a dead master
PATIENCE_MS: Final = 60_000
KINDS: Final[dict[RedisKind, Callable[[], AbstractContextManager[Started]]]] = {
    "valkey": lambda: redis_server(guarded=True),
    "redis7": lambda: redis_server("redis7", guarded=True),
    "sentinel": lambda: failover_group(replicas=1, guarded=True, patience_ms=PATIENCE_MS),
    "cluster": lambda: redis_cluster(guarded=True, patience_ms=PATIENCE_MS),
}


def started(kind: RedisKind) -> AbstractContextManager[Started]:
    return KINDS[kind]()


def whole(url: str, *, connections: int = 16) -> Redis:
    redis = client(url, connections=connections)
    return _Whole.from_pool(redis.connection_pool) if isinstance(redis, Cluster) else redis


class _Whole(Cluster):
    """A Cluster client that asks every master where one is not enough, and each key of several separately."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] == "XREADGROUP":
            master = await self.slots.serving(args[args.index(b"STREAMS") + 1])
            return await master.execute_command(*args, **options)  # type: ignore[no-untyped-call]
        if args[0] in OF_EACH_KEY and len(args) > 2:
            return sum([await self.execute_command(args[0], name, **options) for name in args[1:]])
        if (combine := OF_ALL.get(args[0])) is None:
            return await super().execute_command(*args, **options)
        masters = await self.slots.masters()
        return combine(await asyncio.gather(*(master.execute_command(*args, **options) for master in masters)))  # type: ignore[no-untyped-call]


def _first(replies: list[Any]) -> Any:
    return replies[0]


def _joined(replies: list[Any]) -> Any:
    return [each for reply in replies for each in reply]


def _summed(replies: list[Any]) -> Any:
    summed = dict(replies[0])
    for reply in replies[1:]:
        for name, value in reply.items():
            known = summed.get(name)
            if isinstance(value, dict):
                summed[name] = _summed([known or {}, value])
            elif isinstance(value, int | float):
                summed[name] = (known or 0) + value
    return summed


OF_EACH_KEY: Final = frozenset(("DEL", "EXISTS"))
OF_ALL: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "CLIENT": sum,
    "CLIENT LIST": _joined,
    "CONFIG RESETSTAT": _first,
    "CONFIG SET": _first,
    "DBSIZE": sum,
    "FLUSHALL": _first,
    "INFO": _summed,
    "KEYS": _joined,
    "PUBSUB CHANNELS": _joined,
    "SCRIPT FLUSH": _first,
}
