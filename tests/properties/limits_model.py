"""Model what `reserve` and `spend` promise, in exact fractions and plain dicts."""

from dataclasses import dataclass, field
from fractions import Fraction

from director.core.account_limits import Bucket

DAY_MS = 86_400_000
REMEMBERED_MS = 30_000  # a repeated call is recognized for this long


@dataclass
class ModelBucket:
    """A token bucket. `taken`: the id of each call that took a token, and when."""

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
    """The compute of one account: what each prediction of a day has reserved or spent."""

    most_ms: int | None
    reserved: dict[str, tuple[int, int]] = field(default_factory=dict)  # id → (day, ms)
    spent: list[tuple[int, int]] = field(default_factory=list)

    def used(self, day: int) -> int:
        return sum(ms for of, ms in [*self.reserved.values(), *self.spent] if of == day)

    def has(self, name: str, now_ms: int) -> bool:
        return self.most_ms is None or self.reserved.get(name, (None, 0))[0] == now_ms // DAY_MS

    def has_room(self, name: str, asked_ms: int, now_ms: int) -> bool:
        if self.most_ms is None or self.has(name, now_ms):
            return True
        return self.used(now_ms // DAY_MS) + asked_ms <= self.most_ms

    def reserve(self, name: str, asked_ms: int, now_ms: int) -> bool:
        if not self.has_room(name, asked_ms, now_ms):
            return False
        if not self.has(name, now_ms):
            self.reserved[name] = (now_ms // DAY_MS, asked_ms)
        return True

    def spend(self, name: str, spent_ms: int, now_ms: int) -> bool:
        """Count the spent compute on the day of this call."""
        if name not in self.reserved:
            return False
        del self.reserved[name]
        self.spent.append((now_ms // DAY_MS, spent_ms))
        return True


@dataclass
class ModelCredit:
    """The compute of one account over all days. `most_ms`: None without a limit, and then nothing is counted."""

    most_ms: int | None = None
    reserved: dict[str, int] = field(default_factory=dict)
    spent_ms: int = 0

    @property
    def used_ms(self) -> int:
        return self.spent_ms + sum(self.reserved.values())

    def has_room(self, name: str, asked_ms: int) -> bool:
        return self.most_ms is None or name in self.reserved or self.used_ms + asked_ms <= self.most_ms

    def reserve(self, name: str, asked_ms: int) -> None:
        if self.most_ms is not None:
            self.reserved.setdefault(name, asked_ms)

    def spend(self, name: str, spent_ms: int) -> bool:
        if name not in self.reserved:
            return False
        del self.reserved[name]
        self.spent_ms += spent_ms
        return True


def most_over(moments: list[int], bucket: Bucket) -> Fraction:
    """Return by how much the fullest window of these times exceeds the bucket; at most 0 if the limit holds."""
    moments = sorted(moments)
    over = [
        len(moments[first : last + 1]) - bucket.burst - Fraction(bucket.rate) * (moments[last] - moments[first]) / 1000
        for first in range(len(moments))
        for last in range(first, len(moments))
    ]
    return max(over, default=Fraction(0))
