"""A Redis Cluster behind the face of one server: each command goes to the master that has its key.

Never lets a script or a transaction follow its slot while that is on its way: of the keys that it may touch, each of
the two servers has a part. Its callers hear that Redis is away, until the slot's new master has all of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard, cast

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from director.broker.cluster_slots import ClusterPool

__all__ = ("DOUBTS", "Cluster", "asks", "in_parts", "moving")

Command: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

REDIRECTS: Final = 5
NO_KEY: Final = frozenset(("INFO", "CONFIG GET", "CONFIG SET", "PUBLISH", "SCRIPT LOAD"))
EVAL: Final = frozenset(("EVAL", "EVALSHA"))
# After these the map of slots may be an old one
DOUBTS: Final = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterDownError)


class Cluster(Redis):
    """Its commands, pipelines and subscriptions, as those of one server. A command's keys have one slot.

    A pipeline is one write to each master. What names no key is asked of any of them.
    """

    @property
    def slots(self) -> ClusterPool:
        """Who has which key."""
        pool: Any = self.connection_pool
        return cast(ClusterPool, pool)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """A transaction has one slot."""
        return ClusterPipeline(self, transaction=transaction)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Carry it out where its key is."""
        key = _key(args)
        if key is None:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        for _ in range(REDIRECTS):
            node = await self.slots.serving(key)
            try:
                return await node.execute_command(*args, **options)  # type: ignore[no-untyped-call]
            except exceptions.MovedError as exc:
                self.slots.redirected(node, exc)
            except exceptions.AskError as exc:
                return await _follow(self.slots.redirected(node, exc), (args, options))
            except DOUBTS:
                self.slots.doubt()
                raise
        raise moving()


class ClusterPipeline(Pipeline):
    """Sent in parts, one for each master."""

    def __init__(self, cluster: Cluster, *, transaction: bool) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, transaction, None)
        self._slots = cluster.slots

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """The replies in the order of the commands."""
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
                self._slots.redirected(node, exc)
            except exceptions.AskError as exc:
                raise moving() from exc
        raise moving()

    async def _in_parts(self, stack: list[Command]) -> list[Any]:
        async def send(node: Redis, indexes: Sequence[int]) -> list[Any]:
            commands = [stack[index] for index in indexes]
            answers = await self._send(node, commands)
            return [await self._followed(node, *one) for one in zip(commands, answers, strict=True)]

        return await in_parts(self._slots, [_key(args) or "" for args, _ in stack], send)

    async def _send(self, node: Redis, commands: list[Command]) -> list[Any]:
        part: Any = node.pipeline(transaction=self.is_transaction)
        part.command_stack = commands
        try:
            replies: list[Any] = await part.execute(raise_on_error=False)
        except DOUBTS:
            self._slots.doubt()
            raise
        if any(isinstance(reply, exceptions.ClusterDownError) for reply in replies):
            self._slots.doubt()
        return replies

    async def _followed(self, node: Redis, command: Command, answer: Any) -> Any:
        if not asks(answer):
            return answer
        try:
            return await _follow(self._slots.redirected(node, answer), command)
        except exceptions.ResponseError as exc:
            return exc


Send: TypeAlias = Callable[[Redis, Sequence[int]], Awaitable[list[Any]]]
"""Sends the commands of these numbers to a master; an answer to each."""


async def in_parts(slots: ClusterPool, names: Sequence[str], send: Send) -> list[Any]:
    """Let each master be sent the commands whose keys it has, by their names; the answers in order.

    What is refused as moved is sent on. Raises what `send` does, and RedisError where nothing of all was sent; once
    something was, whatever could not be is answered by that error.
    """
    answers: list[Any] = [moving()] * len(names)
    left = list(range(len(names)))
    for _ in range(REDIRECTS):
        try:
            parts = await _masters(slots, names, left)
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
                    slots.redirected(node, reply)
                    left.append(index)
                else:
                    answers[index] = reply
        if not left:
            break
    return answers


async def _masters(slots: ClusterPool, names: Sequence[str], left: Sequence[int]) -> dict[Redis, list[int]]:
    parts: dict[Redis, list[int]] = {}
    for index in left:
        parts.setdefault(await slots.serving(names[index]), []).append(index)
    return parts


async def _all_sent(parts: dict[Redis, list[int]], send: Send) -> list[tuple[Redis, list[Any]]]:
    sent = [send(node, indexes) for node, indexes in parts.items()]
    # each is heard to its end, so that none is left behind with a connection
    heard = [await sent[0]] if len(sent) == 1 else await asyncio.gather(*sent, return_exceptions=True)
    found = []
    for node, replies in zip(parts, heard, strict=True):
        if isinstance(replies, BaseException):
            raise replies
        found.append((node, replies))
    return found


async def _follow(node: Redis, command: Command) -> Any:
    """Ask for a key that its master has no more, or never had, where it goes to."""
    args, options = command
    if args[0] in EVAL:
        raise moving()
    pipe: Any = node.pipeline(transaction=False)
    pipe.execute_command("ASKING")
    pipe.execute_command(*args, **options)
    return (await pipe.execute())[-1]


def asks(answer: Any) -> TypeGuard[exceptions.AskError]:
    """Is it to be asked for where the slot goes to? What has moved for good is an AskError of redis-py's too."""
    return isinstance(answer, exceptions.AskError) and not isinstance(answer, exceptions.MovedError)


def moving() -> exceptions.TryAgainError:
    """What a caller is told whose slot is on its way."""
    return exceptions.TryAgainError("the slot is on its way to another server")


def _key(args: tuple[Any, ...]) -> str | None:
    """The first key of a command. Of those that are used here, only scripts have it elsewhere than in front."""
    if args[0] in EVAL:
        return _text(args[3]) if int(args[2]) else None
    return None if len(args) == 1 or args[0] in NO_KEY else _text(args[1])


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()
