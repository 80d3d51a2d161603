"""Move what waits in a queue to another one of the same model: an old version's to its successor.

Each slice is one step of the server, so what is cut short has moved some and harmed none, and is done by the same call
once more. What is claimed ends where it is; where it comes back to wait, the next call moves it.
"""

from collections.abc import AsyncIterator
from typing import Final

from msgspec import Struct

from director.broker.scripts import Scripts
from director.core.errors import SettingsError, UnknownQueue
from director.core.ids import QueueName, model_and_kind

__all__ = ("Migration", "Moved")

SLICE: Final = 50  # a few milliseconds of the server, which serves others too
PASSES: Final = 10


class Moved(Struct, frozen=True, kw_only=True):
    """So far: how many were moved; of the last pass, how many stay since they are claimed, or their account paused."""

    moved: int = 0
    claimed: int = 0
    held: int = 0


class Migration:
    """From one queue to another. Raises BackendUnavailable while Redis cannot answer."""

    def __init__(self, scripts: Scripts, queue: QueueName, to: QueueName) -> None:
        if queue == to:
            raise SettingsError("That is the same queue twice.")
        if model_and_kind(queue) != model_and_kind(to):
            raise SettingsError(f"{queue} and {to} are not of one model, or not for one kind of run.")
        self._scripts = scripts
        self._queue = queue
        self._to = to

    async def steps(self, *, only_asks: bool = False) -> AsyncIterator[Moved]:
        """Move all that waits, slice by slice; what was done by then. `only_asks`: what would be, and nothing is.

        It looks through the queue again until it finds nothing more there, but ten times at most: what comes faster
        than that has to be stopped first.
        """
        moved = 0
        for _ in range(PASSES):
            claimed = held = start = 0
            before = moved
            while True:
                found = await self._scripts.migrate(
                    self._queue, to=self._to, start=start, count=SLICE, only_asks=only_asks
                )
                if found is None:
                    raise UnknownQueue(self._to)
                moved, claimed, held = moved + found.moved, claimed + found.claimed, held + found.held
                yield Moved(moved=moved, claimed=claimed, held=held)
                start = found.next
                if start < 0:
                    break
            if only_asks or moved == before:
                return
