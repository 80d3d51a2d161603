"""The runs of one runner that are under way, each followed by a task: one of its own, or that of who hears of it.

Whatever happens in such a task, who reads or hears gets exactly one end, unless it lets go itself. Never knows what a
run is.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeVar

from director.servers.runners.feed import Feed, Voice
from director.servers.runners.runner import Ended, Hear, Outcome, RunEvent, RunRequest

__all__ = ("HUNG_UP", "Follow", "FollowOne", "OpenRuns")

log = logging.getLogger(__name__)

LET_GO: Final = Ended(outcome=Outcome.LOST, error="The director let go of the run")
HUNG_UP: Final = Ended(outcome=Outcome.CANCELED, error="The director hung up")

Told = TypeVar("Told", bound=Voice)

Follow = Callable[[RunRequest, Feed], Awaitable[Ended]]
"""Follows a run to its end. Canceled, it lets go of the server at once."""

FollowOne = Callable[[RunRequest, Voice], Awaitable[Ended]]
"""The same, of a run that shows nothing before its end: nobody has to be slowed."""


class OpenRuns:
    """`read_ahead`: bytes of one run that wait for its reader, before the server has to."""

    def __init__(self, *, read_ahead: int) -> None:
        self._read_ahead = read_ahead
        self._open: dict[str, asyncio.Task[object]] = {}
        self._let_go: dict[asyncio.Task[object], Ended] = {}
        self._closed = False
        self._emptied = asyncio.Event()

    def __contains__(self, prediction_id: object) -> bool:
        return prediction_id in self._open

    async def hear(self, request: RunRequest, follow: FollowOne, hear: Hear) -> None:
        """Follow a run that shows nothing before its end, in the task of who calls. Canceled, it lets go."""
        voice, task = Voice(hear), asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: a coroutine runs in one
        asked = task.cancelling()
        self._open[request.id] = task
        try:
            ended = await self._end_of(request, voice, follow)
        except asyncio.CancelledError:
            if task not in self._let_go or task.cancelling() > asked + 1:  # whoever hears is to let go itself
                voice.hush()
                raise
            ended = self._let_go[task]
        finally:
            if self._forget(request, task) is not None:
                task.uncancel()
        voice.end(ended)

    async def run(self, request: RunRequest, follow: Follow) -> AsyncGenerator[RunEvent, None]:
        """The events of a run, up to its end. Closed early, it lets go of the server before it returns."""
        feed = Feed(read_ahead=self._read_ahead)
        following = asyncio.create_task(self._follow(request, feed, follow), name=f"run of {request.id}")
        self._open[request.id] = following
        # here and not below: a task that is canceled before its first step runs nothing of its own
        following.add_done_callback(lambda task: self._gone(request, task, feed))
        try:
            while True:
                event = await feed.next()
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            if not following.done():
                following.cancel()
                await asyncio.wait({following})

    def hang_up(self, prediction_id: str) -> bool:
        """Let go of the server; the run ends as canceled. False where no such run is open."""
        following = self._open.get(prediction_id)
        if following is None:
            return False
        self._cancel(following, HUNG_UP)
        return True

    async def aclose(self) -> None:
        """Let go of every run."""
        self._closed = True
        for following in set(self._open.values()):
            self._cancel(following, LET_GO)
        if self._open:
            self._emptied.clear()
            await self._emptied.wait()

    def _cancel(self, following: asyncio.Task[object], end: Ended) -> None:
        if following not in self._let_go:  # asked twice, it would not even see to it that the server stops
            self._let_go[following] = end
            following.cancel()

    async def _follow(self, request: RunRequest, feed: Feed, follow: Follow) -> None:
        feed.end(await self._end_of(request, feed, follow))

    async def _end_of(
        self, request: RunRequest, told: Told, follow: Callable[[RunRequest, Told], Awaitable[Ended]]
    ) -> Ended:
        try:
            return LET_GO if self._closed else await follow(request, told)
        except Exception as exc:
            log.exception("following a run failed", extra={"prediction": request.id})
            return Ended(outcome=Outcome.LOST, error=f"Following the run failed: {type(exc).__name__}")

    def _gone(self, request: RunRequest, task: asyncio.Task[None], feed: Feed) -> None:
        feed.end(self._forget(request, task) or LET_GO)  # of those that ended by themselves, the end was told

    def _forget(self, request: RunRequest, task: asyncio.Task[None] | asyncio.Task[object]) -> Ended | None:
        """The end that it was let go of with, if it was by us."""
        if self._open.get(request.id) is task:
            del self._open[request.id]
        if not self._open:
            self._emptied.set()
        return self._let_go.pop(task, None)
