"""What `reserve` and `spend` promise, in exact fractions and plain dicts."""

from dataclasses import dataclass, field
from fractions import Fraction

from director.core.account_limits import Bucket

__all__ = ("DAY_MS", "ModelBucket", "ModelCompute", "most_over")

DAY_MS = 86_400_000
REMEMBERED_MS = 30_000  # so long a repeated call is known as one


@dataclass
class ModelBucket:
    """A token bucket. `taken`: who took a token, and when."""

    bucket: Bucket
    taken: dict[str, int] = field(default_factory=dict)
    bursts: int = 0
    tokens: Fraction = Fraction(0)
    at_ms: int = 0
    denied_ms: int | None = None

    def __post_init__(self) -> None:
        self.tokens = Fraction(self.bucket.burst)

    @property
    def per_ms(self) -> Fraction:
        return Fraction(self.bucket.rate) / 1000

    def reserve(self, name: str, now_ms: int) -> bool:
        if name in self.taken:
            return True
        self._fill(now_ms)
        if self.tokens < 1:
            if self.denied_ms is None or now_ms - self.denied_ms > 1000:
                self.bursts += 1
            self.denied_ms = now_ms
            return False
        self.tokens -= 1
        self.taken = {known: at for known, at in self.taken.items() if at > now_ms - REMEMBERED_MS}
        self.taken[name] = now_ms
        return True

    def give_back(self, name: str, now_ms: int) -> bool:
        since = self.taken.pop(name, None)
        if since is None:
            return False
        self.tokens += max(Fraction(0), 1 - (now_ms - since) * self.per_ms)
        return True

    def remaining(self, now_ms: int) -> int:
        self._fill(now_ms)
        return int(self.tokens)

    def _fill(self, now_ms: int) -> None:
        self.tokens = min(Fraction(self.bucket.burst), self.tokens + (now_ms - self.at_ms) * self.per_ms)
        self.at_ms = now_ms


@dataclass
class ModelCompute:
    """Compute of one account: what each prediction of a day has reserved, or spent."""

    most_ms: int
    reserved: dict[str, tuple[int, int]] = field(default_factory=dict)  # id → (day, ms)
    spent: list[tuple[int, int]] = field(default_factory=list)

    def used(self, day: int) -> int:
        return sum(ms for of, ms in [*self.reserved.values(), *self.spent] if of == day)

    def reserve(self, name: str, asked_ms: int, now_ms: int) -> bool:
        day = now_ms // DAY_MS
        if self.reserved.get(name, (None, 0))[0] == day:
            return True
        if self.used(day) + asked_ms > self.most_ms:
            return False
        # what was reserved on another day is known until something is reserved on this one
        self.reserved = {known: held for known, held in self.reserved.items() if held[0] == day}
        self.reserved[name] = (day, asked_ms)
        return True

    def spend(self, name: str, spent_ms: int) -> bool:
        """It counts for the day on which it was reserved."""
        if name not in self.reserved:
            return False
        day, _ = self.reserved.pop(name)
        self.spent.append((day, spent_ms))
        return True


def most_over(moments: list[int], bucket: Bucket) -> Fraction:
    """How far the fullest window of these moments is over what the bucket lets through; at most 0 where it holds."""
    moments = sorted(moments)
    over = [
        len(moments[first : last + 1]) - bucket.burst - Fraction(bucket.rate) * (moments[last] - moments[first]) / 1000
        for first in range(len(moments))
        for last in range(first, len(moments))
    ]
    return max(over, default=Fraction(0))
