"""Judge what a measurement found by its bound, and print figures as lines and tables."""

from collections.abc import Mapping, Sequence

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """One number that is judged. `bound` is the most that it may be, or the least where `is_least`."""

    name: str
    value: float
    bound: float
    unit: str = ""
    is_least: bool = False

    @property
    def ok(self) -> bool:
        return self.value >= self.bound if self.is_least else self.value <= self.bound


def verdicts(figures: Sequence[Figure]) -> str:
    width = max(len(figure.name) for figure in figures)
    return "\n".join(
        f"{'PASS' if figure.ok else 'FAIL'}  {figure.name:{width}}  {figure.value:>8.4g}{figure.unit}"
        f"  ({'at least' if figure.is_least else 'at most'} {figure.bound:.4g}{figure.unit})"
        for figure in figures
    )


def table(figures: Mapping[str, Mapping[str, float]]) -> str:
    heads = list(next(iter(figures.values())))
    rows = [["", *heads], *([name, *(f"{row[head]:.3g}" for head in heads)] for name, row in figures.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads) + 1)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
