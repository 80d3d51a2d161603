"""Deliver owed terminal webhooks: those that were not delivered at once, for as long as the schedule lasts.

Several couriers may work at once: `due` hands each attempt to one of them, and takes it back only after that courier
must have given up. `Shares` bounds what a silent host occupies. `Breakers` spares an endpoint that is away.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from itertools import compress, count, starmap
from operator import not_
from typing import Final

import anyio
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.redis_client import text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import Partition, PredictionId, partition_of
from director.core.webhooks import host_of
from director.keeper.registry import Registry
from director.keeper.sweeps import ignore
from director.runtime.sweep import LIMIT, repeat, sweep
from director.store.records import record_fields
from director.webhooks.delivery import FORWARD, LONGEST_S, Noted, Webhooks

log = logging.getLogger(__name__)

AFTER: Final = 5
INTERVAL_S: Final = 30.0
# Until then each delayed webhook gets an interval of its own. Later ones share a random time before it.
LATEST_S: Final = 600.0
# Added to each delay: by Redis's clock, which decides, a delay may end before it ends by ours.
LATER_S: Final = 0.05
MOST_HOSTS: Final = 10_000
MOST_OVERDUE: Final = 10  # endpoints in one round: tenants choose how many there are, and due webhooks wait for them
FREE_S: Final = 2.5  # an interval without an attempt is free after this: a round a second takes what is due


@dataclass(slots=True, eq=False)
class _Host:
    """`failures` in a row, the time of the next attempt, and which webhook has which interval. `asked_s`: the last time
    that its interval was free and webhooks waited for later ones.
    """

    failures: int = 0
    probe_s: float = 0.0
    asked_s: float = 0.0
    given_s: dict[str, float] = field(default_factory=dict)


class Breakers:
    """Endpoints that are away: after AFTER failures in a row, one attempt per interval until it answers."""

    def __init__(self, clock: Clock, *, interval_s: float = INTERVAL_S) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._hosts: dict[str, _Host] = {}

    def is_away(self, name: str) -> bool:
        return name in self._hosts and self._hosts[name].failures >= AFTER

    def may_try(self, name: str) -> bool:
        """May a webhook be sent there now? If the endpoint is away, True uses up the attempt of this interval."""
        host = self._hosts.get(name)
        if host is None or host.failures < AFTER:
            return True
        now_s = self._clock.monotonic()
        if now_s < host.probe_s:
            return False
        host.probe_s = now_s + self._interval_s
        return True

    def put_off_s(self, name: str, who: str) -> float:
        """Return how long this webhook waits: until the first free interval. That interval stays reserved for it."""
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

    def overdue(self) -> dict[str, list[str]]:
        """Return the endpoints whose interval has come, but nothing is due there though webhooks wait for later ones,
        and these webhooks, the soonest first. Another process may have delivered those that had the earlier intervals.
        Each endpoint comes once in an interval or more seldom: at most MOST_OVERDUE come at once.
        """
        now_s = self._clock.monotonic()
        found = [
            (host.asked_s, name)
            for name, host in self._hosts.items()
            if host.failures >= AFTER
            and now_s >= max(host.probe_s + FREE_S, host.asked_s)
            and any(at_s > now_s for at_s in host.given_s.values())
        ]
        waiting = {}
        for _, name in sorted(found)[:MOST_OVERDUE]:
            host = self._hosts[name]
            host.asked_s = now_s + self._interval_s
            waiting[name] = sorted(
                (one for one, at_s in host.given_s.items() if at_s > now_s), key=host.given_s.__getitem__
            )
        return waiting

    def note_failure(self, name: str, *, asked_s: float | None = None) -> None:
        """Note that the endpoint gave no answer, or an error of its own. `asked_s` is the delay that it asked for."""
        host = self._hosts.setdefault(name, _Host())
        host.failures += 1
        if host.failures == AFTER:
            host.probe_s = self._clock.monotonic() + self._interval_s
        if asked_s is not None:
            host.probe_s = max(host.probe_s, self._clock.monotonic() + min(asked_s, LATEST_S))
        if len(self._hosts) > MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]

    def note_answer(self, name: str) -> bool:
        return self._hosts.pop(name, None) is not None


PLACES: Final = 256
PLACES_PER_ENDPOINT: Final = 8
PLACES_PER_ACCOUNT: Final = 192  # at all its endpoints: the others are for other accounts
LONGEST_LINE: Final = 248


@dataclass(slots=True, eq=False)
class _Line:
    """`count` includes those with a place and those in line for one."""

    count: int = 0
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PLACES_PER_ENDPOINT))


class Shares:
    """The courier's places, by endpoint: a silent host fills only those of its account, and many silent hosts of one
    account leave places to others. An endpoint is forgotten with its last attempt. The sender bounds a host over all
    accounts.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._by_account: Counter[str] = Counter()

    @property
    def room(self) -> int:
        """Free places. Attempts in line take none, since they wait for a place of their endpoint."""
        held: Counter[str] = Counter()
        for name, line in self._lines.items():
            held[_account_of(name)] += min(line.count, PLACES_PER_ENDPOINT)
        return PLACES - sum(min(count, PLACES_PER_ACCOUNT) for count in held.values())

    @property
    def are_empty(self) -> bool:
        return not self._lines

    def join(self, name: str) -> bool:
        """Join the line of an endpoint. Return False if it, or its account, is full. Call `leave` for each join."""
        account = _account_of(name)
        if self._by_account[account] >= PLACES_PER_ACCOUNT + LONGEST_LINE:
            return False
        line = self._lines.setdefault(name, _Line())
        if line.count >= PLACES_PER_ENDPOINT + LONGEST_LINE:
            return False
        line.count += 1
        self._by_account[account] += 1
        return True

    def leave(self, name: str) -> None:
        line = self._lines[name]
        line.count -= 1
        if not line.count:
            del self._lines[name]
        account = _account_of(name)
        self._by_account[account] -= 1
        if not self._by_account[account]:
            del self._by_account[account]

    def place(self, name: str) -> asyncio.Semaphore:
        return self._lines[name].places


