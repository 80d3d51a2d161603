"""I3, I6, I8: what the caller was promised: to be told, to be obeyed, to be heard once. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from director.chaos.breach import Breach
from director.chaos.evidence import Evidence, Try, leaned_on, pid_of
from director.chaos.faults import NARROW
from director.chaos.history import lives
from director.chaos.journal import Delivered
from director.core.states import TERMINAL

__all__ = ("cancel_times", "canceled_stays_canceled", "is_hindered", "one_key_one_id", "webhooks_tell_the_end")

GONE: Final = 410  # a receiver that answers so wants to hear no more
MISMATCH: Final = 422
NOT_JUDGED: Final = frozenset({0, 429})  # no answer at all, or not now: nothing was said about the key
STOPPED: Final = frozenset({"canceled", "aborted"})


def webhooks_tell_the_end(evidence: Evidence) -> list[Breach]:
    """I3. What never ended is I1's."""
    breaches = []
    for prediction_id, tries in evidence.accepted().items():
        if any(each.sent.webhook for each in tries) and evidence.is_terminal(prediction_id):
            told = evidence.told.get(prediction_id, [])
            breaches += [Breach("I3", prediction_id, what) for what in _told_wrong(evidence, prediction_id, told)]
    return breaches


def _told_wrong(evidence: Evidence, prediction_id: str, told: list[Delivered]) -> Iterator[str]:
    status = evidence.status(prediction_id)
    ends = [each for each in told if each.status in TERMINAL]
    if not any(200 <= each.answered < 300 or each.answered == GONE for each in ends):
        yield f"missing: it {status}, and no webhook that says so arrived"
        return
    revivals = len(lives(evidence.finals[prediction_id].events)) - 1
    names = sorted({each.webhook_id for each in ends})
    if len(names) > 1 + revivals:
        yield f"copies of one webhook came as {', '.join(names)}"
    if not all(each.signed for each in told):
        yield "a webhook with a wrong signature"
    if ends[-1].status != status:
        yield f"the last webhook says {ends[-1].status}, the record says {status}"
    late = [each for each in told if each.at > ends[0].at and each.status not in TERMINAL]
    if not revivals:
        yield from (f"told {each.status} after the end" for each in late if not _was_on_its_way(evidence, each))


def _was_on_its_way(evidence: Evidence, late: Delivered) -> bool:
    """A director that was frozen, or cut off, in the middle of sending: no fence reaches what has left it."""
    since = late.at - evidence.rules.lease_s * 1000
    return any(not fault.is_kill and fault.overlaps(since, late.at) for fault in evidence.faults)


def canceled_stays_canceled(evidence: Evidence) -> list[Breach]:
    """I6."""
    breaches = []
    for prediction_id, tries in evidence.by_id.items():
        status, final = evidence.status(prediction_id), evidence.finals.get(prediction_id)
        if final is None or len(lives(final.events)) > 1:
            continue
        shown = sorted({each.shown for each in tries if each.shown in STOPPED and each.shown != status})
        breaches += [Breach("I6", prediction_id, f"shown {each}, and now it is {status}") for each in shown]
    return breaches + [
        Breach("I6", prediction_id, f"ended {ms} ms after the cancel")
        for prediction_id, ms in cancel_times(evidence)
        if ms > evidence.rules.cancel_s * 1000
    ]


def cancel_times(evidence: Evidence) -> list[tuple[str, int]]:
    """(id, milliseconds from the answer to a cancel to the end), of all that no fault stood in the way of."""
    times = []
    for prediction_id, tries in evidence.by_id.items():
        final = evidence.finals.get(prediction_id)
        ended = next((at for kind, at, _ in final.events if kind == "completed"), 0) if final else 0
        for each in tries:
            if each.sent.action != "cancel" or not each.ok or each.answer is None or ended < each.sent.at:
                continue
            if not is_hindered(evidence, prediction_id, each.sent.at, ended):
                times.append((prediction_id, max(0, ended - each.answer.at)))
    return times


def is_hindered(evidence: Evidence, prediction_id: str, asked: int, ended: int) -> bool:
    """Did a fault hit what stopping it needs? Redis, and where it ran: what broke takes time to come back."""
    needed = {name for run in evidence.runs.get(prediction_id, []) for name in leaned_on(run.server)}
    final = evidence.finals.get(prediction_id)
    holder = pid_of(final.record.get("holder", "")) if final else 0
    since = asked - evidence.rules.recovery_s * 1000
    return any(
        fault.kind != NARROW
        and fault.overlaps(since, ended)
        and (fault.target in needed or fault.target.startswith(("redis", "all:")) or (holder and fault.pid == holder))
        for fault in evidence.faults
    )


def one_key_one_id(evidence: Evidence) -> list[Breach]:
    """I8."""
    breaches = []
    keys_of: dict[str, set[str]] = defaultdict(set)
    for key, tries in evidence.creates.items():
        breaches += [Breach("I8", key, what) for what in _key_misread(tries)]
        for each in tries:
            if each.ok:
                keys_of[each.id].add(key)
    breaches += [
        Breach("I8", prediction_id, f"one prediction for the keys {', '.join(sorted(keys))}")
        for prediction_id, keys in keys_of.items()
        if len(keys) > 1
    ]
    # the client may not have heard of what was accepted under a key, but only once for each
    unheard = sum(not any(each.ok for each in tries) for tries in evidence.creates.values())
    unknown = sorted((evidence.finals.keys() | evidence.runs.keys()) - keys_of.keys())
    unknown = [each for each in unknown if evidence.status(each) or each in evidence.runs]
    breaches += [Breach("I8", each, "a second prediction of some key") for each in unknown[unheard:]]
    return breaches


def _key_misread(tries: list[Try]) -> Iterator[str]:
    accepted = [each for each in tries if each.ok]
    if not accepted:
        return
    if len(ids := sorted({each.id for each in accepted})) > 1:
        yield f"one key made {', '.join(ids)}"
    plan = accepted[0].sent.plan
    if any(each.sent.plan == plan and each.status == MISMATCH for each in tries):
        yield "a repeated body was refused as another one"
    for each in tries[tries.index(accepted[0]) :]:
        if each.sent.plan != plan and each.status < 500 and each.status not in (MISMATCH, *NOT_JUDGED):
            yield f"another body under the same key was answered {each.status}"
