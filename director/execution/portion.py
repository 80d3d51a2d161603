"""How much the next claim may bring, and what should come first: slots, the cost of a batch, and what is warm.

Pure. Costs in flight together never pass the batch's cost, but for a single one that is larger alone. Where a server
takes several in one request, one claim fills one of them, and the cost is that of one request. What a server ran
last is asked for again, so that it need not load other weights, but never so often that others are kept waiting.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from director.core.schema import Claim
from director.servers.servers import Seat, Server

__all__ = ("MOST_AT_ONCE", "MOST_SKIPS", "Portion", "Portions")

MOST_SKIPS: Final = 8  # in a row, of older ones for warm ones
# While Redis carries one claim out, what the last one brought is begun here, and others are heard there
MOST_AT_ONCE: Final = 16


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
        self._warm: dict[Server, tuple[str, str]] = {}
        self._skips = 0
        self._hits = self._keyed = 0
        self._fills = self._filled = 0.0

    def next(self, seats: Sequence[Seat]) -> Portion | None:
        """What to ask for with these seats free; None while what runs leaves no room.

        What is warm is that of the first one's server, and only for servers that are warm for the same.
        """
        seats = _together(seats)
        self._taken = self._running() if seats[0].batch is None else []
        self._asked_beside = running = len(self._taken)
        count = min(len(seats), self._size - running) if self._size else len(seats)
        count = min(count, MOST_AT_ONCE) if seats[0].batch is None else count
        budget = self._cost - sum(cost for _, cost in self._taken) if self._cost else None
        if count < 1 or (budget is not None and budget <= 0 and running):
            return None
        warm = self._key(seats[0]) if self._skips < MOST_SKIPS else ""
        if warm:
            count = min(count, MOST_SKIPS - self._skips, sum(self._key(seat) == warm for seat in seats))
        return Portion(count=count, budget=budget, alone=not running, warm=warm)

    def take(self, portion: Portion, claims: Sequence[Claim], seats: Sequence[Seat]) -> list[Seat]:
        """What was asked for has come: the seat that each claim runs on, of those that were free."""
        taken = self._seated(claims, seats)
        self._taken += [(seat, claim.record.cost) for claim, seat in zip(claims, taken, strict=True)]
        for claim, seat in zip(claims, taken, strict=True):
            key = claim.record.affinity
            self._keyed += key != ""
            self._hits += key != "" and key == self._key(seat)
            self._skips = self._skips + 1 if key != "" and key == portion.warm else 0
            self._warm[seat.server] = (seat.since, key)
        if self._cost and claims:
            self._fills += 1
            self._filled += min(1.0, sum(cost for _, cost in self._taken) / self._cost)
        return taken

    @property
    def is_bounded(self) -> bool:
        """By more than slots?"""
        return bool(self._cost or self._size)

    @property
    def is_full(self) -> bool:
        """Does what runs leave no room for another, whatever it costs?"""
        costs = [cost for seat, cost in self._running() if seat.batch is None]
        return 0 < self._size <= len(costs) or 0 < self._cost <= sum(costs)

    @property
    def has_more_room(self) -> bool:
        """Did anything end that ran when `next` was asked last?"""
        return len(self._running()) < self._asked_beside

    @property
    def figures(self) -> dict[str, str]:
        """For people: how often the key was that of the server's run before; how full a batch was after a claim."""
        shares = {"warm_hit_ratio": (self._hits, self._keyed), "batch_fill": (self._filled, self._fills)}
        return {name: f"{part / whole:.3f}" for name, (part, whole) in shares.items() if whole}

    def _seated(self, claims: Sequence[Claim], seats: Sequence[Seat]) -> list[Seat]:
        """On the server that runs it already, or on one that is warm for it, if there is one. The others in order."""
        free = _together(seats)
        seated: dict[int, Seat] = {}
        for suits in (_runs_already, self._is_warm):
            for at, claim in enumerate(claims):
                if not (claim.record.remote or claim.record.affinity):  # any seat is as good
                    continue
                if at not in seated and (seat := next((seat for seat in free if suits(claim, seat)), None)):
                    free.remove(seat)
                    seated[at] = seat
        return [seated[at] if at in seated else free.pop(0) for at in range(len(claims))]

    def _is_warm(self, claim: Claim, seat: Seat) -> bool:
        return claim.record.affinity != "" and claim.record.affinity == self._key(seat)

    def _key(self, seat: Seat) -> str:
        """What its server ran last, since it was started."""
        since, key = self._warm.get(seat.server, ("", ""))
        return key if since == seat.since else ""

    def _running(self) -> list[tuple[Seat, float]]:
        return [(seat, cost) for seat, cost in self._taken if seat.taken]


def _runs_already(claim: Claim, seat: Seat) -> bool:
    return claim.record.remote != "" and seat.server.runner.knows(claim.record.remote)


def _together(seats: Sequence[Seat]) -> list[Seat]:
    """Those that one claim is for: all of them, or the places of one batch."""
    batch = seats[0].batch if seats else None
    return [seat for seat in seats if (seat.place is None if batch is None else seat.batch is batch)]