def _account_of(endpoint: str) -> str:
    return endpoint.partition(" ")[0]


TICK_S: Final = 1.0
# How long an attempt belongs to this courier. It may wait in line first. Without a place by then, a later round has it.
HOLD_S: Final = 30.0
PATIENCE_S: Final = 25.0
FIELDS: Final = ("webhook", "account", "owed_since", "completed", "revivals")
# Per round, while due attempts are left over because the line of their endpoint is full.
MOST_TAKES: Final = 16
DRAIN_STEP_S: Final = 0.05


@dataclass(slots=True, frozen=True)
class Round:
    """One round: outcome → count. `left`: no place in time. `put_off`: not tried, since their endpoint is away."""

    outcomes: Counter[str] = field(default_factory=Counter)
    left: int = 0
    put_off: int = 0


class Attempt(Struct, frozen=True, kw_only=True):
    """An attempt that belongs to this courier until `until_s` of the loop's clock.

    `since_ms` is when the webhook became owed, `revivals` says which end of the prediction it is for.
    """

    id: PredictionId
    host: str
    account: str
    since_ms: int
    revivals: int
    until_s: float

    @property
    def endpoint(self) -> str:
        """The unit that may be away. Accounts may share a host, while only one of their receivers is broken."""
        return f"{self.account} {self.host}"


