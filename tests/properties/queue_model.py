"""A queue in plain Python: what the scripts must answer, and what must be true after each of them.

Knows no Redis. Where the scripts may choose (which of many to claim, how long to back off) it takes the choice as an
argument, and says whether it was one of those allowed.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from director.core.ids import PredictionId
from director.core.scripts import MOST_CLAIMS, Hold, Requeued

__all__ = ("ATTEMPTS", "LEASE_MS", "Model", "Prediction", "Stage")

Stage = Literal["waiting", "claimed", "delayed", "ended"]

ATTEMPTS: Final = 3
LEASE_MS: Final = 15_000


@dataclass
class Prediction:
    """One accepted prediction. `ends`: how often it became terminal."""

    id: PredictionId
    lane: str
    deadline: int | None = None
    late: str = ""
    wants_webhook: bool = False
    stage: Stage = "waiting"
    status: str = "starting"
    attempt: int = 0
    claims: int = 0
    token: str = ""
    ended_by: str = ""
    holder: str = ""
    lease_end: int = 0
    due: int = 0
    is_begun: bool = False
    cancel: str = ""
    is_watched: bool = False  # its deadline is still in the list that expire goes by
    is_dead: bool = False
    is_owed: bool = False
    revivals: int = 0
    ends: int = 0


@dataclass
class Model:
    """All of them, at one time."""

    now_ms: int
    all: dict[PredictionId, Prediction] = field(default_factory=dict)
    is_paused: bool = False
    signs_of_life: dict[str, int] = field(default_factory=dict)

    def at(self, stage: Stage) -> list[Prediction]:
        return [p for p in self.all.values() if p.stage == stage]

    def is_late(self, p: Prediction) -> bool:
        return p.deadline is not None and p.deadline <= self.now_ms

    # ── the caller ────────────────────────────────────────────────────────────────────────────────────────────

    def accept(self, p: Prediction) -> None:
        p.is_watched = p.deadline is not None
        self.all[p.id] = p

    def cancel(self, p: Prediction) -> str:
        if p.stage == "ended":
            return "over"
        if p.stage == "claimed":
            p.cancel = "user"
            return "asked"
        self.end(p, "canceled")
        return "canceled"

    # ── the holder ────────────────────────────────────────────────────────────────────────────────────────────

    def is_doomed(self, p: Prediction) -> bool:
        """A claim that meets it ends it instead of handing it out."""
        return p.stage == "waiting" and (self.is_late(p) or p.claims >= MOST_CLAIMS)

    def doom(self, p: Prediction) -> None:
        if self.is_late(p):
            self.end(p, self.late_status(p))
        else:
            self.bury(p)

    def claim(self, p: Prediction, *, token: str, holder: str) -> None:
        assert p.stage == "waiting", f"claimed though {p.stage}"
        assert not self.is_doomed(p), "claimed though dead"
        assert not self.is_paused, "claimed from a paused queue"
        p.stage, p.token, p.holder, p.lease_end = "claimed", token, holder, self.now_ms + LEASE_MS
        p.attempt += 1
        p.claims += 1

    def extend(self, p: Prediction, token: str) -> Hold:
        if p.token != token:
            return "lost"
        p.lease_end = self.now_ms + LEASE_MS
        asked: dict[str, Hold] = {"user": "user", "deadline": "deadline"}
        return asked.get(p.cancel, "deadline" if self.is_late(p) else "held")

    def begin(self, p: Prediction, token: str) -> str:
        if p.token != token:
            return "lost"
        p.status, p.is_begun = "processing", True
        return p.cancel or "held"

    def finish(self, p: Prediction, token: str) -> bool:
        if p.ended_by == token:
            return True
        if p.token != token:
            return False
        self.end(p, "succeeded", by=token)
        return True

    def release(self, p: Prediction, token: str, *, is_spent: bool, delay_ms: int) -> Requeued:
        if p.token != token:
            return "lost"
        return self.requeue(p, is_spent=is_spent, delay_ms=delay_ms)

    # ── the keeper ────────────────────────────────────────────────────────────────────────────────────────────

    def lost(self) -> list[Prediction]:
        return [p for p in self.at("claimed") if p.lease_end <= self.now_ms]

    def take_back(self, p: Prediction, *, due: int | None) -> Requeued:
        """`due`: when it may run again as the script chose, None for at once."""
        delay_ms = 0 if due is None else due - self.now_ms
        most_ms = min(60_000, 1_000 * 2 ** (p.attempt - 1)) if p.attempt > 1 else 0
        assert 0 <= delay_ms <= most_ms, "a backoff beyond its bounds"
        return self.requeue(p, is_spent=True, delay_ms=delay_ms)

    def promote(self) -> int:
        due = [p for p in self.at("delayed") if p.due <= self.now_ms]
        for p in due:
            p.stage = "waiting"
        return len(due)

    def expire(self) -> tuple[int, int]:
        watched = [p for p in self.all.values() if p.is_watched and self.is_late(p)]
        told = [p for p in watched if p.stage == "claimed"]
        for p in told:
            p.is_watched, p.cancel = False, p.cancel or "deadline"
        ended = [p for p in watched if p.stage != "claimed"]
        for p in ended:
            self.end(p, self.late_status(p))
        return len(ended), len(told)

    # ── the operator ──────────────────────────────────────────────────────────────────────────────────────────

    def revive(self, p: Prediction) -> bool:
        if not p.is_dead:
            return False
        p.stage, p.status, p.is_dead, p.is_owed = "waiting", "starting", False, False
        p.attempt = p.claims = 0
        p.deadline, p.is_begun, p.ended_by = None, False, ""
        p.revivals += 1
        return True

    def drop(self, p: Prediction) -> bool:
        was_dead, p.is_dead = p.is_dead, False
        return was_dead

    # ── how things end ────────────────────────────────────────────────────────────────────────────────────────

    def requeue(self, p: Prediction, *, is_spent: bool, delay_ms: int) -> Requeued:
        if p.cancel == "user":
            self.end(p, "canceled")
            return "canceled"
        if p.cancel or self.is_late(p):
            self.end(p, self.late_status(p))
            return "late"
        if is_spent and p.attempt >= ATTEMPTS:
            self.bury(p)
            return "dead"
        p.status, p.token = "starting", ""
        p.attempt -= 0 if is_spent else 1
        p.stage, p.due = ("delayed", self.now_ms + delay_ms) if delay_ms else ("waiting", 0)
        return "delayed" if delay_ms else "waiting"

    def late_status(self, p: Prediction) -> str:
        return "canceled" if p.is_begun else p.late or "failed"

    def bury(self, p: Prediction) -> None:
        self.end(p, "failed")
        p.is_dead = True

    def end(self, p: Prediction, status: str, *, by: str = "") -> None:
        assert p.stage != "ended", "a terminal state is left"
        p.stage, p.status, p.token, p.cancel, p.ended_by = "ended", status, "", "", by
        p.is_watched, p.is_owed = False, p.wants_webhook
        p.ends += 1
