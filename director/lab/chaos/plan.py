"""Plan a run: an endless, seeded sequence of orders and rushes, and a seeded schedule of faults. Pure. The same seed
gives the same orders, however many of them a machine gets to. An order's `gap` is in mean gaps between two orders,
its other times are milliseconds after it was accepted. The same seed, length, lease and cast give the same faults.
One target has one fault at a time, and at most one director is frozen. A fault on all links waits until all links
are whole.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from director.lab.chaos.parties import ODD, Outcome, Script
from director.runtime.crash import API_POINTS, DIRECTOR_POINTS

ServerKind = Literal["single", "sentinel", "cluster"]
SINGLE: Final = "single"
SENTINEL: Final = "sentinel"
CLUSTER: Final = "cluster"
SERVER_KINDS: Final[Sequence[ServerKind]] = (SINGLE, SENTINEL, CLUSTER)
SERVER: Final = "redis-0"
KEEPERS: Final = ("keeper-0", "keeper-1")
MASTER: Final = "redis:master"  # whichever server it is then
SINK: Final = "sink-0"
TALKER: Final = "chaos/talker"  # its server has OpenAI's API
TICK_MS: Final = 250
WARM_UP_MS: Final = 1_000  # some work is under way when the first fault strikes
TO_REDIS: Final = ":redis"  # how the names of links to Redis end
ALL_LINKS: Final = f"all{TO_REDIS}"
BLACK_HOLE: Final = "black_hole"
CUTS: Final = ("partition", BLACK_HOLE)  # in which no byte arrives
SCHEDULE_S: Final = (2.0, 5.0, 15.0, 30.0, 60.0)  # the first waits between attempts at a webhook, as documented
CLOCK_STEP: Final = "clock_step"
REPLACE: Final = "replace"
SLOW_DISK: Final = "slow_disk"  # of the machine itself: it is measured, not planned
AT_A_SYNC: Final = "at a sync"
DELETE_VERSION: Final = "delete_version"
# Each makes Sentinels promote a replica: the master is dead, frozen, or cut off from all but its clients
KILL_MASTER: Final = "kill_master"
STOP_MASTER: Final = "stop_master"
CUT_MASTER: Final = "cut_master"
FAILOVERS: Final = (KILL_MASTER, STOP_MASTER, CUT_MASTER)
MOVE_SLOT: Final = "move_slot"
# of the load, so that the process that is replaced last still has work, even if its turn comes late
ROLLED_OUT: Final = 0.6
LATENCY_MS: Final = (5, 50)
ARMED_MS: Final = (5_000, 5_000)  # for its restart, and until it reaches the point where it dies


Once = tuple[float, str, str, int, str]
"""(part of the run, kind, target, duration in ms, detail)"""
Stretch = tuple[int, int]


class Stage(Struct, frozen=True, kw_only=True):
    """The possible targets: names of processes and links. No drawn fault hits the directors in `spared`."""

    directors: Sequence[str]
    cogs: Sequence[str]
    apis: Sequence[str]
    keepers: Sequence[str]
    links: Sequence[str]
    ways: Sequence[str] = ()  # links to model servers and receivers
    kind: ServerKind = SINGLE
    servers: Sequence[str] = (SERVER,)
    sentinels: Sequence[str] = ()
    masters: Sequence[str] = (MASTER,)
    slots: Sequence[str] = ("slots",)  # a move is no outage: callers should notice nothing
    sinks: Sequence[str] = (SINK,)
    spared: Sequence[str] = ()
    has_clock: bool = True  # whether the server's clock can be stepped

    @property
    def all_links(self) -> Sequence[str]:
        return *self.links, ALL_LINKS

    @property
    def all_ways(self) -> Sequence[str]:
        return *self.all_links, *self.ways

    @property
    def losing(self) -> Sequence[str]:
        """The links on which the reply to a change may be lost."""
        return [link for link in self.links if not link.startswith("keeper")]


class Planned(Struct, frozen=True, kw_only=True):
    at_ms: int
    kind: str
    target: str
    lasts_ms: int = 0
    detail: str = ""


class Kind(Struct, frozen=True):
    """The chance of a fault in one tick, its targets (a name of `Stage`), its shortest and longest duration, and its
    possible details. `lasts_ms` is for each second of the lease if `is_by_lease`. The longest is longer in a long run
    if `is_by_length`. It applies to these `kinds` of servers.
    """

    per_tick: float
    targets: str
    lasts_ms: Stretch = (0, 0)
    details: Sequence[str] = ("",)
    is_by_lease: bool = False
    is_by_length: bool = False
    kinds: Sequence[ServerKind] = SERVER_KINDS


KINDS: Final[Mapping[str, Kind]] = {
    "kill_director": Kind(0.06, "directors"),
    "crash_director": Kind(0.04, "directors", ARMED_MS, DIRECTOR_POINTS),
    "crash_api": Kind(0.01, "apis", ARMED_MS, API_POINTS),
    "stop_director": Kind(0.02, "directors", (2_000, 2_000), is_by_lease=True),
    "kill_api": Kind(0.02, "apis", details=("at once", "before its answer")),
    "kill_cog": Kind(0.03, "cogs"),
    "stop_cog": Kind(0.01, "cogs", (1_000, 4_000)),
    "kill_keeper": Kind(0.02, "keepers"),
    "kill_redis": Kind(0.007, "servers"),
    "partition": Kind(0.02, "all_links", (1_000, 4_000)),
    "latency": Kind(0.03, "all_links", (2_000, 5_000)),
    BLACK_HOLE: Kind(0.008, "all_ways", (5_000, 10_000), is_by_length=True),
    "reset": Kind(0.01, "all_links"),
    "lose_reply": Kind(0.02, "losing", (2_000, 2_000)),
    "sink_outage": Kind(0.01, "sinks", (5_000, 5_000), ("error", "reset")),
    "kill_power": Kind(0.005, "servers", (20, 100), (AT_A_SYNC, "in the middle of a write"), kinds=(SINGLE,)),
    KILL_MASTER: Kind(0.003, "masters", kinds=(SENTINEL,)),
    STOP_MASTER: Kind(0.003, "masters", (0, 2_000), kinds=(SENTINEL,)),
    CUT_MASTER: Kind(0.003, "masters", (0, 2_000), kinds=(SENTINEL,)),
    "kill_sentinel": Kind(0.01, "sentinels", kinds=(SENTINEL,)),
    MOVE_SLOT: Kind(0.03, "slots", details=("0", "1", "2", "3"), kinds=(CLUSTER,)),
}
# The faults of a single server that the servers of a kind cannot have, and why
LEFT_OUT: Final[Mapping[ServerKind, str]] = {
    SENTINEL: "kill_power left out: replicas have what the cut log loses; clock steps left out: servers must agree",
    CLUSTER: "kill_power left out: it holds back the replies of one server; clock steps left out: masters must agree",
}

# Every link to Redis carries few bytes while some ends are large. It happens once in peace, where nothing else can
# delay an end.
NARROW: Final = "narrow"
NARROW_MS: Final = 18_000
NARROW_AT: Final = 0.8
NARROW_BYTES_S: Final = 4_000_000  # of each link: four outputs of 4 MB take 4 s, and their events before them as long
NARROW_IN_PEACE: Final = Planned(at_ms=0, kind=NARROW, target=ALL_LINKS, lasts_ms=NARROW_MS, detail=str(NARROW_BYTES_S))

AGAIN_MS: Final = 5_000  # after a black hole: a call to Redis, and a connection, are given up by then
LONGEST_HOLE_MS: Final = 60_000
HOLE_PART: Final = 1 / 6  # of a run: the longest black hole that is drawn

KEEPERS_AT: Final = 0.06  # of the run

# Faults that every run has once. Resizes hit all queues: up, then down.
ONCE: Final[Sequence[Once]] = (
    *((KEEPERS_AT, "kill_keeper", name, 0, "") for name in KEEPERS),  # one of them has half of a batch
    (0.25, "resize", "queues", 0, "24"),
    (0.30, "kill_cog", "cog-4", 0, ""),  # the only one with OpenAI's API, and its director
    (0.40, "restart_directors", "directors", 0, ""),
    (0.45, "kill_director", "director-4", 0, ""),
    (0.50, BLACK_HOLE, "director-1:cog", 5_000, ""),
    (0.55, BLACK_HOLE, f"webhooks:{SINK}", 5_000, ""),
    (0.60, "resize", "queues", 0, "3"),
    (0.75, "memory_full", SERVER, 2_000, ""),
    (0.85, DELETE_VERSION, "director-3", 0, "2"),  # late: any start of its director registers the version again
    (NARROW_AT, NARROW, ALL_LINKS, NARROW_MS, str(NARROW_BYTES_S)),
)


# One director is in a black hole for longer than its kernel takes to give up a connection that it only listens on: 20 s
# or 45 s with what redis-py sets by itself. It serves what the neighbours use, so it is back before they come.
FAR: Final = f"director-3{TO_REDIS}"
FAR_AT_MS: Final = 500
FAR_UNTIL: Final = 0.84
FAR_UNTIL_VISITED: Final = 0.48
VISITED_S: Final = 90.0  # a shorter run has no visit under faults: see run.py

# Faults of a server whose clock can be stepped, with seconds as detail. A step back is longer than the run, so that no
# time of the server comes twice. A machine that is "suspended for a minute" stops for a moment. The first steps come
# before all other faults, so that nothing else explains their effects.
STEPS: Final[Sequence[Once]] = (
    (0.01, CLOCK_STEP, SERVER, 0, "+60"),
    (0.03, CLOCK_STEP, SERVER, 0, "+60"),
    (0.05, "suspend_machine", "all:machine", 300, "+60"),
    (0.15, CLOCK_STEP, SERVER, 0, "back"),
    (0.35, CLOCK_STEP, SERVER, 0, "+60"),
    (0.70, "suspend_machine", "all:machine", 300, "+60"),
)
LEAST_BACK_S: Final = 600

# Faults that every run on a kind of servers has once
ONCE_ON: Final[Mapping[ServerKind, Sequence[Once]]] = {
    SENTINEL: (
        (0.05, KILL_MASTER, MASTER, 0, ""),
        (0.35, CUT_MASTER, MASTER, 2_000, ""),
        (0.65, STOP_MASTER, MASTER, 2_000, ""),
    ),
}


def schedule(seed: int, *, seconds: float, lease_s: float, stage: Stage) -> list[Planned]:
    length_ms = int(seconds * 1000)
    back = f"{-max(LEAST_BACK_S, int(3 * seconds))}"
    planned = [
        Planned(
            at_ms=int(part * length_ms),
            kind=kind,
            target=target,
            lasts_ms=lasts_ms,
            detail=back if detail == "back" else detail,
        )
        for part, kind, target, lasts_ms, detail in (
            *ONCE,
            *(STEPS if stage.has_clock else ()),
            *ONCE_ON.get(stage.kind, ()),
        )
    ]
    until = FAR_UNTIL_VISITED if seconds >= VISITED_S else FAR_UNTIL
    far_ms = min(int(until * length_ms) - FAR_AT_MS, LONGEST_HOLE_MS)
    planned.append(Planned(at_ms=FAR_AT_MS, kind=BLACK_HOLE, target=FAR, lasts_ms=max(0, far_ms)))
    planned += _draw(seed, length_ms, lease_s, stage)
    in_time = [replace(fault, lasts_ms=min(fault.lasts_ms, length_ms - fault.at_ms)) for fault in planned]
    return sorted(in_time, key=lambda fault: fault.at_ms)


def rollout(release: str, *, seconds: float, stage: Stage) -> list[Planned]:
    """Replace every process of the product by one of another release, in turn. Each mixture works for some time."""
    rows = zip_longest(stage.keepers, (*stage.directors, *stage.spared), stage.apis)
    mixed = [name for row in rows for name in row if name]
    apart_ms = 1_000 * seconds * ROLLED_OUT / len(mixed)
    return [
        Planned(at_ms=int(place * apart_ms), kind=REPLACE, target=name, detail=release)
        for place, name in enumerate(mixed)
    ]


def _draw(seed: int, length_ms: int, lease_s: float, stage: Stage) -> Iterator[Planned]:
    dice = random.Random(f"{seed}:faults")  # noqa: S311 - repeatable on purpose
    free_at: dict[str, int] = {}
    for at_ms in range(WARM_UP_MS, length_ms, TICK_MS):
        for kind, facts in KINDS.items():
            if stage.kind not in facts.kinds or dice.random() >= facts.per_tick:
                continue
            targets = [
                target
                for target in getattr(stage, facts.targets)
                if all(free_at.get(name, 0) <= at_ms for name in _list_held(kind, target, stage))
            ]
            if not targets:
                continue
            target = dice.choice(targets)
            times = lease_s if facts.is_by_lease else 1
            least_ms, most_ms = (int(times * ms) for ms in facts.lasts_ms)
            if facts.is_by_length:
                most_ms = max(least_ms, min(int(HOLE_PART * length_ms), LONGEST_HOLE_MS))
            lasts_ms = dice.randint(least_ms, most_ms)
            detail = dice.choice(facts.details)
            if kind == "latency":
                detail = str(dice.randint(*LATENCY_MS))
            if kind == "lose_reply":  # the word that marks a reply as "done", so that the caller loses exactly that one
                detail = "created" if target.startswith("api") else "finished"
            for name in _list_held(kind, target, stage):
                # a killed process comes back a little later, and is worth another fault only then
                free_at[name] = at_ms + max(lasts_ms, 4 * TICK_MS)
            yield Planned(at_ms=at_ms, kind=kind, target=target, lasts_ms=lasts_ms, detail=detail)


def _list_held(kind: str, target: str, stage: Stage) -> Sequence[str]:
    if target == ALL_LINKS:
        return stage.links
    return (target, kind) if kind == "stop_director" else (target,)


Plan = (
    Literal["plain", "cancel", "cancel_after", "start_by", "repeat", "other_body", "fail", "odd", "missing", "poison"]
    | Literal["rush", "flood", "large", "alone", "beside", "full"]
    | Literal["chat", "whole", "leave", "go_on"]
    | Literal["hoard", "stall", "dead", "sick", "hang", "crash", "freeze"]
)
MISSING_AT_FIRST: Final = "missing"  # the plan of predictions whose receiver, at the host of all others, fails at first
ODDLY: Final = "odd"  # the plan of predictions that their model servers answer oddly
LARGE: Final = "large"  # the plan of predictions with outputs of megabytes
EQUAL: Final = "rush"  # the plan of tenants that each want the same of a queue, and together more than it has
HEAVY: Final = "flood"  # the plan of one tenant that wants much more
ALONE: Final = "alone"  # the plan of the bystander, which wants little, before its neighbours come
BESIDE: Final = "beside"  # and while they are there
FULL: Final = "full"  # the plan of predictions that take all slots at once, when all is at rest
NEIGHBOURS: Final[Sequence[Plan]] = ("hoard", "stall", "dead", "sick", "hang", "crash", "freeze")

# The plans, and how many of a thousand orders have each. An order has one plan: two would hide each other. With ten
# poisonous inputs of a thousand, a server died every half a second, and a run of 324 s needed 338 s to come to rest.
PLANS: Final[dict[Plan, int]] = {
    "plain": 517,
    "cancel": 150,
    "cancel_after": 100,
    "start_by": 100,
    "repeat": 50,
    "other_body": 20,
    "fail": 30,
    "odd": 20,
    "missing": 10,
    "poison": 3,
}
# Calls of OpenAI's API: streamed, not streamed, or streamed to a caller that leaves, which may want it to go on
WHOLE: Final = "whole"
GO_ON: Final = "go_on"
LEAVES: Final[Sequence[Plan]] = ("leave", GO_ON)
CALLS: Final[dict[Plan, int]] = {"chat": 50, WHOLE: 20, "leave": 15, GO_ON: 10, "fail": 5}
CALLS_GAP_S: Final = 0.5  # a rate that its slots sustain, however fast the machine is
PIECES: Final = (2, 30)  # of a text
PIECE_MS: Final = (10.0, 40.0)
SLOW_SHARE: Final = 0.05  # of the calls whose callers stay: others leave in the middle of a slow text
SLOW_TIMES: Final = 5
# Lines of a batch, which are calls that are not streamed. They keep two slots of three busy for 20 s.
BATCH: Final = "batch"
LINES: Final = 40
LINE_PIECES: Final = (20, 60)
BATCH_GAP_S: Final = 40.0
HALF_DONE_S: Final = 12.0  # after it was made, the first part of it is written, and some lines wait
NOT_IN_PEACE: Final[Sequence[Plan]] = ("poison",)
OUTCOMES: Final[Mapping[Plan, Outcome]] = {"fail": "fail", "poison": "crash"}
LANES: Final = {"high": 1, "normal": 6, "low": 3}
HEAVY_SHARE: Final = 0.5  # of all orders, from the first tenant; the others share the rest by Zipf's law
ZIPF: Final = 1.1
STREAMED_SHARE: Final = 0.2
STREAMED_OUTPUTS: Final = 5
ALL_EVENTS_SHARE: Final = 0.1
FOLLOWED_SHARE: Final = 0.05
SHARED_SHARE: Final = 0.02
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

# The bystander: four predictions a second, and each second one has a stream with an event that is larger than a page.
# Twice as many were more than its fair share of a queue on a machine that does much else.
BYSTANDER_GAP_S: Final = 0.25
BYSTANDER_MS: Final = 5.0
FOLLOWED_EACH: Final = 2
FOLLOWED_BYTES: Final = 256_000

# The neighbours' predictions in one visit: how many, and the seconds between two. The hoarder wants 36 MB of inputs
# alone, and its account has a limit of 8 MB.
HOARD: Final = (40, 0.15)
DEAD: Final = (80, 0.045)  # half of their webhooks go to the host of the good receiver: more than it has places
SICK: Final = (24, 0.25)
HANG: Final = (6, 0.1)
ONE: Final = (1, 0.5)
HOARD_BYTES: Final = 900_000  # with the rest of the body less than the largest that the API takes by default
STALL_BYTES: Final = 6_000_000  # does not fit into the buffers of a socket that is not read
GONE_AFTER_S: Final = 5  # from its creation: no prediction of a neighbour outlives the visit by more
STALLED_AFTER_S: Final = 8  # a machine with other work takes seconds until there is a stream to open


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
    is_shared: bool = False  # several clients look at it at once
    then_ms: int = 0
    cancel_after_s: int | None = None
    start_by_s: int | None = None
    part: str = ""  # of the run: numbers begin again in each part
    hook: str = ""  # a receiver that answers no webhook, instead of the sink
    padding: int = 0  # bytes in the input


def orders(seed: int, *, tenants: int, models: Sequence[str]) -> Iterator[Order]:
    number = 0
    weights = _tenant_weights(tenants)
    while True:
        # dice of its own for each: one draw more in one order must not change the next
        yield _order(random.Random(f"{seed}:{number}"), number, weights, models)  # noqa: S311 - repeatable on purpose
        number += 1


def rush(part: str, *, equal: Sequence[int], heavy: int, model: str, slots: int, seconds: float) -> Iterator[Order]:
    """Yield mixed orders that fill `slots` for `seconds`: equal time for equal tenants, twice as much for the heavy
    one.
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
    shared = Order(number=0, gap=0.0, plan=EQUAL, tenant=0, model=model, lane="normal", script=Script(), part=part)
    for number, (_, tenant, plan, ms) in enumerate(sorted(places)):
        yield replace(shared, number=number, plan=plan, tenant=tenant, script=Script(ms=ms))


