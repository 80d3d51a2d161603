"""Judge fairness, I14: equal tenants get equal shares while all wait, and light tenants do not wait for a heavy one.
The evidence is the server's log of arrivals and claims, wherever each of the equal tenants of a lane had something
waiting. A share is slot time. Under faults slots cannot end what they hold, so a share is then model server time,
and the time for which a freeze kept the slot before the run began or after it was over. Work lost with a server does
not count. A wait is counted in turns of other predictions: while nothing is claimed, time says nothing about fairness.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Final

from msgspec import Struct

from director.chaos.evidence import Evidence, Findings, Stretch, depends_on, grouped, stretches
from director.chaos.journal import Arrived
from director.chaos.plan import EQUAL, HEAVY
from director.chaos.recovery import percentile
from director.core.figures import jain

QUIET_JAIN: Final = 0.98
JAIN: Final = 0.95  # for faults, under which runs are lost and done again
SHORTEST_MS: Final = 2_000  # in a shorter time, a single run decides the index


class Wait(Struct, frozen=True):
    """The 99th percentile of the waits of light tenants, or the median of the heavy tenant."""

    turns: int | None
    ms: int | None


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


def equal_shares(evidence: Evidence) -> Findings:
    for each in saturations(evidence):
        within = f"in {(each.end - each.begin) / 1000:.1f} s of a full {each.lane} lane"
        if each.jain < (QUIET_JAIN if each.is_quiet else JAIN):
            yield each.queue, f"{within}, equal tenants got shares with an index of {each.jain:.3f}: {each.served_ms}"
        light, heavy = each.light.turns, each.heavy.turns
        if light is not None and heavy is not None and light > heavy:
            yield each.queue, f"{within}, light tenants waited for {light} turns of others, the heavy one for {heavy}"


def is_rushed(evidence: Evidence) -> bool:
    return EQUAL in _plans(evidence).values()


def saturations(evidence: Evidence) -> list[Saturation]:
    plans, found = _plans(evidence), list[Saturation]()
    for arrivals in grouped(evidence.arrivals.values(), lambda each: (each.queue, each.lane)).values():
        tenants = {each.tenant for each in arrivals if plans.get(each.id) == EQUAL}
        waits = [(each, _until(evidence, each)) for each in arrivals]
        found += [_saturation(evidence, waits, tenants, window, plans) for window in _windows(waits, tenants)]
    return found


def _plans(evidence: Evidence) -> dict[str, str]:
    return {prediction_id: tries[0].sent.plan for prediction_id, tries in evidence.accepted().items()}


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
    served: dict[str, list[int]] = {tenant: [] for tenant in sorted(tenants)}
    is_quiet = not evidence.was_hit(begin, end)
    served_ms = _held_ms if is_quiet else _ran_ms
    owners = {each.tenant for each in evidence.arrivals.values() if plans.get(each.id) == HEAVY}
    others = [(arrived, until) for arrived, until in waits if begin <= arrived.at <= end]
    for arrived, _ in waits:
        if arrived.tenant in tenants:
            served[arrived.tenant].append(served_ms(evidence, arrived.id, begin, end))
    turns = _turns(evidence, [arrived for arrived, _ in waits])
    return Saturation(
        queue=waits[0][0].queue,
        lane=waits[0][0].lane,
        begin=begin,
        end=end,
        is_quiet=is_quiet,
        jain=round(jain(_comparable(served)), 4),
        served_ms={tenant: sum(parts) for tenant, parts in served.items()},
        light=_wait([each for each in others if each[0].tenant not in tenants | owners], 0.99, turns),
        heavy=_wait([each for each in others if each[0].tenant in owners - tenants], 0.5, turns),
    )


def _comparable(served: dict[str, list[int]]) -> list[int]:
    """Return the shares without those that one prediction alone decided. A freeze of 30 s kept one slot for longer than
    the 19 s that each other tenant had in the minute. Nothing is claimed for its tenant meanwhile, nor long after.
    """
    shares = {tenant: sum(parts) for tenant, parts in served.items()}
    usual = median(shares.values())
    return [share for tenant, share in shares.items() if max(served[tenant], default=0) <= usual]


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


def _held_ms(evidence: Evidence, prediction_id: str, begin: int, end: int) -> int:
    """Return how long its last claim held a slot, if it succeeded."""
    claims = evidence.claims.get(prediction_id)
    if not claims or evidence.status(prediction_id) != "succeeded":
        return 0
    ended = next(iter(evidence.ends(prediction_id)), begin)
    return max(0, min(ended, end) - max(claims[-1].at, begin))


def _ran_ms(evidence: Evidence, prediction_id: str, begin: int, end: int) -> int:
    """The queue charges the time in a frozen director too. Without it, tenants with a run in a director that froze for
    8 s had 12 s of 20 s, and one whose claim waited in a director that froze for 30 s had 3 s of 19 s.
    """
    runs = [run for run in evidence.runs.get(prediction_id, []) if run.outcome == "succeeded"]
    if not runs:
        return 0
    run, parts = runs[-1], depends_on(runs[-1].server)
    claimed = max(
        (claim.at for claim in evidence.claims.get(prediction_id, []) if claim.at <= run.began), default=run.began
    )
    freezes = [fault for fault in evidence.faults if fault.is_freeze and fault.target in parts]
    since = min(
        (max(freeze.begin, claimed) for freeze in freezes if freeze.overlaps(claimed, run.began)), default=run.began
    )
    until = max((freeze.end for freeze in freezes if freeze.overlaps(run.ended, run.ended)), default=run.ended)
    return max(0, min(until, end) - max(since, begin))
