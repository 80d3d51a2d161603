"""Find what needs an operator. The dashboard, `director top` and `director doctor` share this judgement.

Pure and bounded: the worst finding of each kind comes first, and many findings of one kind do not hide another kind.
Costly facts, which `closer_look.py` reads, are known of a few queues only: those where they may show a fault.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from director.broker.replies import QueueStats
from director.core.ids import QueueName
from director.core.policy import Burns
from director.core.words import several, since, some, span
from director.diagnosis.views import state_of
from director.store.directors import ALIVE_S, LOOP, Beat, DirectorFound, ServerFound
from director.store.owed import LATE_MS, FailingHost

Level = Literal["bad", "warn"]
"""`bad`: work is lost, refused or stuck; `warn`: it will be, or an operator should know."""

Code = Literal[
    "redis_away",
    "redis_slow",
    "keeper_silent",
    "queue_not_served",
    "director_gone",
    "setup_loop",
    "setup_failed",
    "server_auth",
    "servers_unwell",
    "breaker_open",
    "queue_paused",
    "objective_burning",
    "tenant_flooding",
    "dead_letters",
    "webhooks_late",
    "receiver_dead",
]
CODES: Final[tuple[Code, ...]] = get_args(Code)


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that needs an operator. `title` names it in a few words. `detail` says which, how many and since when.

    `ask` is the command that shows more or repairs it.
    """

    code: Code
    level: Level
    title: str
    detail: str
    queue: QueueName | None = None
    ask: str


class Neglected(Struct, frozen=True, kw_only=True):
    """Work of one queue that a keeper should have done by now."""

    expired_leases: int = 0
    due_retries: int = 0
    due_deadlines: int = 0


class Heaviest(Struct, frozen=True, kw_only=True):
    """The account with the most waiting in a queue, of `accounts` with anything waiting."""

    account: str
    waiting: int
    accounts: int


class Letter(Struct, frozen=True, kw_only=True):
    """The newest dead letter of a queue. `codes` say how each attempt ended."""

    id: str
    at_ms: int
    codes: tuple[str, ...]


class Closer(Struct, frozen=True, kw_only=True):
    """Facts beside the numbers of the queues. `now_ms` is by the server's clock, `redis_ms` its shortest time to
    answer.
    """

    now_ms: int
    redis_ms: float = 0.0
    neglected: Mapping[QueueName, Neglected] = {}
    heaviest: Mapping[QueueName, Heaviest] = {}
    letters: Mapping[QueueName, Letter] = {}
    burns: Mapping[QueueName, Burns] = {}
    failing: Sequence[FailingHost] = ()


class Situation(Struct, frozen=True, kw_only=True):
    """All facts that findings are made of. `owed_late` counts webhooks that are due and were not tried."""

    queues: Mapping[QueueName, QueueStats] = {}
    directors: Sequence[DirectorFound] = ()
    owed_late: int = 0
    closer: Closer

    @property
    def now_ms(self) -> int:
        """The time by the server's clock."""
        return self.closer.now_ms


def work_of(stats: QueueStats) -> int:
    """Return how many predictions of a queue are still to be run."""
    return stats.waiting + stats.delayed


def waits(stats: QueueStats) -> str:
    """Return the waiting work in words, with the age of the oldest."""
    if not work_of(stats):
        return "Nothing waits"
    delayed = f" and {stats.delayed:,} delayed" if stats.delayed else ""
    return f"{stats.waiting:,} waiting{delayed}, the oldest for {span(max(0, stats.oldest_ms) / 1000)}"


# Directors and model servers. An older release reports less with each heartbeat, so less is found.

GONE_S: Final = 600.0  # a director that has been away for longer is no news
UNWELL_S: Final = 30.0
UNWELL: Final = frozenset({"resting", "doubted", "defunct", "unhealthy", "unreachable"})


def directors_gone(situation: Situation) -> Iterator[Finding]:
    """Find directors that went silent, by queue, unless as many have come since in their place."""
    there = _by_queue(situation.directors)
    for queue in situation.queues:
        gone = [one for one, _ in there.get(queue, ()) if _is_gone(one) and one.last.queue == queue]
        first_ms = min((one.last.at_ms for one in gone), default=0)
        missed = gone[sum(_came_since(one, first_ms) for one, _ in there.get(queue, ())) :]
        if missed:
            held = sum(one.held or 0 for one in missed)
            left = sum(one.is_alive for one, _ in there[queue])  # the numbers of the queue are slightly older
            names = some([f"{one.name}, {span(one.silent_ms / 1000)} ago" for one in missed])
            yield Finding(
                code="director_gone",
                level="bad" if held or not left else "warn",
                title=f"{several(len(missed), 'director')} went silent",
                detail=f"Last heard: {names}; with {several(held, 'claim')} in hand. {several(left, 'director')} left.",
                queue=queue,
                ask="director directors",
            )