def large(part: str, *, models: Sequence[str], tenant: int, until_ms: int) -> Iterator[Order]:
    script = Script(until_ms=until_ms, fill=LARGE_BYTES)
    shared = Order(number=0, gap=0.0, plan=LARGE, tenant=tenant, model="", lane="high", script=script, part=part)
    for number, model in enumerate(model for model in models for _ in range(LARGE_RUNS)):
        yield replace(shared, number=number, model=model)


def calls(seed: int, *, tenants: int) -> Iterator[Order]:
    """Yield the calls of OpenAI's API, `gap` in seconds."""
    weights, number = _tenant_weights(tenants), 0
    while True:
        dice = random.Random(f"{seed}:call:{number}")  # noqa: S311 - repeatable on purpose
        plan = dice.choices(list(CALLS), list(CALLS.values()))[0]
        pieces, is_slow = dice.randint(*PIECES), dice.random() < SLOW_SHARE or plan in LEAVES
        ms = round(pieces * dice.uniform(*PIECE_MS) * (SLOW_TIMES if is_slow else 1), 1)
        yield Order(
            number=number,
            gap=dice.expovariate(1 / CALLS_GAP_S),
            plan=plan,
            tenant=dice.choices(range(tenants), weights)[0],
            model=TALKER,
            lane=dice.choices(list(LANES), list(LANES.values()))[0],
            script=Script(ms=ms, outcome=OUTCOMES.get(plan, "ok"), outputs=pieces),
            then_ms=dice.randrange(SOON_MS) if plan in LEAVES else 0,
            part="call",
        )
        number += 1


