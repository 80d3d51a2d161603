"""One Redis server of several: all that the API has for it, whether it answers, and what its queues told lately.

Believes no failure for longer than until its next look, a second later.
"""

import logging
from typing import Final, NoReturn

from api.cache import Cache
from api.parts import Parts
from api.sites.placement import Candidate, Look
from api.sites.table import SiteRow
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, UnknownQueue, UnsafeBackend
from director.core.ids import QueueName

__all__ = ("Site",)

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks whether it answers
FRESH_S: Final = 1.0  # of what a queue told
MOST_QUEUES: Final = 1_000
MOST_ACCOUNTS: Final = 10_000
NOTHING_STARTS: Final = frozenset({"open"})


class Site:
    """`is_up`: it answered the last time, and is safe. `reason`: why it is not. `home`: None for the home itself."""

    def __init__(self, row: SiteRow, parts: Parts, clock: Clock, *, home: "Site | None" = None) -> None:
        self.row = row
        self.parts = parts
        self.reason = "it was not asked yet"
        self._home = home
        self._clock = clock
        self._looks: Cache[QueueName, Look] = Cache(clock=clock, ttl_s=FRESH_S, most=MOST_QUEUES)
        self._placed: dict[QueueName, int] = {}
        self._known: Cache[str, bool] = Cache(
            clock=clock,
            ttl_s=parts.settings.cache_s,
            most=MOST_ACCOUNTS,
            believes=lambda: home is not None and not home.is_up,
        )

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def is_up(self) -> bool:
        return self.parts.gate.is_up

    async def run(self) -> NoReturn:
        """Look again and again."""
        while True:
            await self.run_once()
            await self._clock.sleep(LOOK_S)

    async def run_once(self) -> None:
        """Does it answer, and would it keep what it accepts?"""
        was_up = self.is_up
        try:
            await self.parts.gate.run_once()
        except BackendUnavailable as exc:
            self.failed(str(exc))
        except UnsafeBackend as exc:
            self._is_not_up(str(exc), level=logging.ERROR)
        else:
            if not was_up or self.reason:
                log.info("a site answers", extra={"site": self.name})
            self.reason = ""

    def failed(self, reason: str) -> None:
        """It did not answer: nothing new goes there until it does."""
        self._is_not_up(reason, level=logging.WARNING)

    def expects(self, queue: QueueName, more: int = 1) -> None:
        """So many more are there, or on their way, than it told."""
        self._placed[queue] = max(0, self._placed.get(queue, 0) + more)

    async def look(self, queue: QueueName) -> Look | None:
        """What one of its queues told lately; None where it has none such."""

        async def ask() -> Look | None:
            try:
                stats = await self.parts.scripts.stats(queue)
            except UnknownQueue:
                return None
            self._placed.pop(queue, None)
            return Look(
                waiting=stats.waiting,
                running=stats.claimed,
                slots=stats.slots,
                service_ms=stats.service_ms,
                starts=not stats.paused and stats.breaker not in NOTHING_STARTS,
            )

        return await self._looks.get(queue, ask)

    def candidate(self, queue: QueueName, look: Look) -> Candidate:
        """How it stands with a queue that told this."""
        return Candidate(name=self.name, weight=self.row.weight, look=look, since=self._placed.get(queue, 0))

    async def introduce(self, account: str) -> None:
        """Let its directors sign this account's webhooks as those at home do. Raises BackendUnavailable."""

        async def copy() -> bool:
            signing = {} if self._home is None else await self._home.parts.accounts.signing(account)
            await self.parts.accounts.adopt(account, signing)
            return True

        if self._home is not None:
            await self._known.get(account, copy)

    def _is_not_up(self, reason: str, *, level: int) -> None:
        if reason != self.reason:
            log.log(level, "a site takes nothing new", extra={"site": self.name, "reason": reason})
        self.parts.gate.is_up, self.reason = False, reason
