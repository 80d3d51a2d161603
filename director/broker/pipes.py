"""Make round trips to Redis over kept connections: many commands leave in one write. Nothing is sent twice.

The client's own pipeline takes several times as long for one command: it takes a connection from the pool and returns
it each time. Here a connection stays borrowed while it is busy and for a moment after.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, cast

from redis import exceptions
from redis.asyncio import Redis

from director.broker.cluster import DOUBTS, ClusterPool, asks, in_parts, moving
from director.broker.connections import Patience, Patient, unsent

KEPT_S: Final = 0.05
# connections of the pool left for the client's own commands, since the client does not know of the kept ones
SPARE: Final = 2


class Pipes:
    """Round trips to the server of one client. If nothing moves for `timeout_s`, the connection is closed."""

    def __init__(self, redis: Redis, *, timeout_s: float) -> None:
        self._pool = redis.connection_pool
        self._timeout_s = timeout_s
        self._kept: list[Patient] = []
        self._most = max(0, self._pool.max_connections - SPARE)
        self._wanting = 0
        self._used = False
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def ask(self, commands: Sequence[bytes], names: Sequence[str] = ()) -> list[Any]:
        """Send packed commands and return an answer to each, which may be an error reply. `names` are not needed.

        Raises redis' ConnectionError or TimeoutError; whether the commands were carried out is then unknown.
        """
        connection = await self._taken()
        is_good = False
        try:
            with Patience(connection, self._timeout_s, sending=sum(map(len, commands))):
                await connection.send_packed_command(commands, check_health=False)
                replies = [await _reply(connection) for _ in commands]
            is_good = not connection.should_reconnect()  # type: ignore[no-untyped-call]
        except TimeoutError as exc:
            raise exceptions.TimeoutError("Redis did not answer in time") from exc
        finally:
            if is_good and not self._wanting and len(self._kept) < self._most:
                self._keep(connection)
            else:
                await self._give_back(connection, is_good=is_good)
        return replies

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._kept:
            await self._give_back(self._kept.pop())
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _taken(self) -> Patient:
        while self._kept:
            connection = self._kept.pop()
            if not await _has_ended(connection):
                return connection
            await self._give_back(connection, is_good=False)
        self._wanting += 1
        try:
            connection = cast(Patient, await self._pool.get_connection())  # type: ignore[no-untyped-call]
        except exceptions.RedisError as exc:
            raise unsent(exc)  # noqa: B904 - the same one
        finally:
            self._wanting -= 1
        # one timer for a whole round trip, not one for each read and write
        connection.silence_s = None
        return connection

    def _keep(self, connection: Patient) -> None:
        self._kept.append(connection)
        self._used = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_S, self._tidy)

    def _tidy(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(KEPT_S, self._tidy) if self._used else None
        if not self._used:
            while self._kept:
                task = loop.create_task(self._give_back(self._kept.pop()))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        self._used = False

    async def _give_back(self, connection: Patient, *, is_good: bool = True) -> None:
        if not is_good:
            await connection.disconnect(nowait=True)
        connection.silence_s = self._pool.connection_kwargs.get("socket_timeout")
        await self._pool.release(connection)


async def _reply(connection: Patient) -> Any:
    try:
        return await connection.read_response()
    except exceptions.ResponseError as exc:
        return exc


async def _has_ended(connection: Patient) -> bool:
    """Return whether the server has closed an idle connection: nothing else can be there to read."""
    try:
        return await connection.can_read()
    except exceptions.ConnectionError:
        return True


# Only commands refused as moved are sent again, wherever a slot went. See cluster.py.


class ClusterPipes:
    def __init__(self, slots: ClusterPool, *, timeout_s: float) -> None:
        self._slots = slots
        self._timeout_s = timeout_s
        self._pipes: dict[Redis, Pipes] = {}

    async def ask(self, commands: Sequence[bytes], names: Sequence[str]) -> list[Any]:
        """Send each command to the master of its key (`names`). Raises if nothing was sent at all."""

        def send(node: Redis, indexes: Sequence[int]) -> Awaitable[list[Any]]:
            return self._ask(node, [commands[index] for index in indexes])

        return await in_parts(self._slots, names, send)

    async def aclose(self) -> None:
        for pipes in self._pipes.values():
            await pipes.aclose()

    async def _ask(self, node: Redis, commands: list[bytes]) -> list[Any]:
        """Return an error as the answer to its own commands: another master may have carried out the others."""
        pipes = self._pipes.get(node)
        if pipes is None:
            pipes = self._pipes[node] = Pipes(node, timeout_s=self._timeout_s)
        try:
            replies = self._slots.heard(await pipes.ask(commands))
        except DOUBTS as exc:
            self._slots.doubt()
            return [exc] * len(commands)
        return [moving() if asks(reply) else reply for reply in replies]
