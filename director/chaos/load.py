"""Generate the load of a run: an endless, seeded sequence of orders, and rushes. Pure: sends nothing.

The same seed gives the same orders, however many of them a machine gets to. Times are relative: `gap` is in mean gaps
between two orders, all others are milliseconds after the order was accepted.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from director.chaos.parties import Script

Plan = Literal[
    "plain", "cancel", "cancel_after", "start_by", "repeat", "other_body", "fail", "poison", "rush", "flood", "large"
]
LARGE: Final = "large"  # the plan of predictions with outputs of megabytes
EQUAL: Final = "rush"  # the plan of tenants that each want the same of a queue, and together more than it has
HEAVY: Final = "flood"  # the plan of one tenant that wants much more

# The plans, and how many of a hundred orders have each. An order has one plan: two would hide each other.
PLANS: Final[dict[Plan, int]] = {
    "plain": 54,
    "cancel": 15,
    "cancel_after": 10,
    "start_by": 10,
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
FOLLOWED_SHARE: Final = 0.05
STREAMED_FOLLOWED_SHARE: Final = 0.3
MEDIAN_MS: Final = 20.0
P99_MS: Final = 400.0
LONGEST_MS: Final = 5_000.0
SIGMA: Final = math.log(P99_MS / MEDIAN_MS) / 2.326  # in the normal distribution below, 99 % lies under 2.326 sigma
SOON_MS: Final = 1_500
START_BY_S: Final = (1, 5)
CANCEL_AFTER_S: Final = (5, 8)  # the API accepts no fewer than five
HANG_SHARE: Final = 0.15  # of the runs that are canceled anyway
SLOW_CANCEL_SHARE: Final = 0.15
# runs of equal tenants differ in length: fair is an equal share of time, not of runs
RUSH_MS: Final = (200.0, 400.0, 600.0)
FLOOD_MS: Final = 400.0
FLOOD_SHARES: Final = 2  # times the share of an equal tenant
LARGE_BYTES: Final = 4_000_000
LARGE_RUNS: Final = 4


class Order(Struct, frozen=True, kw_only=True):
    """One prediction that a caller wants. `then_ms` is when it cancels, repeats, or tries a different body."""

    number: int
    gap: float
    plan: Plan
    tenant: int
    model: str
    lane: str
    script: Script
    all_events: bool = False
    is_followed: bool = False
    then_ms: int = 0
    cancel_after_s: int | None = None
    start_by_s: int | None = None
    part: str = ""  # of the run: numbers begin again in each part


def orders(seed: int, *, tenants: int, models: Sequence[str]) -> Iterator[Order]:
    """Yield all orders of this seed, without end."""
    number = 0
    weights = _tenant_weights(tenants)
    while True:
        # dice of its own for each: one draw more in one order must not change the next
        yield _order(random.Random(f"{seed}:{number}"), number, weights, models)  # noqa: S311 - repeatable on purpose
        number += 1


def rush(part: str, *, equal: Sequence[int], heavy: int, model: str, slots: int, seconds: float) -> Iterator[Order]:
    """Yield orders that fill `slots` for `seconds`: equal time for equal tenants, twice as much for the heavy one.

    The tenants are mixed, so that all of them have something in line from the first orders on.
    """
    share_ms = slots * seconds * 1000 / len(equal)
    wants: list[tuple[int, Plan, float, float]] = [
        (tenant, EQUAL, RUSH_MS[place % len(RUSH_MS)], share_ms) for place, tenant in enumerate(equal)
    ]
    wants.append((heavy, HEAVY, FLOOD_MS, FLOOD_SHARES * share_ms))
    places = [
        ((number + 0.5) / round(total / ms), tenant, plan, ms)
        for tenant, plan, ms, total in wants
        for number in range(round(total / ms))
    ]
    for number, (_, tenant, plan, ms) in enumerate(sorted(places)):
        yield Order(
            number=number,
            part=part,
            gap=0.0,
            plan=plan,
            tenant=tenant,
            model=model,
            lane="normal",
            script=Script(ms=ms),
        )


def large(part: str, *, models: Sequence[str], tenant: int, until_ms: int) -> Iterator[Order]:
    """Yield a few orders of each model with large outputs, which all end at one moment."""
    for number, model in enumerate(model for model in models for _ in range(LARGE_RUNS)):
        yield Order(
            number=number,
            part=part,
            gap=0.0,
            plan=LARGE,
            tenant=tenant,
            model=model,
            lane="high",
            script=Script(until_ms=until_ms, fill=LARGE_BYTES),
        )


def peaceful(order: Order) -> Order:
    """Return the same order, but one that does not crash its model server."""
    if order.plan != "poison":
        return order
    return msgspec.structs.replace(order, plan="plain", script=msgspec.structs.replace(order.script, outcome="ok"))


def key_of(seed: int, number: int, *, part: str = "") -> str:
    """Return the idempotency key of an order."""
    return f"{seed}-{part}{'-' if part else ''}{number}"


def _order(dice: random.Random, number: int, weights: Sequence[float], models: Sequence[str]) -> Order:
    plan = dice.choices(list(PLANS), list(PLANS.values()))[0]
    ms = min(LONGEST_MS, dice.lognormvariate(math.log(MEDIAN_MS), SIGMA))
    order = Order(
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
        start_by_s=dice.randint(*START_BY_S) if plan == "start_by" else None,
    )
    share = STREAMED_FOLLOWED_SHARE if order.script.outputs > 1 else FOLLOWED_SHARE
    return msgspec.structs.replace(order, is_followed=dice.random() < share)


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
