"""Take back what was reserved and stored for a prediction that its queue did not take."""

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Self, TypeVar

from director.core.errors import BackendUnavailable, QueueError

log = logging.getLogger(__name__)
Reply = TypeVar("Reply")


class Undo:
    """Take back what was pushed, the last first, if the block fails and the queue certainly took nothing. After a lost
    reply nothing is taken back: the prediction may be accepted. `outer`: the Undo of the block around, which then knows
    as much of the queue.
    """

    def __init__(self, outer: "Undo | None" = None) -> None:
        self._steps: list[Callable[[], object]] = []
        self._outer = outer
        self._may_be_taken = False

    def push(self, step: Callable[[], object]) -> None:
        self._steps.append(step)

    async def enqueue(self, call: Awaitable[Reply]) -> Reply:
        """Await the call that gives the prediction to its queue. Only its refusal says that nothing was taken."""
        self._may_be_taken = True
        try:
            return await call
        except QueueError:
            self._may_be_taken = False
            raise
        except BackendUnavailable as exc:
            self._may_be_taken = not exc.is_untouched
            raise

    async def note_repeat(self) -> None:
        """Take back at once: another prediction has its idempotency key."""
        self._may_be_taken = False
        await self._carry_out()

    async def _carry_out(self) -> None:
        while self._steps:
            step = self._steps.pop()
            try:
                if isawaitable(done := step()):
                    await done
            except BackendUnavailable as exc:  # the others go on, and the caller gets the answer that it would get
                log.warning("what a refused prediction had reserved stays", extra={"reason": str(exc)})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if self._outer is not None:
            self._outer._may_be_taken = self._may_be_taken
        try:
            if exc is not None and not self._may_be_taken:
                await self._carry_out()
        finally:
            self._steps.clear()  # a step may name this object, which would then wait for the garbage collector
