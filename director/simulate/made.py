"""Made traffic: accounts that send at random moments what runs for random times. The same seed makes the same.

Pure. `load` is the work that comes ÷ what the slots can do, so 1.1 is a tenth more than they ever get done.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from director.core.errors import SettingsError
from director.simulate.trace import Builder, Trace

__all__ = ("SHAPES", "MadeOptions", "made")

SIGMA: Final = 0.8  # of the logarithm of a run time: the longest of a hundred takes six times the median
HEAVY_SHARE: Final = 0.6
BATCH_EVERY_S: Final = 600.0
LANES_OF_TEN: Final = ("high", *["normal"] * 7, *["low"] * 2)


class MadeOptions(Struct, frozen=True, kw_only=True):
    """`accounts`: beside the heavy one, where there is one. `run_s`: what a run takes on average."""

    shape: str
    slots: int = 4
    seed: int = 1
    minutes: Annotated[float, Meta(gt=0, le=7 * 1440)] = 30.0
    load: Annotated[float, Meta(gt=0, le=100)] = 1.1
    accounts: Annotated[int, Meta(ge=1, le=10_000)] = 20
    run_s: Annotated[float, Meta(ge=0.001, le=86400)] = 2.0

    @property
    def rate(self) -> float:
        """Predictions a second, of all together."""
        return self.load * self.slots / self.run_s


class Arrival(Struct, frozen=True):
    """One prediction of an account."""

    at_s: float
    account: str
    run_s: float
    lane: str = "normal"


Dice = random.Random
Shape = Callable[[MadeOptions, Dice], Iterator[Arrival]]


def made(options: MadeOptions) -> Trace:
    """A trace of that shape. Raises SettingsError."""
    if options.shape not in SHAPES:
        raise SettingsError(f"{options.shape!r} is none of the shapes that are made: {', '.join(SHAPES)}.")
    dice = random.Random(f"{options.seed}:{options.shape}")  # noqa: S311 - the same seed is the same trace
    builder = Builder()
    for one in SHAPES[options.shape](options, dice):
        builder.add(
            at_ms=round(one.at_s * 1000),
            account=one.account,
            lane=one.lane,
            run_ms=max(1, round(one.run_s * 1000)),
        )
    return builder.build()


def _moments(rate: float, options: MadeOptions, dice: Dice) -> Iterator[float]:
    """A Poisson process."""
    at_s = dice.expovariate(rate)
    while at_s < options.minutes * 60:
        yield at_s
        at_s += dice.expovariate(rate)


def _takes(options: MadeOptions, dice: Dice) -> float:
    return dice.lognormvariate(math.log(options.run_s) - SIGMA * SIGMA / 2, SIGMA)


def _light(options: MadeOptions, dice: Dice) -> str:
    return f"light-{dice.randrange(options.accounts) + 1}"


def _even(options: MadeOptions, dice: Dice) -> Iterator[Arrival]:
    for at_s in _moments(options.rate, options, dice):
        yield Arrival(at_s, _light(options, dice), _takes(options, dice))


def _heavy_light(options: MadeOptions, dice: Dice) -> Iterator[Arrival]:
    for at_s in _moments(options.rate, options, dice):
        who = "heavy" if dice.random() < HEAVY_SHARE else _light(options, dice)
        yield Arrival(at_s, who, _takes(options, dice))


def _batches(options: MadeOptions, dice: Dice) -> Iterator[Arrival]:
    for at_s in _moments((1 - HEAVY_SHARE) * options.rate, options, dice):
        yield Arrival(at_s, _light(options, dice), _takes(options, dice))
    each = max(1, round(HEAVY_SHARE * options.rate * min(BATCH_EVERY_S, options.minutes * 60)))
    for number in range(math.ceil(options.minutes * 60 / BATCH_EVERY_S)):
        yield from (Arrival(number * BATCH_EVERY_S, "heavy", _takes(options, dice)) for _ in range(each))


def _lanes(options: MadeOptions, dice: Dice) -> Iterator[Arrival]:
    for at_s in _moments(options.rate, options, dice):
        yield Arrival(at_s, _light(options, dice), _takes(options, dice), dice.choice(LANES_OF_TEN))


def _constant(options: MadeOptions, dice: Dice) -> Iterator[Arrival]:
    for at_s in _moments(options.rate, options, dice):
        yield Arrival(at_s, "light-1", options.run_s)


SHAPES: Final[Mapping[str, Shape]] = {
    "heavy-light": _heavy_light,  # one account sends 60 % of all, the others the rest
    "batches": _batches,  # the same, but the one sends it every ten minutes, all at once
    "even": _even,  # all send the same
    "lanes": _lanes,  # all send the same, a tenth of it high and a fifth low
    "constant": _constant,  # one account, and each run takes the same: M/D/c
}
