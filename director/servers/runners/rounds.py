"""The runs of one batch on their way through one slot: request after request, and never two at once.

What failed together is sent again in halves, until the one that is to blame fails alone. Who is let go of meanwhile
leaves the others as they are; the server is let go of with the last one. Never knows what is sent.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final

from msgspec import Struct

from director.servers.runners.batch import Batch
from director.servers.runners.feed import Voice
from director.servers.runners.runner import Ended, Outcome, RunRequest

__all__ = ("Rounds", "Send", "Together")

# Who looks up files for longer goes after the others
LATE_S: Final = 1.0
# An answer to all of them that may be the fault of one
MAY_BE_ONE: Final = frozenset({Outcome.FAILED, Outcome.INVALID})
# A server that is about to die still takes connections, and would cost whoever goes next an attempt
NOT_SENT: Final = Ended(outcome=Outcome.REFUSED, error="The model server died before it was sent there")


class Together(Struct, eq=False):
    """One of the runs. `shared`: it can go only with those that have the same; None where it has to go alone."""

    request: RunRequest
    feed: Voice
    shared: Hashable
    end: asyncio.Future[Ended]


Send = Callable[[Sequence[Together]], Awaitable[Sequence[Ended] | Ended]]
"""Sends one request: the end of each run, or one end that the request as a whole came to."""


class Rounds:
    """Of one batch."""

    def __init__(self, batch: Batch, send: Send) -> None:
        self._send = send
        self._runs: set[Together] = set()
        self._come: list[Together] = []
        self._waiting: deque[list[Together]] = deque()
        self._sent: list[Together] = []
        self._request: asyncio.Task[Sequence[Ended] | Ended] | None = None
        self._lead: asyncio.Task[None] | None = None
        self._gathered = asyncio.Event()
        batch.on_gathered = self._gathered.set
        if batch.is_gathered:
            self._gathered.set()

    @property
    def is_over(self) -> bool:
        """Is nobody left?"""
        return not self._runs

    async def end_of(self, run: Together) -> Ended:
        """Let it go with the next ones, and wait for its end."""
        self._runs.add(run)
        self._come.append(run)
        if self._lead is None or self._lead.done():
            self._lead = asyncio.create_task(self._go())
        return await run.end

    async def leave(self, run: Together) -> None:
        """It has ended, or was let go of. The last one of a request takes that along."""
        self._runs.discard(run)
        run.end.cancel()
        if self._request is not None and all(each.end.done() for each in self._sent):
            self._request.cancel()
            await asyncio.wait({self._request})

    async def aclose(self) -> None:
        """Nobody comes any more."""
        if self._lead is not None:
            self._lead.cancel()
            await asyncio.wait({self._lead})

    async def _go(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_S):
                await self._gathered.wait()
        while sent := self._next():
            self._sent = sent
            self._request = asyncio.create_task(self._ask(sent))
            await asyncio.wait({self._request})
            if not self._request.cancelled():
                self._tell(sent, self._request)

    def _next(self) -> list[Together]:
        """Who goes next. Those that may be to blame for a death go last."""
        come, self._come = self._come, []
        groups: dict[Hashable, list[Together]] = {}
        for run in come:
            groups.setdefault(run.shared, []).append(run)
        alone = groups.pop(None, [])
        self._waiting += [*groups.values(), *([run] for run in alone)]
        while self._waiting:
            if sent := [run for run in self._waiting.popleft() if not run.end.done()]:
                return sent
        return []

    async def _ask(self, sent: list[Together]) -> Sequence[Ended] | Ended:
        return await self._send(sent)

    def _tell(self, sent: list[Together], request: asyncio.Task[Sequence[Ended] | Ended]) -> None:
        left = [run for run in sent if not run.end.done()]
        if fault := request.exception():
            for run in left:
                run.end.set_exception(fault)
            return
        answer = request.result()
        if isinstance(answer, Ended) and answer.outcome in MAY_BE_ONE and len(sent) > 1:
            half = (len(left) + 1) // 2
            self._waiting.extendleft([left[half:], left[:half]])
            return
        ends = [answer] * len(sent) if isinstance(answer, Ended) else answer
        for run, end in zip(sent, ends, strict=True):
            if not run.end.done():
                run.end.set_result(end)
        if any(end.server_is_dead for end in ends):
            self._give_back_the_rest()

    def _give_back_the_rest(self) -> None:
        rest = [*self._come, *(run for group in self._waiting for run in group)]
        self._come.clear()
        self._waiting.clear()
        for run in rest:
            if not run.end.done():
                run.end.set_result(NOT_SENT)
