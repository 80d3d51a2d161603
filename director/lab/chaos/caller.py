"""Judge the promises to the caller: I3 webhooks, I6 cancels, I8 idempotency keys, I10 event streams, I20 what several
clients see at once, I28 to I30 calls of OpenAI's API. Pure.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise, product
from typing import Final

import msgspec
from msgspec import Raw, Struct

from director.core.states import TERMINAL
from director.lab.chaos import journal
from director.lab.chaos.calls import SILENT_S
from director.lab.chaos.evidence import Evidence, Findings, Try, depends_on, group, pid_of
from director.lab.chaos.history import RESTARTS, lives
from director.lab.chaos.journal import Heard
from director.lab.chaos.plan import GO_ON, MISSING_AT_FIRST, MOVE_SLOT, SINK, WHOLE

SPREAD: Final = 0.1  # of each wait: it is a tenth shorter or longer, at random
EARLY_S: Final = 0.5
BEFORE_MS: Final = 1_000
SILENT: Final = "a stream was silent"
SILENT_MS: Final = int(1000 * SILENT_S)  # after so long a reader gives a silent stream up
GONE: Final = 410  # a receiver answers so to refuse all further webhooks
MISMATCH: Final = 422
NOT_JUDGED: Final = frozenset({0, 429})  # no answer, or "not now": neither says anything about the key
STOPPED: Final = frozenset({"canceled", "aborted"})
RETRIED: Final = "retried"
DONE: Final = {"succeeded": "{}", "failed": '{"reason":"error"}'}
CANCELED: Final = '{"reason":"canceled"}'
MISSING: Final = "missing"  # how the breach of a webhook begins that never arrived
WORDS: Final = {"error": 1, "done": 2}  # the last part of an id, in order


def webhooks_tell_the_end(evidence: Evidence) -> Findings:
    """I3: webhooks are signed, share one id, and the last has the final status. A missing end is a breach of I1
    instead.
    """
    for prediction_id, tries in evidence.accepted().items():
        if any(each.sent.webhook for each in tries) and evidence.is_terminal(prediction_id):
            yield from ((prediction_id, what) for what in _wrong_webhooks(evidence, prediction_id))


def _wrong_webhooks(evidence: Evidence, prediction_id: str) -> Iterator[str]:
    status, webhooks = evidence.status(prediction_id), evidence.webhooks.get(prediction_id, [])
    ends = [each for each in webhooks if each.status in TERMINAL]
    if not any(200 <= each.answered < 300 or each.answered == GONE for each in ends):
        yield f"{MISSING}: it {status}, but no webhook that says so arrived"
        return
    revivals = len(lives(evidence.finals[prediction_id].events)) - 1
    names = sorted({each.webhook_id for each in ends})
    if len(names) > 1 + revivals:
        yield f"copies of one webhook came as {', '.join(names)}"
    if not all(each.signed for each in webhooks):
        yield "a webhook has a wrong signature"
    if (early_ms := min(evidence.ends(prediction_id), default=0) - ends[0].at) > 0:
        yield f"a webhook says {ends[0].status} {early_ms} ms before that end was written"
    if ends[-1].status != status:
        yield f"the last webhook says {ends[-1].status}, the record says {status}"
    late = [each for each in webhooks if each.at > ends[0].at and each.status not in TERMINAL]
    if not revivals:
        yield from (f"webhook {each.status} after the end" for each in late if not _was_on_its_way(evidence, each))


def failing_receivers_keep_their_schedule(evidence: Evidence) -> Findings:
    """I24: what arrives at a host brings nothing forward that its receiver refused with a 4xx. Only attempts are judged
    that no fault touched: one whose answer was lost may come again at once, and the due times go by the server's clock.
    """
    for prediction_id, ends in failing(evidence).items():
        for count, (each, due_s) in enumerate(zip(ends[1:], accumulate(evidence.rules.schedule_s), strict=False)):
            after_s = (each.at - ends[0].at) / 1000
            if after_s < due_s * (1 - SPREAD) - EARLY_S:
                yield prediction_id, f"attempt {count + 2} came after {after_s:.1f} s, and is due after {due_s:g} s"


def failing(evidence: Evidence) -> dict[str, list[journal.Delivered]]:
    """Return the attempts at each webhook whose receiver failed at first, if no fault hindered them."""
    found = {}
    for prediction_id, tries in evidence.accepted().items():
        ends = [each for each in evidence.webhooks.get(prediction_id, []) if each.status in TERMINAL]
        if tries[0].sent.plan == MISSING_AT_FIRST and len(ends) > 1:
            parts = (SINK, f"webhooks:{SINK}")
            if not evidence.was_hindered(ends[0].at - BEFORE_MS, ends[-1].at, parts, all_of=("redis", "all:")):
                found[prediction_id] = ends
    return found


def _was_on_its_way(evidence: Evidence, late: journal.Delivered) -> bool:
    """No fence reaches a webhook that a frozen or cut off director sent before the end."""
    since = late.at - evidence.rules.lease_s * 1000
    faults = (fault for fault in evidence.faults if not fault.is_kill and fault.kind != MOVE_SLOT)
    return any(fault.overlaps(since, late.at) for fault in faults)


def check_cancels(evidence: Evidence) -> Findings:
    for prediction_id, tries in evidence.by_id.items():
        status, final = evidence.status(prediction_id), evidence.finals.get(prediction_id)
        if final is not None and len(lives(final.events)) == 1:
            for shown in sorted({each.answer.shown for each in tries} & STOPPED - {status}):
                yield prediction_id, f"shown {shown}, but now it is {status}"
    for prediction_id, ms in cancel_times(evidence):
        if ms > evidence.rules.cancel_s * 1000:
            yield prediction_id, f"ended {ms} ms after the cancel"


def cancel_times(evidence: Evidence) -> list[tuple[str, int]]:
    """Return (id, ms from the answer to a cancel until the end) of every cancel that no fault hindered."""
    times = []
    for prediction_id, tries in evidence.by_id.items():
        ended = next(iter(evidence.ends(prediction_id)), 0)
        for each in tries:
            is_judged = each.sent.action == "cancel" and each.ok and ended >= each.sent.at
            if is_judged and not is_hindered(evidence, prediction_id, each.sent.at, ended):
                times.append((prediction_id, max(0, ended - each.answer.at)))
    return times


def is_hindered(evidence: Evidence, prediction_id: str, asked: int, ended: int) -> bool:
    """Return whether a fault hit Redis, or a server that it ran on, from one recovery time before `asked` on."""
    needed = {name for run in evidence.runs.get(prediction_id, []) for name in depends_on(run.server)}
    final = evidence.finals.get(prediction_id)
    holder = pid_of(final.record.get("holder", "")) if final else 0
    return evidence.was_hindered(asked - evidence.rules.recovery_s * 1000, ended, needed, pid=holder)


def clients_see_one_history(evidence: Evidence) -> Findings:
    """I20: once a client was shown an end, by an answer, a list, a stream or a webhook, each client that asks later is
    shown the same end. What was accepted is shown to each client that asks later. A revived prediction is left out.
    """
    for prediction_id, seen in evidence.seen.items():
        final = evidence.finals.get(prediction_id)
        if final is not None and len(lives(final.events)) == 1:
            ends = sorted(_find_shown_ends(evidence, prediction_id))
            for each in seen:
                if not each.status:
                    yield prediction_id, f"missing by {each.by}, which was asked at {each.asked}, after its creation"
                earlier = ends and ends[0][0] < each.asked and ends[0]
                if earlier and each.status != earlier[1]:
                    yield (
                        prediction_id,
                        f"{each.status or 'missing'} by {each.by}, which was asked at {each.asked}, "
                        f"but {earlier[1]} by {earlier[2]} at {earlier[0]}",
                    )


def _find_shown_ends(evidence: Evidence, prediction_id: str) -> Iterator[tuple[int, str, str]]:
    """Yield when an end was shown to a client, as what, and by what."""
    shown: list[tuple[int, str, str]] = [(each.at, each.status, each.by) for each in evidence.seen[prediction_id]]
    tries = evidence.by_id.get(prediction_id, [])
    shown += [(each.answer.at, each.answer.shown, f"the answer to {each.sent.action}") for each in tries]
    shown += [(each.at, each.status, "webhook") for each in evidence.webhooks.get(prediction_id, [])]
    done = (each.at for each in evidence.heard.get(prediction_id, []) if each.event == "done")
    shown += [(at, evidence.status(prediction_id), "stream") for at in done]
    return (each for each in shown if each[1] in TERMINAL)


def one_key_one_id(evidence: Evidence) -> Findings:
    keys_of: dict[str, set[str]] = defaultdict(set)
    for key, tries in evidence.creates.items():
        yield from ((key, what) for what in _key_misread(tries))
        for each in tries:
            if each.ok:
                keys_of[each.answer.id].add(key)
    for prediction_id, keys in keys_of.items():
        if len(keys) > 1:
            yield prediction_id, f"one prediction for the keys {', '.join(sorted(keys))}"
    for tag, finals in group((final for final in evidence.finals.values() if final.tag), lambda each: each.tag).items():
        if len(finals) > 1:
            yield tag, f"a call that was sent once made {', '.join(sorted(final.id for final in finals))}"
    # the client may have missed the acceptance of a key, but only once for each key
    unheard = sum(not any(each.ok for each in tries) for tries in evidence.creates.values())
    lines = {name for batch in evidence.batches.values() for _, name in (*batch.output, *batch.errors)}
    unknown = sorted((evidence.finals.keys() | evidence.runs.keys()) - keys_of.keys() - evidence.unmade.keys() - lines)
    for unexpected in [each for each in unknown if evidence.status(each) or each in evidence.runs][unheard:]:
        yield unexpected, "a second prediction of some key"


def _key_misread(tries: list[Try]) -> Iterator[str]:
    accepted = [each for each in tries if each.ok]
    if not accepted:
        return
    if len(ids := sorted({each.answer.id for each in accepted})) > 1:
        yield f"one key made {', '.join(ids)}"
    plan = accepted[0].sent.plan
    if any(each.sent.plan == plan and each.answer.status == MISMATCH for each in tries):
        yield "a repeated body was refused as a different one"
    for each in tries[tries.index(accepted[0]) :]:
        status = each.answer.status
        if each.sent.plan != plan and status < 500 and status not in (MISMATCH, *NOT_JUDGED):
            yield f"a different body under the same key was answered {status}"


def check_streams(evidence: Evidence) -> Findings:
    """I10: a reader receives every event once, in order, and the events are numbered without gaps. The expected stream
    is derived from the events and the output that Redis has at rest. The model servers of a run print nothing, so
    there are no logs. A missing end is a breach of I1 instead.
    """
    for prediction_id in filter(evidence.is_terminal, evidence.followed):
        final = evidence.finals[prediction_id]
        wrong = chain(
            _find_misnumbered(evidence.listed.get(prediction_id), final),
            _find_turned_away(evidence.visits.get(prediction_id, [])),
            _find_silent(evidence, evidence.visits.get(prediction_id, [])),
            _misheard(evidence.heard.get(prediction_id, []), final),
        )
        yield from ((prediction_id, what) for what in wrong)


def _find_misnumbered(listed: journal.Listed | None, final: journal.Final) -> Iterator[str]:
    if listed is None:
        yield "no reader received the list of its events"
        return
    numbers = [number for number, _ in listed.events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its events are numbered {numbers}"
    kinds, there = [kind for _, kind in listed.events], [kind for kind, _, _ in final.events]
    if kinds != there:
        yield f"its events are listed as {kinds}, but are {there}"


def _find_turned_away(visits: Sequence[journal.Visited]) -> Iterator[str]:
    for visit in visits:
        if 300 <= visit.status < 500:
            yield f"a reader was answered {visit.status}"
        if visit.end == "whole":
            yield "a stream ended without an error and without a done event"


def _find_silent(evidence: Evidence, visits: Sequence[journal.Visited]) -> Iterator[str]:
    """An API process that lives sends a comment each ten seconds, whatever became of Redis and of the director."""
    for visit in visits:
        since = visit.until - SILENT_MS - BEFORE_MS
        if visit.end == "silent" and not evidence.was_hindered(since, visit.until, API_ALONE, all_of=()):
            yield f"{SILENT} for {SILENT_MS // 1000} s, until {visit.until}"


def _misheard(heard: Sequence[Heard], final: journal.Final) -> Iterator[str]:
    if len(lives(final.events)) > 1:
        return  # an operator revived it, and the numbers began again
    # a comment has no id, so a reader that left after `retried` receives it again
    again = [one.event == before.event == RETRIED for before, one in pairwise(heard)]
    received = [one for one, is_again in zip(heard, [False, *again], strict=False) if not is_again]
    expected = list(_expect(final))
    for place, (one, (event, data, number)) in enumerate(zip(received, expected, strict=False)):
        if (one.event, one.data) != (event, data):
            yield f"heard {one.event} {one.data} as number {place + 1}, but {event} {data} is due"
            return
        if number and _place(one.mark)[0] != number:
            yield f"heard event {number} under the id {one.mark}"
    if len(received) != len(expected):
        yield f"heard {len(received)} events of {len(expected)}"
    for before, after in pairwise(one.mark for one in received if one.mark):
        if _place(after) <= _place(before):
            yield f"heard the id {after} after {before}"
    if final.record["status"] == "succeeded" and (shown := _last_attempt(received)) != _items(final.output):
        yield f"heard {shown}, but its output is {_items(final.output)}"


def _expect(final: journal.Final) -> Iterator[tuple[str, str, int]]:
    """Yield (event, data, place in the log or 0): the events of the log, then the end's."""
    shown = 0
    for number, (kind, _, data) in enumerate(final.events, start=1):
        if kind in RESTARTS:
            if shown:
                yield RETRIED, "", 0
            shown = 0
        elif kind == "output":
            shown += 1
            yield "output", _text(data.encode()), number
        elif kind == "logs":
            yield "logs", _text(data.encode()), number
    yield from (("output", item, 0) for item in _items(final.output)[shown:])
    status = final.record["status"]
    if status == "failed":
        yield "error", msgspec.json.encode({"detail": final.record.get("error", "")}).decode(), 0
    yield "done", DONE.get(status, CANCELED), 0


