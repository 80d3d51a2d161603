"""Follow a run by a PUT that is answered when it has ended, with callbacks for what is seen on the way.

The end is taken only from the answer. Callbacks come late, twice and in any order: they add progress, and to a failure
the logs and the partial output that coglet leaves out of its answer.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from msgspec.structs import replace

from director.servers.runners.cog_answers import OUTCOMES, Again, Snapshot, read_snapshot
from director.servers.runners.cog_progress import Progress
from director.servers.runners.cog_put import Run, create_body, read_whole
from director.servers.runners.connections import Connection
from director.servers.runners.feed import RAN, Feed
from director.servers.runners.inbox import Inbox, Mailbox
from director.servers.runners.runner import Ended, Outcome
from director.servers.runners.untrusted import Unreadable

__all__ = ("put_sync",)

COMPLETED_WITHIN_S: Final = 0.25  # it comes within 1 ms of the answer, or hardly ever


async def put_sync(connection: Connection, run: Run, feed: Feed, *, inbox: Inbox | None) -> Ended | Again:
    """Start the run and wait for its answer. Without an inbox there is no progress, and coglet's failures have no logs.

    Raises `httpx.TransportError` when the connection breaks.
    """
    progress = Progress(is_array=run.is_array) if run.request.wants_progress else None
    async with _callbacks(run, feed, progress, inbox) as callbacks:
        body = create_body(run, webhook=callbacks.url, events=callbacks.events)
        response = await connection.send("PUT", run.path, content=body, trace=run.request.trace, sent=feed.sent)
        async with aclosing(response):
            feed.answered()
            answer = await read_whole(run, response)
        if isinstance(answer, Again):
            return answer
        whole = run.kind.tells_all_at_end or response.status_code != 200
        ended = answer if whole else await callbacks.complete(answer)
    if progress is not None and ended.outcome in RAN:
        for event in progress.news(output=ended.output, logs=ended.logs):  # what the callbacks were too late for
            feed.add(event, size=0)
    return ended


class _Callbacks:
    """What the callbacks of one run told."""

    def __init__(self, run: Run, feed: Feed, progress: Progress | None, *, url: str | None = None) -> None:
        self.url = url
        self.events = _events(run) if url is not None else ()
        self._run = run
        self._feed = feed
        self._progress = progress
        self._last: Snapshot | None = None
        self._completed = asyncio.Event()

    async def read(self, mailbox: Mailbox) -> None:
        """Take callbacks until canceled."""
        while True:
            body = await mailbox.get()
            with suppress(Unreadable):  # whoever sent that, the answer will tell
                self._take(read_snapshot(body, prediction_id=self._run.request.id), size=len(body))

    def _take(self, snapshot: Snapshot, *, size: int) -> None:
        if snapshot.is_terminal:
            self._last = snapshot
            self._completed.set()
        elif self._progress is not None:
            for event in self._progress.news(output=snapshot.output_or_none, logs=snapshot.logs):
                self._feed.add(event, size=size)

    async def complete(self, ended: Ended) -> Ended:
        """Add to a failure what only the last callback tells."""
        if self.url is None or ended.outcome is Outcome.SUCCEEDED:
            return ended
        with suppress(TimeoutError):
            async with asyncio.timeout(COMPLETED_WITHIN_S):
                await self._completed.wait()
        last = self._last
        if last is None or OUTCOMES[last.status] is Outcome.SUCCEEDED:
            return ended
        return replace(ended, logs=ended.logs or last.logs, output=ended.output or last.output_or_none)


@asynccontextmanager
async def _callbacks(run: Run, feed: Feed, progress: Progress | None, inbox: Inbox | None) -> AsyncIterator[_Callbacks]:
    if inbox is None or not _events(run):
        yield _Callbacks(run, feed, progress)
        return
    with inbox.subscribe(run.key) as mailbox:
        callbacks = _Callbacks(run, feed, progress, url=inbox.url_for(run.key))
        reading = asyncio.create_task(callbacks.read(mailbox), name=f"callbacks of {run.request.id}")
        try:
            yield callbacks
        finally:
            reading.cancel()
            await asyncio.wait({reading})


def _events(run: Run) -> tuple[str, ...]:
    """What to be called back for: each callback costs the server, and holds the slot of a Python one."""
    on_the_way = ("output", "logs") if run.request.wants_progress else ()
    return on_the_way if run.kind.tells_all_at_end else (*on_the_way, "completed")
