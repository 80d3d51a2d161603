"""Runs that share one slot of a server that takes several in one request. Pure.

Knows who is still to come, and when the last one has gone. Never knows what they run.
"""

from collections.abc import Callable

__all__ = ("Batch", "Place")


class Batch:
    """`places`: for as many runs. `on_gathered` is called once no more will come. `ends`: what its runs ended as."""

    def __init__(self, most: int) -> None:
        self.places = tuple(Place(self) for _ in range(most))
        self.ends: set[str] = set()
        self.on_gathered: Callable[[], None] = lambda: None
        self._awaited = set(self.places)
        self._kept = set(self.places)

    @property
    def is_gathered(self) -> bool:
        """Has everyone come who will?"""
        return not self._awaited

    def _came(self, place: "Place") -> None:
        if place in self._awaited:
            self._awaited.remove(place)
            if not self._awaited:
                self.on_gathered()

    def _left(self, place: "Place") -> bool:
        self._kept.discard(place)
        self._came(place)
        return not self._kept


class Place:
    """That of one run, or of nobody."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def come(self) -> None:
        """Its run is there."""
        self.batch._came(self)

    def leave(self) -> bool:
        """Its run is over, or will never come. True when the slot is free by that: nobody else is in the batch."""
        return self.batch._left(self)
