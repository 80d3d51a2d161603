"""Judge the history of each prediction: I1, I2, I4, I5, I9, I11, I25, I26, and the figure I15. Pure. A prediction's
events are read as lives (a revived one has several) of attempts (a retry begins another).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise
from typing import Final

import msgspec
from msgspec import Struct

from director.core.states import TERMINAL
from director.lab.chaos import journal
from director.lab.chaos.evidence import Event, Evidence, Findings, Run, depends_on, group
from director.lab.chaos.journal import Arrived, Claimed
from director.lab.chaos.plan import FULL

RESTARTS: Final = frozenset({"retried", "released", "revived"})
MODEL_FAILED: Final = "model_failed"
DIRECTOR_LOST: Final = "director_lost"
IN_ORDER: Final = 0.999  # share of all first claims
NO_RECORD: Final = "it was accepted, but there is no record of it"
SHOWN: Final = "its caller was shown"
BEFORE_MS: Final = 1_000  # a target that broke shortly before may still be on its way back


class Attempt(Struct, frozen=True):
    opened: int
    events: list[Event]


def lives(events: list[Event]) -> list[list[Event]]:
    cut: list[list[Event]] = [[]]
    for event in events:
        if event[0] == "revived":
            cut.append([])
        cut[-1].append(event)
    return cut


def nothing_is_lost(evidence: Evidence) -> Findings:
    for prediction_id in evidence.accepted():
        status = evidence.status(prediction_id)
        if not status:
            yield prediction_id, NO_RECORD
        elif status not in TERMINAL:
            yield prediction_id, f"it was accepted, but is still {status}"


def all_are_listed(evidence: Evidence) -> Findings:
    for prediction_id in evidence.accepted():
        final = evidence.finals.get(prediction_id)
        if final is not None and final.record and final.listed not in (None, final.record.get("account")):
            yield prediction_id, f"it is on {f'the list of {final.listed}' if final.listed else 'no list'}"


def one_end(evidence: Evidence) -> Findings:
    for final in evidence.finals.values():
        status = final.record.get("status", "")
        if not status or (final.tag and not final.events):  # those of a call go a minute after its end
            continue
        *former, last = lives(final.events)
        wanted = [1] * len(former) + [int(status in TERMINAL)]
        ends = [[data for kind, _, data in life if kind == "completed"] for life in [*former, last]]
        if [len(each) for each in ends] != wanted:
            yield final.id, f"it is {status}, but its ends are {ends}"
        elif ends[-1] and ends[-1][-1] != status:
            yield final.id, f"it ended as {ends[-1][-1]}, but its record says {status}"
        elif not former:
            # canceled ones belong to I6
            shown = {each.answer.shown for each in evidence.by_id.get(final.id, [])} & {"succeeded", "failed"}
            for each in sorted(shown - {status}):
                yield final.id, f"{SHOWN} {each}, but now it is {status}"


def only_current_runs_write(evidence: Evidence) -> Findings:
    for final in evidence.finals.values():
        runs = {run.run: run for run in evidence.runs.get(final.id, [])}
        wrong = chain(_after_the_end(final), _by_strangers(final, runs), _end_of_a_stranger(final, runs))
        yield from ((final.id, what) for what in wrong)


def _after_the_end(final: journal.Final) -> Iterator[str]:
    for life in lives(final.events):
        kinds = [kind for kind, _, _ in life]
        after = kinds[kinds.index("completed") + 1 :] if "completed" in kinds else []
        if wrong := [kind for kind in after if kind != "webhook"]:  # the delivery of its webhook is noted after the end
            yield f"after its end: {', '.join(wrong)}"


def _by_strangers(final: journal.Final, runs: dict[str, Run]) -> Iterator[str]:
    """Check that the outputs of an attempt come from one run, which began after the attempt could be claimed."""
    for attempt in _attempts(final.events):
        writers = _writers(msgspec.json.decode(data) for kind, _, data in attempt.events if kind == "output")
        if len(writers) > 1:
            yield f"one attempt has outputs of the runs {', '.join(writers)}"
        yield from _strangers(writers, runs, attempt)


def _end_of_a_stranger(final: journal.Final, runs: dict[str, Run]) -> Iterator[str]:
    """Check that output and status at rest come from a run of the last attempt that ended so on its server."""
    status = final.record.get("status", "")
    if status not in TERMINAL:
        return
    *_, attempt = _attempts(final.events)
    output = msgspec.json.decode(final.output) if final.output else []
    writers = _writers(output if isinstance(output, list) else [output])
    if len(writers) > 1:
        yield f"its output is of the runs {', '.join(writers)}"
    yield from (f"at rest: {why}" for why in _strangers(writers, runs, attempt))
    outcome = "failed" if final.record.get("code") == MODEL_FAILED else "succeeded" if status == "succeeded" else None
    possible = [run for run in runs.values() if not writers or run.run in writers]
    if outcome and not any(run.outcome == outcome and run.began >= attempt.opened for run in possible):
        yield f"it {outcome}, but no run of its last attempt did"


def _strangers(writers: list[str], runs: dict[str, Run], attempt: Attempt) -> Iterator[str]:
    for writer in writers:
        run = runs.get(writer)
        if run is None:
            yield f"an output of the run {writer or '(none)'}, which no model server had"
        elif run.began < attempt.opened:
            yield f"an output of the run {writer}, whose claim had been taken back"


def _attempts(events: list[Event]) -> list[Attempt]:
    found = [Attempt(events[0][1] if events else 0, [])]
    for event in events:
        if event[0] in RESTARTS:
            found.append(Attempt(event[1], []))
        found[-1].events.append(event)
    return found


def _writers(items: Iterable[object]) -> list[str]:
    return sorted(set(map(_writer, items)))


def _writer(item: object) -> str:
    """Return the run that an output names. With OpenAI's API that is its `id`, and the first word of each text."""
    if isinstance(item, str):
        return item.partition("/")[0]
    return str(item.get("run") or item.get("id") or "") if isinstance(item, dict) else ""


