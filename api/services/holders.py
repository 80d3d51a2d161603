"""Count what each account holds of something bounded, and return which of it leaves for an account that holds less."""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class Holders(Generic[Holder]):
    """Holders by account, the oldest first. `part`: what a holder takes; the unit is the caller's. A holder that
    `stays` counts, and never leaves for another one.
    """

    def __init__(self) -> None:
        self._parts: dict[Holder, tuple[str, float]] = {}
        self._held: dict[str, dict[Holder, None]] = {}  # those that may leave for another one
        self._counts: Counter[str] = Counter()
        self._staying: set[Holder] = set()
        self._kept: Counter[str] = Counter()  # how many stay, by account
        self._sums: dict[str, float] = {}
        # 10,000 accounts that hold whole parts have at most 140 different sums for as many holders
        self._by_sum: dict[float, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, holder: object) -> bool:
        return holder in self._parts

    @property
    def holders(self) -> list[Holder]:
        return list(self._parts)

    def count_staying(self, account: str) -> int:
        return self._kept[account]

    @property
    def staying(self) -> int:
        return len(self._staying)

    def enter(self, account: str, holder: Holder, part: float = 1, *, stays: bool = False) -> None:
        self._parts[holder] = (account, part)
        self._counts[account] += 1
        if stays:
            self._staying.add(holder)
            self._kept[account] += 1
        else:
            self._held.setdefault(account, {})[holder] = None
        self._set_sum(account, self._sums.get(account, 0) + part)

    def leave(self, holder: Holder) -> None:
        """Count it no longer. Does nothing for an unknown holder."""
        if holder not in self._parts:
            return
        account, part = self._parts.pop(holder)
        if holder in self._staying:
            self._staying.discard(holder)
            _take_one(self._kept, account)
        else:
            del self._held[account][holder]
            if not self._held[account]:
                del self._held[account]
        _take_one(self._counts, account)
        self._set_sum(account, self._sums[account] - part if account in self._counts else None)

    def first_to_leave(self, account: str, part: float = 1) -> Holder | None:
        """Return the first holder that gives way to this account with `part` more, or None."""
        return next(self.give_way(account, part), None)

    def give_way(self, account: str, part: float = 1) -> Iterator[Holder]:
        """Yield holders that give way to this account with `part` more: each time the oldest of the account that holds
        most without those before, if that then still holds as much. So what one account holds never keeps another from
        its equal share. Nothing leaves: the caller decides.
        """
        ours = self._sums.get(account, 0)
        sums = {name: self._sums[name] for name in self._held}
        left = {name: iter(held) for name, held in self._held.items()}
        while sums:
            largest = max(sums, key=sums.__getitem__)
            if largest == account or sums[largest] - part < ours + part:
                return
            holder = next(left[largest], None)
            if holder is None:  # all others of it stay
                del sums[largest]
                continue
            yield holder
            sums[largest] -= self._parts[holder][1]

    def oldest_of_largest(self) -> Holder:
        """Return the oldest holder of the account that holds most. There must be one. Called for each load of a full
        cache: it looks at each sum once, not at each account.
        """
        largest = next(iter(self._by_sum[max(self._by_sum)]))
        return next(iter(self._held[largest]))

    def _set_sum(self, account: str, total: float | None) -> None:
        before = self._sums.pop(account, None)
        if before is not None:
            del self._by_sum[before][account]
            if not self._by_sum[before]:
                del self._by_sum[before]
        if total is not None:
            self._sums[account] = total
            self._by_sum.setdefault(total, {})[account] = None


def _take_one(counts: Counter[str], account: str) -> None:
    counts[account] -= 1
    if not counts[account]:
        del counts[account]
