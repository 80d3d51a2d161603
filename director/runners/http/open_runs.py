"""The runs of one runner that are under way, each followed by a task of its own.

Whatever happens in such a task, its reader gets exactly one end. Never knows what a run is.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from director.runners.feed import Feed
from director.runners.runner import Ended, Outcome, RunEvent, RunRequest

__all__ = ("HUNG_UP", "Follow", "OpenRuns")

log = logging.getLogger(__name__)

LET_GO: Final = Ended(outcome=Outcome.LOST, error="The director let go of the run")
HUNG_UP: Final = Ended(outcome=Outcome.CANCELED, error="The director hung up")

Follow = Callable[[RunRequest, Feed], Awaitable[Ended]]
"""Follows a run to its end. Canceled, it lets go of the server at once."""


class OpenRuns:
    """`read_ahead`: bytes of one run that wait for its reader, before the server has to."""

    def __init__(self, *, read_ahead: int) -> None:
        self._read_ahead = read_ahead
        self._open: dict[str, asyncio.Task[None]] = {}
        self._hung_up: set[asyncio.Task[None]] = set()
        self._closed = False

    def __contains__(self, prediction_id: object) -> bool:
        return prediction_id in self._open

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
        self._hung_up.add(following)
        following.cancel()
        return True

    async def aclose(self) -> None:
        """Let go of every run."""
        self._closed = True
        if open_runs := set(self._open.values()):
            for following in open_runs:
                following.cancel()
            await asyncio.wait(open_runs)

    async def _follow(self, request: RunRequest, feed: Feed, follow: Follow) -> None:
        try:
            ended = LET_GO if self._closed else await follow(request, feed)
        except Exception as exc:
            log.exception("following a run failed", extra={"prediction": request.id})
            ended = Ended(outcome=Outcome.LOST, error=f"Following the run failed: {type(exc).__name__}")
        feed.end(ended)

    def _gone(self, request: RunRequest, task: asyncio.Task[None], feed: Feed) -> None:
        if self._open.get(request.id) is task:
            del self._open[request.id]
        feed.end(HUNG_UP if task in self._hung_up else LET_GO)  # of those that ended by themselves, the end was told
        self._hung_up.discard(task)
