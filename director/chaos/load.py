"""What the caller of a run asks for: an endless, seeded sequence of orders. Pure: sends nothing, knows no clock.

The same seed gives the same orders, however many of them a machine gets to. Times are relative: `gap` in mean gaps
between two orders, all else in milliseconds after the order was accepted.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct

from director.chaos.cog import Script

__all__ = ("Order", "Plan", "key_of", "orders")

Plan = Literal["plain", "cancel", "cancel_after", "repeat", "other_body", "fail", "poison"]

# What is special about an order, and how many of a hundred are so. Two things at once would hide each other.
PLANS: Final[dict[Plan, int]] = {
    "plain": 64,
    "cancel": 15,
    "cancel_after": 10,
    "repeat": 5,
    "other_body": 2,
    "fail": 3,
    "poison": 1,
}
LANES: Final = {"high": 1, "normal": 6, "low": 3}
HEAVY_SHARE: Final = 0.5  # of all orders, from the first tenant; the others share the rest by Zipf's law
ZIPF: Final = 1.1
STREAMED_SHARE: Final = 0.2
STREAMED_OUTPUTS: Final = 5
ALL_EVENTS_SHARE: Final = 0.1
MEDIAN_MS: Final = 20.0
P99_MS: Final = 400.0
LONGEST_MS: Final = 5_000.0
SIGMA: Final = math.log(P99_MS / MEDIAN_MS) / 2.326  # of the normal distribution below, 99 % lies under 2.326 sigma
SOON_MS: Final = 1_500
CANCEL_AFTER_S: Final = (5, 8)  # the API takes no less than five
HANG_SHARE: Final = 0.15  # of the runs that are canceled anyway
SLOW_CANCEL_SHARE: Final = 0.15


class Order(Struct, frozen=True, kw_only=True):
    """One thing that a caller wants. `then_ms`: when it cancels, repeats or tries another body."""

    number: int
    gap: float
    plan: Plan
    tenant: int
    model: str
    lane: str
    script: Script
    all_events: bool = False
    then_ms: int = 0
    cancel_after_s: int | None = None


def orders(seed: int, *, tenants: int, models: Sequence[str]) -> Iterator[Order]:
    """All orders of this seed, one after the other."""
    number = 0
    weights = _tenant_weights(tenants)
    while True:
        # dice of its own for each: one draw more in one order must not change the next
        yield _order(random.Random(f"{seed}:{number}"), number, weights, models)  # noqa: S311 - repeatable on purpose
        number += 1


def key_of(seed: int, number: int, *, calibrating: bool = False) -> str:
    """The idempotency key of an order."""
    return f"{seed}-{'calibration-' if calibrating else ''}{number}"


def _order(dice: random.Random, number: int, weights: Sequence[float], models: Sequence[str]) -> Order:
    plan = dice.choices(list(PLANS), list(PLANS.values()))[0]
    ms = min(LONGEST_MS, dice.lognormvariate(math.log(MEDIAN_MS), SIGMA))
    return Order(
        number=number,
        gap=dice.expovariate(1.0),
        plan=plan,
        tenant=dice.choices(range(len(weights)), weights)[0],
        model=dice.choice(models),
        lane=dice.choices(list(LANES), list(LANES.values()))[0],
        script=_script(dice, plan, round(ms, 1)),
        all_events=dice.random() < ALL_EVENTS_SHARE,
        then_ms=dice.randrange(SOON_MS),
        cancel_after_s=dice.randint(*CANCEL_AFTER_S) if plan == "cancel_after" else None,
    )


def _script(dice: random.Random, plan: Plan, ms: float) -> Script:
    outputs = STREAMED_OUTPUTS if dice.random() < STREAMED_SHARE else 1
    how = dice.random()
    match plan:
        case "fail":
            return Script(ms=ms, outcome="fail", outputs=outputs)
        case "poison":
            return Script(ms=ms, outcome="crash", outputs=outputs)
        case "cancel" if how < HANG_SHARE:
            return Script(ms=ms, outcome="hang", outputs=outputs)
        case "cancel" if how < HANG_SHARE + SLOW_CANCEL_SHARE:
            return Script(ms=ms, outcome="slow_cancel", outputs=outputs)
        case _:
            return Script(ms=ms, outputs=outputs)


def _tenant_weights(tenants: int) -> list[float]:
    if tenants == 1:
        return [1.0]
    light = [rank**-ZIPF for rank in range(1, tenants)]
    return [HEAVY_SHARE, *((1 - HEAVY_SHARE) * share / sum(light) for share in light)]
