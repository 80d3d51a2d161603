"""Deliver terminal webhooks that are owed: those that nobody could deliver at once, for as long as the schedule lasts.

Never decides what is said or when the next attempt is: see director.webhooks. Several couriers may work at once:
`due` hands each attempt to one of them, and takes it back only when that one must have given up on it. However much a
silent host is owed, the others are told within a few rounds (shares.py), and while a host is away one attempt per
interval finds out whether it still is (breakers.py).
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import compress, count
from operator import not_
from typing import Final

import anyio
from msgspec import Struct, field
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import pipelined, text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import Partition, PredictionId
from director.core.webhook_url import host_of
from director.keeper.registry import Registry
from director.runtime.sweep import LIMIT, repeat, sweep
from director.webhooks.terminal import LONGEST_S, Noted, TerminalWebhooks

# Which receivers are away: after some failures in a row an endpoint gets one attempt per interval, and no more.
#
# Each keeper goes by what it has seen itself. Sends nothing: says only whether one may be sent now, and else when.

AFTER: Final = 5
INTERVAL_S: Final = 30.0
# Whoever is put off has an interval to himself, as far as this; the rest comes some time before it. A success brings
# all of them forward anyway
LATEST_S: Final = 600.0
# A moment of ours is one of the server's clock by the time it comes: not a moment too soon
LATER_S: Final = 0.05
MOST_HOSTS: Final = 10_000


class _Host(Struct, eq=False):
    """`failures` in a row; when the next one may try; whose that interval is, and those after it."""

    failures: int = 0
    probe_s: float = 0.0
    given_s: dict[str, float] = field(default_factory=dict)


class Breakers:
    """One for each host that failed lately. A host is forgotten once it answers."""

    def __init__(self, clock: Clock, *, after: int = AFTER, interval_s: float = INTERVAL_S) -> None:
        self._clock = clock
        self._after = after
        self._interval_s = interval_s
        self._hosts: dict[str, _Host] = {}

    def may_try(self, name: str) -> bool:
        """May one be sent there now? Where the host is away, whoever is told so is the one of this interval."""
        host = self._hosts.get(name)
        if host is None or host.failures < self._after:
            return True
        now_s = self._clock.monotonic()
        if now_s < host.probe_s:
            return False
        host.probe_s = now_s + self._interval_s
        return True

    def put_off_s(self, name: str, who: str) -> float:
        """How long this one waits, who may not be sent now: until the first interval that is nobody's.

        Whoever has one keeps it, though he was brought forward meanwhile: without him nobody would come then.
        """
        host, now_s = self._hosts.get(name), self._clock.monotonic()
        if host is None:  # it has answered since
            return LATER_S
        host.given_s = {one: at_s for one, at_s in host.given_s.items() if at_s > now_s}
        if who not in host.given_s:
            taken = {round((at_s - host.probe_s) / self._interval_s) for at_s in host.given_s.values()}
            at_s = host.probe_s + self._interval_s * next(number for number in count() if number not in taken)
            if at_s - now_s > LATEST_S:
                return random.uniform(LATEST_S / 2, LATEST_S)  # noqa: S311 - spreads attempts, guards nothing
            host.given_s[who] = at_s
        return max(host.given_s[who] - now_s, 0.0) + LATER_S

    def failed(self, name: str, *, asked_s: float | None = None) -> None:
        """The host gave no answer, or one that says that it cannot. `asked_s`: it asked for so much patience."""
        host = self._hosts.setdefault(name, _Host())
        host.failures += 1
        if host.failures == self._after:
            host.probe_s = self._clock.monotonic() + self._interval_s
        if asked_s is not None:
            host.probe_s = max(host.probe_s, self._clock.monotonic() + min(asked_s, LATEST_S))
        if len(self._hosts) > MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]

    def answered(self, name: str) -> bool:
        """The host answers. True where it had failed before."""
        return self._hosts.pop(name, None) is not None


# Share the courier's places among receivers: so many attempts at once per host, and a line behind them with an end.
#
# A host that keeps silent fills its own share and no more. Knows hosts by name only, and never sends anything.

PLACES: Final = 256
PLACES_PER_HOST: Final = 8
# Long enough that a quick receiver has always somebody in line until the next round begins
LONGEST_LINE: Final = 248


class _HostLine(Struct, eq=False):
    """`count`: who has a place or stands in line for one."""

    count: int = 0
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PLACES_PER_HOST))


class Shares:
    """Who has a place, and who stands in line. A host is forgotten with its last one."""

    def __init__(self) -> None:
        self._hosts: dict[str, _HostLine] = {}

    @property
    def room(self) -> int:
        """Places that are free. Whoever stands in line takes none: it waits for one of its host's."""
        return PLACES - sum(min(host.count, PLACES_PER_HOST) for host in self._hosts.values())

    @property
    def are_empty(self) -> bool:
        """Is nobody left?"""
        return not self._hosts

    def join(self, name: str) -> bool:
        """Stand in the line of a host; False where it is full. Whoever joined has to `leave`."""
        host = self._hosts.setdefault(name, _HostLine())
        if host.count >= PLACES_PER_HOST + LONGEST_LINE:
            return False
        host.count += 1
        return True

    def leave(self, name: str) -> None:
        """Out of the line, or out of the place."""
        host = self._hosts[name]
        host.count -= 1
        if not host.count:
            del self._hosts[name]

    @asynccontextmanager
    async def place(self, name: str) -> AsyncGenerator[None]:
        """Wait in line for a place of this host."""
        async with self._hosts[name].places:
            yield


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
        return await self._look(ids, until_s)

    async def _look(self, ids: list[PredictionId], until_s: float) -> list[Owed]:
        """Where each goes, and since when. Not by the whole record: it may be large, and wait for long."""
        records = await pipelined(self._redis, lambda pipe: [pipe.hmget(keys.record(each), FIELDS) for each in ids])
        return [
            Owed(
                id=prediction_id,
                host=host_of(text(url or b"")),
                account=text(account or b""),
                since_ms=int(since or completed or 0),
                revivals=int(revivals or 0),
                until_s=until_s,
            )
            for prediction_id, (url, account, since, completed, revivals) in zip(ids, records, strict=True)
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