def _last_attempt(received: Sequence[Heard]) -> list[str]:
    shown: list[str] = []
    for one in received:
        if one.event == RETRIED:
            shown.clear()
        elif one.event == "output":
            shown.append(one.data)
    return shown


def _items(output: str) -> list[str]:
    if not output or output == "null":
        return []
    items = msgspec.json.decode(output, type=list[Raw]) if output.startswith("[") else [Raw(output.encode())]
    return [_text(bytes(item)) for item in items]


def _text(item: bytes) -> str:
    return msgspec.json.decode(item, type=str) if item.startswith(b'"') else item.decode()


def _place(mark: str) -> tuple[int, ...]:
    return tuple(WORDS[part] if part in WORDS else int(part) for part in mark.split(":"))


ALL_CAME: Final = "[DONE]"
API_ALONE: Final = ("api-0", "client:api")  # without Redis
API: Final = (*API_ALONE, "api-0:redis")


ROLE: Final = '"role"'


class _Choice(Struct):
    finish_reason: str | None = None


class _Piece(Struct):
    choices: list[_Choice] = []
    error: dict[str, object] | None = None

    @property
    def is_last(self) -> bool:
        return any(choice.finish_reason for choice in self.choices)


def calls_end_in_words(evidence: Evidence) -> Findings:
    """I28: an answer ends with a reason to finish, or with an error. Its connection breaks only if a fault hit the API,
    and it is never silent.
    """
    for prediction_id, calls in evidence.calls.items():
        yield from ((prediction_id, what) for call in calls for what in _find_wordless(evidence, call))


