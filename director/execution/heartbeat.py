"""Extend the leases of this director's claims: one call for each queue that it reads, three times per lease.

The call also reports how the model servers stand, at once if their slots change, and its answer names the claims that
are lost or to be stopped. The heartbeat stops last: a long drain must not lose the claims that still run. A caller's
cancel arrives by a channel and again with each heartbeat, so a lost message costs one interval.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
import msgspec
from redis import exceptions
from redis.asyncio import Redis

from director import __version__
from director.broker.news import hear_cancels
from director.broker.replies import Hold
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import QueueName
from director.execution.active_claims import ActiveClaims
from director.execution.metering import Metering
from director.files.choose import StoreCheck
from director.servers.servers import Server, Servers, Standing
from director.store.directors import About, EndsFound, RunFound, ServerFound, ShelfFound

log = logging.getLogger(__name__)

HEARTBEATS_PER_LEASE: Final = 3
LONGEST_S: Final = 5.0  # also with a long lease: a director that is silent for 20 s counts as gone
AWAY_S: Final = 1.0
CANCEL_AGAIN_S: Final = 0.1
DRAINING: Final = Standing(0, "draining")
MOST_SERVERS: Final = 16
LONGEST_DETAIL: Final = 200


@dataclass(eq=False)
class SelfReport:
    """A director's bounded report on itself with each heartbeat, for operators only: nothing is decided by it."""

    servers: Servers
    clock: Clock
    store_check: StoreCheck | None = None

    def __post_init__(self) -> None:
        self._since_ms = self.clock.now_ms()
        self._states: dict[str, tuple[str, int]] = {}  # by URL: the state and the time it was first seen

    def encode(
        self,
        *,
        held: int,
        oldest: RunFound | None = None,
        ends: EndsFound | None = None,
        shelf: ShelfFound | None = None,
    ) -> bytes:
        """Return the report as JSON. `held`: the number of claims that this heartbeat extends."""
        servers = self.servers.all
        known, now_ms = self._states, self.clock.now_ms()
        self._states = {}
        for server in servers:
            url, state = server.runner.url, server.state
            before = known.get(url)
            self._states[url] = before if before is not None and before[0] == state else (state, now_ms)
        about = About(
            version=__version__,
            now_ms=now_ms,
            since_ms=self._since_ms,
            held=held,
            servers=tuple(map(self._describe, servers[:MOST_SERVERS])),
            more=max(0, len(servers) - MOST_SERVERS),
            oldest=oldest,
            ends=ends,
            shelf=shelf,
            files=self.store_check.last if self.store_check is not None else "",
        )
        return msgspec.json.encode(about)

    def _describe(self, server: Server) -> ServerFound:
        state, since_ms = self._states[server.runner.url]
        return ServerFound(
            url=server.runner.url,
            state=state,
            since_ms=since_ms,
            slots=server.usable,
            detail=server.detail[:LONGEST_DETAIL],
            failed_starts=server.failed_starts if server.gate.is_open else 0,  # a load is counted beside it
            log=server.setup_log,
            has_schema=server.has_schema,
            is_other_version=server.is_other_version,
        )


@dataclass(eq=False, kw_only=True)
class Heartbeat:
    queues: Sequence[QueueName]
    name: str
    scripts: Scripts
    claims: ActiveClaims
    servers: Servers
    redis: Redis
    clock: Clock
    lease_s: float
    metering: Metering
    report: SelfReport
    shelf: Callable[[], ShelfFound | None] = lambda: None

    def __post_init__(self) -> None:
        self._woken = asyncio.Event()
        self._reported: Standing | None = None
        self._draining = False
        self._drain_reported = asyncio.Event()

    async def run(self) -> None:
        self.servers.on_news = self._look
        listening = asyncio.get_running_loop().create_task(self._listen())
        try:
            while True:
                try:
                    await self.run_once()
                except BackendUnavailable as exc:
                    log.warning("extending leases failed", extra={"queue": self.queues[0], "error": str(exc)})
                except Exception:  # try again soon: without a heartbeat every claim of this director is lost
                    log.exception("the heartbeat broke", extra={"queue": self.queues[0]})
                else:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._interval_s):
                            await self._woken.wait()
                    self._woken.clear()
                    continue
                await self.clock.sleep(min(AWAY_S, self._interval_s))
        finally:
            with anyio.CancelScope(shield=True):
                while not listening.done():  # asyncio.wait_for of Python 3.11, in redis-py, may lose a cancellation
                    listening.cancel()
                    await asyncio.wait({listening}, timeout=CANCEL_AGAIN_S)

    async def run_once(self) -> list[Hold]:
        standing = self._standing
        holds = await asyncio.gather(*(self._beat(queue, standing) for queue in self.queues))
        self._reported = standing
        self._look()  # the standing may have changed meanwhile
        if standing is DRAINING:
            self._drain_reported.set()
        return [hold for of_one in holds for hold in of_one]

    async def drain(self) -> None:
        """Report from now on that this director claims nothing more. Returns once that was reported."""
        self._draining = True
        self._woken.set()
        await self._drain_reported.wait()

    async def _beat(self, queue: QueueName, standing: Standing) -> list[Hold]:
        claims = self.claims.of_queue(queue)
        holds = await self.scripts.extend(
            queue,
            consumer=self.name,
            lease_s=self.lease_s,
            claims=claims,
            slots=standing.slots,
            state=standing.state,
            swap=standing.swap,
            about=self._about(queue, held=len(claims)),
        )
        for (prediction_id, token), hold in zip(claims, holds, strict=True):
            if (active := self.claims.find(prediction_id, token)) is not None:
                active.apply_hold(hold)
        return holds

    def _about(self, queue: QueueName, *, held: int) -> bytes:
        now_ms = self.clock.now_ms()
        oldest = self.claims.oldest(queue, now_ms=now_ms)
        ends = self.metering.of(queue).recent.find(now_ms)
        shelf = self.shelf() if queue == self.queues[0] else None  # its memory is counted once
        return self.report.encode(held=held, oldest=oldest, ends=ends, shelf=shelf)

    @property
    def _interval_s(self) -> float:
        return min(self.lease_s / HEARTBEATS_PER_LEASE, LONGEST_S)

    @property
    def _standing(self) -> Standing:
        return DRAINING if self._draining else self.servers.standing

    def _look(self) -> None:
        if self._standing != self._reported:
            self._woken.set()

    async def _listen(self) -> None:
        while True:
            try:
                async for _ in hear_cancels(self.redis, self.name):
                    self._woken.set()
            except exceptions.RedisError:
                pass  # each heartbeat learns of cancels too
            except Exception:  # a fault here must not end the heartbeat
                log.exception("listening for cancels failed", extra={"queue": self.queues[0]})
            await self.clock.sleep(AWAY_S)
