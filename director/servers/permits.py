"""Give out the permits for the slots of all model servers, those of the least busy server first.

A server that cannot run anything now gets no permits, and does not hold up the others. Where runs are so short that a
slot would be idle for a good part of its time while the next prediction is claimed, a few permits are given ahead: they
wait for the next slots of their server.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from director.servers.runners.runner import Remainder
from director.servers.server import Permit, Server

TURN_WITHIN_S: Final = 0.5


class Permits:
    """The permits of `servers`, a list that its owner changes. `may_wait`: permits may be given ahead.

    The owner calls `refresh` after it changed a server.
    """

    def __init__(self, servers: list[Server], now: Callable[[], float]) -> None:
        self.may_wait = True
        self._servers = servers
        self._now = now
        self._changed = asyncio.Event()

    @property
    def busy(self) -> int:
        """Slots in use."""
        return sum(server.busy for server in self._servers)

    def take_batches(self) -> bool:
        """True if any server takes several runs in one request."""
        return any(server.places for server in self._servers)

    async def wait(self, *, ahead: bool = False) -> list[Permit]:
        """Wait for a free permit, and return all that are free. `ahead`: with them those that may wait for a slot."""
        while not (permits := self.take() + (self.take_ahead() if ahead and self.may_wait else [])):
            self._changed.clear()
            await self._changed.wait()
        return permits

    def take(self, most: float = math.inf) -> list[Permit]:
        """Return up to `most` free permits without waiting."""
        permits: list[Permit] = []
        free = [(server, server.usable) for server in self._servers if server.free > 0]
        while free and len(permits) < most:
            server, usable = min(free, key=_load) if len(free) > 1 else free[0]
            permits += server.take_slot()
            if server.busy >= usable:
                free.remove((server, usable))
        return permits

    def take_ahead(self) -> list[Permit]:
        """Return permits that wait for the next slots, where runs are short."""
        permits = []
        for server in self._servers:
            while len(server.waiting) < server.ahead:
                server.waiting.append(Permit(server, server.since, turn=asyncio.Event()))
                permits.append(server.waiting[-1])
        return permits

    async def turn(self, permit: Permit) -> bool:
        """Wait until the permit has a slot. False after 0.5 s: runs on that server are not short any more."""
        if permit.turn is not None:
            try:
                async with asyncio.timeout(TURN_WITHIN_S):
                    await permit.turn.wait()
            except TimeoutError:
                permit.server.run_s = math.inf
                return False
        return True

    def start(self, permit: Permit) -> None:
        """Count the run that is about to start with this permit."""
        permit.is_running = True
        permit.started_at = self._now()
        permit.server.runs += 1
        permit.server.running += 1

    def move(self, permit: Permit, remote: str) -> None:
        """Move the permit to the server that runs `remote` already, if there is one: the run uses a slot there, free or
        not.
        """
        if not remote:
            return
        there = next((server for server in self._servers if server.runner.knows(remote)), permit.server)
        if there is permit.server:
            return
        self.release(permit)
        permit.server, permit.since, permit.place, permit.taken, permit.turn = there, there.since, None, True, None
        there.busy += 1

    def extend(self, server: Server, run: Remainder) -> None:
        """Keep a slot in use until `run` is over, longer than the permit of that run."""

        def is_over(_: object) -> None:
            server.busy -= 1
            server.running -= 1
            self.refresh(server)

        server.busy += 1
        server.running += 1
        run.add_done_callback(is_over)

    def release(self, *permits: Permit) -> None:
        """Free the slots of these permits. A permit that was released before is passed over."""
        for server in dict.fromkeys(permit.server for permit in permits if permit.release()):
            server.hand_on()
        self._changed.set()

    def refresh(self, *servers: Server) -> None:
        """Hand on the free slots of these servers, and wake what waits for a change."""
        for server in servers:
            server.hand_on()
        self._changed.set()

    async def changed(self) -> None:
        """Wait until a permit is released or a server changed."""
        self._changed.clear()
        await self._changed.wait()


def _load(free: tuple[Server, int]) -> float:
    server, usable = free
    return server.busy / usable
