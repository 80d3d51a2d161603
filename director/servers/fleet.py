"""Which model servers there are: made, watched, and let go of once nothing runs on them any more.

A server that is to be driven in another way is another one: the former gets no more runs, finishes those it has, and
only then the new one begins, so that no slot is used twice. Another number of slots is in force at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct

from director.core.runner_config import RunnerConfig
from director.servers.servers import Server, Servers

__all__ = ("Driven", "Fleet")


class Driven(Struct, frozen=True):
    """Where a server is, and how it is driven."""

    url: str
    config: RunnerConfig


class _Kept(Struct, eq=False):
    server: Server
    scope: anyio.CancelScope


class Fleet:
    """Keeps `servers` as they are wanted. `make` makes one, `watch` looks after it until it is canceled."""

    def __init__(
        self,
        servers: Servers,
        *,
        make: Callable[[Driven, int], Server],
        watch: Callable[[Server], Awaitable[None]],
    ) -> None:
        self._servers = servers
        self._make = make
        self._watch = watch
        self._kept: list[tuple[Driven, _Kept]] = []
        self._leaving: list[tuple[Driven, Server]] = []
        self._wanted: tuple[Driven, ...] = ()
        self._slots = 1
        self._news = asyncio.Event()

    def want(self, wanted: Sequence[Driven], *, slots: int) -> None:
        """From now on these, with so many slots each."""
        self._wanted, self._slots = tuple(wanted), slots
        self._news.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Bring them about, for ever. Started when those that are wanted first are made."""
        async with anyio.create_task_group() as tasks:
            self._change(tasks)
            task_status.started()
            while True:
                await self._news.wait()
                self._news.clear()
                self._change(tasks)

    async def aclose(self) -> None:
        """Let go of the connections to all of them."""
        for server in [*self._servers.all, *(server for _, server in self._leaving)]:
            await server.runner.aclose()

    def _change(self, tasks: TaskGroup) -> None:
        wanted = list(self._wanted)
        for driven, kept in list(self._kept):
            if driven in wanted:
                wanted.remove(driven)
                self._servers.resize(kept.server, self._slots)
            else:
                self._kept.remove((driven, kept))
                self._servers.remove(kept.server)
                kept.scope.cancel()
                self._leaving.append((driven, kept.server))
                tasks.start_soon(self._let_go, driven, kept.server)
        for driven in wanted:
            if any(former.url == driven.url for former, _ in self._leaving):
                continue  # it comes once the former has ended its runs
            kept = _Kept(self._make(driven, self._slots), anyio.CancelScope())
            self._kept.append((driven, kept))
            self._servers.add(kept.server)
            tasks.start_soon(self._look_after, kept)

    async def _look_after(self, kept: _Kept) -> None:
        with kept.scope:
            await self._watch(kept.server)

    async def _let_go(self, driven: Driven, server: Server) -> None:
        while server.busy or server.waiting:
            await self._servers.changed()
        await server.runner.aclose()
        self._leaving.remove((driven, server))
        self._news.set()
