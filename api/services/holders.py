"""Count what each account holds of something bounded, and say what gives way to an account that holds less."""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class Holders(Generic[Holder]):
    """Holders by account, the oldest first. `part`: what a holder takes; the unit is the caller's."""

    def __init__(self) -> None:
        self._parts: dict[Holder, tuple[str, float]] = {}
        self._held: dict[str, dict[Holder, None]] = {}
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

    def enter(self, account: str, holder: Holder, part: float = 1) -> None:
        self._parts[holder] = (account, part)
        self._held.setdefault(account, {})[holder] = None
        self._set_sum(account, self._sums.get(account, 0) + part)

    def leave(self, holder: Holder) -> None:
        """Count it no longer. Does nothing for an unknown holder."""
        if holder not in self._parts:
            return
        account, part = self._parts.pop(holder)
        del self._held[account][holder]
        if self._held[account]:
            self._set_sum(account, self._sums[account] - part)
        else:
            del self._held[account]
            self._set_sum(account, None)

    def first_to_leave(self, account: str, part: float = 1) -> Holder | None:
        """Return the first holder that gives way to this account with `part` more, or None."""
        return next(self.give_way(account, part), None)

    def give_way(self, account: str, part: float = 1) -> Iterator[Holder]:
        """Yield holders that give way to this account with `part` more: each time the oldest of the account that holds
        most without those before, if that then still holds as much. So what one account holds never keeps another from
        its equal share. Nothing leaves: the caller decides.
        """
        sums = Counter(self._sums)
        left = {name: iter(held) for name, held in self._held.items()}
        while sums:
            largest = max(sums, key=sums.__getitem__)
            if largest == account or sums[largest] - part < sums[account] + part:
                return
            holder = next(left[largest])
            yield holder
            sums[largest] -= self._parts[holder][1]  # type: ignore[assignment]

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
