"""Count what each account holds of something bounded, and say what gives way to an account that holds less."""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class Places(Generic[Holder]):
    """Holders by account, the oldest first. `part`: what a holder takes; the unit is the caller's."""

    def __init__(self) -> None:
        self._parts: dict[Holder, tuple[str, float]] = {}
        self._held: dict[str, dict[Holder, None]] = {}
        self._sums: Counter[str] = Counter()

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
        self._sums[account] += part  # type: ignore[assignment]

    def leave(self, holder: Holder) -> None:
        """Count it no longer. Safe to repeat."""
        account, part = self._parts.pop(holder, ("", 0))
        if (held := self._held.get(account)) is None:
            return
        held.pop(holder, None)
        self._sums[account] -= part  # type: ignore[assignment]
        if not held:
            del self._held[account], self._sums[account]

    def first_to_leave(self, account: str, part: float = 1) -> Holder | None:
        """Return the oldest holder of the account that holds most, if that then still holds as much as this account
        with `part` more. So what one account holds never keeps another from its equal share.
        """
        largest = self._largest(account)
        if largest == account or self._sums[largest] - part < self._sums[account] + part:
            return None
        return next(iter(self._held[largest]))

    def oldest_of_largest(self) -> Holder:
        """Return the oldest holder of the account that holds most. There must be one."""
        return next(iter(self._held[self._largest("")]))

    def _largest(self, default: str) -> str:
        return max(self._sums, key=self._sums.__getitem__, default=default)
