"""The servers of a run, by kind: one server, a master with two replicas behind three Sentinels, or a Cluster of three
masters. In a group, each client has a loopback address of its own. There its link listens at the port of each server,
so that all that it sends goes over the link, whichever server it is sent to.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations, count, pairwise
from os import getpid
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import anyio
from msgspec.structs import replace
from redis import exceptions
from redis.asyncio import Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from director.broker.redis_client import client
from director.lab.chaos.plan import CLUSTER, SENTINEL, SERVER, SINGLE, ServerKind
from director.lab.chaos.proxy import LOOPBACK, Connection, Link, Replies, Upstream
from director.lab.chaos.rest import ALL_KEPT
from director.local.home import Home
from director.local.launcher.processes import UpError, claimable
from director.local.server import EmbeddedServer, find_binary
from director.local.supervisor import Part, Supervisor

LOOK_S: Final = 0.05
MEMBERS: Final = [f"redis-{n}" for n in range(3)]
SENTINELS: Final = [f"sentinel-{n}" for n in range(3)]
GROUP: Final = "chaos"  # the name of the master, for Sentinels

# Ports below the range that systems hand out to clients: a port must be free again whenever its process comes back.
# Each is used once. Two runs at the same time begin at different ports.
QUIET_PORTS: Final = range(20_000, 32_000)
PORTS_OF_A_RUN: Final = 32
_ports: Final = (QUIET_PORTS[(getpid() * PORTS_OF_A_RUN + n) % len(QUIET_PORTS)] for n in count())


def quiet_port() -> int:
    while True:
        with suppress(UpError):
            return claimable(LOOPBACK, next(_ports))


class Servers:
    """The servers of one kind. `data` has the folder of each one, `direct` a client of each process that uses no link,
    and `redis` is a client of all of them together. A failover may lose what was accepted in the last `lag_s`.
    """

    durability = "always"
    lag_s = 0.0

    def __init__(self, home: Home, data: Mapping[str, Path], url: str) -> None:
        self._home = home
        self.data = data
        self.url = url
        self.redis = client(url, name="chaos")
        self.direct: dict[str, Redis] = {}

    async def start(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        """Return when clients can use them."""
        raise NotImplementedError

    async def lead(self, link: Link, number: int) -> str:
        """Let the link of this client lead to the servers. Return their URL for it."""
        raise NotImplementedError

    async def is_ready(self, name: str) -> bool:
        """Return whether this process works. Raises RedisError if it does not answer."""
        return bool(await self.direct[name].ping())

    async def until_whole(self) -> None:
        """Return when all work together."""
        await _until(self._is_whole)

    async def _is_whole(self) -> bool:
        return all([await self.is_ready(name) for name in self.direct])

    async def aclose(self) -> None:
        for redis in (self.redis, *self.direct.values()):
            await redis.aclose()


class Single(Servers):
    def __init__(self, home: Home) -> None:
        self._server = EmbeddedServer(home.valkey, find_binary(), ALL_KEPT)
        self._server.prepare()
        super().__init__(home, {SERVER: home.valkey}, self._server.url)
        self.direct = {SERVER: client(self.url, name="chaos")}

    async def start(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        part = self._server.part(self._home.path)
        supervisor.start([replace(part, name=SERVER, env={**part.env, **environment})])
        await self.until_whole()

    async def lead(self, link: Link, number: int) -> str:
        await link.listen(upstream(self.url))
        password = urlsplit(self.url).password
        return f"redis://{f':{password}@' if password else ''}{LOOPBACK}:{link.port}/0"


# A server that has to stay away for a while is started again, and waits
WAIT: Final = 'while [ -e "$0" ]; do sleep 0.05; done; exec "$@"'


class _Group(Servers):
    """Three servers. `ports` are their own."""

    def __init__(self, home: Home, ports: Mapping[str, int], url: str) -> None:
        super().__init__(home, {name: home.path / name for name in ports}, url)
        self._ports = ports
        self.direct = {name: client(_url(port), name="chaos") for name, port in ports.items()}

    async def start(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        parts = []
        for name, folder in self.data.items():
            folder.mkdir(mode=0o700)
            server = EmbeddedServer(folder, find_binary(), self._config(name))
            server.prepare()
            part = server.part(self._home.path)
            command = ["sh", "-c", WAIT, str(self._mark(name)), *part.command]
            parts.append(replace(part, name=name, command=command, env={**part.env, **environment}))
        supervisor.start(parts)
        for name in self.data:
            await _until(self.direct[name].ping)
        await self._form(supervisor)
        await self.until_whole()

    def _config(self, name: str) -> dict[str, str]:
        return {**ALL_KEPT, "port": f"{self._ports[name]}", "bind": LOOPBACK, "requirepass": '""'}

    async def _form(self, supervisor: Supervisor) -> None:
        """Make a group of the servers, which all run."""
        raise NotImplementedError

    @contextmanager
    def keep_away(self, name: str) -> Generator[None]:
        """Start this server again only after the block, if it dies."""
        self._mark(name).touch()
        try:
            yield
        finally:
            self._mark(name).unlink()

    def _mark(self, name: str) -> Path:
        return self._home.path / f"{name}.away"


SENTINEL_CONFIG: Final = """\
port {port}
bind 127.0.0.1
dir "{folder}"
sentinel monitor {group} 127.0.0.1 {master} 2
sentinel down-after-milliseconds {group} 3000
sentinel failover-timeout {group} 6000
sentinel parallel-syncs {group} 2
"""


class Sentinels(_Group):
    """A master with two replicas behind three Sentinels. The others reach each server over its front, a link that can
    be cut: the server then hears its clients only. Sentinels tell each client the addresses of its own link.
    """

    durability = "replicated"
    lag_s = 2.0  # production has 10 s, and Sentinels that wait longer

    def __init__(self, home: Home) -> None:
        self._known_at = {name: quiet_port() for name in MEMBERS}
        self._asked_at = {name: quiet_port() for name in SENTINELS}
        self._fronts = {name: Link(f"{name}:others", seed=0) for name in MEMBERS}
        hosts = ",".join(f"{LOOPBACK}:{port}" for port in self._asked_at.values())
        super().__init__(home, {name: quiet_port() for name in MEMBERS}, f"redis+sentinel://{hosts}/{GROUP}")
        self.direct |= {name: client(_url(port), name="chaos") for name, port in self._asked_at.items()}

    async def start(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        for name, front in self._fronts.items():
            await front.listen(upstream(_url(self._ports[name])), port=self._known_at[name])
        await super().start(supervisor, environment)

    def _config(self, name: str) -> dict[str, str]:
        shared = super()._config(name) | {
            "replica-announce-ip": LOOPBACK,
            "replica-announce-port": f"{self._known_at[name]}",
            "repl-diskless-sync-delay": "0",
            "min-replicas-to-write": "1",
            "min-replicas-max-lag": f"{self.lag_s:.0f}",
        }
        return shared if name == SERVER else shared | {"replicaof": f"{LOOPBACK} {self._known_at[SERVER]}"}

    async def _form(self, supervisor: Supervisor) -> None:
        await _until(self._is_linked)  # a Sentinel that finds no replica looks again only after 10 s
        parts = []
        for name, port in self._asked_at.items():
            folder = self._home.path / name
            folder.mkdir(mode=0o700)
            facts = {"port": port, "folder": folder, "group": GROUP, "master": self._known_at[SERVER]}
            (folder / "sentinel.conf").write_text(SENTINEL_CONFIG.format(**facts))
            command = [str(find_binary()), str(folder / "sentinel.conf"), "--sentinel"]
            parts.append(Part(name=name, command=command, env={}, cwd=folder))
        supervisor.start(parts)

    async def lead(self, link: Link, number: int) -> str:
        host = _host(number)
        for port in self._asked_at.values():
            await link.listen(_renaming(upstream(_url(port)), host), host=host, port=port)
        for name, port in self._known_at.items():
            await link.listen(upstream(_url(self._ports[name])), host=host, port=port)
        return self.url.replace(LOOPBACK, host)

    async def master(self) -> str:
        """Return the name of the master, as the first Sentinel that answers knows it."""
        while True:
            for sentinel in SENTINELS:
                with suppress(exceptions.RedisError):
                    known_at = int((await self._state(sentinel))["port"])
                    return next(name for name, port in self._known_at.items() if port == known_at)
            await anyio.sleep(LOOK_S)

    async def until_another_than(self, master: str) -> None:
        while await self.master() == master:  # noqa: ASYNC110 - it has to be asked
            await anyio.sleep(LOOK_S)

    @contextmanager
    def cut_off(self, name: str) -> Generator[None]:
        self._fronts[name].cut()
        try:
            yield
        finally:
            self._fronts[name].mend()

    async def is_ready(self, name: str) -> bool:
        if name in SENTINELS:
            return await super().is_ready(name)
        found = await self.direct[name].info("replication")
        return bool(found["role"] == "master" or found["master_link_status"] == "up")

    async def _state(self, sentinel: str) -> dict[str, Any]:
        masters: Any = await self.direct[sentinel].sentinel_masters()
        return dict(masters[GROUP])

    async def _is_linked(self) -> bool:
        """Return whether one server is the master and two follow it."""
        found = [await self.direct[name].info("replication") for name in self.data]
        masters = [each for each in found if each["role"] == "master"]
        return len(masters) == 1 and all(masters[0].get(f"slave{n}", {}).get("state") == "online" for n in range(2))

    async def _is_whole(self) -> bool:
        states = [await self._state(sentinel) for sentinel in SENTINELS]
        known = {(state["port"], state["num-slaves"], state["num-other-sentinels"]) for state in states}
        return len(known) == 1 and known.pop()[1:] == (2, 2) and await self._is_linked()

    async def aclose(self) -> None:
        for front in self._fronts.values():
            await front.stop()
        await super().aclose()


class ClusterNodes(_Group):
    """Three masters without replicas. They name no host, so each client reaches all of them at its own."""

    def __init__(self, home: Home) -> None:
        ports = {name: quiet_port() for name in MEMBERS}
        self._buses = {name: quiet_port() for name in MEMBERS}
        super().__init__(home, ports, f"redis+cluster://{','.join(f'{LOOPBACK}:{port}' for port in ports.values())}")

    def _config(self, name: str) -> dict[str, str]:
        return super()._config(name) | {
            "cluster-enabled": "yes",
            "cluster-port": f"{self._buses[name]}",
            "cluster-node-timeout": "2000",
            "cluster-preferred-endpoint-type": "unknown-endpoint",
        }

    async def _form(self, supervisor: Supervisor) -> None:
        for number, name in enumerate(MEMBERS):
            await self._ask(name, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for one, other in combinations(MEMBERS, 2):
            await self._ask(one, "CLUSTER", "MEET", LOOPBACK, self._ports[other], self._buses[other])
        edges = [REDIS_CLUSTER_HASH_SLOTS * n // len(MEMBERS) for n in range(len(MEMBERS) + 1)]
        for name, (first, end) in zip(MEMBERS, pairwise(edges), strict=True):
            await self._ask(name, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)

    async def lead(self, link: Link, number: int) -> str:
        host = _host(number)
        for port in self._ports.values():
            await link.listen(upstream(_url(port)), host=host, port=port)
        return self.url.replace(LOOPBACK, host)

    async def move(self, key: str) -> None:
        """Move the slot of this key to the next master. Return when that one has it."""
        slot = key_slot(key.encode())
        here = await self._owner(slot)
        there = MEMBERS[(MEMBERS.index(here) + 1) % len(MEMBERS)]
        node = await self._ask(there, "CLUSTER", "MYID")
        await self._ask(here, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", node)
        while await self._owner(slot) == here:  # noqa: ASYNC110 - it has to be asked
            await anyio.sleep(LOOK_S)

    async def _owner(self, slot: int) -> str:
        """Return the name of the master that says of itself that it has this slot."""
        for name in MEMBERS:
            node = await self._ask(name, "CLUSTER", "MYID")
            for first, last, (_, _, its_node, *_), *_ in await self._ask(name, "CLUSTER", "SLOTS"):
                if its_node == node and first <= slot <= last:
                    return name
        raise exceptions.ClusterDownError(f"no master has slot {slot}")

    async def _ask(self, name: str, *command: Any) -> Any:
        client: Any = self.direct[name]
        return await client.execute_command(*command)

    async def is_ready(self, name: str) -> bool:
        state = await self._ask(name, "CLUSTER", "INFO")
        return b"cluster_state:ok" in state and b"cluster_known_nodes:3" in state


KINDS: Final[Mapping[ServerKind, type[Single | Sentinels | ClusterNodes]]] = {
    SINGLE: Single,
    SENTINEL: Sentinels,
    CLUSTER: ClusterNodes,
}


async def _until(is_so: Callable[[], Awaitable[Any]]) -> None:
    """Ask until it is so. A server that does not answer is asked again."""
    while True:
        with suppress(exceptions.RedisError):
            if await is_so():
                return
        await anyio.sleep(LOOK_S)


def _host(number: int) -> str:
    """Return the loopback address of a client. It is as long as that of the servers."""
    return f"127.0.0.{number + 2}"


def _url(port: int) -> str:
    return f"redis://{LOOPBACK}:{port}/0"


def upstream(url: str) -> Upstream:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return lambda: asyncio.open_unix_connection(unquote(parts.path))
    return lambda: asyncio.open_connection(parts.hostname, parts.port)


class _Renamed:
    """The replies of a Sentinel with another host in them. It is equally long, so all lengths stay true."""

    def __init__(self, replies: Replies, host: str) -> None:
        self._replies, self._host = replies, host.encode()

    async def read(self, most: int, /) -> bytes:
        return (await self._replies.read(most)).replace(LOOPBACK.encode(), self._host)


def _renaming(connect: Upstream, host: str) -> Upstream:
    async def rename() -> Connection:
        replies, requests = await connect()
        return _Renamed(replies, host), requests

    return rename
