"""Report on plays: waits, use of the slots, fairness over time. A refused prediction is in no wait."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, product
from typing import Final

from msgspec import Struct

from director.core.figures import jain, percentile
from director.core.ids import LANES
from director.core.policy import Lane
from director.lab.simulate.play import NEVER, REFUSED, PlayResult, TriedPolicy, play
from director.lab.simulate.trace import Trace
from director.local.server import own_server

BINS: Final = 120
MOST_SHOWN: Final = 20
HEAVIEST: Final = 0.1  # of the accounts, those with the most work; at least one
LIGHTEST: Final = 0.5
MOST_BINS: Final = 30
LEAST_RUNS: Final = 20  # a bin lasts at least as long as this many runs, since a run is not cut at its end


Say = Callable[[str, int], None]


class Had(Struct):
    """One account in one bin, in slot milliseconds: what it could have used, and what it got."""

    wanted: int = 0
    given: int = 0


def fairness(
    trace: Trace, started_ms: "array[int]", *, weights: Sequence[float], limits: Sequence[int | None], slots: int
) -> float | None:
    """Return Jain's index over accounts, as the mean of the bins with more work than the slots could do, or None. An
    account that sends little gets little of the slots, and that is fair. So what an account got is compared with
    its max-min share by `weights` and `limits` (the most that run), and the index is made of these ratios.
    """
    runs = [n for n in range(len(trace)) if started_ms[n] >= 0]
    if not runs:
        return None
    span = max(started_ms[n] + trace.run_ms[n] for n in runs) + 1
    mean = max(1.0, sum(trace.run_ms[n] for n in runs) / len(runs))
    width = -(-span // max(1, min(MOST_BINS, int(span / (LEAST_RUNS * mean)))))
    bins: list[dict[int, Had]] = [{} for _ in range(-(-span // width))]
    for n in runs:
        _note(bins, width, trace.account[n], at=trace.at_ms[n], start=started_ms[n], run=trace.run_ms[n])
    indices = (_index(each, weights=weights, limits=limits, width=width, slots=slots) for each in bins)
    found = [index for index in indices if index is not None]
    return sum(found) / len(found) if found else None


def _note(bins: Sequence[dict[int, Had]], width: int, account: int, *, at: int, start: int, run: int) -> None:
    for number in range(at // width, (start + run) // width + 1):
        begin, end = number * width, (number + 1) * width
        had = bins[number].setdefault(account, Had())
        left = run - max(0, begin - start)
        had.wanted += min(left, end - max(at, begin))
        had.given += max(0, min(end, start + run) - max(begin, start))


def _index(
    had: Mapping[int, Had], *, weights: Sequence[float], limits: Sequence[int | None], width: int, slots: int
) -> float | None:
    some = {account: each.wanted for account, each in had.items() if each.wanted > 0}
    wanted = {account: float(min(ms, (limits[account] or slots) * width)) for account, ms in some.items()}
    if len(wanted) < 2 or sum(wanted.values()) <= slots * width:
        return None
    fair = fair_shares(wanted, weights=weights, capacity=slots * width)
    return jain(had[account].given / share for account, share in fair.items())


def fair_shares(wanted: Mapping[int, float], *, weights: Sequence[float], capacity: float) -> dict[int, float]:
    """Divide the capacity by weights (max-min): no account gets more than it wants."""
    shares, left, weight = {}, capacity, sum(weights[account] for account in wanted)
    for account in sorted(wanted, key=lambda account: (wanted[account] / weights[account], account)):
        shares[account] = min(wanted[account], left * weights[account] / weight)
        left -= shares[account]
        weight -= weights[account]
    return shares


class Wait(Struct, frozen=True, kw_only=True):
    """The waits of predictions that were started, in seconds."""

    count: int
    p50: float
    p90: float
    p99: float
    mean: float
    most: float


class Kept(Struct, frozen=True, kw_only=True):
    """An objective, and the share of its lane's predictions that started in time."""

    share: float
    within_s: float
    kept: float

    @property
    def ok(self) -> bool:
        return self.kept >= self.share


class AccountReport(Struct, frozen=True, kw_only=True):
    """One account. `served`: its part of all slot seconds."""

    account: str
    weight: float
    predictions: int
    served: float
    wait: Wait | None


