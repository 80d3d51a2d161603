"""The verdict on a run: every invariant against the journals of its folder and what was left in Redis.

Believes only what the parties wrote down and what Redis holds at rest; never a counter, log or metric of the code under
test. A run that shows nothing is no good run: what is missing is a breach too.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from director.chaos.caller import (
    cancel_times,
    canceled_stays_canceled,
    followed_once_in_order,
    one_key_one_id,
    webhooks_tell_the_end,
)
from director.chaos.evidence import Breach, Evidence, Rules, gather
from director.chaos.fairness import Saturation, equal_shares, is_rushed, saturations
from director.chaos.history import (
    attempts_are_bounded,
    every_line,
    first_come_first_claimed,
    nothing_is_lost,
    one_end,
    only_current_runs_write,
    runs_per_prediction,
    slots_are_kept,
)
from director.chaos.recovery import (
    ends_are_written,
    no_work_for_the_dead,
    only_the_silent_lose,
    percentile,
    recoveries,
    recovery_is_quick,
    slowest_end_ms,
    waste,
)
from director.chaos.rest import Leftovers

# What has to hold after a run, one function each: I1 to I18 of the reliability plan.
#
# Pure: each takes the evidence and returns what breaks its sentence. None leans on another, so that a fault of the
# code shows under the name of the promise that it breaks.

Invariant = Callable[[Evidence], list[Breach]]

# What may be left of a queue, and why it may not.
RESTS: Final = {
    "entries": "entries in its streams",
    "pending": "pending entries",
    "lease": "leases",
    "delayed": "delayed retries",
    "deadline": "deadlines",
    "live": "predictions on the list of what lives",
}


def all_is_at_rest(evidence: Evidence) -> list[Breach]:
    """I7. Queue by queue, then what belongs to none."""
    left = evidence.leftovers
    if left is None:
        return [Breach("I7", "", "nobody looked at what was left in Redis")]
    breaches = [
        Breach("I7", rest.queue, f"{count} {what}")
        for rest in left.queues
        for name, what in RESTS.items()
        if (count := getattr(rest, name))
    ]
    if left.owed:
        breaches.append(Breach("I7", "", f"{left.owed} webhooks still owed"))
    return breaches + [Breach("I7", key, "a key that nothing will ever remove") for key in left.endless]


def what_is_served_is_registered(evidence: Evidence) -> list[Breach]:
    """I16. Queue by queue; that nobody looked is told by I7."""
    queues = evidence.leftovers.queues if evidence.leftovers else []
    return [
        Breach("I16", rest.queue, f"it is served, and missing in {', '.join(rest.lost_by)}")
        for rest in queues
        if rest.lost_by
    ]


INVARIANTS: Final[dict[str, tuple[str, Invariant]]] = {
    "I1": ("What was answered with a 2xx has ended.", nothing_is_lost),
    "I2": ("It ended once, as its record says, and nothing changed that.", one_end),
    "I3": ("Its caller was told so: signed, under one id, last of all.", webhooks_tell_the_end),
    "I4": ("Only the run that held the claim wrote, and nothing after the end.", only_current_runs_write),
    "I5": ("It ran no more often than its attempts, and never twice at once.", attempts_are_bounded),
    "I6": ("What was canceled stays canceled, and a cancel is quick.", canceled_stays_canceled),
    "I7": ("Once healed, nothing is left in Redis that should not be there.", all_is_at_rest),
    "I8": ("One idempotency key is one prediction; another body is refused.", one_key_one_id),
    "I9": ("No model server ever ran more than its slots.", slots_are_kept),
    "I10": ("Who followed it heard every event once, in order, through every break.", followed_once_in_order),
    "I11": ("Who came first was handed out first, by the server's own log.", first_come_first_claimed),
    "I12": ("After a death, what was running starts again in time.", recovery_is_quick),
    "I13": ("Nothing was handed out too late, or worked on for nobody.", no_work_for_the_dead),
    "I14": ("Equal tenants got equal shares, and small ones did not wait.", equal_shares),
    "I16": ("What a director serves is in every registry.", what_is_served_is_registered),
    "I17": ("What a model made is written soon, over narrow links too.", ends_are_written),
    "I18": ("No claim was taken back before its holder was silent for a lease.", only_the_silent_lose),
}


# All that the journals say about one prediction, in order: what a person reads when it went wrong. Pure.

MOST: Final = 40


def timeline(evidence: Evidence, prediction_id: str) -> tuple[str, ...]:
    """One line for each thing that happened to it, by whoever saw it; of very many the first and the last."""
    shown = [f"{at} {what}" for at, what in sorted(_rows(evidence, prediction_id), key=lambda row: row[0])]
    return tuple(shown if len(shown) <= MOST else [*shown[: MOST // 2], "…", *shown[-MOST // 2 :]])


def _rows(evidence: Evidence, prediction_id: str) -> Iterator[tuple[int, str]]:
    for each in evidence.by_id.get(prediction_id, []):
        yield each.sent.at, f"client: sends {each.sent.action}, key {each.sent.key}, plan {each.sent.plan!r}"
        if each.answer is not None:
            yield each.answer.at, f"client: hears {each.status} {each.shown}".rstrip()
    if arrived := evidence.arrivals.get(prediction_id):
        yield arrived.at, f"server: accepted for {arrived.tenant}, {arrived.queue} {arrived.lane}"
    for claimed in evidence.claims.get(prediction_id, []):
        yield claimed.at, f"server: claimed from stream {claimed.stream} by {claimed.holder}"
    for run in evidence.runs.get(prediction_id, []):
        yield run.began, f"{run.server}: run {run.run} begins in process {run.pid}"
        yield run.ended, f"{run.server}: run {run.run} ends, {run.outcome or 'and told nobody'}"
    for told in evidence.told.get(prediction_id, []):
        yield told.at, f"sink: hears {told.status} as {told.webhook_id}, answers {told.answered}"
    for heard in evidence.heard.get(prediction_id, []):
        yield heard.at, f"reader: hears {heard.event} {heard.mark} {heard.data}".rstrip()
    for visit in evidence.visits.get(prediction_id, []):
        yield visit.at, f"reader: comes after {visit.after or 'nothing'}, answered {visit.status}; then: {visit.end}"
    if final := evidence.finals.get(prediction_id):
        for kind, at, data in final.events:
            yield at, f"event: {kind} {data}".rstrip()


MOST_SHOWN: Final = 20
NO_EVIDENCE: Final = "evidence"


class Report(Struct, frozen=True, kw_only=True):
    """What `--json` writes. `breaches`: of each invariant, the first with their evidence; `counts`: all of them."""

    ok: bool
    seed: int
    seconds: float
    lease: float
    sent: int
    acked: int
    terminal: int
    lost: int
    double: int
    stale: int
    duplicate_runs: int
    webhooks_missing: int
    recoveries: int
    recovery_p50_ms: int | None
    recovery_p99_ms: int | None
    recovery_p99_with_waits_ms: int | None
    cancels_timed: int
    cancel_slowest_ms: int | None
    end_slowest_ms: int | None
    first_claims: int
    overtaken: int
    dead_work: float
    dead_work_in_all: float
    breaker_open_s: dict[str, float]
    saturations: list[Saturation]
    runs_per_prediction: dict[int, int]
    followed: int
    resumed: int
    faults: dict[str, int]
    left_out: str
    counts: dict[str, int]
    breaches: dict[str, list[Breach]]


def check(folder: Path, rules: Rules | None = None, *, leftovers: Leftovers | None = None) -> Report:
    """Judge the run whose journals are in `folder`. `leftovers` is there too, unless it is given."""
    evidence = gather(folder, rules or Rules(), leftovers)
    breaches = {name: judge(evidence) for name, (_, judge) in INVARIANTS.items()}
    breaches[NO_EVIDENCE] = _missing(evidence)
    accepted = evidence.accepted()
    orphans = recoveries(evidence)
    recovered = [each.ms for each in orphans]
    cancels = [ms for _, ms in cancel_times(evidence)]
    histogram = runs_per_prediction(evidence)
    in_line = every_line(evidence)
    wasted = waste(evidence)
    return Report(
        ok=not any(breaches.values()),
        seed=evidence.rules.seed,
        seconds=evidence.rules.seconds,
        lease=evidence.rules.lease_s,
        sent=len(evidence.creates),
        acked=len(accepted),
        terminal=sum(evidence.is_terminal(each) for each in accepted),
        lost=_ids(breaches["I1"]),
        double=_ids(breaches["I2"]),
        stale=_ids(breaches["I4"]),
        duplicate_runs=sum((runs - 1) * count for runs, count in histogram.items() if runs > 1),
        webhooks_missing=_ids([each for each in breaches["I3"] if each.what.startswith("missing")]),
        recoveries=len(recovered),
        recovery_p50_ms=percentile(recovered, 0.5),
        recovery_p99_ms=percentile(recovered, 0.99),
        recovery_p99_with_waits_ms=percentile([each.all_ms for each in orphans], 0.99),
        cancels_timed=len(cancels),
        cancel_slowest_ms=max(cancels, default=None),
        end_slowest_ms=slowest_end_ms(evidence),
        first_claims=sum(len(line.claims) for line in in_line),
        overtaken=sum(len(line.overtaken()) for line in in_line),
        dead_work=round(wasted.share, 5),
        dead_work_in_all=round(wasted.share_in_all, 5),
        breaker_open_s={
            queue: sum(until - since for since, until in times) / 1000 for queue, times in evidence.breakers.items()
        },
        saturations=saturations(evidence),
        runs_per_prediction=histogram,
        followed=len(evidence.followed),
        resumed=sum(bool(visit.after and visit.status) for visits in evidence.visits.values() for visit in visits),
        faults=_faults(evidence),
        left_out=evidence.rules.left_out,
        counts={name: len(found) for name, found in breaches.items()},
        breaches={name: _explained(evidence, found) for name, found in breaches.items() if found},
    )


def text(report: Report) -> str:
    """The verdict for people: what happened, each invariant, then the first breaches of each with their evidence."""
    lines = [
        f"{report.seconds:g} s of faults with seed {report.seed}, lease {report.lease:g} s: {_named(report.faults)}",
        *([report.left_out] if report.left_out else []),
        f"sent {report.sent}  accepted {report.acked}  terminal {report.terminal}  lost {report.lost}"
        f"  double {report.double}  stale {report.stale}  extra runs {report.duplicate_runs}"
        f"  webhooks missing {report.webhooks_missing}",
        f"runs per prediction: {_named(report.runs_per_prediction)}",
        f"recovery of {report.recoveries} orphans: p50 {_s(report.recovery_p50_ms)}, p99 {_s(report.recovery_p99_ms)}"
        f" (with waits for a slot {_s(report.recovery_p99_with_waits_ms)})",
        f"{report.cancels_timed} cancels that no fault hindered: the slowest took {_s(report.cancel_slowest_ms)}",
        f"ends that nothing hindered but narrow links: the slowest was written after {_s(report.end_slowest_ms)}",
        f"{report.first_claims} first claims, {report.overtaken} of them overtaken; {report.dead_work:.2%} of the model"
        f" servers' time went to dead work ({report.dead_work_in_all:.2%} with what faults account for)",
        f"{report.followed} were followed by readers, who came back {report.resumed} times after an event",
        *(f"the breaker of {queue} was open for {open_s:.0f} s" for queue, open_s in report.breaker_open_s.items()),
        *(_fair(each) for each in report.saturations),
        "",
    ]
    sentences = {name: sentence for name, (sentence, _) in INVARIANTS.items()}
    for name, sentence in {**sentences, NO_EVIDENCE: "Every party left its evidence."}.items():
        count = report.counts[name]
        verdict = "OK" if not count else f"{count} breach{'es' if count > 1 else ''}"
        lines.append(f"  {name:<8}  {sentence:<70}  {verdict}")
    for name, breaches in report.breaches.items():
        lines += ["", f"{name}: {report.counts[name]} in all"]
        for breach in breaches:
            lines.append(f"  {breach.id or '(the run)'}: {breach.what}")
            lines += [f"      {each}" for each in breach.evidence]
    verdict = "nothing accepted was lost, and every promise held" if report.ok else "BROKEN PROMISES"
    return "\n".join([*lines, "", f"{verdict}  (seed {report.seed})"])


def _fair(each: Saturation) -> str:
    how = "in peace" if each.is_quiet else "under faults"
    return (
        f"saturated for {(each.end - each.begin) / 1000:.1f} s {how}: shares of {len(each.served_ms)} equal tenants"
        f" with an index of {each.jain:.3f}; light ones waited p99 {each.light.turns} turns and {_s(each.light.ms)},"
        f" the heavy one p50 {each.heavy.turns} and {_s(each.heavy.ms)}"
    )


def _missing(evidence: Evidence) -> list[Breach]:
    """What a run must have to be judged at all."""
    wanted = {
        "nobody was answered with a 2xx": evidence.accepted(),
        "no model server ran anything": evidence.runs,
        "nobody looked at the predictions in Redis": evidence.finals,
        "it was never healed": evidence.healed is not None,
        "nobody read the server's log": evidence.claims,
        "tenants came in a rush, and saturated nothing": not is_rushed(evidence) or saturations(evidence),
    }
    return [*(Breach(NO_EVIDENCE, "", what) for what, there in wanted.items() if not there), *_not_in_the_log(evidence)]


def _not_in_the_log(evidence: Evidence) -> Iterator[Breach]:
    """The server's log has to be whole, and its time that of the records."""
    for prediction_id in evidence.runs.keys() - evidence.claims.keys():
        yield Breach(NO_EVIDENCE, prediction_id, "it ran, and the server's log has no claim of it")
    for prediction_id, claims in evidence.claims.items():
        for claimed in claims:
            if claimed.delivered and abs(claimed.at - claimed.delivered) > evidence.rules.clock_s * 1000:
                what = f"claimed at {claimed.at}, and the server says at {claimed.delivered}"
                yield Breach(NO_EVIDENCE, prediction_id, what)


def _explained(evidence: Evidence, breaches: list[Breach]) -> list[Breach]:
    return [replace(each, evidence=timeline(evidence, each.id)) for each in breaches[:MOST_SHOWN]]


def _faults(evidence: Evidence) -> dict[str, int]:
    kinds = sorted({fault.kind for fault in evidence.faults})
    return {kind: sum(fault.kind == kind for fault in evidence.faults) for kind in kinds}


def _ids(breaches: list[Breach]) -> int:
    return len({each.id for each in breaches})


def _named(counts: dict[str, int] | dict[int, int]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in counts.items()) or "none"


def _s(value: int | None) -> str:
    return "–" if value is None else f"{value / 1000:.2f} s"
