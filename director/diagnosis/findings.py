"""Find what needs an operator. The dashboard, `director top` and `director doctor` share this judgement.

Pure and bounded: the worst finding of each kind comes first, so that no kind hides another.
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
    "setup_slow",
    "no_schema",
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
    """One thing that needs an operator. `ask` is the command that shows more or repairs it."""

    code: Code
    level: Level
    title: str
    detail: str
    queue: QueueName | None = None
    ask: str


class Kind(Struct, frozen=True):
    level: Level
    title: str
    detail: str
    ask: str


SHOW: Final = "director queues show {queue}"
KINDS: Final[Mapping[Code, Kind]] = {
    "redis_away": Kind(
        "bad",
        "Redis does not answer",
        "{reason}. Nothing is accepted or claimed until it does; what runs goes on.",
        "director doctor",
    ),
    "redis_slow": Kind(
        "warn",
        "Redis is slow",
        "It answers a PING after {took_ms:.0f} ms, and {slow_ms:.0f} ms is slow: everything waits for it.",
        "director doctor",
    ),
    "keeper_silent": Kind(
        "bad",
        "No keeper acts",
        "{late}, for more than {late_s} s. A keeper that just started waits for one lease.",
        "director keeper",
    ),
    "queue_not_served": Kind(
        "bad", "No director serves this queue", "{waits}, and {why}.", "director run --model {model}"
    ),
    "director_gone": Kind(
        "bad",
        "{directors} went silent",
        "Last heard: {names}; with {claims} in hand. {left} left.",
        "director directors",
    ),
    "setup_loop": Kind("bad", "A model is in a setup loop", "{servers} {waits}.", SHOW),
    "setup_failed": Kind("bad", "A model's setup failed", "{servers} {waits}.", SHOW),
    "server_auth": Kind("bad", "Servers refuse their director's key", "{servers} {waits}.", SHOW),
    "servers_unwell": Kind("bad", "Servers are unwell", "{servers} {waits}.", SHOW),
    "setup_slow": Kind(
        "warn",
        "A setup takes long",
        "{servers} {waits}. The server loads large weights, or its worker did not start: the `python` of its PATH must "
        "have cog. Its log says more.",
        SHOW,
    ),
    "no_schema": Kind(
        "warn",
        "A model shows no schema",
        "{servers} Inputs are not checked, and the page asks for JSON. For Cog make the file of the schema; for an "
        "http runner give `input_schema` in its configuration.",
        "director schema FOLDER",
    ),
    "breaker_open": Kind(
        "bad",
        "The breaker is open",
        "{waits}. Its servers failed in a row: nothing starts until one run has succeeded.",
        SHOW,
    ),
    "queue_paused": Kind(
        "warn",
        "Paused, with work",
        "{waits}, and an operator paused the queue. The audit log says who.",
        "director queues resume {queue}",
    ),
    "objective_burning": Kind(
        "bad",
        "Starts come too late",
        "{missed} of {judged} of the lane {lane}, within 5 min, started too late or wait too long: "
        "{rate:.0f} times the allowed share.",
        SHOW,
    ),
    "tenant_flooding": Kind(
        "warn",
        "{account} floods this queue",
        "{account} has {its:,} of the {waiting:,} that wait. The {others} still start in turn.",
        "director account set {account} --max-queued N",
    ),
    "dead_letters": Kind("warn", "Dead letters", "{predictions} used up all attempts.{newest}", "director dead {show}"),
    "webhooks_late": Kind(
        "warn",
        "Webhooks are late",
        "{webhooks} due for more than {late_s} s, and no keeper tried.",
        "director keeper",
    ),
    "receiver_dead": Kind(
        "warn",
        "{host} takes no webhooks",
        "{webhooks} owed there, the oldest for {oldest}, tried {attempts} times.",
        "director explain {id}",
    ),
}


def _found(code: Code, queue: QueueName | None = None, *, level: Level | None = None, **facts: object) -> Finding:
    kind = KINDS[code]
    title, detail, ask = (text.format(queue=queue, **facts) for text in (kind.title, kind.detail, kind.ask))
    return Finding(code=code, level=level or kind.level, title=title, detail=detail, queue=queue, ask=ask)


class Neglected(Struct, frozen=True, kw_only=True):
    expired_leases: int = 0
    due_retries: int = 0
    due_deadlines: int = 0


class Heaviest(Struct, frozen=True, kw_only=True):
    """The account with the most waiting in a queue, of `accounts` with anything waiting."""

    account: str
    waiting: int
    accounts: int


class Letter(Struct, frozen=True, kw_only=True):
    id: str
    at_ms: int
    codes: tuple[str, ...]


class Closer(Struct, frozen=True, kw_only=True):
    """Facts beside the queues' numbers. `now_ms` is by the server's clock, `redis_ms` its shortest time to answer."""

    now_ms: int
    redis_ms: float = 0.0
    neglected: Mapping[QueueName, Neglected] = {}
    heaviest: Mapping[QueueName, Heaviest] = {}
    letters: Mapping[QueueName, Letter] = {}
    burns: Mapping[QueueName, Burns] = {}
    failing: Sequence[FailingHost] = ()


class Situation(Struct, frozen=True, kw_only=True):
    """The facts that findings are made of. `owed_late` counts webhooks that are due and were not tried."""

    queues: Mapping[QueueName, QueueStats] = {}
    directors: Sequence[DirectorFound] = ()
    owed_late: int = 0
    closer: Closer


def work_of(stats: QueueStats) -> int:
    return stats.waiting + stats.delayed


def waits(stats: QueueStats) -> str:
    if not work_of(stats):
        return "Nothing waits"
    delayed = f" and {stats.delayed:,} delayed" if stats.delayed else ""
    return f"{stats.waiting:,} waiting{delayed}, the oldest for {span(max(0, stats.oldest_ms) / 1000)}"


GONE_S: Final = 600.0  # a director that has been away for longer is no news
UNWELL_S: Final = 30.0
SLOW_START_S: Final = 60.0
UNWELL: Final = frozenset({"resting", "doubted", "defunct", "unhealthy", "unreachable"})


def _directors_gone(situation: Situation) -> Iterator[Finding]:
    """Find directors that went silent, by queue, unless as many have come since in their place."""
    there = _by_queue(situation.directors)
    for queue in situation.queues:
        gone = [
            one
            for one, _ in there.get(queue, ())
            if not one.is_alive and one.silent_ms <= GONE_S * 1000
            if one.last.state != "draining" and one.last.queue == queue
        ]
        first_ms = min((one.last.at_ms for one in gone), default=0)
        came = sum(one.is_alive and (one.last.about.since_ms or 0) >= first_ms for one, _ in there.get(queue, ()))
        missed = gone[came:]
        if missed:
            held = sum(one.held or 0 for one in missed)
            left = sum(one.is_alive for one, _ in there[queue])  # the numbers of the queue are slightly older
            names = some([f"{one.name}, {span(one.silent_ms / 1000)} ago" for one in missed])
            yield _found(
                "director_gone",
                queue,
                level="bad" if held or not left else "warn",
                directors=several(len(missed), "director"),
                names=names,
                claims=several(held, "claim"),
                left=several(left, "director"),
            )


def _servers_unwell(situation: Situation) -> Iterator[Finding]:
    now_ms, there = situation.closer.now_ms, _by_queue(situation.directors)
    for queue, stats in situation.queues.items():
        left = known = [server for one, beat in there.get(queue, ()) if one.is_alive for server in beat.about.servers]
        for code, is_so in TROUBLES.items():
            found = [one for one in left if is_so(one, now_ms)]
            left = [one for one in left if one not in found]
            if found or (code == state_of(stats) and not known):
                servers = _in_words(found, len(known), now_ms)
                is_hard = KINDS[code].level == "bad" and not stats.slots
                yield _found(code, queue, level="bad" if is_hard else "warn", servers=servers, waits=waits(stats))


TROUBLES: Final[Mapping[Code, Callable[[ServerFound, int], bool]]] = {
    "server_auth": lambda one, now_ms: one.detail.startswith("server_auth"),
    "setup_loop": lambda one, now_ms: one.failed_starts >= LOOP,
    "setup_failed": lambda one, now_ms: one.state == "setup_failed",
    "servers_unwell": lambda one, now_ms: one.state in UNWELL and now_ms - one.since_ms > UNWELL_S * 1000,
    "setup_slow": lambda one, now_ms: one.state == "starting" and now_ms - one.since_ms > SLOW_START_S * 1000,
    "no_schema": lambda one, _: not one.has_schema,
}


def _by_queue(directors: Sequence[DirectorFound]) -> dict[QueueName, list[tuple[DirectorFound, Beat]]]:
    found: dict[QueueName, list[tuple[DirectorFound, Beat]]] = {}
    for one in directors:
        for beat in one.beats:
            found.setdefault(beat.queue, []).append((one, beat))
    return found


def _in_words(servers: Sequence[ServerFound], known: int, now_ms: int) -> str:
    if not servers:
        return "Its directors report no details."
    lines = []
    for one in servers:
        again = f", {one.failed_starts} starts in a row failed" if one.failed_starts >= LOOP else ""
        why = f" ({one.detail})" if one.detail else ""
        lines.append(f"{one.url} is {one.state} for {span(max(0, now_ms - one.since_ms) / 1000)}{again}{why}")
    return f"{len(servers)} of {several(known, 'server')}: {some(lines)}."


SLOW_MS: Final = 10.0
CROWDED: Final = 100  # waiting: in a shorter queue no account crowds out others
FLOOD: Final = 0.8
HOT: Final = 10.0  # times the rate that an objective allows
FAILING_AFTER: Final = 2  # attempts
MOST: Final = 100  # findings


def find(situation: Situation) -> list[Finding]:
    found = [finding for finder in FINDERS for finding in finder(situation)]
    found.sort(key=lambda one: (one.level != "bad", CODES.index(one.code), one.queue or ""))
    told = Counter[Code]()
    turns: list[tuple[int, Finding]] = []
    for one in found:
        turns.append((told[one.code], one))
        told[one.code] += 1
    return [one for _, one in sorted(turns, key=lambda turn: turn[0])][:MOST]


def away(reason: str) -> Finding:
    return _found("redis_away", reason=reason)


def is_slow(answer_ms: float) -> bool:
    return answer_ms > SLOW_MS


def _redis(situation: Situation) -> Iterator[Finding]:
    took_ms = situation.closer.redis_ms
    if is_slow(took_ms):
        yield _found("redis_slow", took_ms=took_ms, slow_ms=SLOW_MS)


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
        yield _found("keeper_silent", late=some(late), late_s=LATE_MS // 1000)


def _webhooks(situation: Situation) -> Iterator[Finding]:
    if late := situation.owed_late:
        yield _found("webhooks_late", webhooks=several(late, "webhook"), late_s=LATE_MS // 1000)
    for one in situation.closer.failing:
        yield _found(
            "receiver_dead",
            host=one.host,
            webhooks=several(one.count, "webhook"),
            oldest=since(one.oldest_at, situation.closer.now_ms),
            attempts=one.attempts,
            id=one.id,
        )


def _queues(situation: Situation) -> Iterator[Finding]:
    for queue, stats in situation.queues.items():
        state, waiting = state_of(stats), waits(stats)
        if work_of(stats) and state_of(replace(stats, breaker="")) == "no_director":
            none = f"no director sent a heartbeat within {ALIVE_S:.0f} s"
            why = "all of its directors are about to end" if stats.directors else none
            yield _found("queue_not_served", queue, waits=waiting, why=why, model=queue.rpartition(":")[0])
        if state == "breaker_open" or (state == "paused" and work_of(stats)):
            yield _found("breaker_open" if state == "breaker_open" else "queue_paused", queue, waits=waiting)
    for queue, burns in situation.closer.burns.items():
        for lane, windows in burns.items():
            if windows and min(burn.rate for burn in windows.values()) > HOT:
                soon = windows["5m"]
                judged = soon.met + soon.missed
                yield _found("objective_burning", queue, missed=soon.missed, judged=judged, lane=lane, rate=soon.rate)


def _flooding(situation: Situation) -> Iterator[Finding]:
    for queue, one in situation.closer.heaviest.items():
        waiting = work_of(situation.queues[queue])
        if waiting >= CROWDED and one.accounts > 1 and one.waiting >= FLOOD * waiting:
            others = several(one.accounts - 1, "other account")
            yield _found("tenant_flooding", queue, account=one.account, its=one.waiting, waiting=waiting, others=others)


def _dead(situation: Situation) -> Iterator[Finding]:
    for queue, stats in situation.queues.items():
        if stats.dead:
            newest, show, letter = "", "list", situation.closer.letters.get(queue)
            if letter is not None:
                ago, ends = span((situation.closer.now_ms - letter.at_ms) / 1000), ", ".join(letter.codes)
                newest = f" The newest, {letter.id}, {ago} ago: {ends}. Its input may be what breaks servers."
                show = f"show {letter.id}"
            yield _found("dead_letters", queue, predictions=several(stats.dead, "prediction"), newest=newest, show=show)


FINDERS: Final[tuple[Callable[[Situation], Iterator[Finding]], ...]] = (
    _redis,
    _keeper,
    _directors_gone,
    _servers_unwell,
    _queues,
    _flooding,
    _dead,
    _webhooks,
)
