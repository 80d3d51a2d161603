"""Judge how much one tenant or lane costs the others: plays through the real scripts on a Valkey in memory."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.figures import jain
from director.core.policy import shard
from director.lab.simulate.play import VirtualQueue
from director.local.server import own_server
from tests.bench.figures import Figure, table
from tests.bench.play import POLICY, Load, Played, Tenant, play

MODEL: Final = "bench/fairness"
LIGHTS: Final = 99
FULL_BATCH: Final = 10_000
WORST_WAIT: Final = 0.02  # of the wait in a single line behind a full batch: twice what the lights themselves take
LEAST_JAIN: Final = 0.98
WEIGHT_ERROR: Final = 0.05
LEAST_LOW: Final = 0.05
TURNS: Final = 12  # one cycle of the lanes, 8 : 3 : 1
SLOTS: Final = 4
LEAST_STARTS: Final = 1_000  # with fewer, a single run would decide
HIGHS: Final = 25


class FairnessOptions(Struct, frozen=True, kw_only=True):
    """`salts`: sets of account names. `batch`: predictions of the large tenant, and starts in each other play."""

    salts: int = 20
    batch: int = FULL_BATCH
    seed: int = 1


class Bench:
    def __init__(self, redis: Redis, scripts: Scripts, options: FairnessOptions) -> None:
        self.options = options
        self._redis = redis
        self._scripts = scripts

    async def play(
        self, *loads: Load, slots: int = SLOTS, lasts: Callable[[Played], bool] | None = None, until_s: float = math.inf
    ) -> Played:
        await self._redis.flushall()
        queue = VirtualQueue(self._scripts, MODEL, POLICY)
        return await play(queue, loads, slots=slots, lasts=lasts or (lambda played: played.now < until_s * 1000))

    def dice(self, what: str) -> random.Random:
        return random.Random(f"{self.options.seed}:{what}")

    def random_s(self, what: str, mean: float = 1.0) -> Callable[[], float]:
        dice = self.dice(what)
        return lambda: dice.expovariate(1 / mean)


async def fairness_figures(
    options: FairnessOptions, say: Callable[[str], None], scripts: Callable[[Gatherer], Scripts] = Scripts
) -> list[Figure]:
    async with own_server() as redis:
        gatherer = Gatherer(redis)
        bench = Bench(redis, scripts(gatherer), options)
        say(f"the real scripts on a Valkey in memory, with a virtual clock; seed {options.seed}")
        figures = [*await _behind_a_batch(bench, say), *await _equal_and_weighted(bench), *await _lanes(bench)]
        await gatherer.aclose()
    return figures


# ── one tenant's batch and the others ────────────────────────────────────────────────────────────────────────────────


class Crowd(Struct, frozen=True):
    """A tenant with a batch and many with one each. `crushed`: lights that share every stream with the batch."""

    whale: Tenant
    lights: list[Tenant]
    crushed: list[Tenant]


def _crowd(seed: int, salt: int) -> Crowd:
    whale, lights = Tenant(f"{seed}-{salt}:whale"), [Tenant(f"{seed}-{salt}:light-{i}") for i in range(LIGHTS)]
    return Crowd(whale, lights, [light for light in lights if _streams(light) == _streams(whale)])


def _streams(tenant: Tenant) -> set[int]:
    return set(shard(tenant.name, streams=POLICY.streams, size=POLICY.size))


def _crowds(options: FairnessOptions) -> dict[int, Crowd]:
    """Return the crowds of the first salts. If none has a crushed light, the next one that has replaces the last."""
    crowds = {salt: _crowd(options.seed, salt) for salt in range(options.salts)}
    salt = options.salts - 1
    while not any(crowd.crushed for crowd in crowds.values()):
        crowds.pop(salt)
        salt += 1
        crowds[salt] = _crowd(options.seed, salt)
    return crowds


def _until_served(tenants: Sequence[str]) -> Callable[[Played], bool]:
    return lambda played: not all(played.starts[tenant] for tenant in tenants)


async def _behind_a_batch(bench: Bench, say: Callable[[str], None]) -> list[Figure]:
    """One slot, runs of one second. In a single line the last light would wait for the batch and all other lights."""
    batch = bench.options.batch
    one_line_s = batch + LIGHTS - 1 - 0.5
    rows: dict[str, dict[str, float]] = {}
    crushed_s = []
    for salt, crowd in _crowds(bench.options).items():
        names = [light.name for light in crowd.lights]
        played = await bench.play(
            Load(tenant=crowd.whale, jobs=batch),
            *(Load(tenant=light, since_s=0.5) for light in crowd.lights),
            slots=1,
            lasts=_until_served(names),
        )
        worst_s = max(played.waits_s(tenants=names))
        rows[f"salt {salt}"] = {
            "worst wait, s": worst_s,
            "of one line, %": 100 * worst_s / one_line_s,
            "lights in the whale's whole shard": len(crowd.crushed),
        }
        crushed_s += played.waits_s(tenants=[light.name for light in crowd.crushed]) if crowd.crushed else []
    say(f"one tenant with {batch} waiting, {LIGHTS} with one each, 1 slot; in one line the last waits {one_line_s:g} s")
    say(table(rows))
    unlucky = sum(row["lights in the whale's whole shard"] > 0 for row in rows.values())
    bound = 100 * WORST_WAIT * FULL_BATCH / batch
    worst = max(row["of one line, %"] for row in rows.values())
    return [
        Figure(name=f"worst wait of a light, {len(rows)} salts, of one line's", value=worst, bound=bound, unit=" %"),
        Figure(
            name=f"… of one with no stream that is not the whale's, {unlucky} salts",
            value=100 * max(crushed_s) / one_line_s,
            bound=bound,
            unit=" %",
        ),
        Figure(name="salts with such a light", value=unlucky, bound=1, is_least=True),
    ]


# ── equal and weighted shares ────────────────────────────────────────────────────────────────────────────────────────


async def _equal_and_weighted(bench: Bench) -> list[Figure]:
    figures = []
    for what, outstanding, slow in (("", 2, 1), ("", 40, 1), (", runs of half of them 10 × as long", 40, 10)):
        tenants = [Tenant(f"equal-{i}") for i in range(10)]
        spans = [bench.random_s(tenant.name, mean=slow if i < 5 else 1) for i, tenant in enumerate(tenants)]
        shares = await _shares(bench, tenants, spans, outstanding=outstanding, longer=2 if slow > 1 else 1)
        name = f"Jain's index of 10 equal tenants, {outstanding} outstanding each{what}"
        figures.append(Figure(name=name, value=jain(shares), bound=LEAST_JAIN, is_least=True))
    weighted = [Tenant(f"weight-{weight}", weight) for weight in (1, 2, 4)]
    shares = await _shares(bench, weighted, [bench.random_s(tenant.name) for tenant in weighted], outstanding=40)
    whole = sum(tenant.weight for tenant in weighted)
    error = max(abs(share * whole / tenant.weight - 1) for share, tenant in zip(shares, weighted, strict=True))
    name = "error of a share, weights 1 : 2 : 4, 40 outstanding each"
    return [*figures, Figure(name=name, value=100 * error, bound=100 * WEIGHT_ERROR, unit=" %")]


async def _shares(
    bench: Bench,
    tenants: Sequence[Tenant],
    spans: Sequence[Callable[[], float]],
    *,
    outstanding: int,
    longer: int = 1,
) -> list[float]:
    loads = [
        Load(tenant=tenant, jobs=outstanding, seconds=seconds, is_closed=True)
        for tenant, seconds in zip(tenants, spans, strict=True)
    ]
    seconds = longer * max(LEAST_STARTS, bench.options.batch) / SLOTS
    return (await bench.play(*loads, until_s=seconds)).shares(tenants)


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _saturating(lane: str, *, tenants: int, outstanding: int) -> list[Load]:
    return [Load(tenant=Tenant(f"{lane}-{i}"), jobs=outstanding, lane=lane, is_closed=True) for i in range(tenants)]


async def _lanes(bench: Bench) -> list[Figure]:
    starts = max(LEAST_STARTS, bench.options.batch) // 2
    high, low = _saturating("high", tenants=4, outstanding=10), _saturating("low", tenants=1, outstanding=20)
    played = await bench.play(*high, *low, slots=1, until_s=starts)
    served = sum(run.load.lane == "low" for run in played.started)
    in_line = sum(load.jobs for load in low)
    return [
        Figure(
            name="share of starts of a low lane beside a full high one",
            value=100 * served / max(1, len(played.started)),
            bound=100 * LEAST_LOW,
            unit=" %",
            is_least=True,
        ),
        Figure(
            name=f"oldest low, {in_line} of them outstanding, {TURNS} starts for each",
            value=max(played.waits_s(lane="low")),
            bound=TURNS * in_line,
            unit=" runs",
        ),
        await _high_among_normals(bench, slots=SLOTS),
        await _high_among_normals(bench, slots=1),
    ]


async def _high_among_normals(bench: Bench, *, slots: int) -> Figure:
    dice = bench.dice("highs")
    coming = list(accumulate(round(dice.uniform(2.5, 5), 3) for _ in range(100)))
    highs = [Load(tenant=Tenant("urgent"), lane="high", since_s=since_s) for since_s in coming]
    normals = _saturating("normal", tenants=4, outstanding=10)
    played = await bench.play(*normals, *highs, slots=slots, until_s=coming[-1] + 10)
    name = f"worst wait of a high among normals, {slots} slots" if slots > 1 else "… 1 slot"
    return Figure(name=name, value=max(played.waits_s(lane="high")), bound=1, unit=" runs")
