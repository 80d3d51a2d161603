"""How much the next claim may bring, and what should come first: slots, the cost of a batch, and what is warm.

Pure. Costs in flight together never pass the batch's cost, but for a single one that is larger alone. What ran last is
asked for again, so that a server need not load other weights, but never so often that others are kept waiting.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from director.core.schema import Claim
from director.servers import Seat

__all__ = ("MOST_SKIPS", "Portion", "Portions")

MOST_SKIPS: Final = 8  # in a row, of older ones for warm ones


class Portion(Struct, frozen=True, kw_only=True):
    """What one claim asks for, as `Scripts.claim` takes it."""

    count: int
    budget: float | None = None
    alone: bool = True
    warm: str = ""


class Portions:
    """What runs on the seats, and what follows from it for the next claim.

    `batch_cost`: most that may run at once by cost, 0 for no bound; `batch_size`: by number, 0 for as many as there are
    slots.
    """

    def __init__(self, *, batch_cost: float = 0, batch_size: int = 0) -> None:
        self._cost = batch_cost
        self._size = batch_size
        self._taken: list[tuple[Seat, float]] = []
        self._asked_beside = 0
        self._warm = ""
        self._skips = 0
        self._hits = self._keyed = 0
        self._fills = self._filled = 0.0

    def next(self, seats: int) -> Portion | None:
        """What to ask for with so many seats free; None while what runs leaves no room."""
        self._taken = self._running()
        self._asked_beside = running = len(self._taken)
        count = min(seats, self._size - running) if self._size else seats
        budget = self._cost - sum(cost for _, cost in self._taken) if self._cost else None
        if count < 1 or (budget is not None and budget <= 0 and running):
            return None
        warm = self._warm if self._skips < MOST_SKIPS else ""
        if warm:
            count = min(count, MOST_SKIPS - self._skips)
        return Portion(count=count, budget=budget, alone=not running, warm=warm)

    def take(self, portion: Portion, claims: Sequence[Claim], seats: Sequence[Seat]) -> None:
        """What was asked for has come, and runs on these seats."""
        self._taken += [(seat, claim.record.cost) for claim, seat in zip(claims, seats, strict=True)]
        for claim in claims:
            key = claim.record.affinity
            self._keyed += key != ""
            self._hits += key != "" and key == self._warm
            self._skips = self._skips + 1 if key != "" and key == portion.warm else 0
            self._warm = key
        if self._cost and claims:
            self._fills += 1
            self._filled += min(1.0, sum(cost for _, cost in self._taken) / self._cost)

    @property
    def has_more_room(self) -> bool:
        """Did anything end that ran when `next` was asked last?"""
        return len(self._running()) < self._asked_beside

    @property
    def figures(self) -> dict[str, str]:
        """For people: how often the key was that of the run before, and how full a batch was after a claim."""
        shares = {"warm_hit_ratio": (self._hits, self._keyed), "batch_fill": (self._filled, self._fills)}
        return {name: f"{part / whole:.3f}" for name, (part, whole) in shares.items() if whole}

    def _running(self) -> list[tuple[Seat, float]]:
        return [(seat, cost) for seat, cost in self._taken if seat.taken]