class Series(Struct, frozen=True, kw_only=True):
    """Figures over time, at the middle of each bin: mean waiting, mean use of the slots, p90 of the wait by arrival."""

    at_s: list[float]
    waiting: list[float]
    utilisation: list[float]
    wait_p90_s: Mapping[str, list[float | None]]


class TraceReport(Struct, frozen=True, kw_only=True):
    """The trace that was played. `guessed`, `left_out` and `missed` as in `Trace`."""

    predictions: int
    accounts: int
    span_s: float
    work_s: float
    guessed: int
    left_out: int
    missed: int


class Report(Struct, frozen=True, kw_only=True):
    """One play. `waits`: of all, of each lane, and of the accounts that send the most and the least."""

    policy: str
    slots: int
    started: int
    refused: Mapping[str, int]
    never: int
    span_s: float
    per_minute: float
    utilisation: float
    waiting_mean: float
    waiting_most: int
    jain: float | None
    waits: Mapping[str, Wait]
    objectives: Mapping[Lane, Kept]
    accounts: list[AccountReport]
    series: Series

    @property
    def name(self) -> str:
        return f"{self.policy} × {self.slots}"


def trace_report(trace: Trace) -> TraceReport:
    return TraceReport(
        predictions=len(trace),
        accounts=len(set(trace.account)),
        span_s=trace.at_ms[-1] / 1000,
        work_s=sum(trace.run_ms) / 1000,
        guessed=trace.guessed,
        left_out=trace.left_out,
        missed=trace.missed,
    )


def report(trace: Trace, tried: TriedPolicy, played: PlayResult, *, slots: int) -> Report:
    started = played.started_ms
    ran = [n for n in range(len(trace)) if started[n] >= 0]
    span = max([1, trace.at_ms[-1], *(started[n] + trace.run_ms[n] for n in ran)])
    shares = [tried.share_of(name) for name in trace.accounts]
    groups = {name: [n for n in ran if is_in(n)] for name, is_in in _groups(trace).items()}
    weights, limits = [share.weight for share in shares], [share.max_running for share in shares]
    index = fairness(trace, started, weights=weights, limits=limits, slots=slots)
    busy_ms = sum(trace.run_ms[n] for n in ran)
    return Report(
        policy=tried.name,
        slots=slots,
        started=len(ran),
        refused=dict(sorted(played.refused.items())),
        never=sum(at == NEVER for at in started),
        span_s=span / 1000,
        per_minute=_round(60_000 * len(ran) / span),
        utilisation=_round(busy_ms / (slots * span)),
        waiting_mean=_round(sum(started[n] - trace.at_ms[n] for n in ran) / span),
        waiting_most=_most_waiting(trace, started, ran),
        jain=None if index is None else _round(index),
        waits={name: wait for name, numbers in groups.items() if (wait := _wait(trace, started, numbers))},
        objectives=_objectives(trace, tried, started),
        accounts=_accounts(trace, tried, started, ran),
        series=_series(trace, started, ran, groups, span, slots),
    )


def _groups(trace: Trace) -> dict[str, Callable[[int], bool]]:
    groups: dict[str, Callable[[int], bool]] = {"all": lambda _: True}
    lanes = sorted(set(trace.lane))
    if len(lanes) > 1:
        groups |= {LANES[lane]: lambda n, lane=lane: trace.lane[n] == lane for lane in lanes}  # type: ignore[misc]
    ranked = _by_work(trace)
    if len(ranked) > 1:
        heaviest = set(ranked[: max(1, round(HEAVIEST * len(ranked)))])
        lightest = set(ranked[-max(1, round(LIGHTEST * len(ranked))) :]) - heaviest
        groups["heaviest"] = lambda n: trace.account[n] in heaviest
        groups["lightest"] = lambda n: trace.account[n] in lightest
    return groups


def _by_work(trace: Trace) -> list[int]:
    work = Counter[int]()
    for account, ms in zip(trace.account, trace.run_ms, strict=True):
        work[account] += ms
    return sorted(set(trace.account), key=lambda account: (-work[account], trace.accounts[account]))