def what_ran_is_counted(evidence: Evidence) -> Findings:
    """I26: each run whose end stands in its record was counted with its tokens, for its account, and no claim was
    counted twice, nor a run that no model server had. Of runs that were given back or lost, the servers know more than
    their directors.
    """
    used = evidence.leftovers.used_by if evidence.leftovers else None
    if used is None or not evidence.rules.is_counted or evidence.unmade:
        return
    arrived = group(evidence.arrivals.values(), lambda each: f"{each.tenant} {each.queue.rpartition(':')[0]}")
    for whose in sorted(arrived.keys() | used):
        runs, tokens = used.get(whose, (0, 0))
        ids = [each.id for each in arrived.get(whose, [])]
        every = [run for each in ids for run in evidence.runs.get(each, [])]
        finals = [evidence.finals[each] for each in ids if each in evidence.finals]
        kept = [run for final in finals for run in _find_written(final, evidence.runs.get(final.id, []))]
        shown = [count for final in finals if (count := _count_shown(final, evidence))]
        claims = sum(len(evidence.claims.get(each, [])) for each in ids)
        least_tokens, most_tokens = (sum(run.tokens for run in several) for several in (kept, every))
        for name, counted, least, most in (
            ("runs", runs, len(kept) + len(shown), claims),
            ("output tokens", tokens, least_tokens + sum(shown), most_tokens),
        ):
            if not least <= counted <= most:
                yield whose, f"{counted} {name} were counted, and its servers had {least} to {most}"


def _find_written(final: journal.Final, runs: list[Run]) -> list[Run]:
    """Return the run whose end stands in the record: the one that wrote its output."""
    output = msgspec.json.decode(final.output) if final.output else []
    writers = _writers(output if isinstance(output, list) else [output])
    return [run for run in runs if final.record.get("status") == "succeeded" and [run.run] == writers]


def _count_shown(final: journal.Final, evidence: Evidence) -> int:
    """Return the tokens that the caller of a call was shown, if it ended without an answer: its director counted those.
    A director that was lost counted nothing.
    """
    if final.record.get("status") == "succeeded" or final.record.get("code") == DIRECTOR_LOST:
        return 0
    shown = {data for call in evidence.calls.get(final.id, []) for data in call.chunks}
    sent = (said for run in evidence.runs.get(final.id, []) for said in evidence.spoken.get(run.run, []))
    return sum(said.tokens for said in sent if said.data in shown)


def attempts_are_bounded(evidence: Evidence) -> Findings:
    """I5: a prediction ran at most as often as its attempts. An attempt that was given back unused does not count."""
    rules = evidence.rules
    for prediction_id, runs in evidence.runs.items():
        final = evidence.finals.get(prediction_id)
        events = final.events if final else []
        most = rules.attempts * len(lives(events)) + sum(kind == "released" for kind, _, _ in events)
        if len(runs) > most:
            yield prediction_id, f"it ran {len(runs)} times, but {most} are allowed"
        # a run whose claim was lost may go on until its director notices
        allowed_ms = (rules.lease_s + rules.grace_s) * 1000
        for earlier, later in pairwise(sorted(runs, key=lambda run: run.began)):
            both_ms = min(earlier.ended, later.ended) - later.began
            if both_ms > allowed_ms:
                yield prediction_id, f"the runs {earlier.run} and {later.run} overlapped for {both_ms} ms"


