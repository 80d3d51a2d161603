"""Compute how many directors a queue wants, so that what waits and what arrives starts within its objectives. Pure.

Three numbers of slots are computed, and the largest counts:

- Running: what runs keeps its slot, so that no director is asked to end during a run.
- Catching up: of `c` slots some are free at once, and each other slot is free again after a run of `s` seconds. So
  within `T` seconds `c - running + c * T / s` can start, which must cover what waits and what arrives meanwhile.
- Keeping up: arrivals are random, so more slots are needed than they fill on average. Erlang's formula (M/M/c) gives
  the share that waits longer than `T`, which must be at most what the objective lets miss.

A lane is computed together with all lanes that have as little time or less, since those go first. Nothing is remembered
here: the autoscaler decides when to follow a smaller number.
"""

import math
from collections.abc import Mapping
from typing import Final, get_args

from msgspec import Struct

from director.core.policy import Lane, Objective, Objectives

DEFAULT: Final = Objective(share=0.95, within_s=60.0)
MOST_SLOTS: Final = 10_000
SHORTEST_S: Final = 0.001


class Load(Struct, frozen=True, kw_only=True):
    """The work of a queue. `runnable` could run now or soon. `service_s` and `slots_each` are None while unknown."""

    waiting: Mapping[Lane, int]
    runnable: int
    running: int
    arrivals_s: Mapping[Lane, float]
    service_s: float | None
    slots_each: float | None
    is_paused: bool = False


class Bounds(Struct, frozen=True, kw_only=True):
    least: int = 0
    most: int | None = None


def count_wanted(load: Load, objectives: Objectives, bounds: Bounds = Bounds()) -> int:  # noqa: B008 - it is frozen
    """Return directors: at least one while anything can run or runs. A paused queue keeps what runs."""
    each = load.slots_each or 1.0
    holding = math.ceil(load.running / each)
    if load.is_paused:
        return holding
    directors = max(holding, math.ceil(_slots(load, objectives) / each), bounds.least)
    if bounds.most is not None:
        directors = min(directors, bounds.most)
    return max(directors, 1 if load.runnable or load.running else 0)


def _slots(load: Load, objectives: Objectives) -> int:
    # Arrivals of accounts at their limit wait beside what already waits of them. Until a run has been seen, it is
    # unknown what keeping up takes.
    whole = sum(load.waiting.values())
    counts = 0.0 if load.service_s is None else min(1.0, load.runnable / whole) if whole else 1.0
    waiting, arriving = _runnable_by_lane(load), {lane: rate * counts for lane, rate in load.arrivals_s.items()}
    used = [lane for lane in waiting if waiting[lane] or arriving.get(lane)]
    targets = {lane: objectives.get(lane, DEFAULT) for lane in used}
    most = 0
    for target in targets.values():
        lanes = [lane for lane, other in targets.items() if other.within_s <= target.within_s]
        backlog = sum(waiting[lane] for lane in lanes)
        arrivals_s = sum(arriving.get(lane, 0.0) for lane in lanes)
        # Until a run has been seen, it is assumed to last as long as a prediction may wait.
        service_s = max(SHORTEST_S, target.within_s if load.service_s is None else load.service_s)
        to_start = backlog + load.running + arrivals_s * target.within_s
        catching_up = math.ceil(to_start / (1 + target.within_s / service_s)) if backlog else 0
        keeping_up = _erlang(arrivals_s * service_s, target.within_s / service_s, 1 - target.share)
        most = max(most, catching_up, keeping_up)
    return most


def _runnable_by_lane(load: Load) -> dict[Lane, float]:
    """Split runnable work in the proportion of what waits, since its lanes are unknown. Due retries have no lane."""
    lanes = get_args(Lane)
    whole = sum(load.waiting.values())
    if not whole:
        return {lane: load.runnable if lane == "normal" else 0.0 for lane in lanes}
    return {lane: load.runnable * load.waiting.get(lane, 0) / whole for lane in lanes}


def _erlang(busy: float, patience: float, miss: float) -> int:
    """Return the fewest slots with which at most `miss` of the arrivals wait longer than `patience` times a run."""
    if busy <= 0:
        return 0
    blocked = 1.0  # Erlang's B for zero slots; each turn computes it for one more
    for slots in range(1, MOST_SLOTS + 1):
        blocked = busy * blocked / (slots + busy * blocked)
        if slots > busy:
            waits = blocked / (1 - busy / slots * (1 - blocked))
            if waits * math.exp(-(slots - busy) * patience) <= miss:
                return slots
    return max(MOST_SLOTS, math.ceil(busy) + 1)
