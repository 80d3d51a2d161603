"""Send each command to the master of a Redis Cluster that has its key, behind the interface of one client.

While a slot migrates, each of its two servers has a part of the keys that a script or transaction may touch. Such a
call never follows the slot: its caller gets "Redis is away" until the new master has all keys. redis-py's own client
(8.1.0) does not do: it sends ASKING on any connection of its pool, so of 50 reads at once of a migrating key 7
succeeded, and here all. Of 30 BLPOPs over 20 connections 10 raised MaxConnectionsError.
"""

import asyncio
import random
import re
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard, cast

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import parse_url
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from director.broker.connections import Tcp, Tls, address, check_options, unsent, without_frames

# A node that is cut off from the others is not believed.

Address: TypeAlias = tuple[str, int]

CLUSTER_URL: Final = re.compile(
    r"redis(?P<tls>s?)\+cluster://(?:(?P<user>[^@/]*)@)?(?P<hosts>[^/?@]+)/?(?:\?(?P<query>.*))?"
)
PORT: Final = 6379
# Short, because another node can be asked instead
ASK_TIMEOUT_S: Final = 2.0
ASK_EVERY_S: Final = 0.2


def cluster_pool(url: str, **options: Any) -> "ClusterPool":
    """Return a pool of connections to the masters of a Cluster. Raises as `direct_pool` does."""
    match = CLUSTER_URL.fullmatch(url)
    if match is None:
        raise ValueError("not the URL of a Cluster")
    user = "" if match["user"] is None else f"{match['user']}@"
    known: dict[str, Any] = {**parse_url(f"redis://{user}-/?{match['query'] or ''}")}
    known.pop("host")
    if known.pop("db", 0):
        raise ValueError("a Cluster has one database, 0")
    seeds = [address(host, PORT) for host in match["hosts"].split(",")]
    return check_options(ClusterPool(seeds, is_tls=bool(match["tls"]), **{**known, **options}))


class _AnyMaster:
    def __init__(self, *, find: Callable[[], Awaitable[Address]], **options: Any) -> None:
        super().__init__(**options)
        self._find = find

    async def connect(self) -> None:
        if not self.is_connected:  # type: ignore[attr-defined]
            self.host, self.port = await self._find()
        await super().connect()  # type: ignore[misc]


class _TcpToAny(_AnyMaster, Tcp):
    pass


class _TlsToAny(_AnyMaster, Tls):
    pass


