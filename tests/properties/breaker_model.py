"""Model a queue's breaker in plain Python: consecutive server faults open it, then one probe may run."""

from dataclasses import dataclass, field
from typing import Final, Literal

COOL_MS: Final = 5_000
LONGEST_MS: Final = 10 * COOL_MS
ONE_FAULT_MS: Final = 1_000


@dataclass
class ModelBreaker:
    """The state of a breaker. `after`: the number of faults that open it, 0 for never."""

    after: int = 0
    state: Literal["", "open", "probing"] = ""
    open_until: int = 0
    cool_ms: int = COOL_MS
    probe: str = ""
    failures: int = 0
    is_of_several: bool = False
    last: str = ""  # the prediction of the last fault
    holders: set[str] = field(default_factory=set)  # consumers that lost a claim since `since_ms`
    since_ms: int = 0

    def set_after(self, after: int) -> None:
        """Set the number of faults that open the breaker. Zero closes an open one."""
        self.after = after
        if after == 0:
            self._close()

    def may_claim(self, now_ms: int) -> int | None:
        """Return how many predictions a claim may take, or None without a limit."""
        if not self.state:
            return None
        return 1 if self.is_ripe(now_ms) else 0

    def is_ripe(self, now_ms: int) -> bool:
        return self.state == "open" and self.open_until <= now_ms

    def claimed(self, prediction: str) -> None:
        if self.state == "open":
            self.state, self.probe = "probing", prediction

    def note_failure(self, prediction: str, holder: str, now_ms: int) -> None:
        if self.after == 0:
            return
        if self.state == "probing" and self.probe == prediction:
            self._open(min(2 * self.cool_ms, LONGEST_MS), now_ms)
        if self.state:
            return
        self.is_of_several |= self.failures > 0 and self.last != prediction
        if self.failures == 0 or now_ms - self.since_ms >= ONE_FAULT_MS:
            self.holders, self.since_ms = set(), now_ms
        if holder not in self.holders:
            self.failures += 1
        self.holders.add(holder)
        self.last = prediction
        if self.failures >= self.after and self.is_of_several:
            self._open(COOL_MS, now_ms)

    def note_success(self) -> None:
        self._close()

    def gave_up(self, prediction: str, now_ms: int) -> None:
        """End a probe that said nothing about the servers. Another one may start at once."""
        if self.probe == prediction:
            self.state, self.open_until, self.probe = "open", now_ms, ""

    def _open(self, cool_ms: int, now_ms: int) -> None:
        self.state, self.cool_ms, self.open_until, self.probe = "open", cool_ms, now_ms + cool_ms, ""

    def _close(self) -> None:
        self.state, self.probe, self.failures, self.is_of_several = "", "", 0, False
