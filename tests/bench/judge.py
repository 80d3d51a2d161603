"""Compare ratios to something measured in the same rounds with kept ones: a slower machine is no regression."""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from tests.bench.ratios import Ratio
from tests.bench.results import Result

MOST_WORSE: Final = 0.15
Verdict = Literal["ok", "noise", "FAIL"]


class Change(Struct, frozen=True, kw_only=True):
    """One ratio, before and now. `worse`: by this part; below 0 it is better."""

    bench: str
    figure: str
    beside: str
    before: Ratio
    now: Ratio
    less_is_better: bool

    @property
    def worse(self) -> float:
        change = self.now.median / self.before.median
        return change - 1 if self.less_is_better else 1 / change - 1

    @property
    def is_within_noise(self) -> bool:
        """Whether both intervals have a ratio in common, so that this change is no proof of a slower product."""
        return self.before.low <= self.now.high and self.now.low <= self.before.high

    @property
    def verdict(self) -> Verdict:
        if self.worse <= MOST_WORSE:
            return "ok"
        return "noise" if self.is_within_noise else "FAIL"

    @property
    def is_regression(self) -> bool:
        return self.verdict == "FAIL"


def changes(before: Mapping[str, Result], now: Mapping[str, Result]) -> list[Change]:
    found = []
    for bench, result in now.items():
        for figure in (figure for figure in result.figures if figure.is_judged):
            kept = before[bench].figure(figure.name) if bench in before else None
            for reference in sorted(set(figure.references) & set(kept.references if kept else ())):
                assert kept is not None
                found.append(
                    Change(
                        bench=bench,
                        figure=figure.name,
                        beside=reference,
                        before=kept.beside(reference),
                        now=figure.beside(reference),
                        less_is_better=figure.less_is_better,
                    )
                )
    return sorted(found, key=lambda change: change.worse, reverse=True)


def told(found: list[Change]) -> str:
    return "\n".join(
        f"{change.verdict:5}  {change.bench}: {change.figure} beside {change.beside}: "
        f"{change.now} ×, was {change.before} ×: {abs(change.worse):.0%} {'worse' if change.worse > 0 else 'better'}"
        for change in found
    )
