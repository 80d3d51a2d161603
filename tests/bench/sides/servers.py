"""Start a Redis for each side, all set alike, and read what each reports."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, Literal

import anyio.to_thread
from redis.asyncio import Redis

from director.broker.redis_client import client
from tests.support.clusters import RedisCluster, redis_cluster
from tests.support.servers import RedisServer, redis_server

Durability = Literal["memory", "everysec", "always"]

DURABILITY: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "memory": {"appendonly": "no"},
        "everysec": {"appendonly": "yes", "appendfsync": "everysec"},
        "always": {"appendonly": "yes", "appendfsync": "always"},
    }
)


class OwnRedis:
    def __init__(self, url: str, redis: Redis, durability: Durability, process: RedisServer | None = None) -> None:
        self.url = url
        self.redis: Any = redis  # its types say str or bytes, and ours answers in bytes
        self.durability = durability
        self._process = process

    async def restart(self) -> None:
        """Stop it and start it again with its data. Raises ValueError if it keeps none."""
        if self._process is None or self.durability == "memory":
            raise ValueError("a server without a log on the disk would come back empty")
        await anyio.to_thread.run_sync(self._process.stop)
        await anyio.to_thread.run_sync(self._process.start)
        await self.redis.connection_pool.disconnect()

    async def info(self, section: str) -> dict[str, Any]:
        said: dict[str, Any] = await self.redis.info(section)
        return said

    async def flush(self) -> None:
        await self.redis.execute_command("FLUSHALL", "SYNC")

    async def used_bytes(self) -> int:
        """Return its memory without that of connections."""
        said = await self.info("memory")
        return int(said["used_memory"]) - int(said["mem_clients_normal"])

    async def cpu_s(self) -> float:
        said = await self.info("cpu")
        return float(said["used_cpu_user"]) + float(said["used_cpu_sys"])

    async def reads(self) -> int:
        return int((await self.info("stats"))["total_reads_processed"])

    async def release(self) -> str:
        """Return its name, its version and its allocator: jemalloc takes 10 to 20 % less time than that of libc."""
        said = await self.info("server") | await self.info("memory")
        name = "valkey" if "valkey_version" in said else "redis"
        return f"{name} {said[f'{name}_version']} with {said['mem_allocator']}"


@asynccontextmanager
async def own_redis(durability: Durability) -> AsyncIterator[OwnRedis]:
    with redis_server(loopback=True, on_disk=True, config=DURABILITY[durability]) as server:
        redis = client(server.tcp_url, name="bench")
        try:
            yield OwnRedis(server.tcp_url, redis, durability, server)
        finally:
            await redis.aclose()


class OwnCluster(OwnRedis):
    """A Cluster in place of one server. `cpu_s` is the sum over its masters."""

    def __init__(self, url: str, redis: Redis, durability: Durability, masters: list[OwnRedis]) -> None:
        super().__init__(url, redis, durability)
        self._masters = masters

    async def cpu_s(self) -> float:
        return sum(await self.each_cpu_s())

    async def reads(self) -> int:
        return sum([await master.reads() for master in self._masters])

    async def each_cpu_s(self) -> list[float]:
        return [await master.cpu_s() for master in self._masters]


@asynccontextmanager
async def own_cluster(durability: Durability, *, masters: int) -> AsyncIterator[OwnCluster]:
    async with AsyncExitStack() as stack:
        cluster: RedisCluster = stack.enter_context(redis_cluster(masters=masters, config=DURABILITY[durability]))
        redis = client(cluster.url, name="bench")
        stack.push_async_callback(redis.aclose)
        nodes = []
        for server in cluster.masters:
            node = client(server.tcp_url, name="bench")
            stack.push_async_callback(node.aclose)
            nodes.append(OwnRedis(server.tcp_url, node, durability))
        yield OwnCluster(cluster.url, redis, durability, nodes)