def _find_wordless(evidence: Evidence, call: journal.Called) -> Iterator[str]:
    if call.end == "silent":
        yield f"nothing came any more after {len(call.chunks)} chunks"
    if call.end == "broken" and call.status and not evidence.was_hindered(call.at - BEFORE_MS, call.at, API_ALONE):
        yield "its connection broke, though nothing had hit the API"
    pieces = [_read(data) for data in call.chunks if data != ALL_CAME]
    if call.end == "whole" and _is_whole(call) and not (pieces and pieces[-1].is_last):
        yield "it came whole, and has no reason to finish"
    if call.end == "whole" and not _is_whole(call) and not (pieces and pieces[-1].error):
        yield f"it was answered {call.status}, and ended without a reason to finish and without an error"
    if any(piece.error for piece in pieces[:-1]):
        yield "more came after its error"


def _read(data: str) -> _Piece:
    try:
        return msgspec.json.decode(data, type=_Piece)
    except msgspec.DecodeError:
        return _Piece()


def _is_whole(call: journal.Called) -> bool:
    return call.chunks[-1:] == [ALL_CAME] or (call.plan == WHOLE and call.status == 200)


def name_end(call: journal.Called) -> str:
    if call.end == "whole" and not _is_whole(call):
        return "failed" if call.status == 200 else f"refused {call.status}"
    return call.end if call.status or call.end == "left" else "unanswered"


