"""Start a Redis for each side, all set alike, and read what each reports."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, Literal

from redis.asyncio import Redis

from director.broker.redis_client import client
from tests.support.servers import redis_server

Durability = Literal["memory", "everysec", "always"]

DURABILITY: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "memory": {"appendonly": "no"},
        "everysec": {"appendonly": "yes", "appendfsync": "everysec"},
        "always": {"appendonly": "yes", "appendfsync": "always"},
    }
)


class OwnRedis:
    def __init__(self, url: str, redis: Redis, durability: Durability) -> None:
        self.url = url
        self.redis: Any = redis  # its types say str or bytes, and ours answers in bytes
        self.durability = durability

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
    with redis_server(loopback=True, config=DURABILITY[durability]) as server:
        redis = client(server.tcp_url, name="bench")
        try:
            yield OwnRedis(server.tcp_url, redis, durability)
        finally:
            await redis.aclose()
