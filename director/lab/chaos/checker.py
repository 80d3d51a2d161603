"""Judge a run: check every invariant against the journals of its folder and the leftovers in Redis. No counter, log or
metric of the code under test is used. A run without evidence does not pass.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from director.lab.chaos import batches, caller, failovers, fairness, history, recovery, steps, usage
from director.lab.chaos.evidence import Evidence, Findings, Rules, gather
from director.lab.chaos.fairness import Saturation, Served
from director.lab.chaos.plan import FAILOVERS, FULL, ODDLY, SENTINEL, SINGLE, ServerKind
from director.lab.chaos.recovery import percentile
from director.lab.chaos.rest import Leftovers

MOST_LINES: Final = 40
MOST_SHOWN: Final = 20
LEAST_SHARED: Final = 1_000  # creates, of which one in fifty is shared
LEAST_ODD: Final = 10  # orders that are to be answered oddly: fewer may all be lost to faults

# The fields of a queue's leftovers that must be 0, with the words for a breach.
RESTS: Final = {
    "entries": "entries in its streams",
    "pending": "pending entries",
    "lease": "leases",
    "delayed": "delayed retries",
    "deadline": "deadlines",
    "live": "predictions on the list of what lives",
}


def all_is_at_rest(evidence: Evidence) -> Findings:
    """I7: nothing is left in Redis that should not be there."""
    left = evidence.leftovers
    if left is None:
        yield "", "the leftovers in Redis were not read"
        return
    for rest in left.queues:
        for name, what in RESTS.items():
            if count := getattr(rest, name):
                yield rest.queue, f"{count} {what}"
    if left.owed:
        yield "", f"{left.owed} webhooks still owed"
    for key in left.endless:
        yield key, "a key that nothing will ever remove"


def what_is_served_is_registered(evidence: Evidence) -> Findings:
    """I16: each queue that a director serves is in every registry. I7 reports missing leftovers."""
    for rest in evidence.leftovers.queues if evidence.leftovers else []:
        if rest.lost_by:
            yield rest.queue, f"a director serves it, but it is missing in {', '.join(rest.lost_by)}"


def evidence_is_whole(evidence: Evidence) -> Findings:
    """The server's log has to be complete, and its times have to agree with the records."""
    clients = {look.by for looks in evidence.seen.values() for look in looks}
    failovers_begun = sum(fault.kind in FAILOVERS for fault in evidence.faults)
    ordered_odd = sum(tries[0].sent.plan == ODDLY for tries in evidence.creates.values())
    wanted = {
        "no request was answered with a 2xx": evidence.accepted(),
        "no model server ran anything": evidence.runs,
        "the predictions in Redis were not read": evidence.finals,
        "the run was not healed": evidence.healed is not None,
        "the server's log was not read": evidence.claims,
        "the server's log has claims without their steps": not evidence.rules.has_steps
        or evidence.claims.keys() <= evidence.steps.keys(),
        "the servers' logs lack a promotion": len(evidence.reigns) >= failovers_begun,
        "no prediction was seen by several clients": clients >= {"get", "list"} or len(evidence.creates) < LEAST_SHARED,
        "no model server answered oddly": any(run.odd for run in evidence.every_run()) or ordered_odd < LEAST_ODD,
        "no slot was tried at rest": not evidence.rules.slots_of or FULL in evidence.plans().values(),
        "no batch was read at rest": not evidence.rules.has_batches or any(batches.statuses(evidence)),
        "no call came whole": not evidence.rules.has_calls or "whole" in ends_of_calls(evidence),
        "no process was watched at rest": not evidence.rules.is_sampled or (evidence.samples and evidence.rested),
        "the rush of tenants saturated no queue": not fairness.is_rushed(evidence) or fairness.saturations(evidence),
    }
    for what, there in wanted.items():
        if not there:
            yield "", what
    yield from (("", what) for what in fairness.bystander_lacks(evidence))
    for prediction_id in evidence.runs.keys() - evidence.claims.keys():
        yield prediction_id, "it ran, but the server's log has no claim of it"
    for prediction_id, claims in evidence.claims.items():
        for claimed in claims:
            if claimed.delivered and abs(claimed.at - claimed.delivered) > evidence.rules.clock_s * 1000:
                yield prediction_id, f"its record says claimed at {claimed.at}, the server says {claimed.delivered}"


