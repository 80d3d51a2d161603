"""Model a queue in plain Python: what the scripts must answer, and what must hold after each of them.

The model knows no Redis. Where a script may choose (which prediction to claim, how long to back off), the model takes
the choice as an argument and checks that it was allowed.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from director.broker.replies import Admission, Departed, Hold, Requeued, Stayed
from director.broker.scripts import MOST_CLAIMS
from director.core.ids import PredictionId
from tests.properties.breaker_model import ModelBreaker

Stage = Literal["waiting", "claimed", "delayed", "leaving", "ended"]

ATTEMPTS: Final = 3
LEASE_MS: Final = 15_000
ALIVE_MS: Final = 20_000


@dataclass
class Prediction:
    """One accepted prediction. `ends`: how often it became terminal."""

    id: PredictionId
    tenant: str
    lane: str
    cost: float = 1
    affinity: str = ""
    deadline: int | None = None
    start_by: int | None = None
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
    left_from: Stage = "waiting"
    start_after: int | None = None
    is_begun: bool = False
    once_shown: bool = False
    is_shown: bool = False
    cancel: str = ""
    timed: int | None = None  # when expire will look at it
    is_dead: bool = False
    is_owed: bool = False
    revivals: int = 0
    ends: int = 0

    @property
    def soonest(self) -> int | None:
        """Return the earliest time at which it may have to end while it waits."""
        start_by = None if self.is_begun else self.start_by
        return min((at for at in (self.deadline, start_by) if at is not None), default=None)


@dataclass
class Tenant:
    """One tenant. `queued` and `running` are as the scripts count them."""

    weight: float = 1
    most_running: int | None = None
    revision: int = 0  # of these limits; a submit with an older one changes nothing
    is_held: bool = False
    queued: int = 0
    running: int = 0

    @property
    def may_run(self) -> bool:
        return not self.is_held and (self.most_running is None or self.running < self.most_running)

    @property
    def is_known(self) -> bool:
        """Return False if the tenant never had anything in this queue. No limit is recorded then."""
        return self.queued + self.running > 0 or (self.weight, self.most_running, self.revision) != (1, None, 0)

    def limit(self, weight: float, most_running: int | None, revision: int) -> None:
        if revision >= self.revision:
            self.weight, self.most_running, self.revision = weight, most_running, revision

    def count(self, *, queued: int = 0, running: int = 0) -> None:
        """Change the counters. A lost counter starts at zero and never becomes negative."""
        self.queued, self.running = max(0, self.queued + queued), max(0, self.running + running)


@dataclass
class Model:
    """All predictions and tenants at one time. `lost`: which counters and keys are no longer right."""

    now_ms: int
    tenants: dict[str, Tenant]
    all: dict[PredictionId, Prediction] = field(default_factory=dict)
    breaker: ModelBreaker = field(default_factory=ModelBreaker)
    refuses_while_broken: bool = False
    runs_once: bool = False  # `on_lost` is `fail`
    is_paused: bool = False
    mode: Admission = "absorb"
    max_queued: int | None = None
    signs_of_life: dict[str, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    unseen_backlog: dict[str, int] = field(default_factory=dict)  # lane -> what its lost backlogs had counted

    def at(self, *stages: Stage) -> list[Prediction]:
        return [p for p in self.all.values() if p.stage in stages]

    def of(self, p: Prediction) -> Tenant:
        return self.tenants[p.tenant]

    def is_past(self, p: Prediction) -> bool:
        return p.deadline is not None and p.deadline <= self.now_ms

    def is_late(self, p: Prediction) -> bool:
        """Return True if it would end if it waited now."""
        return p.soonest is not None and p.soonest <= self.now_ms

    def claimable(self) -> list[Prediction]:
        """Return the predictions that a claim must find now."""
        if self.is_paused or self.breaker.may_claim(self.now_ms) == 0:
            return []
        return [p for p in self.at("waiting") if self.of(p).may_run and not self.is_doomed(p)]

    def refusal(self, tenant: str, *, most_queued: int | None, slots: int, is_planned: bool = False) -> str:
        """Return why a submit is refused now, or '' if it is accepted. What is planned takes no room of other work."""
        planned, claimed = sum(map(self.is_planned, self.at("delayed"))), len(self.at("claimed"))
        live = len(self.all) - len(self.at("ended", "leaving")) - planned
        waits = planned if is_planned else live - claimed
        if self.refuses_while_broken and self.breaker.may_claim(self.now_ms) == 0:
            return "breaker_open"
        if most_queued is not None and self.tenants[tenant].queued >= most_queued:
            return "too_many_queued"
        if self.mode == "bounded" and self.max_queued is not None and waits >= self.max_queued:
            return "queue_full"
        is_served = self.now_ms - max(self.signs_of_life.values(), default=0) <= ALIVE_MS
        # where nothing waits, only a new submit can be the probe of an open breaker
        starts = self.breaker.is_ripe(self.now_ms) or (is_served and not self.breaker.state)
        is_free = live < slots and not is_planned and self.tenants[tenant].may_run
        may_start = starts and is_free and not self.is_paused
        return "no_capacity" if self.mode == "reject" and not may_start else ""

    def accept(self, p: Prediction) -> None:
        p.timed = p.soonest
        self.plan(p)
        self.all[p.id] = p
        self.of(p).count(queued=1)

    def plan(self, p: Prediction) -> None:
        """Put it beside the line if it never ran and its caller planned it for later."""
        p.stage, p.due = ("delayed", p.start_after or 0) if self.is_planned(p) else ("waiting", 0)

    def is_planned(self, p: Prediction) -> bool:
        return p.claims == 0 and p.start_after is not None and p.start_after > self.now_ms

    def cancel(self, p: Prediction) -> str:
        if p.stage == "ended":
            return "over"
        if p.stage in ("claimed", "leaving"):
            p.cancel = "user"
            return "asked"
        self.end(p, "canceled")
        return "canceled"

    def is_doomed(self, p: Prediction) -> bool:
        """Return True if a claim that meets it ends it instead of handing it out."""
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
        assert self.breaker.may_claim(self.now_ms) != 0, "claimed past an open breaker"
        assert self.of(p).may_run, "claimed though its tenant is paused, or runs as many as it may"
        p.stage, p.token, p.holder, p.lease_end = "claimed", token, holder, self.now_ms + LEASE_MS
        p.attempt += 1
        p.claims += 1
        self.of(p).count(queued=-1, running=1)
        self.breaker.claimed(p.id)

    def extend(self, p: Prediction, token: str) -> Hold:
        if p.token != token:
            return "lost"
        p.lease_end = self.now_ms + LEASE_MS
        asked: dict[str, Hold] = {"user": "user", "deadline": "deadline"}
        return asked.get(p.cancel, "deadline" if self.is_past(p) else "held")

    def begin(self, p: Prediction, token: str, *, shows: bool = False) -> str:
        if p.token != token:
            return "lost"
        p.status, p.is_begun = "processing", True
        p.is_shown = p.is_shown or (shows and p.once_shown)
        return p.cancel or "held"

    def finish(self, p: Prediction, token: str) -> bool:
        if p.ended_by == token:
            return True
        if p.token != token:
            return False
        if p.status == "processing":
            self.breaker.note_success()
        self.end(p, "succeeded", by=token)
        return True

    def release(self, p: Prediction, token: str, *, is_spent: bool, delay_ms: int) -> Requeued:
        if p.token != token:
            return "lost"
        return self.requeue(p, is_spent=is_spent, delay_ms=delay_ms)

    def expired(self) -> list[Prediction]:
        """Return the lost claims in the order in which reap recovers them."""
        return sorted((p for p in self.at("claimed") if p.lease_end <= self.now_ms), key=lambda p: (p.lease_end, p.id))

    def take_back(self, p: Prediction, *, due: int | None) -> Requeued:
        """Recover a claim. `due`: the time of the next attempt that the script chose, or None for at once."""
        delay_ms = 0 if due is None else due - self.now_ms
        most_ms = min(60_000, 1_000 * 2 ** (p.attempt - 1)) if p.attempt > 1 else 0
        assert 0 <= delay_ms <= most_ms, "a backoff beyond its bounds"
        return self.requeue(p, is_spent=True, is_lost=True, delay_ms=delay_ms)

    def promote(self) -> int:
        due = [p for p in self.at("delayed") if p.due <= self.now_ms]
        for p in due:
            p.stage = "waiting"
        return len(due)

    def expire(self) -> tuple[int, int]:
        timed = [p for p in self.all.values() if p.timed is not None and p.timed <= self.now_ms]
        late = [p for p in timed if p.stage != "claimed" and self.is_late(p)]
        told = [p for p in timed if p.stage == "claimed" and self.is_past(p)]
        for p in timed:
            p.timed = p.deadline if p.stage == "claimed" else p.soonest
        for p in told:
            p.timed, p.cancel = None, p.cancel or "deadline"
        for p in late:
            self.end(p, self.late_status(p))
        return len(late), len(told)

    def untimed(self) -> list[Prediction]:
        """Return waiting predictions with a deadline that expire would never look at."""
        return [p for p in self.at("waiting", "delayed") if p.timed is None and p.soonest is not None]

    def revive(self, p: Prediction) -> bool:
        if not p.is_dead:
            return False
        p.stage, p.status, p.is_dead, p.is_owed = "waiting", "starting", False, False
        p.attempt = p.claims = 0
        p.deadline, p.start_by, p.start_after, p.is_begun, p.is_shown, p.ended_by = None, None, None, False, False, ""
        p.revivals += 1
        self.of(p).count(queued=1)
        return True

    def depart(self, p: Prediction) -> Departed:
        if p.stage == "ended":
            return "gone"
        if p.stage == "claimed":
            return "claimed"
        if p.stage != "leaving":
            if self.of(p).is_held:
                return "held"
            p.left_from, p.stage, p.timed = p.stage, "leaving", None
            self.of(p).count(queued=-1)
        return "leaving"

    def stay(self, p: Prediction) -> Stayed:
        self.come_back(p)
        if not p.cancel:
            return "delayed" if p.stage == "delayed" else "waiting"
        self.end(p, "canceled")
        return "canceled"

    def come_back(self, p: Prediction) -> None:
        """Restore the stage in which it left."""
        p.stage, p.timed = p.left_from, p.soonest
        self.of(p).count(queued=1)

    def drop(self, p: Prediction) -> bool:
        was_dead, p.is_dead = p.is_dead, False
        return was_dead

    def requeue(self, p: Prediction, *, is_spent: bool, delay_ms: int, is_lost: bool = False) -> Requeued:
        if p.cancel == "user":
            self.end(p, "canceled")
            return "canceled"
        if p.cancel or self.is_past(p):
            self.end(p, self.late_status(p))
            return "late"
        if is_spent:
            self.breaker.note_failure(p.id, p.holder, self.now_ms)
        else:
            self.breaker.gave_up(p.id, self.now_ms)
        may_have_run = is_lost or p.status == "processing"
        if (is_spent and p.attempt >= ATTEMPTS) or (may_have_run and self.runs_once) or p.is_shown:
            self.bury(p)
            return "dead"
        p.status, p.token = "starting", ""
        p.attempt -= 0 if is_spent else 1
        p.stage, p.due = ("delayed", self.now_ms + delay_ms) if delay_ms else ("waiting", 0)
        if p.start_by is not None and not p.is_begun:
            p.timed = p.soonest
        self.of(p).count(queued=1, running=-1)
        return "delayed" if delay_ms else "waiting"

    def late_status(self, p: Prediction) -> str:
        if not self.is_past(p):
            return "failed"  # only its start deadline has passed
        return "canceled" if p.is_begun else p.late or "failed"

    def bury(self, p: Prediction) -> None:
        self.end(p, "failed")
        p.is_dead = True

    def end(self, p: Prediction, status: str, *, by: str = "") -> None:
        assert p.stage != "ended", "a terminal state is left"
        was_claimed = p.stage == "claimed"
        self.of(p).count(queued=0 if was_claimed else -1, running=-1 if was_claimed else 0)
        p.stage, p.status, p.token, p.cancel, p.ended_by = "ended", status, "", "", by
        p.timed, p.is_owed = None, p.wants_webhook
        p.ends += 1
        self.breaker.gave_up(p.id, self.now_ms)