class ClusterPool(BlockingConnectionPool):
    """A pool to any master for commands without a key, a client per node, and the map of slots."""

    def __init__(self, seeds: Sequence[Address], *, is_tls: bool, **options: Any) -> None:
        itself = weakref.proxy(self)
        kind = _TlsToAny if is_tls else _TcpToAny
        super().__init__(connection_class=kind, find=lambda: itself.any_master(), **options)
        self._seeds = seeds
        self._options = {**options, "connection_class": Tls if is_tls else Tcp}
        self._owners: list[Address | None] = []
        # a node that is no master now is kept: it may become one again, and a caller may hold its client
        self._nodes: dict[Address, Redis] = {}
        self._is_in_doubt = True
        self._asked_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def any_master(self) -> Address:
        return random.choice(await self._masters())  # noqa: S311 - spreads load, guards nothing

    async def masters(self) -> list[Redis]:
        return [self.node(master) for master in await self._masters()]

    async def serving(self, key: str) -> Redis:
        await self._know()
        owner = self._owners[_slot(key)]
        if owner is None:
            self.doubt()
            raise unsent(exceptions.ClusterDownError("no master has this slot"))
        return self.node(owner)

    def owner(self, key: str) -> Address | None:
        return self._owners[_slot(key)] if self._owners else None

    def node(self, where: Address) -> Redis:
        known = self._nodes.get(where)
        if known is None:
            host, port = where
            known = self._nodes[where] = Redis.from_pool(BlockingConnectionPool(host=host, port=port, **self._options))
        return known

    def follow_redirect(self, by: Redis, exc: exceptions.AskError) -> Redis:
        """Return the client for the node that a redirect names. A server may not know its own host."""
        where = exc.host or str(by.connection_pool.connection_kwargs["host"]), int(exc.port)
        if isinstance(exc, exceptions.MovedError):
            self._owners[exc.slot_id] = where
            self.doubt()  # a slot seldom moves alone
        return self.node(where)

    def doubt(self) -> None:
        self._is_in_doubt = True

    def note_replies(self, replies: list[Any]) -> list[Any]:
        """Return a master's replies. After one that says that the Cluster is down, the map may be outdated."""
        if any(isinstance(reply, exceptions.ClusterDownError) for reply in replies):
            self.doubt()
        return replies

    async def disconnect(self, inuse_connections: bool = True) -> None:
        self.doubt()
        await super().disconnect(inuse_connections)
        for node in list(self._nodes.values()):
            await node.connection_pool.disconnect(inuse_connections)

    async def _masters(self) -> list[Address]:
        await self._know()
        found = sorted({owner for owner in self._owners if owner is not None})
        if not found:  # its nodes have not met yet, or its slots are not given out
            self.doubt()
            raise unsent(exceptions.ClusterDownError("no master has a slot"))
        return found

    async def _know(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._owners and not (self._is_in_doubt and now_s - self._asked_s >= ASK_EVERY_S):
            return
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_around())
            self._asking.add_done_callback(self._end_asking)
        # all waiters share this task, so canceling one waiter must not end it
        await asyncio.shield(self._asking)

    def _end_asking(self, task: "asyncio.Task[None]") -> None:
        self._asking, self._asked_s = None, asyncio.get_running_loop().time()
        if not task.cancelled():
            task.exception()  # every waiter gets the exception itself

    async def _ask_around(self) -> None:
        known = sorted({owner for owner in self._owners if owner is not None})
        random.shuffle(known)
        failed: exceptions.RedisError | None = None
        doubtful: list[Address | None] | None = None
        for where in dict.fromkeys([*known, *self._seeds]):
            try:
                is_good, owners = await self._ask(where)
            except (exceptions.ConnectionError, exceptions.TimeoutError) as exc:
                failed = without_frames(exc)
                continue
            if is_good:
                self._owners, self._is_in_doubt = owners, False
                return
            doubtful = owners
        if doubtful is None:
            raise unsent(exceptions.ConnectionError("no node of the Cluster answers")) from failed
        self._owners = doubtful

    async def _ask(self, where: Address) -> tuple[bool, list[Address | None]]:
        """Return whether this node finds the Cluster healthy, and each slot's owner."""
        host, port = where
        brief = {"max_connections": 1, "socket_timeout": ASK_TIMEOUT_S, "socket_connect_timeout": ASK_TIMEOUT_S}
        pool = BlockingConnectionPool(**{**self._options, **brief, "host": host, "port": port})
        async with Redis.from_pool(pool) as redis:
            pipe = redis.pipeline(transaction=False)
            # as two words each: redis-py would parse the reply to "CLUSTER SLOTS" into its own form
            pipe.execute_command("CLUSTER", "INFO")
            pipe.execute_command("CLUSTER", "SLOTS")
            info, ranges = await pipe.execute()
        owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, (name, its_port, *_), *_ in ranges:
            its_host = host if name in (None, b"", b"?") else name.decode()
            owners[first : last + 1] = [(its_host, int(its_port))] * (last + 1 - first)
        return b"cluster_state:ok" in info, owners


def _slot(name: str) -> int:
    return key_slot(name.encode())


Command: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

REDIRECTS: Final = 5
NO_KEY: Final = frozenset(("INFO", "CONFIG GET", "CONFIG SET", "PUBLISH", "SCRIPT LOAD"))
EVAL: Final = frozenset(("EVAL", "EVALSHA"))
# After these errors the slot map may be outdated
DOUBTS: Final = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterDownError)