def batch_times(seconds: float) -> Iterator[float]:
    """Yield when batches are made, in seconds since the faults begin. The first is half done when both keepers die."""
    at_s = KEEPERS_AT * seconds - HALF_DONE_S
    while at_s < seconds - HALF_DONE_S:
        yield at_s
        at_s += BATCH_GAP_S


def batch(seed: int, key: str) -> Iterator[Order]:
    """Yield the lines of one batch."""
    dice = random.Random(f"{seed}:{key}")  # noqa: S311 - repeatable on purpose
    for number in range(LINES):
        pieces = dice.randint(*LINE_PIECES)
        ms = round(pieces * dice.uniform(*PIECE_MS), 1)
        script = Script(ms=ms, outputs=pieces)
        yield Order(number=number, gap=0.0, plan=WHOLE, tenant=0, model=TALKER, lane="low", script=script, part=BATCH)


def fill(slots: Mapping[str, int], *, until_ms: int) -> Iterator[Order]:
    """Yield one order for each slot of these models."""
    script = Script(until_ms=until_ms)
    shared = Order(number=0, gap=0.0, plan=FULL, tenant=0, model="", lane="high", script=script, part=FULL)
    for number, model in enumerate(model for model, count in slots.items() for _ in range(count)):
        yield replace(shared, number=number, model=model)


