"""Run a master, its replicas and three Sentinels on loopback: all are real."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from director.local.launcher.processes import free_port
from tests.support.eventually import wait_until
from tests.support.servers import Addressed, RedisServer, binary, redis_server

NAME: Final = "mymaster"
SENTINELS: Final = 3
GUARDED: Final = {"masteruser": "admin", "masterauth": "admin"}
LIMIT_S: Final = 60.0
CONFIG: Final = """
port {port}
bind 127.0.0.1
dir {folder}
logfile {folder}/log
sentinel monitor {name} 127.0.0.1 {master} 2
sentinel down-after-milliseconds {name} {patience_ms}
sentinel failover-timeout {name} 3000
sentinel parallel-syncs {name} 2
"""
GUARD: Final = """
sentinel auth-user {name} admin
sentinel auth-pass {name} admin
"""


class Failover(Addressed):
    """`url` names the Sentinels. `servers[0]` is the master at first."""

    def __init__(self, servers: list[RedisServer], sentinel_ports: list[int], *, guarded: bool) -> None:
        self.servers = servers
        self.kind = servers[0].kind
        self._ports = sentinel_ports
        self._guarded = guarded

    def url_of(self, user: str) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://{f'{user}:{user}@' if self._guarded else ''}{hosts}/{NAME}"

    def master_port(self) -> int:
        return int(self._state(self._ports[0])["port"])

    def is_settled(self) -> bool:
        states = [self._state(port) for port in self._ports]
        replicas = len(self.servers) - 1
        return all(
            (state.get("num-other-sentinels"), state.get("num-slaves")) == (SENTINELS - 1, replicas) for state in states
        )

    def name_master(self, server: RedisServer) -> None:
        """Let the Sentinels name `server`, as after a failover beside a master that only they no longer reach."""
        for port in self._ports:
            with Redis(port=port, protocol=2) as sentinel:
                sentinel.sentinel_remove(NAME)
                sentinel.sentinel_monitor(NAME, "127.0.0.1", server.port, 2)

    def _state(self, port: int) -> dict[str, Any]:
        with Redis(port=port, protocol=2) as sentinel:
            try:
                masters: Any = sentinel.sentinel_masters()
            except RedisConnectionError:
                return {}
        return dict(masters.get(NAME, {}))


@contextmanager
def failover_group(
    *, replicas: int = 2, config: dict[str, str] | None = None, guarded: bool = False, patience_ms: int = 1000
) -> Iterator[Failover]:
    """Run the group. Its Sentinels take a silence of `patience_ms` for a death."""
    options = {"repl-diskless-sync-delay": "0", **(GUARDED if guarded else {}), **(config or {})}
    with ExitStack() as started:
        servers = [
            started.enter_context(redis_server(loopback=True, guarded=guarded, config=options))
            for _ in range(replicas + 1)
        ]
        for server in servers[1:]:
            with Redis.from_url(server.admin_url, protocol=2) as replica:
                replica.replicaof("127.0.0.1", servers[0].port)
                wait_until(partial(is_linked, replica), "the replica is linked", limit_s=LIMIT_S)
        ports = [_sentinel(started, servers[0].port, patience_ms, guarded=guarded) for _ in range(SENTINELS)]
        group = Failover(servers, ports, guarded=guarded)
        wait_until(group.is_settled, "the Sentinels agree", limit_s=LIMIT_S)
        yield group


def is_linked(replica: Redis) -> bool:
    return str(replica.info("replication").get("master_link_status")) == "up"


def _sentinel(started: ExitStack, master: int, patience_ms: int, *, guarded: bool) -> int:
    folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="dr-")))
    port, file = free_port(), folder / "sentinel.conf"
    text = CONFIG + (GUARD if guarded else "")
    file.write_text(text.format(port=port, folder=folder, name=NAME, master=master, patience_ms=patience_ms))
    process = subprocess.Popen([binary("valkey"), str(file), "--sentinel"], stdin=subprocess.DEVNULL)
    started.callback(process.wait)
    started.callback(process.kill)
    return port