@dataclass(slots=True, eq=False)
class Courier:
    _redis: Redis
    _scripts: Scripts
    _registry: Registry
    _webhooks: Webhooks
    _clock: Clock
    on_put_off: Callable[[int], None] = ignore
    breakers: InitVar[Breakers | None] = None
    hold_s: float = HOLD_S
    patience_s: float = PATIENCE_S
    _shares: Shares = field(default_factory=Shares)
    _breakers: Breakers = field(init=False)
    _is_draining: bool = False

    def __post_init__(self, breakers: Breakers | None) -> None:
        self._breakers = breakers or Breakers(self._clock)

    async def run(self) -> None:
        """Begin a round every second, without waiting for the last: a silent receiver delays only its own webhooks."""
        async with anyio.create_task_group() as rounds:

            async def begin() -> None:
                due, put_off = await self._take()
                if due:
                    rounds.start_soon(self._deliver_all, due, put_off)

            await repeat(begin, role="courier", tick_s=TICK_S, clock=self._clock)

    async def run_once(self) -> Round:
        return await self._deliver_all(*await self._take())

    async def drain(self) -> None:
        self._is_draining = True
        while not self._shares.are_empty:
            await self._clock.sleep(DRAIN_STEP_S)

    async def _take(self) -> tuple[list[Attempt], int]:
        """Take the due attempts that have a place in line. Return them, and how many were put off. Others stay due."""
        taken: list[Attempt] = []
        put_off = 0
        await asyncio.gather(*starmap(self._fill, self._breakers.overdue().items()))
        try:
            for _ in range(MOST_TAKES):
                due = await self._due()
                may_try = [self._may_try(attempt) for attempt in due]
                joined = [attempt for attempt in compress(due, may_try) if self._shares.join(attempt.endpoint)]
                taken += joined
                put_off += may_try.count(False)
                self.on_put_off(may_try.count(False))
                await asyncio.gather(*map(self._put_off, compress(due, map(not_, may_try))))
                if len(joined) == len(due):
                    break
        except BaseException:  # also if canceled: an attempt that is not returned must not keep its place
            for attempt in taken:
                self._shares.leave(attempt.endpoint)
            raise
        return taken, put_off

    def _may_try(self, attempt: Attempt) -> bool:
        """A webhook that has been owed for long enough gets its last attempt even if its endpoint is away."""
        is_old = self._clock.now_ms() - attempt.since_ms >= LONGEST_S * 1000
        return is_old or self._breakers.may_try(attempt.endpoint)

    async def _put_off(self, attempt: Attempt) -> None:
        delay_s = self._breakers.put_off_s(attempt.endpoint, attempt.id)
        await self._scripts.deliver(
            attempt.id,
            outcome="put_off",
            delay_s=delay_s,
            revivals=attempt.revivals,
            account=attempt.account,
            host=attempt.host,
            is_away=True,
        )

    async def _due(self) -> list[Attempt]:
        partitions = await self._registry.owing()
        room = self._shares.room
        if not partitions or room <= 0 or self._is_draining:
            return []
        # Each partition has its share, so that none is starved by the one before it.
        limit = min(LIMIT, -(-room // len(partitions)))
        until_s = anyio.current_time() + self.patience_s  # the hold begins later than this, however slow Redis is

        async def due(partition: Partition) -> list[PredictionId]:
            return await self._scripts.due(partition, limit=limit, hold_s=self.hold_s)

        ids = [prediction_id for batch in (await sweep(partitions, due)).values() for prediction_id in batch]
        # A whole record may be large and wait in line for long, so it is not read.
        records = await record_fields(self._redis, ids, FIELDS)
        return [
            Attempt(
                id=prediction_id,
                host=host_of(text(url or b"")),
                account=text(account or b""),
                since_ms=int(since or completed or 0),
                revivals=int(revivals or 0),
                until_s=until_s,
            )
            for prediction_id, (url, account, since, completed, revivals) in zip(ids, records, strict=True)
        ]

    async def _deliver_all(self, taken: list[Attempt], put_off: int) -> Round:
        outcomes: Counter[str] = Counter()
        async with anyio.create_task_group() as deliveries:
            for attempt in taken:
                deliveries.start_soon(self._deliver, attempt, outcomes)
        return Round(outcomes, left=len(taken) - outcomes.total(), put_off=put_off)

    async def _deliver(self, attempt: Attempt, outcomes: Counter[str]) -> None:
        try:
            with anyio.CancelScope(deadline=attempt.until_s):
                async with self._shares.place(attempt.endpoint):
                    if not self._is_draining:
                        noted = await self._webhooks.deliver(attempt.id)
                        outcomes[noted.outcome] += 1
                        await self._learn(attempt, noted)
        except BackendUnavailable as exc:
            log.warning("attempt at a webhook is not recorded", extra={"prediction": attempt.id, "error": str(exc)})
        except Exception:
            # A webhook that cannot be delivered must not stop the others. It is due again when the hold ends.
            log.exception("delivery of a webhook failed", extra={"prediction": attempt.id})
        finally:
            self._shares.leave(attempt.endpoint)

    async def _learn(self, attempt: Attempt, noted: Noted) -> None:
        if noted.host_answers is False:
            self._breakers.note_failure(attempt.endpoint, asked_s=noted.delay_s if noted.is_asked else None)
        elif noted.host_answers:
            was_away = self._breakers.is_away(attempt.endpoint)
            # a 404 closes it too, and then nothing else would look after what was put off
            if self._breakers.note_answer(attempt.endpoint) and (was_away or noted.outcome == "delivered"):
                await self._forward(attempt.endpoint, limit=FORWARD)

    async def _fill(self, endpoint: str, waiting: list[str]) -> None:
        """Make one of the webhooks that wait for this endpoint due. Those that were delivered wait no more."""
        account, _, host = endpoint.partition(" ")
        for partition in map(partition_of, map(PredictionId, waiting)):
            if await self._webhooks.forward(partition, account, host, limit=1):
                return

    async def _forward(self, endpoint: str, *, limit: int) -> None:
        account, _, host = endpoint.partition(" ")

        async def forward(partition: Partition) -> None:
            await self._webhooks.forward(partition, account, host, limit=limit)

        await sweep(await self._registry.owing(), forward)
