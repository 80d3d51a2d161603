"""Script calls to a Cluster over connections that are kept at hand: one write to each master, wherever a slot went.

Never sends a script after a slot that is on its way: see cluster.py. Asks nothing twice but what was refused as moved.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis import exceptions
from redis.asyncio import Redis

from director.core.cluster import DOUBTS, REDIRECTS, moving
from director.core.cluster_slots import ClusterPool
from director.core.pipes import Pipes

__all__ = ("ClusterPipes",)


class ClusterPipes:
    """As `Pipes`, to every master."""

    def __init__(self, slots: ClusterPool, *, timeout_s: float) -> None:
        self._slots = slots
        self._timeout_s = timeout_s
        self._pipes: dict[Redis, Pipes] = {}

    async def ask(self, commands: Sequence[bytes], names: Sequence[str]) -> list[Any]:
        """Send each command to where its key of this name is; their answers, of which an error is one.

        An error reply, or what went wrong with its master. Raises where nothing of all was sent.
        """
        answers: list[Any] = [moving()] * len(commands)
        left = list(range(len(commands)))
        for _ in range(REDIRECTS):
            try:
                parts = await self._parts(left, names)
            except exceptions.RedisError as exc:
                if len(left) == len(commands):
                    raise
                for index in left:
                    answers[index] = exc
                break
            left = []
            for node, index, answer in await self._ask_all(parts, commands):
                if isinstance(answer, exceptions.MovedError):
                    self._slots.redirected(node, answer)
                    left.append(index)
                else:
                    answers[index] = moving() if isinstance(answer, exceptions.AskError) else answer
            if not left:
                break
        return answers

    async def _parts(self, left: Sequence[int], names: Sequence[str]) -> dict[Redis, list[int]]:
        parts: dict[Redis, list[int]] = {}
        for index in left:
            parts.setdefault(await self._slots.serving(names[index]), []).append(index)
        return parts

    async def aclose(self) -> None:
        """Give back what is kept."""
        for pipes in self._pipes.values():
            await pipes.aclose()

    async def _ask_all(self, parts: dict[Redis, list[int]], commands: Sequence[bytes]) -> list[tuple[Redis, int, Any]]:
        asked = [self._ask(node, [commands[index] for index in indexes]) for node, indexes in parts.items()]
        # each is heard to its end, so that none is left behind with a connection
        heard = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked, return_exceptions=True)
        answers = []
        for (node, indexes), replies in zip(parts.items(), heard, strict=True):
            if isinstance(replies, BaseException):
                raise replies
            answers += [(node, index, reply) for index, reply in zip(indexes, replies, strict=True)]
        return answers

    async def _ask(self, node: Redis, commands: list[bytes]) -> list[Any]:
        """What went wrong is the answer to its own commands: another master may have carried out the others."""
        pipes = self._pipes.get(node)
        if pipes is None:
            pipes = self._pipes[node] = Pipes(node, timeout_s=self._timeout_s)
        try:
            replies = await pipes.ask(commands, answers=len(commands))
        except DOUBTS as exc:
            self._slots.doubt()
            return [exc] * len(commands)
        if any(isinstance(reply, exceptions.ClusterDownError) for reply in replies):
            self._slots.doubt()
        return replies
