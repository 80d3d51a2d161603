"""Keep the result of a bench, with the values of every round, as one line of JSON."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from msgspec import Struct, field

from tests.bench.ratios import Ratio, ratio

OURS: Final = "ours"
MOST_BUSY: Final = 0.3
MOST_SLOW: Final = 1.3


class Machine(Struct, frozen=True, kw_only=True):
    cpu: str
    cores: int
    kernel: str
    python: str
    redis: str


class Load(Struct, frozen=True, kw_only=True):
    """`average`: of the machine. `busy`: the cores that others kept busy while no bench ran."""

    average: float
    busy: float

    def __str__(self) -> str:
        return f"{self.average:g} ({self.busy:g} cores busy)"


class Measured(Struct, frozen=True, kw_only=True):
    """The values of each side's rounds. `is_judged`: whether a worse ratio is a regression."""

    name: str
    unit: str
    rounds: dict[str, list[float]]
    less_is_better: bool = False
    is_judged: bool = True

    @property
    def references(self) -> list[str]:
        return [side for side, values in self.rounds.items() if side != OURS and self._pairs(values)]

    def median(self, side: str = OURS) -> float:
        return median(self.rounds[side])

    def beside(self, reference: str) -> Ratio:
        return ratio(self.rounds[OURS], self.rounds[reference])

    def _pairs(self, values: Sequence[float]) -> bool:
        ours = self.rounds.get(OURS, [])
        return len(values) == len(ours) and min(*values, *ours) > 0  # 0 has no ratio


class Seen(Struct, frozen=True):
    """One figure over time: `at_s` seconds after the start it had these values."""

    name: str
    unit: str
    at_s: list[float]
    values: list[float]


class Result(Struct, frozen=True, kw_only=True):
    """`durability`: of each side's Redis; `load`: of the machine before and after. `restarts`: seconds, by part."""

    bench: str
    what: str
    at: str
    commit: str
    machine: Machine
    load: tuple[Load, Load]
    took_s: float
    durability: dict[str, str]
    figures: list[Measured] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # side → why it was not measured
    seen: list[Seen] = field(default_factory=list)
    restarts: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_doubtful(self) -> bool:
        """Return True if others used too much of the machine to conclude anything."""
        return max(load.busy for load in self.load) > MOST_BUSY

    def figure(self, name: str) -> Measured | None:
        return next((figure for figure in self.figures if figure.name == name), None)


def counts(run: Result, seen: Iterable[Result]) -> bool:
    """Return False if the reference took over 1.3 × of Redis's least time in all runs of this bench on such a machine.

    Neighbours that use the caches of the host slow memory-bound work up to 2.8 ×, and no figure of this machine shows
    them.
    """
    like = [other for other in seen if (other.bench, other.machine.cpu) == (run.bench, run.machine.cpu)]
    now, least = _redis_us(run), min(filter(None, map(_redis_us, [*like, run])), default=0.0)
    return now <= MOST_SLOW * least


def _redis_us(run: Result) -> float:
    """Return the reference's time in Redis, 0 where the bench has none."""
    figures = (figure for figure in run.figures if figure.name.startswith("processor time of Redis"))
    return next((figure.median(figure.references[0]) for figure in figures if figure.references), 0.0)


def pooled(first: Result, second: Result) -> Result:
    figures = []
    for figure in second.figures:
        before = first.figure(figure.name)
        kept = before.rounds if before else {}
        rounds = {side: [*kept.get(side, []), *values] for side, values in figure.rounds.items()}
        figures.append(msgspec.structs.replace(figure, rounds=rounds))
    return msgspec.structs.replace(second, figures=figures)


def append(path: Path, results: Iterable[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.writelines(msgspec.json.encode(result) + b"\n" for result in results)


def read(path: Path) -> list[Result]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines()]


def latest(results: Iterable[Result]) -> dict[str, Result]:
    return {result.bench: result for result in results}