def ends_of_calls(evidence: Evidence) -> dict[str, int]:
    return dict(sorted(Counter(caller.name_end(call) for calls in evidence.calls.values() for call in calls).items()))


INVARIANTS: Final[dict[str, tuple[str, Callable[[Evidence], Findings]]]] = {
    "I1": ("Every prediction answered with a 2xx has ended.", history.nothing_is_lost),
    "I2": ("It ended once, as its record says, and its end did not change.", history.one_end),
    "I3": ("Its webhook came last: signed, under one id, with its status.", caller.webhooks_tell_the_end),
    "I4": ("Only the run that held the claim wrote, and only before the end.", history.only_current_runs_write),
    "I5": ("It ran at most as often as its attempts, and never twice at once.", history.attempts_are_bounded),
    "I6": ("A canceled prediction stays canceled, and a cancel is quick.", caller.check_cancels),
    "I7": ("Once healed, Redis holds nothing that should not be there.", all_is_at_rest),
    "I8": ("One idempotency key is one prediction. Other bodies are refused.", caller.one_key_one_id),
    "I9": ("No model server ever ran more than its slots.", history.slots_are_kept),
    "I10": ("Each reader got every event once, in order, through every break.", caller.check_streams),
    "I11": ("Predictions were claimed in order of arrival, by the server's log.", history.first_come_first_claimed),
    "I12": ("After the death of a holder, its predictions start again in time.", recovery.recovery_is_quick),
    "I13": ("Nothing was claimed too late, and little work was useless.", recovery.no_work_for_the_dead),
    "I14": ("Equal tenants got equal shares. Light ones did not wait for others.", fairness.equal_shares),
    "I16": ("Every queue that a director serves is in every registry.", what_is_served_is_registered),
    "I17": ("The end of a run is written soon, over narrow links too.", recovery.ends_are_written),
    "I18": ("No claim was taken back before its holder was silent for a lease.", recovery.only_the_silent_lose),
    "I19": ("Beside bad neighbours, a bystander was served as without them.", fairness.bystander_is_served),
    "I20": ("All clients saw one history: an end that one saw, each sees later.", caller.clients_see_one_history),
    "I21": ("A failover lost no more than the last seconds before it.", failovers.losses_are_bounded),
    "I22": ("Its account's list has every prediction answered with a 2xx.", history.all_are_listed),
    "I23": ("No process spun or grew while it could do nothing.", usage.nothing_spins_or_grows),
    "I24": ("A receiver that fails was tried by its own schedule.", caller.failing_receivers_keep_their_schedule),
    "I25": ("An odd answer of a model server was the end, after one run.", history.odd_answers_are_ends),
    "I26": ("Runs and tokens that were counted are those of the model servers.", history.what_ran_is_counted),
    "I27": ("Once healed, each model server has all of its slots.", history.slots_come_back),
    "I28": ("A call's answer ends with a reason to finish, or with an error.", caller.calls_end_in_words),
    "I29": ("A call has one text: what one run sent, byte for byte.", caller.calls_have_one_text),
    "I30": ("A call whose caller has left soon runs no more.", caller.calls_given_up_stop),
    "I31": ("A batch ends, with each line once. Only lines that were hit run again.", batches.batches_are_exact),
    "I32": ("The specification allows each step of the server's log.", steps.steps_are_allowed),
}
JUDGED: Final = {**INVARIANTS, "evidence": ("Every party left its evidence.", evidence_is_whole)}


