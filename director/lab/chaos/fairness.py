"""Judge fairness. Pure.

I14: equal tenants get equal shares while all wait, and light tenants do not wait for a heavy one. The evidence is the
server's log of arrivals and claims, wherever each of the equal tenants of a lane had something waiting. A share is slot
time. Under faults slots cannot end what they hold, so a share is then model server time, without work that was lost
with a server. A freeze also keeps slots before and after a run, and so does a cut between a director and its server.
The queue can charge that only when it is over, so it counts only as far as it brings the shares together. A wait is
counted in turns of other predictions: while nothing is claimed, time says nothing about fairness.

I19: a bystander is served beside hungry and hostile neighbours almost as without them.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator
from statistics import median
from typing import Final, NamedTuple

from msgspec import Struct

from director.core.figures import jain
from director.core.states import TERMINAL
from director.lab.chaos.evidence import Evidence, Findings, Stretch, Try, Window, depends_on, group, stretches
from director.lab.chaos.journal import Arrived
from director.lab.chaos.plan import ALONE, BESIDE, EQUAL, HEAVY, NEIGHBOURS, Plan
from director.lab.chaos.recovery import percentile

QUIET_JAIN: Final = 0.98
JAIN: Final = 0.95  # for faults, under which runs are lost and done again
SHORTEST_MS: Final = 2_000  # in a shorter time, or for smaller shares on average, a single run decides the index


class Wait(Struct, frozen=True):
    """The 99th percentile of the waits of light tenants, or the median of the heavy tenant."""

    turns: int | None
    ms: int | None


class Share(NamedTuple):
    """Slot time of one tenant: what its runs used, and what only a freeze or a cut kept."""

    used_ms: int = 0
    kept_ms: int = 0


class Saturation(Struct, frozen=True, kw_only=True):
    queue: str
    lane: str
    begin: int
    end: int
    is_quiet: bool
    jain: float
    served_ms: dict[str, int]
    light: Wait
    heavy: Wait
    kept_ms: dict[str, int] = {}  # the part of `served_ms` for which faults kept slots; older reports lack it


def equal_shares(evidence: Evidence) -> Findings:
    for each in saturations(evidence):
        within = f"in {(each.end - each.begin) / 1000:.1f} s of a full {each.lane} lane"
        is_judged = sum(each.served_ms.values()) >= SHORTEST_MS * len(each.served_ms)
        if is_judged and each.jain < (QUIET_JAIN if each.is_quiet else JAIN):
            shares = f"{each.served_ms}, of which faults kept {each.kept_ms}"
            yield each.queue, f"{within}, equal tenants got shares with an index of {each.jain:.3f}: {shares}"
        light, heavy = each.light.turns, each.heavy.turns
        if light is not None and heavy is not None and light > heavy:
            yield each.queue, f"{within}, light tenants waited for {light} turns of others, the heavy one for {heavy}"


def is_rushed(evidence: Evidence) -> bool:
    return EQUAL in evidence.plans().values()


def saturations(evidence: Evidence) -> list[Saturation]:
    plans, found = evidence.plans(), list[Saturation]()
    for arrivals in group(evidence.arrivals.values(), lambda each: (each.queue, each.lane)).values():
        tenants = {each.tenant for each in arrivals if plans.get(each.id) == EQUAL}
        waits = [(each, _until(evidence, each)) for each in arrivals]
        found += [_saturation(evidence, waits, tenants, window, plans) for window in _windows(waits, tenants)]
    return found


def _until(evidence: Evidence, arrived: Arrived) -> int:
    """Return when the prediction stopped waiting: at its first claim, or at its end without one."""
    claims = [claimed.at for claimed in evidence.claims.get(arrived.id, [])]
    return [*claims, *evidence.ends(arrived.id), evidence.until][0]


def _windows(waits: list[tuple[Arrived, int]], tenants: set[str]) -> Iterator[Stretch]:
    steps = [
        (at, (-step, arrived.tenant))
        for arrived, until in waits
        if arrived.tenant in tenants
        for at, step in ((arrived.at, 1), (until, -1))
    ]
    waiting: Counter[str] = Counter()

    def all_wait(step: tuple[int, str]) -> bool:
        waiting[step[1]] -= step[0]
        return all(waiting[each] > 0 for each in tenants)

    return ((began, at) for began, at in stretches(sorted(steps), all_wait) if at - began >= SHORTEST_MS)


def _saturation(
    evidence: Evidence, waits: list[tuple[Arrived, int]], tenants: set[str], window: Stretch, plans: dict[str, str]
) -> Saturation:
    begin, end = window
    shares = dict.fromkeys(sorted(tenants), Share())
    is_quiet = not evidence.was_hit(begin, end)
    share_of = _measure_hold if is_quiet else _ran
    owners = {each.tenant for each in evidence.arrivals.values() if plans.get(each.id) == HEAVY}
    # neighbours have limits of their own, for which they wait
    others = [
        (arrived, until)
        for arrived, until in waits
        if begin <= arrived.at <= end and plans.get(arrived.id) not in NEIGHBOURS
    ]
    for arrived, _ in waits:
        if arrived.tenant in tenants:
            used, kept = share_of(evidence, arrived.id, begin, end)
            before = shares[arrived.tenant]
            shares[arrived.tenant] = Share(before.used_ms + used, before.kept_ms + kept)
    turns = _turns(evidence, [arrived for arrived, _ in waits])
    return Saturation(
        queue=waits[0][0].queue,
        lane=waits[0][0].lane,
        begin=begin,
        end=end,
        is_quiet=is_quiet,
        jain=round(jain(_most_equal(shares.values())), 4),
        served_ms={tenant: sum(share) for tenant, share in shares.items()},
        kept_ms={tenant: share.kept_ms for tenant, share in shares.items()},
        light=_wait([each for each in others if each[0].tenant not in tenants | owners], 0.99, turns),
        heavy=_wait([each for each in others if each[0].tenant in owners - tenants], 0.5, turns),
    )


def _most_equal(shares: Collection[Share]) -> list[float]:
    """Return the shares with as much of the kept time as brings each nearest to the others. A freeze of 30 s keeps all
    slots of a director, so a tenant with two of them has a minute more than one with none.
    """
    usual = median(end for used, kept in shares for end in (used, used + kept))
    return [min(max(usual, used), used + kept) for used, kept in shares]


def _wait(waits: list[tuple[Arrived, int]], share: float, turns: dict[str, int]) -> Wait:
    return Wait(
        turns=percentile([turns[arrived.id] for arrived, _ in waits if arrived.id in turns], share),
        ms=percentile([until - arrived.at for arrived, until in waits], share),
    )


def _turns(evidence: Evidence, arrivals: list[Arrived]) -> dict[str, int]:
    """Return for each id how many others of its lane were claimed between its arrival and its own first claim."""
    claims = {each.id: evidence.claims[each.id] for each in arrivals if each.id in evidence.claims}
    numbers = sorted(claimed.number for several in claims.values() for claimed in several)
    return {
        each.id: bisect_left(numbers, claims[each.id][0].number) - bisect_left(numbers, each.number)
        for each in arrivals
        if each.id in claims
    }


def _measure_hold(evidence: Evidence, prediction_id: str, begin: int, end: int) -> Share:
    """Return how long its last claim held a slot, if it succeeded."""
    claims = evidence.claims.get(prediction_id)
    if not claims or evidence.status(prediction_id) != "succeeded":
        return Share()
    ended = next(iter(evidence.ends(prediction_id)), begin)
    return Share(_within(claims[-1].at, ended, begin, end))


def _ran(evidence: Evidence, prediction_id: str, begin: int, end: int) -> Share:
    """Return how long its successful run took, and how long a fault kept its slot before and after that run: a
    director froze between claim and run, or before it took the result, or nothing passed between it and its server.
    """
    runs = [run for run in evidence.runs.get(prediction_id, []) if run.outcome == "succeeded"]
    if not runs:
        return Share()
    run, parts = runs[-1], depends_on(runs[-1].server)
    claimed = max(
        (claim.at for claim in evidence.claims.get(prediction_id, []) if claim.at <= run.began), default=run.began
    )
    keeps = [fault for fault in evidence.faults if fault.target in parts and _keeps_slots(fault)]
    # a director may give its server up before a cut is over
    given_up = min([evidence.until, *evidence.ends(prediction_id)])
    until = max(
        (
            fault.end if fault.is_freeze else min(fault.end, given_up)
            for fault in keeps
            if fault.overlaps(run.ended, run.ended)
        ),
        default=run.ended,
    )
    kept, since = _within(run.ended, until, begin, end), claimed
    for fault in sorted(keeps, key=lambda fault: fault.begin):
        kept += _within(max(fault.begin, since), min(fault.end, run.began), begin, end)
        since = max(since, fault.end)
    return Share(_within(run.began, run.ended, begin, end), kept)


def _keeps_slots(fault: Window) -> bool:
    # a run whose end cannot be written has left its slot, so a cut from Redis keeps none
    return fault.is_freeze or (fault.is_cut and fault.target.endswith(":cog"))


def _within(since: int, until: int, begin: int, end: int) -> int:
    return max(0, min(until, end) - max(since, begin))


# I19. The bystander wants little. It is watched twice in the time without faults: first alone with the ordinary load,
# as a control, then beside the neighbours. Its times are what its clients see, so they hold all waits: for the API, for
# a slot, for the end.

MOST_TIMES: Final = 5  # a time beside the neighbours may be this many times the control's,
LEAST_MS: Final = 2_000  # or this long: less is noise where two cores carry all parts. A missing bound costs 5 s
COMPARED: Final = 0.9  # the percentile
KINDS: Final = ("creates", "streams", "webhooks")
LEAST_SEEN: Final = {"creates": 12, "streams": 4, "webhooks": 12}  # in each watch
# Connections that the neighbours held at least, in each visit without faults: the API has 16 turns for large events
LEAST_HELD: Final = {"stall": 16, "slow": 32}
QUIET_PART: Final = "peace"
REFUSED: Final = 429


class Served(Struct, frozen=True, kw_only=True):
    """How one kind of request was served. The times are percentiles, from the first request of a prediction on."""

    alone_ms: int
    beside_ms: int
    most_ms: int


def bystander_is_served(evidence: Evidence) -> Findings:
    for kind, each in bystander_served(evidence).items():
        if each.beside_ms > each.most_ms:
            bound = f"and may take {each.most_ms} ms"
            yield "", f"its {kind} took {each.alone_ms} ms alone, {each.beside_ms} ms beside neighbours, {bound}"
    for tries in _tries(evidence, BESIDE):
        first = tries[0]
        if not first.ok:
            yield first.sent.key, f"its create beside neighbours was answered {first.answer.status}"


def bystander_served(evidence: Evidence) -> dict[str, Served]:
    """Compare both watches, as far as both saw something."""
    alone, beside = _times(evidence, ALONE), _times(evidence, BESIDE)
    found = {}
    for kind in KINDS:
        before, now = percentile(alone[kind], COMPARED), percentile(beside[kind], COMPARED)
        if before is not None and now is not None:
            found[kind] = Served(alone_ms=before, beside_ms=now, most_ms=max(MOST_TIMES * before, LEAST_MS))
    return found


def bystander_lacks(evidence: Evidence) -> Iterator[str]:
    """Yield what is missing in a run that has a bystander, so that nothing was compared."""
    if not list(_tries(evidence, BESIDE)):
        return
    for plan in (ALONE, BESIDE):
        times = _times(evidence, plan)
        yield from (f"too few {kind} of the bystander, {plan}" for kind in KINDS if len(times[kind]) < LEAST_SEEN[kind])
    came = {tries[0].sent.plan for tries in evidence.accepted().values()}
    yield from (f"no neighbour had the plan {plan}" for plan in NEIGHBOURS if plan not in came)
    for kind, least in LEAST_HELD.items():
        counts = [each.count for each in evidence.held if (each.kind, each.part) == (kind, QUIET_PART)]
        if max(counts, default=0) < least:
            yield f"fewer than {least} connections of neighbours were held open: {kind}"
    hoarded = (each for tries in evidence.creates.values() for each in tries if each.sent.plan == "hoard")
    if not any(each.answer.status == REFUSED for each in hoarded):
        yield "the hoarder was never at its limit of bytes"


def _tries(evidence: Evidence, plan: Plan) -> Iterator[list[Try]]:
    return (tries for tries in evidence.creates.values() if tries[0].sent.plan == plan)


def _times(evidence: Evidence, plan: Plan) -> dict[str, list[int]]:
    """Return each time in milliseconds. What never came counts until the end of the run."""
    times: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for tries in _tries(evidence, plan):
        began, accepted = tries[0].sent.at, next((each.answer for each in tries if each.ok), None)
        times["creates"].append((accepted.at if accepted else evidence.until) - began)
        if accepted is None:
            continue
        ends = [each.at for each in evidence.webhooks.get(accepted.id, []) if each.status in TERMINAL]
        times["webhooks"].append(min(ends, default=evidence.until) - began)
        if accepted.id in evidence.followed:
            done = [each.at for each in evidence.heard.get(accepted.id, []) if each.event == "done"]
            times["streams"].append(min(done, default=evidence.until) - began)
    return times
