"""Script calls to a Cluster over connections that are kept at hand: one write to each master, wherever a slot went.

Never sends a script after a slot that is on its way: see cluster.py. Asks nothing twice but what was refused as moved.
"""

from collections.abc import Awaitable, Sequence
from typing import Any

from redis import exceptions
from redis.asyncio import Redis

from director.broker.cluster import DOUBTS, asks, in_parts, moving
from director.broker.cluster_slots import ClusterPool
from director.broker.pipes import Pipes

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

        def send(node: Redis, indexes: Sequence[int]) -> Awaitable[list[Any]]:
            return self._ask(node, [commands[index] for index in indexes])

        return await in_parts(self._slots, names, send)

    async def aclose(self) -> None:
        """Give back what is kept."""
        for pipes in self._pipes.values():
            await pipes.aclose()

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
        return [moving() if asks(reply) else reply for reply in replies]
