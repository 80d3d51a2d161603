"""A trace: the arrivals at one queue and how long each held a slot, recorded or made here. A prediction takes about 40
bytes, so a day's traffic fits. Inputs and outputs are never in a trace.
"""

import math
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
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


class Trace:
    """Predictions in the order of their arrival. Times are milliseconds since the first arrival. `guessed`:
    predictions whose end is unknown; they get the mean run time. `left_out`: they ended before they were ever
    claimed, or came before the log begins. `missed`: entries that the log lost.
    """

    def __init__(self) -> None:
        self.at_ms = array("q")
        self.run_ms = array("q")
        self.account = array("i")
        self.model = array("i")
        self.lane = array("b")
        self.cost = array("d")
        self.accounts: list[str] = []
        self.models: list[str] = []
        self.guessed = 0
        self.left_out = 0
        self.missed = 0

    def __len__(self) -> int:
        return len(self.at_ms)


class Builder:
    """A trace that grows, in any order of time."""

    def __init__(self) -> None:
        self._trace = Trace()
        self._accounts: dict[str, int] = {}
        self._models: dict[str, int] = {}

    def add(
        self, *, at_ms: int, account: str, lane: str, cost: float = 1.0, run_ms: int = UNKNOWN, model: str = ""
    ) -> int:
        """Add a prediction and return its number until `build`. Raises SettingsError if there are too many."""
        trace = self._trace
        if len(trace) == MOST:
            raise SettingsError(f"there are more than {MOST:,} predictions. Give a part of them.")
        trace.at_ms.append(at_ms)
        trace.run_ms.append(run_ms)
        trace.account.append(self._accounts.setdefault(account, len(self._accounts)))
        trace.model.append(self._models.setdefault(model, len(self._models)))
        trace.lane.append(LANES.index(lane))
        trace.cost.append(cost)
        return len(trace) - 1

    def ran(self, number: int, run_ms: int) -> None:
        """Set how long the prediction held a slot, or LEFT_OUT to leave it out of the play."""
        self._trace.run_ms[number] = run_ms

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
            trace.model.append(raw.model[number])
            trace.lane.append(raw.lane[number])
            trace.cost.append(raw.cost[number])
        trace.accounts, trace.models = list(self._accounts), list(self._models)
        trace.guessed = sum(raw.run_ms[number] == UNKNOWN for number in order)
        trace.left_out = len(raw) - len(order)
        trace.missed = missed
        return trace


class MadeOptions(Struct, frozen=True, kw_only=True):
    """`load`: the work that arrives, divided by what the slots can do. `accounts`: without the heavy one. `run_s`:
    mean. `models`: the first gets the most, each later one less (1, 1/2, 1/3 …).
    """

    shape: str
    slots: int = 4
    seed: int = 1
    minutes: Annotated[float, Meta(gt=0, le=7 * 1440)] = 30.0
    load: Annotated[float, Meta(gt=0, le=100)] = 1.1
    accounts: Annotated[int, Meta(ge=1, le=10_000)] = 20
    run_s: Annotated[float, Meta(ge=0.001, le=86400)] = 2.0
    models: Sequence[str] = ()

    @property
    def rate(self) -> float:
        return self.load * self.slots / self.run_s


class Arrival(Struct, frozen=True):
    at_s: float
    account: str
    run_s: float
    lane: str = "normal"


Dice = random.Random


class Shape(Struct, frozen=True):
    """`heavy`: the part of all predictions that one account sends. `lanes`: as often as they are named."""

    heavy: float = 0.0
    in_batches: bool = False
    is_constant: bool = False
    in_turns: bool = False
    lanes: Sequence[str] = ()


SHAPES: Final[Mapping[str, Shape]] = {
    "heavy-light": Shape(heavy=HEAVY_SHARE),  # one account sends 60 %, the others the rest
    "batches": Shape(heavy=HEAVY_SHARE, in_batches=True),  # the same, but the one account sends every ten minutes
    "even": Shape(),  # all accounts send the same
    "lanes": Shape(lanes=("high", *["normal"] * 7, *["low"] * 2)),  # the same, a tenth of it high and a fifth low
    "constant": Shape(is_constant=True),  # one account, and each run takes the same time: M/D/c
    "turns": Shape(is_constant=True, in_turns=True),  # the same at equal distances, for each model in turn: ABCABC…
}


def make_trace(options: MadeOptions) -> Trace:
    """Make a trace of that shape: accounts send at random moments, runs take random times. Raises SettingsError."""
    if options.shape not in SHAPES:
        raise SettingsError(f"{options.shape!r} is not a shape. Choose one of: {', '.join(SHAPES)}.")
    dice = random.Random(f"{options.seed}:{options.shape}")  # noqa: S311 - the same seed is the same trace
    choice = random.Random(f"{options.seed}:models")  # noqa: S311 - so the same arrivals come without models
    builder, shape, models = Builder(), SHAPES[options.shape], options.models or ("",)
    for number, one in enumerate(_arrivals(shape, options, dice)):
        run_ms = max(1, round(one.run_s * 1000))
        often = [1 / (place + 1) for place in range(len(models))]
        model = models[number % len(models)] if shape.in_turns else choice.choices(models, often)[0]
        builder.add(at_ms=round(one.at_s * 1000), account=one.account, lane=one.lane, run_ms=run_ms, model=model)
    return builder.build()


def _arrivals(shape: Shape, options: MadeOptions, dice: Dice) -> Iterator[Arrival]:
    rate = options.rate * (1 - shape.heavy if shape.in_batches else 1)
    at_s = 0.0 if shape.in_turns else dice.expovariate(rate)
    while at_s < options.minutes * 60:
        if shape.is_constant:
            yield Arrival(at_s, "light-1", options.run_s)
        else:
            is_heavy = shape.heavy and not shape.in_batches and dice.random() < shape.heavy
            who = "heavy" if is_heavy else f"light-{dice.randrange(options.accounts) + 1}"
            yield Arrival(at_s, who, _takes(options, dice), dice.choice(shape.lanes) if shape.lanes else "normal")
        at_s += 1 / rate if shape.in_turns else dice.expovariate(rate)
    if shape.in_batches:
        each = max(1, round(shape.heavy * options.rate * min(BATCH_EVERY_S, options.minutes * 60)))
        for number in range(math.ceil(options.minutes * 60 / BATCH_EVERY_S)):
            yield from (Arrival(number * BATCH_EVERY_S, "heavy", _takes(options, dice)) for _ in range(each))


def _takes(options: MadeOptions, dice: Dice) -> float:
    return dice.lognormvariate(math.log(options.run_s) - SIGMA * SIGMA / 2, SIGMA)
