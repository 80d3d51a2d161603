"""A trace: the arrivals at one queue and how long each held a slot. It may be recorded, or made here.

A prediction takes about 40 bytes, so a day's traffic fits. Inputs and outputs are never in a trace.
"""

import math
import random
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from director.core.errors import SettingsError
from director.core.ids import LANES

MOST: Final = 1_000_000  # the server holds about a kilobyte for each that waits
UNKNOWN: Final = -1  # in place of a run time
LEFT_OUT: Final = -2

SIGMA: Final = 0.8  # of the logarithm of a run time: the longest of a hundred runs takes six times the median
HEAVY_SHARE: Final = 0.6
BATCH_EVERY_S: Final = 600.0
LANES_OF_TEN: Final = ("high", *["normal"] * 7, *["low"] * 2)


class Trace:
    """Predictions in the order of their arrival, as columns. Times are milliseconds since the first arrival.

    `guessed`: predictions whose end is unknown; they get the mean run time of the others. `left_out`: predictions of
    the log that are not in the trace, since they ended before they were ever claimed, or came before the log begins.
    `missed`: entries that the log lost.
    """

    def __init__(self) -> None:
        self.at_ms = array("q")
        self.run_ms = array("q")
        self.account = array("i")
        self.lane = array("b")
        self.cost = array("d")
        self.accounts: list[str] = []
        self.guessed = 0
        self.left_out = 0
        self.missed = 0

    def __len__(self) -> int:
        return len(self.at_ms)

    def work_ms(self) -> list[int]:
        """Return, for each account, how long all its predictions hold a slot."""
        work = [0] * len(self.accounts)
        for account, ms in zip(self.account, self.run_ms, strict=True):
            work[account] += ms
        return work


class Builder:
    """A trace that grows, in any order of time."""

    def __init__(self) -> None:
        self._trace = Trace()
        self._numbers: dict[str, int] = {}

    def add(self, *, at_ms: int, account: str, lane: str, cost: float = 1.0, run_ms: int = UNKNOWN) -> int:
        """Add a prediction and return its number until `build`. Raises SettingsError if there are too many."""
        trace = self._trace
        if len(trace) == MOST:
            raise SettingsError(f"there are more than {MOST:,} predictions. Give a part of them.")
        if account not in self._numbers:
            self._numbers[account] = len(trace.accounts)
            trace.accounts.append(account)
        trace.at_ms.append(at_ms)
        trace.run_ms.append(run_ms)
        trace.account.append(self._numbers[account])
        trace.lane.append(LANES.index(lane))
        trace.cost.append(cost)
        return len(trace) - 1

    def ran(self, number: int, run_ms: int) -> None:
        """Set how long the prediction held a slot."""
        self._trace.run_ms[number] = run_ms

    def leave_out(self, number: int) -> None:
        """Leave the prediction out of the play."""
        self._trace.run_ms[number] = LEFT_OUT

    def build(self, *, missed: int = 0) -> Trace:
        """Return the trace in the order of arrival. Raises SettingsError if no prediction has a known run time."""
        raw, trace = self._trace, Trace()
        known = [ms for ms in raw.run_ms if ms >= 0]
        if not known:
            raise SettingsError("no prediction in it ran to its end, so no run time is known.")
        mean = round(sum(known) / len(known))
        order = sorted((n for n in range(len(raw)) if raw.run_ms[n] != LEFT_OUT), key=raw.at_ms.__getitem__)
        begin = raw.at_ms[order[0]]
        for number in order:
            trace.at_ms.append(raw.at_ms[number] - begin)
            trace.run_ms.append(mean if raw.run_ms[number] == UNKNOWN else raw.run_ms[number])
            trace.account.append(raw.account[number])
            trace.lane.append(raw.lane[number])
            trace.cost.append(raw.cost[number])
        trace.accounts = raw.accounts
        trace.guessed = sum(raw.run_ms[number] == UNKNOWN for number in order)
        trace.left_out = len(raw) - len(order)
        trace.missed = missed
        return trace


class MadeOptions(Struct, frozen=True, kw_only=True):
    """`load`: the work that arrives, divided by what the slots can do: 1.1 is a tenth more than that.

    `accounts`: without the heavy one, if there is one. `run_s`: the mean run time. The same seed gives the same trace.
    """

    shape: str
    slots: int = 4
    seed: int = 1
    minutes: Annotated[float, Meta(gt=0, le=7 * 1440)] = 30.0
    load: Annotated[float, Meta(gt=0, le=100)] = 1.1
    accounts: Annotated[int, Meta(ge=1, le=10_000)] = 20
    run_s: Annotated[float, Meta(ge=0.001, le=86400)] = 2.0

    @property
    def rate(self) -> float:
        """Return the predictions per second of all accounts together."""
        return self.load * self.slots / self.run_s


class Arrival(Struct, frozen=True):
    at_s: float
    account: str
    run_s: float
    lane: str = "normal"


Dice = random.Random
Shape = Callable[[MadeOptions, Dice], Iterator[Arrival]]


def made(options: MadeOptions) -> Trace:
    """Make a trace of that shape: accounts send at random moments, runs take random times. Raises SettingsError."""
    if options.shape not in SHAPES:
        raise SettingsError(f"{options.shape!r} is not a shape. Choose one of: {', '.join(SHAPES)}.")
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
    """Yield the moments of a Poisson process."""
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
    "heavy-light": _heavy_light,  # one account sends 60 %, the others the rest
    "batches": _batches,  # the same, but the one account sends a batch every ten minutes
    "even": _even,  # all accounts send the same
    "lanes": _lanes,  # the same, a tenth of it high and a fifth low
    "constant": _constant,  # one account, and each run takes the same time: M/D/c
}