class Cluster(Redis):
    @property
    def slots(self) -> ClusterPool:
        pool: Any = self.connection_pool
        return cast(ClusterPool, pool)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Return a pipeline. All keys of a transaction must have one slot."""
        return ClusterPipeline(self, transaction=transaction)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        key = _key(args)
        if key is None:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        for _ in range(REDIRECTS):
            node = await self.slots.serving(key)
            try:
                return await node.execute_command(*args, **options)  # type: ignore[no-untyped-call]
            except exceptions.MovedError as exc:
                self.slots.follow_redirect(node, exc)
            except exceptions.AskError as exc:
                return await _follow(self.slots.follow_redirect(node, exc), (args, options))
            except DOUBTS:
                self.slots.doubt()
                raise
        raise moving()


class ClusterPipeline(Pipeline):
    def __init__(self, cluster: Cluster, *, transaction: bool) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, transaction, None)
        self._slots = cluster.slots

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack: Any = self.command_stack
        self.command_stack = []
        if not stack:
            return []
        send = self._as_one if self.is_transaction else self._in_parts
        replies = await send(stack)
        if raise_on_error:
            self.raise_first_error(stack, replies)
        return replies

    async def _as_one(self, stack: list[Command]) -> list[Any]:
        for _ in range(REDIRECTS):
            node = await self._slots.serving(_key(stack[0][0]) or "")
            try:
                return await self._send(node, stack)
            except exceptions.MovedError as exc:
                self._slots.follow_redirect(node, exc)
            except exceptions.AskError as exc:
                raise moving() from exc
        raise moving()

    async def _in_parts(self, stack: list[Command]) -> list[Any]:
        async def send(node: Redis, indexes: Sequence[int]) -> list[Any]:
            commands = [stack[index] for index in indexes]
            answers = await self._send(node, commands)
            return [await self._follow_answer(node, *one) for one in zip(commands, answers, strict=True)]

        return await in_parts(self._slots, [_key(args) or "" for args, _ in stack], send)

    async def _send(self, node: Redis, commands: list[Command]) -> list[Any]:
        part: Any = node.pipeline(transaction=self.is_transaction)
        part.command_stack = commands
        try:
            return self._slots.note_replies(await part.execute(raise_on_error=False))
        except DOUBTS:
            self._slots.doubt()
            raise

    async def _follow_answer(self, node: Redis, command: Command, answer: Any) -> Any:
        if not asks(answer):
            return answer
        try:
            return await _follow(self._slots.follow_redirect(node, answer), command)
        except exceptions.ResponseError as exc:
            return exc


Send: TypeAlias = Callable[[Redis, Sequence[int]], Awaitable[list[Any]]]
"""Sends the commands with these indexes to a master and returns an answer for each."""


async def in_parts(slots: ClusterPool, names: Sequence[str], send: Send) -> list[Any]:
    """Send each master the commands whose keys (`names`) it has, and return the answers in order.

    Commands refused as moved are sent again. Raises what `send` raises, or RedisError if nothing was sent at all; once
    something was sent, a command that could not be sent gets that error as its answer.
    """
    answers: list[Any] = [moving()] * len(names)
    left = list(range(len(names)))
    for _ in range(REDIRECTS):
        parts: dict[Redis, list[int]] = {}
        try:
            for index in left:
                parts.setdefault(await slots.serving(names[index]), []).append(index)
        except exceptions.RedisError as exc:
            if len(left) == len(names):
                raise
            for index in left:
                answers[index] = exc
            break
        left = []
        for node, replies in await _all_sent(parts, send):
            for index, reply in zip(parts[node], replies, strict=True):
                if isinstance(reply, exceptions.MovedError):
                    slots.follow_redirect(node, reply)
                    left.append(index)
                else:
                    answers[index] = reply
        if not left:
            break
    return answers


async def _all_sent(parts: dict[Redis, list[int]], send: Send) -> list[tuple[Redis, list[Any]]]:
    sent = [send(node, indexes) for node, indexes in parts.items()]
    # wait for every part, so that none is left running with a connection
    heard = [await sent[0]] if len(sent) == 1 else await asyncio.gather(*sent, return_exceptions=True)
    found = []
    for node, replies in zip(parts, heard, strict=True):
        if isinstance(replies, BaseException):
            raise replies
        found.append((node, replies))
    return found


async def _follow(node: Redis, command: Command) -> Any:
    args, options = command
    if args[0] in EVAL:
        raise moving()
    pipe: Any = node.pipeline(transaction=False)
    pipe.execute_command("ASKING")
    pipe.execute_command(*args, **options)
    return (await pipe.execute())[-1]


def asks(answer: Any) -> TypeGuard[exceptions.AskError]:
    """Return whether the answer is ASK. redis-py makes MOVED, for a slot that has moved for good, an AskError too."""
    return isinstance(answer, exceptions.AskError) and not isinstance(answer, exceptions.MovedError)


def moving() -> exceptions.TryAgainError:
    return exceptions.TryAgainError("the slot is on its way to another server")


def _key(args: tuple[Any, ...]) -> str | None:
    """Return the first key of a command, or None. Among the commands used here only scripts do not have it in front."""
    if args[0] in EVAL:
        return _text(args[3]) if int(args[2]) else None
    return None if len(args) == 1 or args[0] in NO_KEY else _text(args[1])


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()
