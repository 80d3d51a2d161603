"""Judge fairness, I14: equal tenants get equal shares while all wait, and light tenants do not wait for a heavy one.

Pure. The evidence is the server's log of arrivals and claims. A queue is judged wherever it was saturated: as long as
each of the equal tenants had something waiting in one lane of it. A share is slot time. Under faults slots cannot end
what they hold, so a share is then model server time, and the time for which a freeze kept the slot of a run that was
over. Work that was lost with a server counts for no tenant. A wait is counted in turns of other predictions: while
nothing is claimed, time says nothing about fairness.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from director.chaos.evidence import Evidence, Findings, depends_on
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
    """A time in which all equal tenants of a lane waited. `served_ms` is the share of each."""

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
    """Return every saturation that lasted long enough to be judged."""
    plans = _plans(evidence)
    lanes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for arrived in evidence.arrivals.values():
        if plans.get(arrived.id) == EQUAL:
            lanes[arrived.queue, arrived.lane].add(arrived.tenant)
    return [
        _saturation(evidence, queue, lane, tenants, window, plans)
        for (queue, lane), tenants in lanes.items()
        for window in _windows(evidence, queue, lane, tenants)
    ]


def _plans(evidence: Evidence) -> dict[str, str]:
    return {prediction_id: tries[0].sent.plan for prediction_id, tries in evidence.accepted().items()}


def _waits(evidence: Evidence, queue: str, lane: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield (id, tenant, from, until) of each prediction of a lane, until its first claim or its end without one."""
    for arrived in evidence.arrivals.values():
        if (arrived.queue, arrived.lane) == (queue, lane):
            final, claims = evidence.finals.get(arrived.id), evidence.claims.get(arrived.id)
            ended = next((at for kind, at, _ in final.events if kind == "completed"), None) if final else None
            until = claims[0].at if claims else ended
            yield arrived.id, arrived.tenant, arrived.at, evidence.until if until is None else until


def _windows(evidence: Evidence, queue: str, lane: str, tenants: set[str]) -> Iterator[tuple[int, int]]:
    steps = sorted(
        (at, -step, tenant)
        for _, tenant, since, until in _waits(evidence, queue, lane)
        if tenant in tenants
        for at, step in ((since, 1), (until, -1))
    )
    waiting: Counter[str] = Counter()
    began: int | None = None
    for at, step, tenant in steps:
        waiting[tenant] -= step
        is_full = all(waiting[each] > 0 for each in tenants)
        if is_full and began is None:
            began = at
        elif began is not None and not is_full:
            if at - began >= SHORTEST_MS:
                yield began, at
            began = None


def _saturation(
    evidence: Evidence, queue: str, lane: str, tenants: set[str], window: tuple[int, int], plans: dict[str, str]
) -> Saturation:
    begin, end = window
    served = dict.fromkeys(sorted(tenants), 0)
    is_quiet = not evidence.was_hit(begin, end)
    served_ms = _held_ms if is_quiet else _ran_ms
    light, heavy = list[str](), list[str]()
    ms: dict[str, int] = {}
    owners = {each.tenant for each in evidence.arrivals.values() if plans.get(each.id) == HEAVY}
    for prediction_id, tenant, since, until in _waits(evidence, queue, lane):
        if tenant in tenants:
            served[tenant] += served_ms(evidence, prediction_id, begin, end)
        elif begin <= since <= end:
            (heavy if tenant in owners else light).append(prediction_id)
            ms[prediction_id] = until - since
    turns = _turns(evidence, queue, lane)
    return Saturation(
        queue=queue,
        lane=lane,
        begin=begin,
        end=end,
        is_quiet=is_quiet,
        jain=round(jain(served.values()), 4),
        served_ms=served,
        light=_wait(light, 0.99, turns, ms),
        heavy=_wait(heavy, 0.5, turns, ms),
    )


def _wait(ids: list[str], share: float, turns: dict[str, int], ms: dict[str, int]) -> Wait:
    return Wait(
        turns=percentile([turns[each] for each in ids if each in turns], share),
        ms=percentile([ms[each] for each in ids], share),
    )


def _turns(evidence: Evidence, queue: str, lane: str) -> dict[str, int]:
    """Return for each id how many others of its lane were claimed between its arrival and its own first claim."""
    arrivals = [each for each in evidence.arrivals.values() if (each.queue, each.lane) == (queue, lane)]
    claims = {each.id: evidence.claims[each.id] for each in arrivals if each.id in evidence.claims}
    numbers = sorted(claimed.number for several in claims.values() for claimed in several)
    return {
        each.id: bisect_left(numbers, claims[each.id][0].number) - bisect_left(numbers, each.number)
        for each in arrivals
        if each.id in claims
    }


def _held_ms(evidence: Evidence, prediction_id: str, begin: int, end: int) -> int:
    """Return how long its last claim held a slot, if it succeeded."""
    final, claims = evidence.finals.get(prediction_id), evidence.claims.get(prediction_id)
    if final is None or not claims or final.record.get("status") != "succeeded":
        return 0
    ended = next((at for kind, at, _ in final.events if kind == "completed"), begin)
    return max(0, min(ended, end) - max(claims[-1].at, begin))


def _ran_ms(evidence: Evidence, prediction_id: str, begin: int, end: int) -> int:
    """Return how long its last successful run took on a model server, and on in a frozen director.

    The queue charges that time too. Without it, tenants with a run in a director that froze for 8 s had 12 s of 20 s.
    """
    runs = [run for run in evidence.runs.get(prediction_id, []) if run.outcome == "succeeded"]
    if not runs:
        return 0
    over, parts = runs[-1].ended, depends_on(runs[-1].server)
    freezes = [fault for fault in evidence.faults if fault.is_freeze and fault.target in parts]
    until = max((freeze.end for freeze in freezes if freeze.overlaps(over, over)), default=over)
    return max(0, min(until, end) - max(runs[-1].began, begin))
