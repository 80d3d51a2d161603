"""A master, its replicas and three Sentinels: all real, on loopback, ended with the block.

Never promotes anything by itself: which server is the master is for the Sentinels to say.
"""

import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.cog import free_port
from tests.support.eventually import eventually
from tests.support.servers import RedisServer, binary, redis_server

__all__ = ("Failover", "failover_group")

NAME: Final = "mymaster"
SENTINELS: Final = 3
LIMIT_S: Final = 60.0
CONFIG: Final = """
port {port}
bind 127.0.0.1
dir {folder}
logfile {folder}/log
sentinel monitor {name} 127.0.0.1 {master} 2
sentinel down-after-milliseconds {name} 1000
sentinel failover-timeout {name} 3000
sentinel parallel-syncs {name} 2
"""


class Failover:
    """`url` names the Sentinels. `servers[0]` is the master at first."""

    def __init__(self, servers: list[RedisServer], sentinel_ports: list[int]) -> None:
        self.servers = servers
        self._ports = sentinel_ports

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://{hosts}/{NAME}"

    async def master_port(self) -> int:
        """Of the master, as the first Sentinel has it."""
        return int((await self._state(self._ports[0]))["port"])

    async def is_settled(self) -> bool:
        """Do all Sentinels know each other and every replica?"""
        states = [await self._state(port) for port in self._ports]
        replicas = len(self.servers) - 1
        return all(
            (state.get("num-other-sentinels"), state.get("num-slaves")) == (SENTINELS - 1, replicas) for state in states
        )

    async def _state(self, port: int) -> dict[str, Any]:
        async with Redis(port=port, protocol=2) as sentinel:
            try:
                masters: Any = await sentinel.sentinel_masters()
            except RedisConnectionError:
                return {}
        return dict(masters.get(NAME, {}))


@asynccontextmanager
async def failover_group(*, replicas: int = 2, config: dict[str, str] | None = None) -> AsyncGenerator[Failover, None]:
    """Started, replicating, and watched by three Sentinels that agree."""
    with ExitStack() as started:
        servers = [
            started.enter_context(
                redis_server(loopback=True, config={"repl-diskless-sync-delay": "0", **(config or {})})
            )
            for _ in range(replicas + 1)
        ]
        for server in servers[1:]:
            async with Redis.from_url(server.tcp_url, protocol=2) as replica:
                await replica.replicaof("127.0.0.1", servers[0].port)
                await eventually(partial(_is_linked, replica), "the replica is linked", limit_s=LIMIT_S)
        ports = [_sentinel(started, servers[0].port) for _ in range(SENTINELS)]
        group = Failover(servers, ports)
        await eventually(group.is_settled, "the Sentinels agree", limit_s=LIMIT_S)
        yield group


async def _is_linked(replica: Any) -> bool:
    return str((await replica.info("replication")).get("master_link_status")) == "up"


def _sentinel(started: ExitStack, master: int) -> int:
    folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="dr-")))
    port, file = free_port(), folder / "sentinel.conf"
    file.write_text(CONFIG.format(port=port, folder=folder, name=NAME, master=master))
    process = subprocess.Popen([binary("valkey"), str(file), "--sentinel"], stdin=subprocess.DEVNULL)
    started.callback(process.wait)
    started.callback(process.kill)
    return port
