"""Run a Redis Cluster of real servers on loopback: three masters or fewer, with or without a replica each."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from redis import Redis
from redis.crc import key_slot

from director.local.launcher.processes import free_port
from tests.support.eventually import wait_until
from tests.support.sentinels import GUARDED, is_linked
from tests.support.servers import Addressed, Kind, RedisServer, redis_server

MASTERS: Final = 3
SLOTS: Final = 16384
LIMIT_S: Final = 60.0
# A failed introduction is repeated after this long, so nodes are patient once they know each other
QUICK_MS: Final = 2000


class RedisCluster(Addressed):
    """A running cluster. `masters[n]` is a master at first, and `replicas[n]` its replica, if there are any."""

    def __init__(self, kind: Kind, masters: list[RedisServer], replicas: list[RedisServer], *, guarded: bool) -> None:
        self.kind = kind
        self._guarded = guarded
        self.masters = masters
        self.replicas = replicas

    def url_of(self, user: str) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.masters)
        return f"redis+cluster://{f'{user}:{user}@' if self._guarded else ''}{hosts}"

    def serving(self, key: str) -> RedisServer:
        """Return the server of this key, as the first live node knows it."""
        slot = key_slot(key.encode())
        for server in (*self.masters, *self.replicas):
            if server.is_running:
                for first, last, (_, port, *_), *_ in _ask(server, "CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return self._at(int(port))
        raise LookupError(f"no server has {key}")

    def move(self, key: str) -> None:
        with self.moving(key):
            pass

    def move_at_once(self, key: str) -> None:
        """Begin to move a slot. Valkey 9 moves it in the background; its new master owns it at the end."""
        slot, here = key_slot(key.encode()), self.serving(key)
        there = _ask(self._next(here), "CLUSTER", "MYID")
        _ask(here, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", there)

    @contextmanager
    def moving(self, key: str) -> Iterator[Callable[[int], int]]:
        """Migrate the slot of this key in this block. Yield a function that moves a number of its keys."""
        slot, here = key_slot(key.encode()), self.serving(key)
        there = self._next(here)

        def move(most: int) -> int:
            names = _ask(here, "CLUSTER", "GETKEYSINSLOT", slot, most)
            if names:
                _ask(here, "MIGRATE", "127.0.0.1", there.port, "", 0, 5000, *self._proof, "KEYS", *names)
            return len(names)

        _ask(there, "CLUSTER", "SETSLOT", slot, "IMPORTING", _ask(here, "CLUSTER", "MYID"))
        _ask(here, "CLUSTER", "SETSLOT", slot, "MIGRATING", _ask(there, "CLUSTER", "MYID"))
        yield move
        while move(100):
            pass
        for server in (there, here):
            _ask(server, "CLUSTER", "SETSLOT", slot, "NODE", _ask(there, "CLUSTER", "MYID"))

    @property
    def _proof(self) -> tuple[str, ...]:
        return ("AUTH2", "admin", "admin") if self._guarded else ()

    def _next(self, server: RedisServer) -> RedisServer:
        return self.masters[(self.masters.index(server) + 1) % len(self.masters)]

    def _at(self, port: int) -> RedisServer:
        return next(server for server in (*self.masters, *self.replicas) if server.port == port)


@contextmanager
def redis_cluster(
    kind: Kind = "valkey",
    *,
    masters: int = MASTERS,
    replicas: bool = False,
    guarded: bool = False,
    patience_ms: int = QUICK_MS,
    config: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[RedisCluster]:
    """Run a cluster whose nodes all agree. They take a silence of `patience_ms` for a death."""
    with ExitStack() as started:
        settings = [{**_config(guarded=guarded), **config} for _ in range(masters * 2 if replicas else masters)]
        servers = [
            started.enter_context(redis_server(kind, loopback=True, guarded=guarded, config=each)) for each in settings
        ]
        cluster = RedisCluster(kind, servers[:masters], servers[masters:], guarded=guarded)
        for number, server in enumerate(servers):
            _ask(server, "CLUSTER SET-CONFIG-EPOCH", number + 1)
            for other in servers[:number]:
                _ask(server, "CLUSTER MEET", "127.0.0.1", other.port, other.cluster_port)
        for number, server in enumerate(cluster.masters):
            last = SLOTS if number == masters - 1 else SLOTS // masters * (number + 1)
            _ask(server, "CLUSTER ADDSLOTSRANGE", SLOTS // masters * number, last - 1)
        wait_until(lambda: all(map(_is_of_one_mind, servers)), "the nodes agree", limit_s=LIMIT_S)
        for master, replica in zip(cluster.masters, cluster.replicas, strict=False):
            _ask(replica, "CLUSTER REPLICATE", _ask(master, "CLUSTER", "MYID"))
        for server in cluster.replicas:
            with Redis.from_url(server.admin_url) as replica:
                wait_until(partial(is_linked, replica), "the replica is linked", limit_s=LIMIT_S)
        for server in servers:
            _ask(server, "CONFIG", "SET", "cluster-node-timeout", patience_ms)
        yield cluster


def _config(*, guarded: bool) -> dict[str, str]:
    return {
        "cluster-enabled": "yes",
        "cluster-port": str(free_port()),
        "cluster-node-timeout": str(QUICK_MS),
        "repl-diskless-sync-delay": "0",
        **(GUARDED if guarded else {}),
    }


def _is_of_one_mind(server: RedisServer) -> bool:
    return str(_ask(server, "CLUSTER INFO")["cluster_state"]) == "ok"


def _ask(server: RedisServer, *command: Any) -> Any:
    with Redis.from_url(server.admin_url) as redis:
        return redis.execute_command(*command)
