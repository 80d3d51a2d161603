"""Follow a run by callbacks alone, on a server that hears nothing else while it holds a PUT open.

The PUT is answered at once, and the end is taken from the last callback, which such a server repeats for minutes until
it is heard. One that is not at work any more, and has told no end, has lost the run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

from director.servers.runners.cog_answers import Again, read_end, read_snapshot
from director.servers.runners.cog_health import Sighting
from director.servers.runners.cog_progress import Progress
from director.servers.runners.cog_put import Run, create_body, read_whole
from director.servers.runners.connections import Connection
from director.servers.runners.feed import RAN, Feed
from director.servers.runners.inbox import Inbox, Mailbox
from director.servers.runners.runner import Ended, HealthStatus, Outcome
from director.servers.runners.untrusted import Unreadable

__all__ = ("put_called",)

ACCEPTED: Final = 202
LOOK_AFTER_S: Final = 1.0
TOLD_WITHIN_S: Final = 5.0  # the last callback is sent before the server says that it is ready again
GONE: Final = frozenset({HealthStatus.UNREACHABLE, HealthStatus.DEFUNCT, HealthStatus.SETUP_FAILED})
UNTOLD: Final = Ended(outcome=Outcome.LOST, error="The model server is done with the run and never told its end")


async def put_called(
    connection: Connection,
    run: Run,
    feed: Feed,
    *,
    inbox: Inbox,
    look: Callable[[], Awaitable[Sighting]],
    accepted: Callable[[], None],
) -> Ended | Again:
    """Start the run and wait for the callback that tells its end. No earlier run of its id may be left on the server.

    Raises `httpx.TransportError` when the connection breaks before the run was taken.
    """
    with inbox.subscribe(run.key) as mailbox:
        events = ("output", "logs", "completed") if run.request.wants_progress else ("completed",)
        body = create_body(run, webhook=inbox.url_for(run.key), events=events)
        response = await connection.send(
            "PUT", run.path, content=body, prefer="respond-async", trace=run.request.trace, sent=feed.sent
        )
        async with aclosing(response):
            feed.answered()
            if response.status_code != ACCEPTED:
                return await read_whole(run, response)
        accepted()
        feed.begin()
        return await _Calls(run, feed, mailbox).end(look)


class _Calls:
    """The callbacks of one run."""

    def __init__(self, run: Run, feed: Feed, mailbox: Mailbox) -> None:
        self._run = run
        self._feed = feed
        self._mailbox = mailbox
        self._progress = Progress(is_array=run.is_array) if run.request.wants_progress else None

    async def end(self, look: Callable[[], Awaitable[Sighting]]) -> Ended:
        """Take callbacks until one tells the end, or the server shows that none will."""
        now = asyncio.get_running_loop().time
        idle_since: float | None = None
        while True:
            try:
                async with asyncio.timeout(LOOK_AFTER_S):
                    body = await self._mailbox.get()
            except TimeoutError:
                health = (await look()).health
                if health.status in GONE:
                    error = f"The model server went away under the run: {health.detail}"
                    return Ended(outcome=Outcome.LOST, error=error, server_is_dead=True)
                idle_since = None if health.status is HealthStatus.BUSY else (idle_since or now())
                if idle_since is not None and now() - idle_since >= TOLD_WITHIN_S:
                    return UNTOLD
                continue
            if (ended := self._take(body)) is not None:
                return ended

    def _take(self, body: bytes) -> Ended | None:
        try:
            snapshot = read_snapshot(body, prediction_id=self._run.request.id)
        except Unreadable:  # whoever sent that, the server shows what became of the run
            return None
        ended = (
            read_end(body, prediction_id=self._run.request.id, coglet=self._run.coglet)
            if snapshot.is_terminal
            else None
        )
        if self._progress is not None and (ended is None or ended.outcome in RAN):
            for event in self._progress.news(output=snapshot.output_or_none, logs=snapshot.logs):
                self._feed.add(event, size=len(body))
        return ended
