"""Send the commands of one turn of the loop in one write, as the product does."""

import asyncio
from typing import Any

from redis.asyncio import Redis

Command = tuple[tuple[Any, ...], "asyncio.Future[Any]"]


class Gathered:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: list[Command] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def call(self, *command: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((command, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._send)
        return await answer

    def _send(self) -> None:
        commands, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._deliver(commands))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, commands: list[Command]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for command, _ in commands:
            pipe.execute_command(*command)
        for (_, answer), reply in zip(commands, await pipe.execute(raise_on_error=False), strict=True):
            if isinstance(reply, Exception):
                answer.set_exception(reply)
            else:
                answer.set_result(reply)