def odd_answers_are_ends(evidence: Evidence) -> Findings:
    """I25: an odd answer is the end that it must be, after one run. Judged if nothing hit the run, its director or its
    server until the prediction ended or began again.
    """
    crashes = group((run for run in evidence.every_run() if run.outcome == "crashed"), lambda run: run.server)
    for run in evidence.every_run():
        final = evidence.finals.get(run.id)
        over = _first_end(final.events, run) if run.odd and final else None
        if final is None or over is None:
            continue
        kind, until, became = over
        claims = [claimed.at for claimed in evidence.claims.get(run.id, []) if claimed.at <= run.began]
        since = max(claims, default=run.began) - BEFORE_MS
        was_hit = evidence.was_hindered(since, until, depends_on(run.server), pid=run.pid)
        if was_hit or any(since <= crash.ended <= until for crash in crashes.get(run.server, [])):
            continue
        if kind != "completed":
            yield run.id, f"its server answered {run.odd!r}, and it was {kind}"
        elif became != run.outcome:
            yield run.id, f"its server answered {run.odd!r}, and it {became}"
        elif became == "failed" and (code := final.record.get("code")) != MODEL_FAILED:
            yield run.id, f"its server answered {run.odd!r}, but its code is {code}"


def _first_end(events: list[Event], run: Run) -> Event | None:
    """Return the first event after this run began with which the prediction ended, or began again."""
    return next((each for each in events if each[1] >= run.began and each[0] in {"completed", *RESTARTS}), None)


def slots_are_kept(evidence: Evidence) -> Findings:
    """I9: no model server ran more than its slots. Report each server once, at its worst moment."""
    for server, runs in sorted(group(evidence.every_run(), lambda run: run.server).items()):
        most, at = _count_at_once(runs)
        if most > (slots := evidence.slots(server)):
            yield server, f"{most} runs at once at {-at}, on {slots} slots"


def slots_come_back(evidence: Evidence) -> Findings:
    """I27: once all was at rest, each server had a run in each of its slots: one that is over keeps none."""
    full = {each for each, plan in evidence.plans().items() if plan == FULL}
    runs = group((run for each in full for run in evidence.runs.get(each, [])), lambda run: run.server)
    for server, slots in evidence.rules.slots_of.items() if full else ():
        most, _ = _count_at_once(runs.get(server, []))
        if most < slots:
            yield server, f"it had {most} runs at once, of predictions for {slots} slots"


def _count_at_once(runs: list[Run]) -> tuple[int, int]:
    """Return the most runs at once, and minus the time of it."""
    # in one millisecond ends come before beginnings
    changes = sorted(change for run in runs for change in ((run.began, 1), (run.ended, -1)))
    running = accumulate(step for _, step in changes)
    return max(zip(running, [-at for at, _ in changes], strict=True), default=(0, 0))


def runs_per_prediction(evidence: Evidence) -> dict[int, int]:
    """I15, a figure that is reported and not judged: number of runs → predictions with that number."""
    counts = Counter(len(evidence.runs.get(each, [])) for each in evidence.finals.keys() | evidence.runs.keys())
    return dict(sorted(counts.items()))


class Line(Struct, frozen=True, kw_only=True):
    """First claims of one tenant out of one stream. `is_exact`: the lane has no other stream."""

    claims: list[tuple[Arrived, Claimed]]
    is_exact: bool

    def overtaken(self) -> list[tuple[Arrived, Claimed]]:
        found, last = [], -1
        for arrived, claimed in self.claims:
            if arrived.number < last:
                found.append((arrived, claimed))
            last = max(last, arrived.number)
        return found


def first_come_first_claimed(evidence: Evidence) -> Findings:
    """I11: predictions are claimed in the order of their arrival. Only first claims are judged, since a retry
    overtakes on purpose. What a failover lost was in the line of another server. A tenant's line may lie on several
    streams, and no order is promised between them. A lane with only one stream must keep the order exactly.
    """
    found = every_line(evidence)
    overtaken = [(line, pair) for line in found for pair in line.overtaken()]
    share = 1 - len(overtaken) / max(1, sum(len(line.claims) for line in found))
    for line, (arrived, claimed) in overtaken:
        if line.is_exact or share < IN_ORDER:
            where = f"{arrived.queue} {arrived.lane} {claimed.stream}"
            yield arrived.id, f"a later one of {arrived.tenant} was claimed before it: {where}"


def every_line(evidence: Evidence) -> list[Line]:
    firsts = sorted((claims[0] for claims in evidence.claims.values()), key=lambda claimed: claimed.number)
    there = evidence.arrivals.keys() - evidence.unmade.keys()
    pairs = [(evidence.arrivals[claimed.id], claimed) for claimed in firsts if claimed.id in there]
    lanes = group(pairs, lambda pair: (pair[0].queue, pair[0].lane))
    return [
        Line(claims=claims, is_exact=len({claimed.stream for _, claimed in lane}) == 1)
        for lane in lanes.values()
        for claims in group(lane, lambda pair: (pair[0].tenant, pair[1].stream)).values()
    ]