def servers_unwell(situation: Situation) -> Iterator[Finding]:
    """Find servers that cannot run anything, each under the first cause that applies."""
    now_ms, there = situation.now_ms, _by_queue(situation.directors)
    for queue, stats in situation.queues.items():
        left = known = [server for one, beat in there.get(queue, ()) if one.is_alive for server in beat.about.servers]
        for code, (title, is_so) in TROUBLES.items():
            found = [one for one in left if is_so(one, now_ms)]
            left = [one for one in left if one not in found]
            if found or (code == state_of(stats) and not known):
                yield Finding(
                    code=code,
                    level="warn" if stats.slots else "bad",
                    title=title,
                    detail=f"{_in_words(found, len(known), now_ms)} {waits(stats)}.",
                    queue=queue,
                    ask=f"director queues show {queue}",
                )


TROUBLES: Final[Mapping[Code, tuple[str, Callable[[ServerFound, int], bool]]]] = {
    "server_auth": ("Servers refuse their director's key", lambda one, now_ms: one.detail.startswith("server_auth")),
    "setup_loop": ("A model is in a setup loop", lambda one, now_ms: one.failed_starts >= LOOP),
    "setup_failed": ("A model's setup failed", lambda one, now_ms: one.state == "setup_failed"),
    "servers_unwell": (
        "Servers are unwell",
        lambda one, now_ms: one.state in UNWELL and now_ms - one.since_ms > UNWELL_S * 1000,
    ),
}


def _is_gone(one: DirectorFound) -> bool:
    return not one.is_alive and one.silent_ms <= GONE_S * 1000 and one.last.state != "draining"


def _came_since(one: DirectorFound, at_ms: int) -> bool:
    since_ms = one.last.about.since_ms
    return one.is_alive and since_ms is not None and since_ms >= at_ms


def _by_queue(directors: Sequence[DirectorFound]) -> dict[QueueName, list[tuple[DirectorFound, Beat]]]:
    """Group directors by queue, with their last heartbeat there. There may be a thousand of either."""
    found: dict[QueueName, list[tuple[DirectorFound, Beat]]] = {}
    for one in directors:
        for beat in one.beats:
            found.setdefault(beat.queue, []).append((one, beat))
    return found


def _in_words(servers: Sequence[ServerFound], known: int, now_ms: int) -> str:
    if not servers:
        return "Its directors report no details."
    return f"{len(servers)} of {several(known, 'server')}: {some([_line(one, now_ms) for one in servers])}."


def _line(server: ServerFound, now_ms: int) -> str:
    since = span(max(0, now_ms - server.since_ms) / 1000)
    again = f", {server.failed_starts} starts in a row failed" if server.failed_starts >= LOOP else ""
    why = f" ({server.detail})" if server.detail else ""
    return f"{server.url} is {server.state} for {since}{again}{why}"


SLOW_MS: Final = 10.0
CROWDED: Final = 100  # waiting: in a shorter queue no account crowds out others
FLOOD: Final = 0.8
HOT: Final = 10.0  # times the rate that an objective allows
FAILING_AFTER: Final = 2  # attempts
MOST: Final = 100  # findings


def find(situation: Situation) -> list[Finding]:
    """Return what needs an operator: the worst of each kind first, then the second of each, so that no kind hides
    another.
    """
    found = [finding for finder in FINDERS for finding in finder(situation)]
    found.sort(key=lambda one: (one.level != "bad", CODES.index(one.code), one.queue or ""))
    told = Counter[Code]()
    turns: list[tuple[int, Finding]] = []
    for one in found:
        turns.append((told[one.code], one))
        told[one.code] += 1
    return [one for _, one in sorted(turns, key=lambda turn: turn[0])][:MOST]


def away(reason: str) -> Finding:
    """Return the finding for a Redis that does not answer, when nothing else can be seen."""
    return Finding(
        code="redis_away",
        level="bad",
        title="Redis does not answer",
        detail=f"{reason}. Nothing is accepted or claimed until it does; what runs goes on.",
        ask="director doctor",
    )


def is_slow(answer_ms: float) -> bool:
    """Is this too long for an answer of Redis?"""
    return answer_ms > SLOW_MS


def _redis(situation: Situation) -> Iterator[Finding]:
    took_ms = situation.closer.redis_ms
    if is_slow(took_ms):
        detail = f"It answers a PING after {took_ms:.0f} ms, and {SLOW_MS:.0f} ms is slow: everything waits for it."
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
        detail = f"{some(late)}, for more than {LATE_MS // 1000} s. A keeper that just started waits for one lease."
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


def _not_served(situation: Situation) -> Iterator[Finding]:
    for queue, stats in situation.queues.items():
        if work_of(stats) and state_of(replace(stats, breaker="")) == "no_director":
            none = f"no director sent a heartbeat within {ALIVE_S:.0f} s"
            yield Finding(
                code="queue_not_served",
                level="bad",
                title="No director serves this queue",
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
                detail=f"{waits(stats)}, and an operator paused the queue. The audit log says who.",
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
                    f"started too late or wait too long: {soon.rate:.0f} times the allowed share.",
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
