"""Find what needs a person: the one place that judges it, for the page, `director top` and `director doctor` alike.

Pure, and bounded: whoever has three hundred faults has one, and is told of the worst of each kind. Mends nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from director.core.words import several, since, some, span
from director.diagnosis.director_findings import directors_gone, servers_unwell
from director.diagnosis.queue_view import state_of
from director.diagnosis.situation import CODES, Code, Finding, Situation, waits, work_of
from director.store.directors import ALIVE_S
from director.store.owed import LATE_MS

__all__ = ("CROWDED", "FAILING_AFTER", "HOT", "MOST", "SLOW_MS", "away", "find", "is_slow")

SLOW_MS: Final = 10.0
CROWDED: Final = 100  # waiting: below it nobody is crowded out
FLOOD: Final = 0.8
HOT: Final = 10.0  # times as fast as an objective allows
FAILING_AFTER: Final = 2  # attempts
MOST: Final = 100


def find(situation: Situation) -> list[Finding]:
    """What needs a person: the worst of each kind first, and then the second of each, so that none hides another."""
    found = [finding for finder in FINDERS for finding in finder(situation)]
    found.sort(key=lambda one: (one.level != "bad", CODES.index(one.code), one.queue or ""))
    told = Counter[Code]()
    turns: list[tuple[int, Finding]] = []
    for one in found:
        turns.append((told[one.code], one))
        told[one.code] += 1
    return [one for _, one in sorted(turns, key=lambda turn: turn[0])][:MOST]


def away(reason: str) -> Finding:
    """Nothing can be seen, since Redis does not answer."""
    return Finding(
        code="redis_away",
        level="bad",
        title="Redis does not answer",
        detail=f"{reason}. Nothing is accepted or claimed until it does; what runs goes on.",
        ask="director doctor",
    )


def is_slow(answer_ms: float) -> bool:
    """Is that long for an answer of Redis?"""
    return answer_ms > SLOW_MS


# ── the service ──────────────────────────────────────────────────────────────────────────────────────────────────


def _redis(situation: Situation) -> Iterator[Finding]:
    took_ms = situation.closer.redis_ms
    if is_slow(took_ms):
        detail = f"It answers a PING after {took_ms:.0f} ms, where {SLOW_MS:.0f} ms is much: all that happens waits."
        yield Finding(code="redis_slow", level="warn", title="Redis is slow", detail=detail, ask="director doctor")


def _keeper(situation: Situation) -> Iterator[Finding]:
    late = [
        f"{several(count, one)} in {queue}"
        for queue, neglected in situation.closer.neglected.items()
        for count, one in (
            (neglected.expired_leases, "expired lease"),
            (neglected.due_retries, "retry that is due"),
            (neglected.due_deadlines, "passed deadline"),
        )
        if count
    ]
    if late:
        detail = f"{some(late)}, for more than {LATE_MS // 1000} s. One that just began waits for a lease first."
        yield Finding(code="keeper_silent", level="bad", title="No keeper acts", detail=detail, ask="director keeper")


def _webhooks(situation: Situation) -> Iterator[Finding]:
    if late := situation.owed_late:
        yield Finding(
            code="webhooks_late",
            level="warn",
            title="Webhooks are late",
            detail=f"{several(late, 'webhook')} due for more than {LATE_MS // 1000} s, and no keeper tried.",
            ask="director keeper",
        )
    for one in situation.closer.failing:
        oldest = since(one.oldest_at, situation.now_ms)
        yield Finding(
            code="receiver_dead",
            level="warn",
            title=f"{one.host} takes no webhooks",
            detail=f"{several(one.count, 'webhook')} owed there, the oldest for {oldest}, tried {one.attempts} times.",
            ask=f"director explain {one.id}",
        )


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _not_served(situation: Situation) -> Iterator[Finding]:
    for queue, stats in situation.queues.items():
        if work_of(stats) and state_of(replace(stats, breaker="")) == "no_director":
            none = f"no director gave a sign of life within {ALIVE_S:.0f} s"
            yield Finding(
                code="queue_not_served",
                level="bad",
                title="Nobody serves this queue",
                detail=f"{waits(stats)}, and {'all of its directors are about to end' if stats.directors else none}.",
                queue=queue,
                ask=f"director run --model {queue.rpartition(':')[0]}",
            )


def _stopped(situation: Situation) -> Iterator[Finding]:
    for queue, stats in situation.queues.items():
        state = state_of(stats)
        if state == "breaker_open":
            yield Finding(
                code="breaker_open",
                level="bad",
                title="The breaker is open",
                detail=f"{waits(stats)}. Its servers failed in a row: nothing starts until one run has succeeded.",
                queue=queue,
                ask=f"director queues show {queue}",
            )
        if state == "paused" and work_of(stats):
            yield Finding(
                code="queue_paused",
                level="warn",
                title="Paused, with work",
                detail=f"{waits(stats)}, and an operator paused the queue. The audit log tells who.",
                queue=queue,
                ask=f"director queues resume {queue}",
            )


def _burning(situation: Situation) -> Iterator[Finding]:
    for queue, burns in situation.closer.burns.items():
        for lane, windows in burns.items():
            rates = [burn.rate for burn in windows.values()]
            if rates and min(rates) > HOT:
                soon = windows["5m"]
                yield Finding(
                    code="objective_burning",
                    level="bad",
                    title="Starts come too late",
                    detail=f"{soon.missed} of {soon.met + soon.missed} of the lane {lane}, within 5 min, "
                    f"started too late or wait too long: {soon.rate:.0f} times what may be.",
                    queue=queue,
                    ask=f"director queues show {queue}",
                )


def _flooding(situation: Situation) -> Iterator[Finding]:
    for queue, heaviest in situation.closer.heaviest.items():
        waiting = work_of(situation.queues[queue])
        if waiting >= CROWDED and heaviest.accounts > 1 and heaviest.waiting >= FLOOD * waiting:
            detail = (
                f"{heaviest.account} has {heaviest.waiting:,} of the {waiting:,} that wait. "
                f"The {several(heaviest.accounts - 1, 'other account')} still start in turn."
            )
            yield Finding(
                code="tenant_flooding",
                level="warn",
                title=f"{heaviest.account} floods this queue",
                detail=detail,
                queue=queue,
                ask=f"director account set {heaviest.account} --max-queued N",
            )


def _dead(situation: Situation) -> Iterator[Finding]:
    for queue, stats in situation.queues.items():
        if stats.dead:
            letter = situation.closer.letters.get(queue)
            detail = f"{several(stats.dead, 'prediction')} used up all attempts."
            if letter is not None:
                ago, ends = span((situation.now_ms - letter.at_ms) / 1000), ", ".join(letter.codes)
                detail += f" The newest, {letter.id}, {ago} ago: {ends}. Its input may be what breaks servers."
            ask = "director dead list" if letter is None else f"director dead show {letter.id}"
            yield Finding(code="dead_letters", level="warn", title="Dead letters", detail=detail, queue=queue, ask=ask)


FINDERS: Final[tuple[Callable[[Situation], Iterator[Finding]], ...]] = (
    _redis,
    _keeper,
    _not_served,
    directors_gone,
    servers_unwell,
    _stopped,
    _burning,
    _flooding,
    _dead,
    _webhooks,
)
