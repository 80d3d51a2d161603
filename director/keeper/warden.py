"""Finish suspensions and resumptions of accounts that were begun and cut short.

Never decides which account is suspended. Without recent suspensions a sweep is one look at an empty list.
"""

from typing import Final, NoReturn

from director.core.clock import Clock
from director.runtime.sweep import repeat
from director.store.administration import Suspensions

TICK_S: Final = 5.0
LONGEST_S: Final = 10.0  # for one account, so that others get their turn


class Warden:
    """Sweeps the accounts that were recently suspended or resumed."""

    def __init__(self, suspensions: Suspensions, clock: Clock) -> None:
        self._suspensions = suspensions
        self._clock = clock

    async def run(self) -> NoReturn:
        """Sweep every five seconds."""
        await repeat(self.run_once, role="warden", tick_s=TICK_S, clock=self._clock)

    async def run_once(self) -> int:
        """Bring all queues into line with these accounts, and return how many accounts that were."""
        return await self._suspensions.settle_all(within_s=LONGEST_S)