def bystanders(part: Plan, *, tenant: int, model: str, seconds: float) -> Iterator[Order]:
    """Yield the bystander's orders for so long. `gap` is in seconds."""
    shared = Order(
        number=0, gap=BYSTANDER_GAP_S, plan=part, tenant=tenant, model=model, lane="normal", script=Script(), part=part
    )
    for number in range(int(seconds / BYSTANDER_GAP_S)):
        is_followed = number % FOLLOWED_EACH == 0
        script = Script(ms=BYSTANDER_MS, fill=FOLLOWED_BYTES if is_followed else 0)
        yield replace(shared, number=number, script=script, is_followed=is_followed)


class Tenants(Struct, frozen=True):
    """The numbers of the neighbours' tenants, by what they do."""

    hoard: int
    stall: int
    dead: int
    slow: int
    sick: int
    poison: int


def visit(
    part: str, tenants: Tenants, *, crowded: str, quiet: str, spare: str, hooks: Sequence[str]
) -> dict[Plan, list[Order]]:
    """Return the orders of the neighbours in one visit, `gap` in seconds. The bystander uses the `quiet` model. Its
    server is not killed or frozen. Bytes go through the `spare` one. The dead receivers are `hooks`, in turn.
    """

    def several(plan: Plan, tenant: int, times: tuple[int, float], script: Script, **changed: Any) -> list[Order]:
        count, gap_s = times
        first = Order(
            number=0,
            gap=gap_s,
            plan=plan,
            tenant=tenant,
            model=quiet,
            lane="normal",
            script=script,
            cancel_after_s=GONE_AFTER_S,
            part=f"{part}-{plan}",
        )
        return [replace(first, number=number, **changed) for number in range(count)]

    short = Script(ms=BYSTANDER_MS)
    dead = several("dead", tenants.dead, DEAD, short)
    return {
        "hoard": several(
            "hoard", tenants.hoard, HOARD, replace(short, fill=HOARD_BYTES), model=spare, padding=HOARD_BYTES
        ),
        "stall": several(
            "stall", tenants.stall, ONE, replace(short, fill=STALL_BYTES), model=spare, cancel_after_s=STALLED_AFTER_S
        ),
        "dead": [replace(order, hook=hooks[order.number % len(hooks)]) for order in dead],
        "sick": several("sick", tenants.sick, SICK, Script(outcome="sick")),
        "hang": several("hang", tenants.poison, HANG, Script(outcome="hang")),
        "crash": several("crash", tenants.poison, ONE, Script(outcome="crash"), model=crowded),
        "freeze": several("freeze", tenants.poison, ONE, Script(outcome="freeze"), model=crowded),
    }


