"""Deliver terminal webhooks that are owed: those that nobody could deliver at once, for as long as the schedule lasts.

Never decides what is said or when the next attempt is: see director.webhooks. Several couriers may work at once:
`due` hands each attempt to one of them, and takes it back only when that one must have given up on it. However much a
silent host is owed, the others are told within a few rounds: see shares.py.
"""

import logging
from collections import Counter
from typing import Final

import anyio
from msgspec import Struct, field
from redis.asyncio import Redis

from director.core import keys
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import Partition, PredictionId
from director.core.redis_client import ask, text
from director.core.scripts import Scripts
from director.core.webhook_url import read_webhook_url
from director.keeper.registry import Registry
from director.keeper.shares import Shares
from director.keeper.sweep import LIMIT, repeat, sweep
from director.webhooks.terminal import TerminalWebhooks

__all__ = ("Courier", "Told")

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
# How long an attempt is ours. It may stand in line first: what has no place by then is left to a later round.
HOLD_S: Final = 30.0
PATIENCE_S: Final = 25.0
# In one round, as long as some of what is due has to be left because the line of its host is full
MOST_TAKES: Final = 16
DRAIN_STEP_S: Final = 0.05


class Told(Struct, frozen=True):
    """How the attempts of one round went: outcome → how many. `left` had to wait too long for their receiver."""

    outcomes: Counter[str] = field(default_factory=Counter)
    left: int = 0


class Owed(Struct, frozen=True):
    """An attempt that is ours for now, and the host that it goes to."""

    id: PredictionId
    host: str


class Courier:
    """Delivers what is owed in all partitions that owe one."""

    def __init__(
        self,
        redis: Redis,
        scripts: Scripts,
        registry: Registry,
        webhooks: TerminalWebhooks,
        clock: Clock,
        *,
        hold_s: float = HOLD_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._redis = redis
        self._scripts = scripts
        self._registry = registry
        self._webhooks = webhooks
        self._clock = clock
        self._hold_s = hold_s
        self._patience_s = patience_s
        self._shares = Shares()
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
        while not self._shares.are_empty:
            await self._clock.sleep(DRAIN_STEP_S)

    async def _take(self) -> list[Owed]:
        """What is due, as far as there are places. What its host's line has no end for is due again after the hold."""
        taken: list[Owed] = []
        try:
            for _ in range(MOST_TAKES):
                due = await self._due()
                joined = [owed for owed in due if self._shares.join(owed.host)]
                taken += joined
                if len(joined) == len(due):
                    break
        except BaseException:
            for owed in taken:
                self._shares.leave(owed.host)
            raise
        return taken

    async def _due(self) -> list[Owed]:
        partitions = await self._registry.owing()
        room = self._shares.room
        if not partitions or room <= 0 or self._is_draining:
            return []
        # each partition has its share, so that none is starved by the one before it
        limit = min(LIMIT, -(-room // len(partitions)))

        async def due(partition: Partition) -> list[PredictionId]:
            return await self._scripts.due(partition, limit=limit, hold_s=self._hold_s)

        ids = [prediction_id for batch in (await sweep(partitions, due)).values() for prediction_id in batch]
        return [Owed(*each) for each in zip(ids, await self._hosts(ids), strict=True)] if ids else []

    async def _hosts(self, ids: list[PredictionId]) -> list[str]:
        """Where each goes, '' for nowhere. Not by the whole record: it may be large, and wait for long."""

        async def read() -> list[bytes | None]:
            pipe = self._redis.pipeline(transaction=False)
            for prediction_id in ids:
                pipe.hget(keys.record(prediction_id), "webhook")
            return list(await pipe.execute())

        return [_host(text(url or b"")) for url in await ask(read)]

    async def _deliver_all(self, taken: list[Owed]) -> Told:
        outcomes: Counter[str] = Counter()
        async with anyio.create_task_group() as deliveries:
            for owed in taken:
                deliveries.start_soon(self._deliver, owed, outcomes)
        return Told(outcomes, left=len(taken) - outcomes.total())

    async def _deliver(self, owed: Owed, outcomes: Counter[str]) -> None:
        try:
            with anyio.move_on_after(self._patience_s):
                async with self._shares.place(owed.host):
                    if not self._is_draining:
                        outcomes[(await self._webhooks.deliver(owed.id)).outcome] += 1
        except BackendUnavailable as exc:
            log.warning("webhook's attempt is not noted", extra={"prediction": owed.id, "error": str(exc)})
        except Exception:
            # one that cannot be delivered must not take the others with it: it is due again when the hold ends
            log.exception("webhook broke its delivery", extra={"prediction": owed.id})
        finally:
            self._shares.leave(owed.host)


def _host(url: str) -> str:
    try:
        return read_webhook_url(url).host
    except ValueError:
        return ""
