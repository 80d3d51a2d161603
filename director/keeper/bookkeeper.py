"""Add up old days of the ledger: beyond 90 days a month has one row for each account, model and API token."""

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from director.core.clock import Clock
from director.core.usage import day_of, last_of_month, list_months_to_fold
from director.store.ledger import Ledger

log = logging.getLogger(__name__)

TICK_S: Final = 3600.0


@dataclass(slots=True, eq=False)
class Bookkeeper:
    """`keep_months`: how long a month is kept after its end. Two keepers do no harm: a day that was added is gone."""

    _ledger: Ledger
    _clock: Clock
    keep_months: int
    _done: str = ""

    async def run_once(self) -> int:
        """Add up the months that became old since the last time. Return the rows that were added up."""
        now_ms = self._clock.now_ms()
        *_, month = months = list_months_to_fold(now_ms)
        if month == self._done:
            return 0
        folded = 0
        for each in months:  # earlier ones too, in case that no keeper ran for months
            kept_until = last_of_month(each) + timedelta(days=31 * self.keep_months)
            folded += await self._ledger.fold(each, kept_until=kept_until, today=day_of(now_ms))
        self._done = month
        if folded:
            log.info("usage added up by month", extra={"month": month, "rows": folded})
        return folded
