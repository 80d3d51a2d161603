"""Wait on a connection of its own: for wakeups of queues, for cancels of a director, for channels of the API."""

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, Final, cast

import anyio
import hiredis
from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection

from director.broker import keys
from director.broker.cluster import Cluster
from director.broker.redis_client import text
from director.core.clock import Clock
from director.core.ids import QueueName

LEAST_S: Final = 2.0
LONGEST_S: Final = 5.0
LISTEN_S: Final = 15.0
SILENCE_S: Final = 10.0  # then a connection of channels is pinged


@dataclass(eq=False)
class Wakeup:
    """The wakeups of one model's queues, for one waiter. A lost wakeup costs one pause and never a prediction.
    `redis` is a blocking client made for `LONGEST_S`. A call can wait behind the wakeup: saves a round trip.
    """

    redis: Redis
    queues: InitVar[Sequence[QueueName]]
    clock: Clock
    _kept: AbstractConnection | None = None

    def __post_init__(self, queues: Sequence[QueueName]) -> None:
        self._keys = [keys.bell(queue) for queue in queues]

    @property
    def carries(self) -> bool:
        return len(self._keys) == 1 and not isinstance(self.redis, Cluster)

    async def wait(self) -> bool:
        await self.close()
        try:
            return await self.redis.blpop(self._keys, timeout=pause_s()) is not None
        except exceptions.RedisError:
            await self.clock.sleep(1.0)
            return False

    async def close(self) -> None:
        """Give the kept connection back: the pool has one for each waiter, and another wakeup may follow this one."""
        if self._kept is not None:
            connection, self._kept = self._kept, None
            await self.redis.connection_pool.release(connection)

    async def carry(self, call: bytes) -> Any:
        """Return the answer to `call`, which Redis runs when a wakeup came or the wait is over.
        Raises RedisError. After that, or after a cancellation, it is unknown whether the call ran or will still run.
        """
        pool = self.redis.connection_pool
        connection, self._kept = self._kept, None
        if connection is None:
            connection = cast(AbstractConnection, await pool.get_connection())  # type: ignore[no-untyped-call]
        try:
            words: tuple[Any, ...] = ("BLPOP", *self._keys, pause_s())
            wait = hiredis.pack_command(words)
            await connection.send_packed_command([wait, call], check_health=False)
            await connection.read_response()
            answer = await connection.read_response()
        except BaseException:  # also if canceled: a connection with an unread answer cannot be used again
            await connection.disconnect(nowait=True)
            await pool.release(connection)
            raise
        self._kept = connection
        return answer


def pause_s() -> float:
    return random.uniform(LEAST_S, LONGEST_S)  # noqa: S311 - spreads load, guards nothing


class Subscription:
    """The channels that one process listens to. `always` is one of them from the start. `redis` is a blocking client
    made for SILENCE_S.

    `on_message` gets the channel and the data. `on_active` gets a channel once it is subscribed to, perhaps again:
    earlier messages are missed.
    """

    def __init__(
        self,
        redis: Redis,
        always: str,
        *,
        on_message: Callable[[bytes, bytes], None],
        on_active: Callable[[str], None],
    ) -> None:
        self._redis = redis
        self._always = always
        self._on_message = on_message
        self._on_active = on_active
        self._wanted: set[str] = set()
        self._changed: set[str] = set()
        self._has_changed = asyncio.Event()
        self._is_silent = True
        self.was_active = False
        """Redis has answered on the connection that was served last."""

    def add(self, channel: str) -> None:
        self._wanted.add(channel)
        self._change(channel)

    def remove(self, channel: str) -> None:
        self._wanted.discard(channel)
        self._change(channel)

    async def run_once(self) -> None:
        """Serve one connection until it is lost. Raises RedisError or OSError, in a group."""
        self.was_active = False
        pubsub = self._redis.pubsub()
        try:
            await pubsub.connect()  # type: ignore[no-untyped-call]
            self._changed.update(self._wanted)
            self._has_changed.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._subscribe, pubsub)
                tasks.start_soon(self._listen, pubsub)
                tasks.start_soon(self._ask_where_it_is_silent, pubsub)
        finally:
            with anyio.CancelScope(shield=True):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _change(self, channel: str) -> None:
        self._changed.add(channel)
        self._has_changed.set()

    async def _subscribe(self, pubsub: PubSub) -> None:
        """Subscribe and unsubscribe as channels come and go. Changes of one moment share a command."""
        subscribed: set[str] = set()
        await pubsub.subscribe(self._always)
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            changed, self._changed = self._changed, set()
            wanted = changed & self._wanted
            if left := (changed - wanted) & subscribed:
                await pubsub.unsubscribe(*left)
            if new := wanted - subscribed:
                await pubsub.subscribe(*new)
            for channel in wanted & subscribed:
                self._on_active(channel)
            subscribed = (subscribed | new) - left

    async def _listen(self, pubsub: PubSub) -> None:
        connection: Any = pubsub.connection
        while True:
            # the part of `get_message` that is needed: every answer passes here
            said = await connection.read_response(timeout=math.inf, push_request=True)
            self._is_silent, self.was_active = False, True
            if said[0] == b"message":
                self._on_message(said[1], said[2])
            elif (message := await pubsub.handle_message(said)) is not None and message["type"] == "subscribe":  # type: ignore[no-untyped-call]
                self._on_active(text(message["channel"]))

    async def _ask_where_it_is_silent(self, pubsub: PubSub) -> None:
        is_asked, self._is_silent = False, True
        while True:
            await asyncio.sleep(SILENCE_S)
            if self._is_silent and is_asked:
                raise exceptions.ConnectionError("no answer to a ping")
            # set before the ping: its answer may be read before the ping returns
            is_asked, self._is_silent = self._is_silent, True
            if is_asked:
                await pubsub.ping()


async def hear_cancels(redis: Redis, director: str) -> AsyncGenerator[None]:
    """Yield once a director is subscribed to its cancels, since one may have come before, and then for each cancel.

    `redis` is a blocking client made for LISTEN_S. Raises RedisError.
    """
    async with redis.pubsub() as messages:
        await messages.subscribe(keys.kick_channel(director))
        yield
        while True:
            if await messages.get_message(ignore_subscribe_messages=True, timeout=LISTEN_S):
                yield
