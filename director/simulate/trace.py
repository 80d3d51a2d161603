"""What came to one queue and how long each held a slot: some 40 bytes of each prediction, so a day's traffic fits.

Never has an input or an output: neither a trace nor an audit log has them.
"""

from array import array
from typing import Final

from director.core.errors import SettingsError
from director.core.ids import LANES

__all__ = ("MOST", "Builder", "Trace")

MOST: Final = 1_000_000  # of each that waits the server has a record, of about a kilobyte
UNKNOWN: Final = -1  # in place of a run time
LEFT_OUT: Final = -2


class Trace:
    """Predictions in the order of their arrival, one place in each column for each. Milliseconds, from the first one.

    `guessed`: of so many the end is not known, and they get the mean of the others. `left_out`: so many were in the log
    without being in the trace: they ended before they were ever claimed, or had come before the log begins.
    """

    def __init__(self) -> None:
        self.at_ms = array("q")
        self.run_ms = array("q")
        self.account = array("i")
        self.lane = array("b")
        self.cost = array("d")
        self.accounts: list[str] = []
        self.guessed = 0
        self.left_out = 0
        self.missed = 0

    def __len__(self) -> int:
        return len(self.at_ms)

    def work_ms(self) -> list[int]:
        """Of each account: how long all that it sent holds a slot."""
        work = [0] * len(self.accounts)
        for account, ms in zip(self.account, self.run_ms, strict=True):
            work[account] += ms
        return work


class Builder:
    """A trace while it grows, in any order of time."""

    def __init__(self) -> None:
        self._trace = Trace()
        self._numbers: dict[str, int] = {}

    def add(self, *, at_ms: int, account: str, lane: str, cost: float = 1.0, run_ms: int = UNKNOWN) -> int:
        """One more; its number until `build`. Raises SettingsError where it is one too many."""
        trace = self._trace
        if len(trace) == MOST:
            raise SettingsError(f"that is more than {MOST:,} predictions: give a part of it.")
        if account not in self._numbers:
            self._numbers[account] = len(trace.accounts)
            trace.accounts.append(account)
        trace.at_ms.append(at_ms)
        trace.run_ms.append(run_ms)
        trace.account.append(self._numbers[account])
        trace.lane.append(LANES.index(lane))
        trace.cost.append(cost)
        return len(trace) - 1

    def ran(self, number: int, run_ms: int) -> None:
        """How long it held a slot."""
        self._trace.run_ms[number] = run_ms

    def leave_out(self, number: int) -> None:
        """It is not to be played."""
        self._trace.run_ms[number] = LEFT_OUT

    def build(self, *, missed: int = 0) -> Trace:
        """All of them, by the time of their arrival. Raises SettingsError where there is none that could be played."""
        raw, trace = self._trace, Trace()
        known = [ms for ms in raw.run_ms if ms >= 0]
        if not known:
            raise SettingsError("no prediction in it ever ran to its end: there is nothing to go by.")
        mean = round(sum(known) / len(known))
        order = sorted((n for n in range(len(raw)) if raw.run_ms[n] != LEFT_OUT), key=raw.at_ms.__getitem__)
        begin = raw.at_ms[order[0]]
        for number in order:
            trace.at_ms.append(raw.at_ms[number] - begin)
            trace.run_ms.append(mean if raw.run_ms[number] == UNKNOWN else raw.run_ms[number])
            trace.account.append(raw.account[number])
            trace.lane.append(raw.lane[number])
            trace.cost.append(raw.cost[number])
        trace.accounts = raw.accounts
        trace.guessed = sum(raw.run_ms[number] == UNKNOWN for number in order)
        trace.left_out = len(raw) - len(order)
        trace.missed = missed
        return trace
