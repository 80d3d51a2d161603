"""Deliver terminal webhooks that are owed: those that nobody could deliver at once, for as long as the schedule lasts.

Never decides what is said or when the next attempt is: see director.webhooks. Several couriers may work at once:
`due` hands each attempt to one of them, and takes it back only when that one must have given up on it.
"""

import logging
from collections import Counter
from typing import Final

import anyio
from msgspec import Struct, field

from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import Partition, PredictionId
from director.core.scripts import Scripts
from director.keeper.sweep import LIMIT, Registry, repeat, sweep
from director.webhooks.terminal import TerminalWebhooks

__all__ = ("Courier", "Told")

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
# How long an attempt is ours. The sender may need a place first: what has none by then is left to the next round.
HOLD_S: Final = 30.0
PATIENCE_S: Final = 25.0
# All rounds together; beyond it what is due waits in Redis.
MOST_UNDER_WAY: Final = 256
DRAIN_STEP_S: Final = 0.05


class Told(Struct, frozen=True):
    """How the attempts of one round went: outcome → how many. `left` had to wait too long for their receiver."""

    outcomes: Counter[str] = field(default_factory=Counter)
    left: int = 0


class Courier:
    """Delivers what is owed in all partitions that have a queue."""

    def __init__(
        self,
        scripts: Scripts,
        registry: Registry,
        webhooks: TerminalWebhooks,
        clock: Clock,
        *,
        hold_s: float = HOLD_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._scripts = scripts
        self._registry = registry
        self._webhooks = webhooks
        self._clock = clock
        self._hold_s = hold_s
        self._patience_s = patience_s
        self._under_way = 0
        self._is_draining = False

    async def run(self) -> None:
        """Begin a round every second, without waiting for the last: a silent receiver delays only its own."""
        async with anyio.create_task_group() as rounds:

            async def begin() -> None:
                due = await self._take()
                if due:
                    rounds.start_soon(self._deliver_all, due)

            await repeat(begin, role="courier", tick_s=TICK_S, clock=self._clock)

    async def run_once(self) -> Told:
        """One round: try all that is due now, together, and see how each went."""
        return await self._deliver_all(await self._take())

    async def drain(self) -> None:
        """Take no more, and wait until what is under way has ended."""
        self._is_draining = True
        while self._under_way:
            await self._clock.sleep(DRAIN_STEP_S)

    async def _take(self) -> list[PredictionId]:
        partitions = await self._registry.partitions()
        room = MOST_UNDER_WAY - self._under_way
        if not partitions or room <= 0 or self._is_draining:
            return []
        # each partition has its share, so that none is starved by the one before it
        limit = min(LIMIT, -(-room // len(partitions)))

        async def due(partition: Partition) -> list[PredictionId]:
            return await self._scripts.due(partition, limit=limit, hold_s=self._hold_s)

        taken = [prediction_id for batch in (await sweep(partitions, due)).values() for prediction_id in batch]
        self._under_way += len(taken)
        return taken

    async def _deliver_all(self, due: list[PredictionId]) -> Told:
        outcomes: Counter[str] = Counter()
        async with anyio.create_task_group() as deliveries:
            for prediction_id in due:
                deliveries.start_soon(self._deliver, prediction_id, outcomes)
        return Told(outcomes, left=len(due) - outcomes.total())

    async def _deliver(self, prediction_id: PredictionId, outcomes: Counter[str]) -> None:
        try:
            with anyio.move_on_after(self._patience_s):
                outcomes[(await self._webhooks.deliver(prediction_id)).outcome] += 1
        except BackendUnavailable as exc:
            log.warning("webhook's attempt is not noted", extra={"prediction": prediction_id, "error": str(exc)})
        except Exception:
            # one that cannot be delivered must not take the others with it: it is due again when the hold ends
            log.exception("webhook broke its delivery", extra={"prediction": prediction_id})
        finally:
            self._under_way -= 1
