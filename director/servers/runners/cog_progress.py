"""What is new in a snapshot of a run, when snapshots come late, twice, or in the wrong order.

Pure. Progress only grows: a snapshot that knows less than was already told adds nothing, and nothing is taken back.
"""

from collections.abc import Iterator

from msgspec import Raw

from director.servers.runners.runner import Logged, Produced
from director.servers.runners.untrusted import Unreadable, read_json

__all__ = ("Progress",)


class Progress:
    """How much of one run's output and logs has been told.

    Only a model whose output is an array has items to tell: of the others, snapshots on the way carry a list that the
    end does not have.
    """

    def __init__(self, *, is_array: bool) -> None:
        self._is_array = is_array
        self._items = 0
        self._chars = 0

    def news(self, *, output: Raw | None, logs: str | None) -> Iterator[Logged | Produced]:
        """What this snapshot adds."""
        if logs and len(logs) > self._chars:
            yield Logged(logs[self._chars :])
            self._chars = len(logs)
        if self._is_array and output is not None:
            items = _items(output)
            for index in range(self._items, len(items)):
                yield Produced(items[index].copy(), index)  # a copy: the item must not keep the snapshot alive
            self._items = max(self._items, len(items))


def _items(output: Raw) -> list[Raw]:
    try:
        return read_json(bytes(output), list[Raw])
    except Unreadable:
        return []  # not an array after all; the end says what it is
