"""Deliver terminal webhooks that are owed: those that nobody could deliver at once, for as long as the schedule lasts.

Never decides what is said or when the next attempt is: see director.webhooks. Several couriers may work at once:
`due` hands each attempt to one of them, and takes it back only when that one must have given up on it. However much a
silent host is owed, the others are told within a few rounds (shares.py), and while a host is away one attempt per
interval finds out whether it still is (breakers.py).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from itertools import compress
from operator import not_
from typing import Final

import anyio
from msgspec import Struct, field
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import Partition, PredictionId
from director.core.webhook_url import host_of
from director.keeper.breakers import Breakers
from director.keeper.registry import Registry
from director.keeper.shares import Shares
from director.runtime.sweep import LIMIT, repeat, sweep
from director.webhooks.schedule import LONGEST_S, Noted
from director.webhooks.terminal import TerminalWebhooks

__all__ = ("Courier", "Told")

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
# How long an attempt is ours. It may stand in line first: what has no place by then is left to a later round.
HOLD_S: Final = 30.0
PATIENCE_S: Final = 25.0
FIELDS: Final = ("webhook", "account", "owed_since", "completed", "revivals")
# In one round, as long as some of what is due has to be left because the line of its host is full
MOST_TAKES: Final = 16
DRAIN_STEP_S: Final = 0.05


class Told(Struct, frozen=True):
    """How the attempts of one round went: outcome → how many. `left` had to wait too long for their receiver.

    `put_off`: their receiver is away, so they were not tried.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    left: int = 0
    put_off: int = 0


class Owed(Struct, frozen=True, kw_only=True):
    """An attempt that is ours until a moment of the loop's clock: where it goes, since when it is owed, and which end
    it tells of.
    """

    id: PredictionId
    host: str
    account: str
    since_ms: int
    revivals: int
    until_s: float

    @property
    def endpoint(self) -> str:
        """What may be away: many accounts may have their receivers at one host, and only one of them be broken."""
        return f"{self.account} {self.host}"


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
        breakers: Breakers | None = None,
    ) -> None:
        self._redis = redis
        self._scripts = scripts
        self._registry = registry
        self._webhooks = webhooks
        self._clock = clock
        self._hold_s = hold_s
        self._patience_s = patience_s
        self._shares = Shares()
        self._breakers = breakers or Breakers(clock)
        self._is_draining = False
        self.on_put_off: Callable[[int], None] = lambda count: None

    async def run(self) -> None:
        """Begin a round every second, without waiting for the last: a silent receiver delays only its own."""
        async with anyio.create_task_group() as rounds:

            async def begin() -> None:
                due, _ = await self._take()
                if due:
                    rounds.start_soon(self._deliver_all, due)

            await repeat(begin, role="courier", tick_s=TICK_S, clock=self._clock)

    async def run_once(self) -> Told:
        """One round: try all that is due now, together, and see how each went."""
        taken, put_off = await self._take()
        told = await self._deliver_all(taken)
        return Told(told.outcomes, left=told.left, put_off=put_off)

    async def drain(self) -> None:
        """Take no more, and wait until what is under way has ended."""
        self._is_draining = True
        while not self._shares.are_empty:
            await self._clock.sleep(DRAIN_STEP_S)

    async def _take(self) -> tuple[list[Owed], int]:
        """What is due, as far as there are places, and how many were put off since their host is away.

        What its host's line has no end for is due again after the hold.
        """
        taken: list[Owed] = []
        put_off = 0
        try:
            for _ in range(MOST_TAKES):
                due = await self._due()
                may_try = [self._may_try(owed) for owed in due]
                joined = [owed for owed in compress(due, may_try) if self._shares.join(owed.host)]
                taken += joined
                put_off += may_try.count(False)
                self.on_put_off(may_try.count(False))
                await asyncio.gather(*map(self._put_off, compress(due, map(not_, may_try))))
                if len(joined) == len(due):
                    break
        except BaseException:
            for owed in taken:
                self._shares.leave(owed.host)
            raise
        return taken, put_off

    def _may_try(self, owed: Owed) -> bool:
        """What was owed for long enough has its last attempt, wherever its host is."""
        is_old = self._clock.now_ms() - owed.since_ms >= LONGEST_S * 1000
        return is_old or self._breakers.may_try(owed.endpoint)

    async def _put_off(self, owed: Owed) -> None:
        delay_s = self._breakers.put_off_s(owed.endpoint, owed.id)
        await self._scripts.deliver(owed.id, outcome="put_off", delay_s=delay_s, revivals=owed.revivals, host=owed.host)

    async def _due(self) -> list[Owed]:
        partitions = await self._registry.owing()
        room = self._shares.room
        if not partitions or room <= 0 or self._is_draining:
            return []
        # each partition has its share, so that none is starved by the one before it
        limit = min(LIMIT, -(-room // len(partitions)))
        until_s = anyio.current_time() + self._patience_s  # the hold begins later than this, however slow Redis is

        async def due(partition: Partition) -> list[PredictionId]:
            return await self._scripts.due(partition, limit=limit, hold_s=self._hold_s)

        ids = [prediction_id for batch in (await sweep(partitions, due)).values() for prediction_id in batch]
        return await self._look(ids, until_s) if ids else []

    async def _look(self, ids: list[PredictionId], until_s: float) -> list[Owed]:
        """Where each goes, and since when. Not by the whole record: it may be large, and wait for long."""

        async def read() -> list[list[bytes | None]]:
            pipe = self._redis.pipeline(transaction=False)
            for prediction_id in ids:
                pipe.hmget(keys.record(prediction_id), FIELDS)
            return list(await pipe.execute())

        return [
            Owed(
                id=prediction_id,
                host=host_of(text(url or b"")),
                account=text(account or b""),
                since_ms=int(since or completed or 0),
                revivals=int(revivals or 0),
                until_s=until_s,
            )
            for prediction_id, (url, account, since, completed, revivals) in zip(ids, await ask(read), strict=True)
        ]

    async def _deliver_all(self, taken: list[Owed]) -> Told:
        outcomes: Counter[str] = Counter()
        async with anyio.create_task_group() as deliveries:
            for owed in taken:
                deliveries.start_soon(self._deliver, owed, outcomes)
        return Told(outcomes, left=len(taken) - outcomes.total())

    async def _deliver(self, owed: Owed, outcomes: Counter[str]) -> None:
        try:
            with anyio.CancelScope(deadline=owed.until_s):
                async with self._shares.place(owed.host):
                    if not self._is_draining:
                        noted = await self._webhooks.deliver(owed.id)
                        outcomes[noted.outcome] += 1
                        await self._learn(owed, noted)
        except BackendUnavailable as exc:
            log.warning("webhook's attempt is not noted", extra={"prediction": owed.id, "error": str(exc)})
        except Exception:
            # one that cannot be delivered must not take the others with it: it is due again when the hold ends
            log.exception("webhook broke its delivery", extra={"prediction": owed.id})
        finally:
            self._shares.leave(owed.host)

    async def _learn(self, owed: Owed, noted: Noted) -> None:
        """What an attempt shows of its receiver. One that answers again is told all that it is owed, wherever filed."""
        if noted.host_answers is False:
            self._breakers.failed(owed.endpoint, asked_s=noted.delay_s if noted.is_asked else None)
        elif noted.host_answers and self._breakers.answered(owed.endpoint) and noted.outcome == "delivered":
            await sweep(await self._registry.owing(), lambda partition: self._webhooks.forward(partition, owed.host))