def texts(call: journal.Called) -> list[str]:
    """Return what came of the model's answer, without the role."""
    if call.status != 200:
        return []
    return [data for data in call.chunks if data != ALL_CAME and '"error"' not in data and ROLE not in data]


def calls_have_one_text(evidence: Evidence) -> Findings:
    """I29: what came is what one run sent, byte for byte, up to where it ended, and all of it if it came whole. Once a
    chunk was shown, no other run begins. One with the role alone comes once, and may be that of another run.
    """
    for prediction_id, calls in evidence.calls.items():
        runs = evidence.runs.get(prediction_id, [])
        sent = {run: [each.data for each in evidence.spoken.get(run.run, [])] for run in runs}
        for call in calls:
            came = texts(call)
            if (count := sum(ROLE in data for data in call.chunks)) > 1:
                yield prediction_id, f"its role came {count} times"
            of = [run for run in runs if sent[run][: len(came)] == came]
            if came and len(of) != 1:
                yield prediction_id, f"its {len(came)} chunks are those of {len(of)} runs of {len(runs)}"
            elif came and _is_whole(call) and len(came) < len(sent[of[0]]):
                yield prediction_id, f"it ended as whole after {len(came)} chunks of {len(sent[of[0]])}"
            elif came and call.plan != WHOLE and any(run.began > of[0].began for run in runs):
                yield prediction_id, f"it ran again after {len(came)} chunks were shown"


def calls_given_up_stop(evidence: Evidence) -> Findings:
    """I30: soon after its caller has left, a call runs no more. One that its caller wants to go on is not stopped. A
    caller may leave before the API has read its call, which is then accepted first.
    """
    for prediction_id, calls in evidence.calls.items():
        left, runs = (call for call in calls if call.end == "left"), evidence.runs.get(prediction_id, [])
        accepted = evidence.arrivals[prediction_id].at if prediction_id in evidence.arrivals else 0
        for call, run in product(left, runs):
            over, needed = run.asked or run.ended, {*API, *depends_on(run.server)}
            if evidence.was_hindered(call.at - evidence.rules.recovery_s * 1000, over, needed, pid=run.pid):
                continue
            if call.plan == GO_ON and run.asked:
                yield (
                    prediction_id,
                    f"it was stopped {over - call.at} ms after its caller left, which wanted it to go on",
                )
            elif call.plan != GO_ON and over - max(call.at, accepted) > evidence.rules.cancel_s * 1000:
                yield prediction_id, f"it ran on for {over - call.at} ms after its caller had left"
