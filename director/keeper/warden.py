"""Finish what was begun when an account was suspended or resumed, whoever began it and whatever cut it short.

Never decides who is suspended. Where nobody was lately, it is one look at an empty list.
"""

from typing import Final, NoReturn

from director.core.clock import Clock
from director.runtime.sweep import repeat
from director.store.suspensions import Suspensions

__all__ = ("Warden",)

TICK_S: Final = 5.0
LONGEST_S: Final = 10.0  # of one account, so that others have their turn


class Warden:
    """Sweeps the accounts that were suspended or resumed lately."""

    def __init__(self, suspensions: Suspensions, clock: Clock) -> None:
        self._suspensions = suspensions
        self._clock = clock

    async def run(self) -> NoReturn:
        """Sweep every five seconds."""
        await repeat(self.run_once, role="warden", tick_s=TICK_S, clock=self._clock)

    async def run_once(self) -> int:
        """Bring all their queues into line; how many accounts that were."""
        return await self._suspensions.settle_all(within_s=LONGEST_S)