def timeline(evidence: Evidence, prediction_id: str) -> tuple[str, ...]:
    """Return one line for each event of a prediction, in order of time. A long one keeps its first and last lines."""
    shown = [f"{at} {what}" for at, what in sorted(_rows(evidence, prediction_id), key=lambda row: row[0])]
    return tuple(shown if len(shown) <= MOST_LINES else [*shown[: MOST_LINES // 2], "…", *shown[-MOST_LINES // 2 :]])


def _rows(evidence: Evidence, prediction_id: str) -> Iterator[tuple[int, str]]:
    for each in evidence.by_id.get(prediction_id, []):
        yield each.sent.at, f"client: sends {each.sent.action}, key {each.sent.key}, plan {each.sent.plan!r}"
        if each.answer.at:
            yield each.answer.at, f"client: receives {each.answer.status} {each.answer.shown}".rstrip()
    if arrived := evidence.arrivals.get(prediction_id):
        yield arrived.at, f"server: accepted for {arrived.tenant}, {arrived.queue} {arrived.lane}"
    for claimed in evidence.claims.get(prediction_id, []):
        yield claimed.at, f"server: claimed from stream {claimed.stream} by {claimed.holder}"
    for step in evidence.steps.get(prediction_id, []):
        yield step.at, f"server: writes {', '.join(f'{what}={to}' for what, to in step.wrote)} {step.code}".rstrip()
    for run in evidence.runs.get(prediction_id, []):
        yield run.began, f"{run.server}: run {run.run} begins in process {run.pid}"
        yield run.ended, f"{run.server}: run {run.run} ends, {run.outcome or 'without a record'}"
    for webhook in evidence.webhooks.get(prediction_id, []):
        yield webhook.at, f"sink: receives {webhook.status} as {webhook.webhook_id}, answers {webhook.answered}"
    for heard in evidence.heard.get(prediction_id, []):
        yield heard.at, f"reader: receives {heard.event} {heard.mark} {heard.data}".rstrip()
    for seen in evidence.seen.get(prediction_id, []):
        yield seen.at, f"client: sees {seen.status or 'nothing'} by {seen.by}, asked at {seen.asked}"
    for visit in evidence.visits.get(prediction_id, []):
        yield visit.at, f"reader: asks after {visit.after or 'nothing'}, answered {visit.status}, ends {visit.end}"
    for call in evidence.calls.get(prediction_id, []):
        yield (
            call.at,
            f"caller: {call.key} {call.plan}, answered {call.status}, {call.end} after {len(call.chunks)} chunks",
        )
    if final := evidence.finals.get(prediction_id):
        for kind, at, data in final.events:
            yield at, f"event: {kind} {data}".rstrip()


class Breach(Struct, frozen=True):
    """`id` is a prediction, or whatever else broke the promise. `evidence` holds lines of the journals in order of
    time.
    """

    invariant: str
    id: str
    what: str
    evidence: tuple[str, ...] = ()


class Report(Struct, frozen=True, kw_only=True):
    """`breaches` holds the first breaches of each invariant; `counts` counts all of them. Breaches that a failover
    explains are only in `failed_over`. `unmade` counts the predictions whose last changes a failover lost.
    """

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
    recovery_ms: list[int]
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
    bystander: dict[str, Served]
    runs_per_prediction: dict[int, int]
    followed: int
    resumed: int
    shared: int
    seen: int
    faults: dict[str, int]
    left_out: str
    counts: dict[str, int]
    breaches: dict[str, list[Breach]]
    kind: ServerKind = SINGLE
    failovers: int = 0
    unmade: int = 0
    lost_in_failovers: int = 0
    failed_over: dict[str, int] = {}
    calls: dict[str, int] = {}  # of OpenAI's API
    batches: dict[str, int] = {}  # by their status at rest
    batch_lines: int = 0
    batch_runs: int = 0  # of their lines, beyond one for each
    failing: int = 0
    busiest: float = 0.0
    most_grown_mb: int = 0
    largest_mb: int = 0
    silent_streams: int = 0
    leaked_slots: int = 0  # model servers with one
    batch_faults: int = 0  # lines lost, written twice or wrong, and batches that are stuck
    miscounted: int = 0  # accounts and models whose runs or tokens were


def check(folder: Path, rules: Rules | None = None, *, leftovers: Leftovers | None = None) -> Report:
    evidence = gather(folder, rules, leftovers)
    breaches, explained = _breaches(evidence)
    accepted = evidence.accepted()
    orphans = recovery.recoveries(evidence)
    recovered = [each.ms for each in orphans]
    cancels = [ms for _, ms in caller.cancel_times(evidence)]
    histogram = history.runs_per_prediction(evidence)
    in_line = history.every_line(evidence)
    wasted = recovery.waste(evidence)
    idle = usage.uses(evidence)
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
        webhooks_missing=_ids([each for each in breaches["I3"] if each.what.startswith(caller.MISSING)]),
        recoveries=len(recovered),
        recovery_ms=sorted(recovered),
        recovery_p50_ms=percentile(recovered, 0.5),
        recovery_p99_ms=percentile(recovered, 0.99),
        recovery_p99_with_waits_ms=percentile([each.all_ms for each in orphans], 0.99),
        cancels_timed=len(cancels),
        cancel_slowest_ms=max(cancels, default=None),
        end_slowest_ms=recovery.slowest_end_ms(evidence),
        first_claims=sum(len(line.claims) for line in in_line),
        overtaken=sum(len(line.overtaken()) for line in in_line),
        dead_work=round(wasted.share, 5),
        dead_work_in_all=round(wasted.share_in_all, 5),
        breaker_open_s={
            queue: sum(until - since for since, until in times) / 1000 for queue, times in evidence.breakers.items()
        },
        saturations=fairness.saturations(evidence),
        bystander=fairness.bystander_served(evidence),
        runs_per_prediction=histogram,
        followed=len(evidence.followed),
        resumed=sum(bool(visit.after and visit.status) for visits in evidence.visits.values() for visit in visits),
        shared=len(evidence.seen),
        seen=sum(map(len, evidence.seen.values())),
        calls=ends_of_calls(evidence),
        batches=batches.statuses(evidence),
        batch_lines=sum(each.total for each in evidence.batches.values()),
        batch_runs=batches.count_extra_runs(evidence),
        failing=len(caller.failing(evidence)),
        busiest=round(max((use.share for use in idle), default=0.0), 3),
        most_grown_mb=max((use.grown_kb for use in idle), default=0) // 1024,
        largest_mb=usage.largest_kb(evidence) // 1024,
        silent_streams=_ids(
            [*breaches["I28"], *(each for each in breaches["I10"] if each.what.startswith(caller.SILENT))]
        ),
        leaked_slots=_ids(breaches["I27"]),
        batch_faults=len(breaches["I31"]),
        miscounted=_ids(breaches["I26"]),
        faults=dict(sorted(Counter(fault.kind for fault in evidence.faults).items())),
        left_out=evidence.rules.left_out,
        counts={name: len(found) for name, found in breaches.items()},
        breaches={
            name: [replace(each, evidence=timeline(evidence, each.id)) for each in found[:MOST_SHOWN]]
            for name, found in breaches.items()
            if found
        },
        kind=evidence.rules.kind,
        failovers=len(evidence.reigns),
        unmade=len(evidence.unmade),
        lost_in_failovers=_ids(explained["I1"]),
        failed_over={name: len(several) for name, several in sorted(explained.items()) if several},
    )


def _breaches(evidence: Evidence) -> tuple[dict[str, list[Breach]], dict[str, list[Breach]]]:
    """Return the breaches of each invariant, without those that failovers explain, and those."""
    found = {name: [Breach(name, *each) for each in judge(evidence)] for name, (_, judge) in JUDGED.items()}
    lossy = failovers.subjects(evidence)
    explained = {
        name: [each for each in found[name] if each.id in lossy and failovers.explains(name, each.what)]
        for name in failovers.EXCUSED
    }
    left = {name: [each for each in several if each not in explained.get(name, [])] for name, several in found.items()}
    return left, explained


def text(report: Report) -> str:
    lines = [
        f"{report.seconds:g} s of faults with seed {report.seed}, lease {report.lease:g} s:"
        f" {name_counts(report.faults)}",
        *([report.left_out] if report.left_out else []),
        f"sent {report.sent}  accepted {report.acked}  terminal {report.terminal}  lost {report.lost}"
        f"  double {report.double}  stale {report.stale}  extra runs {report.duplicate_runs}"
        f"  webhooks missing {report.webhooks_missing}  silent streams {report.silent_streams}"
        f"  leaked slots {report.leaked_slots}  batch faults {report.batch_faults}  miscounted {report.miscounted}",
        *([_show_failovers(report)] if report.kind == SENTINEL else []),
        f"runs per prediction: {name_counts(report.runs_per_prediction)}",
        f"recovery of {report.recoveries} orphans: p50 {in_s(report.recovery_p50_ms)},"
        f" p99 {in_s(report.recovery_p99_ms)} (with waits for a slot {in_s(report.recovery_p99_with_waits_ms)})",
        f"{report.cancels_timed} cancels that no fault hindered: the slowest took {in_s(report.cancel_slowest_ms)}",
        f"ends that only narrow links hindered: the slowest was written after {in_s(report.end_slowest_ms)}",
        f"{report.first_claims} first claims, {report.overtaken} of them overtaken; {report.dead_work:.2%} of the model"
        f" servers' time went to dead work ({report.dead_work_in_all:.2%} with what faults explain)",
        f"{report.followed} were followed by readers, which resumed {report.resumed} times after an event",
        f"{report.shared} were looked at by several clients at once, {report.seen} times",
        f"calls of OpenAI's API, by their ends: {name_counts(report.calls)}",
        f"batches at rest: {name_counts(report.batches)}, with {report.batch_lines} lines and {report.batch_runs} runs"
        " beyond one for each",
        f"{report.failing} receivers that fail, at a host where others do not, were judged by their schedule",
        f"processes that could do nothing used at most {report.busiest:.1%} of a core and grew by at most"
        f" {report.most_grown_mb} MB; the largest had {report.largest_mb} MB",
        *(f"the breaker of {queue} was open for {open_s:.0f} s" for queue, open_s in report.breaker_open_s.items()),
        *(_fair(each) for each in report.saturations),
        *(
            f"a bystander's {kind} took p90 {in_s(each.alone_ms)} alone, {in_s(each.beside_ms)} beside bad neighbours"
            for kind, each in report.bystander.items()
        ),
        "",
    ]
    for name, (sentence, _) in JUDGED.items():
        count = report.counts[name]
        verdict = "OK" if not count else f"{count} breach{'es' if count > 1 else ''}"
        lines.append(f"  {name:<8}  {sentence:<70}  {verdict}")
    for name, breaches in report.breaches.items():
        lines += ["", f"{name}: {report.counts[name]} in all"]
        for breach in breaches:
            lines.append(f"  {breach.id or '(the run)'}: {breach.what}")
            lines += [f"      {each}" for each in breach.evidence]
    verdict = "no accepted prediction was lost, and every promise held" if report.ok else "BROKEN PROMISES"
    return "\n".join([*lines, "", f"{verdict}  (seed {report.seed})"])


def _show_failovers(report: Report) -> str:
    return (
        f"{report.failovers} failovers lost the last changes of {report.unmade} predictions,"
        f" {report.lost_in_failovers} of them whole. This explains {name_counts(report.failed_over)}"
    )


def _fair(each: Saturation) -> str:
    how = "in peace" if each.is_quiet else "under faults"
    kept_ms = sum(each.kept_ms.values())
    kept = f" ({in_s(kept_ms)} of them kept by faults)" if kept_ms else ""
    return (
        f"saturated for {(each.end - each.begin) / 1000:.1f} s {how}: shares of {len(each.served_ms)} equal tenants"
        f"{kept} with an index of {each.jain:.3f}; light ones waited p99 {each.light.turns} turns and"
        f" {in_s(each.light.ms)}, the heavy one p50 {each.heavy.turns} and {in_s(each.heavy.ms)}"
    )


def _ids(breaches: list[Breach]) -> int:
    return len({each.id for each in breaches})


def name_counts(counts: dict[str, int] | dict[int, int]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in counts.items()) or "none"


def in_s(value: int | None) -> str:
    return "–" if value is None else f"{value / 1000:.2f} s"
