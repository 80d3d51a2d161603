"""Define the options and the results of every bench."""

from collections.abc import Callable

import msgspec
from msgspec import Struct, field

from tests.bench.results import OURS, Measured, Seen
from tests.bench.sides.servers import Durability


class Options(Struct, frozen=True, kw_only=True):
    """`rounds` of each side, in turn. `part`: the part of the usual length of each."""

    say: Callable[[str], None]
    rounds: int = 5
    part: float = 1.0
    durability: Durability = "memory"
    with_peers: bool = True
    waiting: int = 100_000

    def seconds(self, usual: float) -> float:
        return max(0.5, usual * self.part)

    def many(self, usual: int) -> int:
        return max(20, round(usual * self.part))


class Found(Struct, kw_only=True):
    """`redis`: the release that all sides had; `durability`: of each side."""

    what: str
    redis: str
    durability: dict[str, str]
    figures: list[Measured] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    restarts: dict[str, list[float]] = field(default_factory=dict)


class Rounds:
    def __init__(self, name: str, unit: str, *, less_is_better: bool = False, is_judged: bool = True) -> None:
        self._empty = Measured(name=name, unit=unit, rounds={}, less_is_better=less_is_better, is_judged=is_judged)
        self._rounds: dict[str, list[float]] = {}

    def add(self, side: str, value: float) -> None:
        self._rounds.setdefault(side, []).append(round(value, 4))

    @property
    def last(self) -> float:
        return self._rounds[OURS][-1]

    def measured(self) -> Measured:
        return msgspec.structs.replace(self._empty, rounds=self._rounds)

    @classmethod
    def one(cls, name: str, unit: str, value: float, *, less_is_better: bool = True) -> Measured:
        figure = cls(name, unit, less_is_better=less_is_better)
        figure.add(OURS, value)
        return figure.measured()