def _accounts(trace: Trace, tried: TriedPolicy, started: "array[int]", ran: Sequence[int]) -> list[AccountReport]:
    total = sum(trace.run_ms[n] for n in ran)
    sent, of = Counter(trace.account), defaultdict[int, list[int]](list)
    for n in ran:
        of[trace.account[n]].append(n)
    return [
        AccountReport(
            account=trace.accounts[account],
            weight=tried.share_of(trace.accounts[account]).weight,
            predictions=sent[account],
            served=_round(sum(trace.run_ms[n] for n in of[account]) / max(1, total)),
            wait=_wait(trace, started, of[account]),
        )
        for account in _by_work(trace)[:MOST_SHOWN]
    ]


def _wait(trace: Trace, started: "array[int]", numbers: Iterable[int]) -> Wait | None:
    waits = sorted((started[n] - trace.at_ms[n]) / 1000 for n in numbers)
    if not waits:
        return None
    return Wait(
        count=len(waits),
        p50=percentile(waits, 0.5),
        p90=percentile(waits, 0.9),
        p99=percentile(waits, 0.99),
        mean=_round(sum(waits) / len(waits)),
        most=waits[-1],
    )


def _objectives(trace: Trace, tried: TriedPolicy, started: "array[int]") -> dict[Lane, Kept]:
    found: dict[Lane, Kept] = {}
    for lane, objective in tried.objectives.items():
        number = LANES.index(lane)
        came = [n for n in range(len(trace)) if trace.lane[n] == number and started[n] != REFUSED]
        kept = sum(0 <= started[n] - trace.at_ms[n] <= objective.within_s * 1000 for n in came if started[n] >= 0)
        if came:
            found[lane] = Kept(share=objective.share, within_s=objective.within_s, kept=_round(kept / len(came)))
    return found


def _most_waiting(trace: Trace, started: "array[int]", ran: Sequence[int]) -> int:
    # at one moment, starts come before arrivals: a prediction that starts on arrival never waited
    waited = [n for n in ran if started[n] > trace.at_ms[n]]
    steps = sorted([(trace.at_ms[n], 1) for n in waited] + [(started[n], -1) for n in waited])
    return max(accumulate(step for _, step in steps), default=0)


def _series(
    trace: Trace, started: "array[int]", ran: Sequence[int], groups: Mapping[str, Sequence[int]], span: int, slots: int
) -> Series:
    bins = max(1, min(BINS, span))
    width = span / bins
    waiting = _cover([(trace.at_ms[n], started[n]) for n in ran], bins, width)
    busy = _cover([(started[n], started[n] + trace.run_ms[n]) for n in ran], bins, width)
    waits: dict[str, list[float | None]] = {}
    for name, numbers in groups.items():
        found: list[list[float]] = [[] for _ in range(bins)]
        for n in numbers:
            found[min(bins - 1, int(trace.at_ms[n] / width))].append((started[n] - trace.at_ms[n]) / 1000)
        waits[name] = [percentile(each, 0.9) if each else None for each in found]
    return Series(
        at_s=[_round((number + 0.5) * width / 1000) for number in range(bins)],
        waiting=[_round(ms / width) for ms in waiting],
        utilisation=[_round(ms / width / slots) for ms in busy],
        wait_p90_s=waits,
    )


def _cover(intervals: Iterable[tuple[int, int]], bins: int, width: float) -> list[float]:
    """Return how much of each bin the intervals cover. A long interval costs no more than a short one."""
    parts, steps = [0.0] * bins, [0] * (bins + 1)
    for begin, end in intervals:
        first, last = (min(bins - 1, int(at / width)) for at in (begin, end))
        if first == last:
            parts[first] += end - begin
            continue
        parts[first] += (first + 1) * width - begin
        parts[last] += end - last * width
        steps[first + 1] += 1
        steps[last] -= 1
    return [part + whole * width for part, whole in zip(parts, accumulate(steps), strict=False)]


def _round(value: float) -> float:
    return round(value, 4)


async def simulate(
    trace: Trace, policies: Sequence[TriedPolicy], slots: Sequence[int], say: Say = lambda name, done: None
) -> list[Report]:
    """Play the trace with each policy and each number of slots on one server in memory. `say` gets the name of the
    play and the number of its predictions done. Raises UpError if no server can be started, or BackendUnavailable.
    """
    reports = []
    async with own_server() as redis:
        for tried, each in product(policies, slots):
            name = f"{tried.name} × {each}"
            say(name, 0)
            played = await play(redis, trace, tried, slots=each, say=partial(say, name))
            reports.append(report(trace, tried, played, slots=each))
    return reports
