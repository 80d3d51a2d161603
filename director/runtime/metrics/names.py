"""Which queues are named in a label: so many at once, and the rest together as `other`.

A queue that has its name keeps it until it is gone, and one that is counted under `other` gets none later, so that no
counter ever goes back. Pure.
"""

from collections.abc import Callable, Iterable
from typing import Final

from director.core.ids import QueueName

__all__ = ("OTHER", "QueueNames")

OTHER: Final = "other"


class QueueNames:
    """At most `most` names. `on_new` hears of each that is given, and `on_gone` of each that is free again."""

    def __init__(
        self,
        most: int,
        *,
        on_new: Callable[[str], None] = lambda name: None,
        on_gone: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._most = most
        self._on_new = on_new
        self._on_gone = on_gone
        self._named: set[str] = set()
        self._unnamed: set[str] = set()

    def of(self, queue: QueueName) -> str:
        """What it is called in a label."""
        if queue in self._named:
            return queue
        if queue not in self._unnamed and len(self._named) < self._most:
            self._named.add(queue)
            self._on_new(queue)
            return queue
        self._unnamed.add(queue)
        return OTHER

    def keep(self, queues: Iterable[QueueName]) -> None:
        """These are all that there are: the names of others are free."""
        there = set(queues)
        gone = self._named - there
        self._named &= there
        self._unnamed &= there
        for name in gone:
            self._on_gone(name)