def make_plain(order: Order, plans: Sequence[Plan]) -> Order:
    """Return a plain order in place of one with these plans."""
    if order.plan not in plans:
        return order
    return replace(order, plan="plain", script=replace(order.script, outcome="ok", odd=""))


def key_of(seed: int, number: int, *, part: str = "") -> str:
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
    is_followed, is_shared = dice.random() < share, dice.random() < SHARED_SHARE
    return replace(order, is_followed=is_followed or is_shared, is_shared=is_shared)


def _script(dice: random.Random, plan: Plan, ms: float) -> Script:
    outputs = STREAMED_OUTPUTS if dice.random() < STREAMED_SHARE else 1
    how = dice.random()
    outcome = OUTCOMES.get(plan, "ok")
    if plan == "cancel" and how < HANG_SHARE + SLOW_CANCEL_SHARE:
        outcome = "hang" if how < HANG_SHARE else "slow_cancel"
    odd = list(ODD)[int(how * len(ODD))] if plan == ODDLY else ""
    return Script(ms=ms, outcome=outcome, outputs=outputs, odd=odd)


def _tenant_weights(tenants: int) -> list[float]:
    if tenants == 1:
        return [1.0]
    light = [rank**-ZIPF for rank in range(1, tenants)]
    return [HEAVY_SHARE, *((1 - HEAVY_SHARE) * share / sum(light) for share in light)]
