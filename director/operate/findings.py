"""Find what needs an operator. The dashboard, `director top` and `director doctor` share this judgement.

Pure and bounded: the worst finding of each kind comes first, so that no kind hides another.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, get_args

from msgspec import Struct
from msgspec.structs import replace

from director import __version__
from director.broker.replies import QueueStats
from director.core.data_bytes import Fullness
from director.core.ids import VERSION_DIGITS, PredictionId, QueueName
from director.core.policy import LATE_MS, Lane
from director.core.samples import Burns
from director.core.schema import Known
from director.core.split import Split
from director.core.view import iso
from director.core.webhooks import host_of
from director.core.words import several, since, some, span
from director.operate.acts import Act, acts_of
from director.operate.kinds import CODES, KINDS, Code, Level, Who
from director.operate.story import Cause, Swapped, stage_of
from director.operate.views import QueueView, devices_of, state_of, view_of
from director.store.account_data import Holder
from director.store.directors import ALIVE_S, LOOP, DirectorFound, EndsFound, HeartbeatFound, RunFound, ServerFound
from director.store.owed import FailingHost
from director.store.processes import Process, Role


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that needs a person: `who` can act. `ask` is the command that shows more or repairs it. `log`: the last
    lines of the log that tells why. `acts`: what the service can do about it at once.

    `about`: what it is about beside the queue: a `prediction`, `host`, `account`, `device` or `lane`. `subject` tells
    it from others of its code and queue, and stays the same while evidence changes. `since`: when it began, of dead
    letters the newest; null where that is not known.
    """

    code: Code
    level: Level
    title: str
    detail: str
    queue: QueueName | None = None
    ask: str
    who: Who = "an operator"
    log: str = ""
    about: Mapping[str, str] = {}
    subject: str = ""
    since: str | None = None
    acts: tuple[Act, ...] = ()

    @property
    def commands(self) -> list[str]:
        """Return the commands that show more, then those that act."""
        return list(dict.fromkeys([self.ask, *(act.command for act in self.acts)]))


def _make_finding(
    code: Code,
    queue: QueueName | None = None,
    *,
    level: Level | None = None,
    log: str = "",
    about: Mapping[str, str] | None = None,
    subject: str | None = None,
    since: str | None = None,
    can_act: bool = True,
    **facts: object,
) -> Finding:
    """Make a finding with the words of its row. Its subject is what it is about, unless another one is given."""
    kind, names = KINDS[code], about or {}
    title, detail, ask = (text.format(queue=queue, **facts) for text in (kind.title, kind.detail, kind.ask))
    return Finding(
        code=code,
        level=level or kind.level,
        title=title,
        detail=detail,
        queue=queue,
        ask=ask,
        who=kind.who,
        log=log,
        about=names,
        subject=" ".join(names.values()) if subject is None else subject,
        since=since,
        acts=acts_of(code, queue or "", names) if can_act else (),
    )


def causes_of(known: Known, findings: Sequence[Finding]) -> list[Cause]:
    """Return which of these findings hold a prediction up. They are for operators: details name other accounts."""
    stage, queue, causes = stage_of(known), known.record.queue, list[Cause]()
    for one in findings:
        if stage not in KINDS[one.code].stages or (one.queue or queue) != queue:
            continue
        if one.code == "receiver_dead" and not one.title.startswith(f"{host_of(known.record.webhook)} "):
            continue
        causes.append(Cause(code=one.code, title=one.title, who=one.who, detail=one.detail, ask=one.ask))
    return causes


def swaps_of(known: Known, directors: Sequence[DirectorFound]) -> list[Swapped]:
    """Return the loads of its model between its acceptance and its last claim, or now. They name other models."""
    heartbeats = (each for one in directors for each in one.heartbeats if each.queue == known.record.queue)
    shelves = [each.about.shelf for each in heartbeats]
    until_ms = known.record.claimed or known.record.completed or known.now
    return [
        Swapped(iso(swap.began_ms), None if swap.ready_ms is None else iso(swap.ready_ms), swap.instead_of)
        for swap in (swap for shelf in shelves if shelf for swap in shelf.swaps)
        if swap.began_ms < until_ms and (swap.ready_ms is None or swap.ready_ms > known.record.created)
    ]


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


class Usual(Struct, frozen=True, kw_only=True):
    """How long recent runs of a queue that succeeded kept a slot: their mean and deviation, how many there were, and
    their mean declared cost.
    """

    mean_s: float = 0.0
    deviation_s: float = 0.0
    runs: int = 0
    cost: float = 1.0

    def longest_s(self, run: RunFound, known_s: float) -> float:
        """Return the time after which this run is longer than usual. Without enough runs it is half of the run limit.

        `known_s`: the longest that directors remember. Mean and deviation say little of rare long runs.
        """
        if self.runs < KNOWN_RUNS:
            return run.limit_s / 2
        usual_s = max(3 * self.mean_s, self.mean_s + 6 * self.deviation_s, 2 * known_s)
        return max(LEAST_HANG_S, usual_s * max(1, run.cost / self.cost))


class Failure(Struct, frozen=True, kw_only=True):
    """A run that failed: its error, and how long it ran. `ran_s` is None if its record is gone or it never began."""

    error: str = ""
    ran_s: float | None = None

    @property
    def quoted(self) -> str:
        """The first line of its error as a part of a sentence. A model wrote it, so it is short."""
        first = next(iter(self.error.strip().splitlines()), "")
        cut = f"{first[:LONGEST_ERROR]}…" if len(first) > LONGEST_ERROR else first
        return f": “{cut}”" if cut else ""


class Expiry(Struct, frozen=True):
    """A token that was used within its last days."""

    account: str
    id: str
    at_ms: int


class Closer(Struct, frozen=True, kw_only=True):
    """Facts beside the queues' numbers. `now_ms` is by the server's clock, `redis_ms` its shortest time to answer.
    `stopped`: deployments whose new version a keeper has stopped.
    """

    now_ms: int
    redis_ms: float = 0.0
    neglected: Mapping[QueueName, Neglected] = {}
    heaviest: Mapping[QueueName, Heaviest] = {}
    letters: Mapping[QueueName, Letter] = {}
    burns: Mapping[QueueName, Burns] = {}
    failing: Sequence[FailingHost] = ()
    memory: Fullness = Fullness(0, 0)
    writes_to_disk: bool = True
    usual: Mapping[QueueName, Usual] = {}
    failures: Mapping[PredictionId, Failure] = {}
    holder: Holder | None = None
    expiring: Sequence[Expiry] = ()
    processes: Sequence[Process] = ()
    stopped: Mapping[str, Split] = {}


class Situation(Struct, frozen=True, kw_only=True):
    """The facts that findings are made of. `owed_late` counts webhooks that are due and were not tried."""

    queues: Mapping[QueueName, QueueStats] = {}
    directors: Sequence[DirectorFound] = ()
    owed_late: int = 0
    closer: Closer


def work_of(stats: QueueStats) -> int:
    """Return how many wait for a director now. None has to be there for planned, closed and idle work."""
    return sum(map(stats.may_start_in, get_args(Lane))) + stats.delayed - stats.planned


def waits(stats: QueueStats) -> str:
    if not work_of(stats):
        return "Nothing waits"
    later = stats.delayed - stats.planned
    delayed = f" and {later:,} delayed" if later else ""
    return f"{stats.waiting:,} waiting{delayed}, the oldest for {span(max(0, stats.oldest_ms) / 1000)}"


KNOWN_RUNS: Final = 5
SHORTEST_S: Final = 0.1  # shorter times are not told apart
LEAST_HANG_S: Final = 20.0  # a shorter delay is no news, even where runs take milliseconds
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
            # the numbers of the queue are slightly older
            left = sum(one.is_alive and one.last.state != "draining" for one, _ in there[queue])
            others = f"{several(left, 'director')} left: another one runs again what it had"
            names = some([f"{one.name}, {span(one.silent_ms / 1000)} ago" for one in missed])
            yield _make_finding(
                "director_gone",
                queue,
                level="bad" if held or not left else "warn",
                since=iso(min(one.last.at_ms for one in missed)),
                directors=several(len(missed), "director"),
                names=names,
                claims=several(held, "claim"),
                left=others if left else f"None is left: {waits(situation.queues[queue])}",
            )


def _servers_unwell(situation: Situation) -> Iterator[Finding]:
    now_ms, there = situation.closer.now_ms, _by_queue(situation.directors)
    for queue, stats in situation.queues.items():
        left = known = [server for one, each in there.get(queue, ()) if one.is_alive for server in each.about.servers]
        for code, is_so in TROUBLES.items():
            found = [one for one in left if is_so(one, now_ms)]
            left = [one for one in left if one not in found]
            if found or (code == state_of(stats) and not known):
                servers = _in_words(found, len(known), now_ms)
                is_hard = KINDS[code].level == "bad" and not stats.slots
                level: Level = "bad" if is_hard else "warn"
                log = next((one.log for one in found if one.log), "")
                one = _make_finding(
                    code,
                    queue,
                    level=level,
                    log=log,
                    since=iso(min(one.since_ms for one in found)) if found else None,
                    servers=servers,
                    waits=waits(stats),
                )
                # a model without a queue has no other place where its directors stand
                yield one if ":" in queue else replace(one, ask=f"director directors --queue {queue}")


THRASH: Final = 0.3  # of an hour
LEAST_LOADS: Final = 12  # in an hour: fewer are long loads, and not many


def _devices(situation: Situation) -> Iterator[Finding]:
    """Find models that cannot be loaded, or have no room, and devices that do little but swap."""
    for queue, heartbeats in _by_queue(situation.directors).items():
        shelf = next((each.about.shelf for one, each in heartbeats if one.is_alive and each.about.shelf), None)
        stats = situation.queues.get(queue)
        if shelf is None or stats is None:
            continue
        if shelf.overdue_s:
            began = iso(situation.closer.now_ms - int(1000 * shelf.overdue_s))
            yield _make_finding("server_stays", queue, since=began, ago=span(shelf.overdue_s))
        if shelf.failed:
            level: Level = "bad" if work_of(stats) else "warn"
            loads = several(shelf.failed, "load")
            last = [line.strip().rstrip(".") for line in shelf.why.strip().splitlines()[-2:]]  # why, and how it ended
            why = "; ".join(last) or "it does not say why"
            yield _make_finding("load_fails", queue, level=level, loads=loads, why=why, waits=waits(stats))
        elif shelf.is_stuck and work_of(stats):
            yield _make_finding("no_room", queue, why=shelf.why, waits=waits(stats))
    for device in devices_of(situation.directors):
        if device.swaps >= LEAST_LOADS and device.lost_s > THRASH * 3600:
            most = sorted(device.models, key=lambda model: -model.lost_s)
            yield _make_finding(
                "swaps_thrash",
                about={"device": device.name},
                subject=f"{device.name} {device.machine}",
                loads=several(device.swaps, "load"),
                device=device.name,
                lost=span(device.lost_s),
                models=some([f"{model.queue} {several(model.loads, 'load')}" for model in most if model.loads]),
            )


TROUBLES: Final[Mapping[Code, Callable[[ServerFound, int], bool]]] = {
    "server_auth": lambda one, now_ms: one.detail.startswith("server_auth"),
    "setup_loop": lambda one, now_ms: one.failed_starts >= LOOP,
    "setup_failed": lambda one, now_ms: one.state == "setup_failed",
    "servers_unwell": lambda one, now_ms: one.state in UNWELL and now_ms - one.since_ms > UNWELL_S * 1000,
    "setup_slow": lambda one, now_ms: one.state == "starting" and now_ms - one.since_ms > SLOW_START_S * 1000,
    "version_changed": lambda one, _: one.is_other_version,
    "no_schema": lambda one, _: not one.has_schema,
}


def _by_queue(directors: Sequence[DirectorFound]) -> dict[QueueName, list[tuple[DirectorFound, HeartbeatFound]]]:
    found: dict[QueueName, list[tuple[DirectorFound, HeartbeatFound]]] = {}
    for one in directors:
        for heartbeat in one.heartbeats:
            found.setdefault(heartbeat.queue, []).append((one, heartbeat))
    return found


# Each part of Cog that passes an error on says once more that the setup failed
SAID_AGAIN: Final = re.compile(r"^(?:(?:worker )?setup failed(?: \(slot [\w-]+\))?: )+", re.IGNORECASE)


def reason_of(server: ServerFound) -> str:
    """Return why a server gets no work, in its own words, said once."""
    return SAID_AGAIN.sub("", server.detail.removeprefix(f"{server.state}: "))


def _in_words(servers: Sequence[ServerFound], known: int, now_ms: int) -> str:
    if not servers:
        return "Its directors report no details."
    lines = []
    for one in servers:
        again = f", {one.failed_starts} starts in a row failed" if one.failed_starts >= LOOP else ""
        detail = reason_of(one)
        why = f" ({detail})" if detail else ""
        lines.append(f"{one.url} is {one.state} for {span(max(0, now_ms - one.since_ms) / 1000)}{again}{why}")
    return f"{len(servers)} of {several(known, 'server')}: {some(lines)}."


SLOW_MS: Final = 10.0
CROWDED: Final = 100  # waiting: in a shorter queue no account crowds out others
FLOOD: Final = 0.8
FAILING_AFTER: Final = 2  # attempts
LONGEST_ERROR: Final = 160  # characters
MOST_FAIL: Final = 0.8
TIMED_OUT: Final = 3  # runs in a row
MORE_FAIL: Final = 5  # runs more than succeed: of a model that fails one in five, five of nine may do so by chance
FILLING: Final = 0.75  # of the memory
NEARLY_FULL: Final = 0.9
MOST_OF_DATA: Final = 0.5
LEAST_MISSED: Final = 5  # one late start of ten is above most shares
SOON_DAYS: Final = 7
CLOCK_OFF_S: Final = 5
MOST: Final = 100  # findings


def find(situation: Situation) -> list[Finding]:
    found = [finding for finder in FINDERS for finding in finder(situation)]
    lost = {one.queue for one in found if one.code == "director_gone" and one.level == "bad"}
    found = [one for one in found if one.code != "queue_not_served" or one.queue not in lost]
    found.sort(key=lambda one: (one.level != "bad", CODES.index(one.code), one.queue or ""))
    # in turn: the first finding of each code stands before the second of any
    before = Counter[Code]()
    turns: list[tuple[int, Finding]] = []
    for one in found:
        turns.append((before[one.code], one))
        before[one.code] += 1
    return [one for _, one in sorted(turns, key=lambda turn: turn[0])][:MOST]


# The words of a finding on a queue that seems to be served
TROUBLED: Final[Mapping[Code, str]] = {
    "servers_unwell": "server unwell",
    "run_hangs": "a run hangs",
    "runs_time_out": "runs time out",
    "model_failing": "most runs fail",
}


def show_queue(queue: QueueName, stats: QueueStats, findings: Sequence[Finding]) -> QueueView:
    """Return a queue as the page, `top` and `queues` show it: one judgement for all."""
    view = view_of(queue, stats)
    found = next((one for one in findings if one.queue == queue and one.code in TROUBLED), None)
    if found is None or view.state not in ("serving", "servers_starting"):
        return view
    return replace(view, words=TROUBLED[found.code], shade=found.level)


def away(reason: str) -> Finding:
    return _make_finding("redis_away", reason=reason)


def is_slow(answer_ms: float) -> bool:
    return answer_ms > SLOW_MS


def writes_to_disk(info: Mapping[str, object]) -> bool:
    """Return whether the server could write its log the last time that it tried, by its INFO."""
    return info.get("aof_last_write_status", "ok") == "ok"


def _redis(situation: Situation) -> Iterator[Finding]:
    if not situation.closer.writes_to_disk:
        yield _make_finding("redis_disk")
    took_ms = situation.closer.redis_ms
    if is_slow(took_ms):
        yield _make_finding("redis_slow", took_ms=took_ms, slow_ms=SLOW_MS)


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
        yield _make_finding("keeper_silent", late=some(late), late_s=LATE_MS // 1000)


def _files(situation: Situation) -> Iterator[Finding]:
    away = [f"{ROLES[one.role]} {one.name}: {one.files}" for one in situation.closer.processes if one.files]
    directors = [one for one in situation.directors if one.is_alive and one.last.about.files]
    away += [f"the director {one.name}: {one.last.about.files}" for one in directors]
    if away:
        processes = some(away)
        yield _make_finding("files_away", processes=processes[0].upper() + processes[1:])


def _webhooks(situation: Situation) -> Iterator[Finding]:
    if late := situation.owed_late:
        yield _make_finding("webhooks_late", webhooks=several(late, "webhook"), late_s=LATE_MS // 1000)
    for one in situation.closer.failing:
        yield _make_finding(
            "receiver_dead",
            about={"host": one.host},
            since=one.oldest_at,
            host=one.host,
            webhooks=several(one.count, "webhook"),
            oldest=since(one.oldest_at, situation.closer.now_ms),
            attempts=one.attempts,
            last=f", the last time {one.last}" if one.last else "",
            id=one.id,
        )


def _queues(situation: Situation) -> Iterator[Finding]:
    for queue, stats in situation.queues.items():
        state, waiting = state_of(stats), waits(stats)
        if work_of(stats) and state_of(replace(stats, breaker="")) == "no_director":
            none = f"no director sent a heartbeat within {ALIVE_S:.0f} s: the last one drained, or left long ago"
            why = "all of its directors are about to end" if stats.directors else none
            yield _make_finding("queue_not_served", queue, waits=waiting, why=why, model=queue.rpartition(":")[0])
        if state == "breaker_open" or (state == "paused" and work_of(stats)):
            code: Code = "breaker_open" if state == "breaker_open" else "queue_paused"
            at_ms = stats.paused_at if code == "queue_paused" else None
            pause = _pause(stats, situation.closer.now_ms)
            yield _make_finding(code, queue, since=iso(at_ms) if at_ms else None, waits=waiting, pause=pause)


def _pause(stats: QueueStats, now_ms: int) -> str:
    """Return who paused the queue, and when, as far as that is known."""
    ago = "" if stats.paused_at is None else f" {span(max(0, now_ms - stats.paused_at) / 1000)} ago"
    return f"{stats.paused_by or 'An operator'} paused the queue{ago}"


def _objectives(situation: Situation) -> Iterator[Finding]:
    for queue, burns in situation.closer.burns.items():
        objectives = situation.queues[queue].objectives
        for lane, windows in burns.items():
            if not windows:
                continue
            rate = min(burn.rate for burn in windows.values())
            is_hot = rate > objectives[lane].hot_rate
            if is_hot or (rate > 1 and windows["1h"].missed >= LEAST_MISSED):
                code: Code = "objective_burning" if is_hot else "objective_missed"
                burn = windows["5m" if is_hot else "1h"]
                judged = burn.met + burn.missed
                yield _make_finding(
                    code,
                    queue,
                    about={"lane": lane},
                    lane=lane,
                    missed=burn.missed,
                    judged=judged,
                    rate=burn.rate,
                )


def oldest_runs(directors: Sequence[DirectorFound]) -> dict[QueueName, list[tuple[DirectorFound, RunFound]]]:
    """Return the oldest run of each director that is there, by queue."""
    found: dict[QueueName, list[tuple[DirectorFound, RunFound]]] = {}
    for queue, heartbeats in _by_queue(directors).items():
        runs = [(one, run) for one, each in heartbeats if one.is_alive and (run := each.about.oldest) is not None]
        if runs:
            found[queue] = sorted(runs, key=lambda one: one[1].since_ms)
    return found


def _ends(directors: Sequence[DirectorFound]) -> dict[QueueName, list[tuple[DirectorFound, EndsFound]]]:
    """Return how runs ended at each director that is there, by queue."""
    return {
        queue: [(one, ends) for one, each in heartbeats if one.is_alive and (ends := each.about.ends) is not None]
        for queue, heartbeats in _by_queue(directors).items()
    }


def _hanging(situation: Situation) -> Iterator[Finding]:
    ended = _ends(situation.directors)
    for queue, runs in oldest_runs(situation.directors).items():
        usual, stats = situation.closer.usual.get(queue), situation.queues.get(queue)
        # A run on a server that does not answer is the fault of that server
        answering = [one for one in runs if not _is_unwell(one[0])]
        if stats is None or usual is None or not answering:
            continue
        director, run = answering[0]
        longest_s = usual.longest_s(run, max((ends.longest_s for _, ends in ended[queue]), default=0.0))
        age_s = (situation.closer.now_ms - run.since_ms) / 1000
        if age_s <= longest_s:
            continue
        is_well = not any(server.state in UNWELL for server in _servers(director))
        yield _make_finding(
            "run_hangs",
            queue,
            level="bad" if work_of(stats) and stats.claimed >= stats.slots else "warn",
            about={"prediction": run.id},
            since=iso(run.since_ms),
            id=run.id,
            age=span(age_s),
            where=f"{director.name}, whose server looks healthy" if is_well else director.name,
            usual=_usual(usual.mean_s if usual.runs >= KNOWN_RUNS else None),
            limit=span(run.limit_s),
            waits=waits(stats),
            bound=_propose_limit(queue, run, longest_s) if usual.runs >= KNOWN_RUNS else "",
        )


def _propose_limit(queue: QueueName, run: RunFound, longest_s: float) -> str:
    """Propose a run limit by what is usual. The longest usual run has room in it twice."""
    bound_s = math.ceil(2 * longest_s / 60) * 60
    if bound_s >= run.limit_s / 2:
        return ""
    model = queue.rpartition(":")[0]
    command = f"director model config {model} --set run_limit_s={bound_s}"
    return f" A limit of {span(bound_s)} would stop it sooner and no usual run: `{command}`."


def _servers(director: DirectorFound) -> list[ServerFound]:
    return [server for heartbeat in director.heartbeats for server in heartbeat.about.servers]


def _is_unwell(director: DirectorFound) -> bool:
    servers = _servers(director)
    return bool(servers) and all(server.state in UNWELL for server in servers)


def _usual(mean_s: float | None) -> str:
    if not mean_s:
        return "Too few runs have succeeded to know what is usual"
    return f"Runs of this model that succeed take {span(max(SHORTEST_S, mean_s))} on average"


class Failing(Struct, frozen=True, kw_only=True):
    """How runs of a queue fail: `in_a_row` timed out at `director`, `last` the newest. `newest` is of all directors."""

    director: str
    in_a_row: int
    last: PredictionId
    is_recent: bool
    failed: int
    ended: int
    newest: PredictionId


def failing_runs(directors: Sequence[DirectorFound]) -> dict[QueueName, Failing]:
    """Return the queues in which most runs fail, or time out one after the other."""
    found: dict[QueueName, Failing] = {}
    for queue, ends in _ends(directors).items():
        if not ends:
            continue
        # Each director is judged alone: of many, some always ended a long run last
        director, worst = max(ends, key=lambda one: one[1].timed_out_in_a_row)
        one = Failing(
            director=director.name,
            in_a_row=worst.timed_out_in_a_row,
            last=PredictionId(worst.failed_id),
            is_recent=worst.failed > 0,
            failed=sum(one.failed for _, one in ends),
            ended=sum(one.ended for _, one in ends),
            newest=PredictionId(max((one for _, one in ends), key=lambda one: one.failed_ms).failed_id),
        )
        if one.in_a_row >= TIMED_OUT or 2 * one.failed - one.ended >= MORE_FAIL:
            found[queue] = one
    return found


def _failing(situation: Situation) -> Iterator[Finding]:
    for queue, one in failing_runs(situation.directors).items():
        stats, failures = situation.queues.get(queue), situation.closer.failures
        if stats is None:
            continue
        if one.in_a_row >= TIMED_OUT and (one.is_recent or stats.live):
            ran_s = failures.get(one.last, Failure()).ran_s
            yield _make_finding(
                "runs_time_out",
                queue,
                about={"prediction": one.last},  # evidence
                subject="",
                can_act=not stats.paused,
                runs=several(one.in_a_row, "run"),
                director=one.director,
                id=one.last,
                after="too" if ran_s is None else f"after {span(ran_s)}",
                usual=_usual(stats.service_ms / 1000 if stats.service_ms else None),
                waits=waits(stats),
            )
        elif 2 * one.failed - one.ended >= MORE_FAIL:
            is_most = one.failed >= MOST_FAIL * one.ended and one.ended >= 2 * MORE_FAIL
            yield _make_finding(
                "model_failing",
                queue,
                level="bad" if is_most else "warn",
                about={"prediction": one.newest},
                subject="",
                can_act=not stats.paused,
                failed=one.failed,
                runs=several(one.ended, "run"),
                id=one.newest,
                error=failures.get(one.newest, Failure()).quoted,
            )


def _find_stopped(situation: Situation) -> Iterator[Finding]:
    for deployment, split in situation.closer.stopped.items():
        yield _make_finding(
            "split_stopped",
            deployment=deployment,
            subject=deployment,
            since=iso(split.since_ms),
            ago=span(max(0, situation.closer.now_ms - split.since_ms) / 1000),
            why=split.stopped_why,
            version=f"{split.model}:{split.version[:VERSION_DIGITS]}",
        )


def _memory(situation: Situation) -> Iterator[Finding]:
    memory = situation.closer.memory
    holder = situation.closer.holder
    # With half of the data but little of the memory it is not what fills Redis
    least = max(MOST_OF_DATA * holder.total, MOST_OF_DATA / 2 * memory.used) if holder else 0.0
    fills = holder is not None and memory.part > FILLING and holder.accounts > 1 and holder.bytes > least
    if (level := memory_level(memory)) is not None:
        code: Code = "redis_full" if memory.part >= 1 else "redis_filling"
        used, limit = bytes_in_words(memory.used), bytes_in_words(memory.limit)
        most = f", {bytes_in_words(holder.bytes)} of them by {holder.account}" if holder and fills else ""
        yield _make_finding(code, level=level, used=used, limit=limit, most=most)
    if holder and fills:
        yield _make_finding(
            "account_holds_most",
            about={"account": holder.account},
            account=holder.account,
            its=bytes_in_words(holder.bytes),
            total=bytes_in_words(holder.total),
            accounts=several(holder.accounts, "account"),
            part=memory.part,
        )


def memory_level(memory: Fullness) -> Level | None:
    """Return how bad it is that so much is used, or None while there is room."""
    if memory.part <= FILLING:
        return None
    return "bad" if memory.part > NEARLY_FULL else "warn"


def bytes_in_words(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MB"


def _expiring(situation: Situation) -> Iterator[Finding]:
    expiring = sorted(situation.closer.expiring, key=lambda one: one.at_ms)
    if expiring:
        accounts = some(sorted({one.account for one in expiring}))
        left = span((expiring[0].at_ms - situation.closer.now_ms) / 1000)
        tokens = several(len(expiring), "token")
        yield _make_finding(
            "token_expires", tokens=tokens, accounts=accounts, days=SOON_DAYS, id=expiring[0].id, left=left
        )


ROLES: Final[Mapping[Role, str]] = {"api": "the API process", "keeper": "the keeper"}


def _clocks(situation: Situation) -> Iterator[Finding]:
    ahead_s = {f"{ROLES[one.role]} {one.name}": one.ahead_s for one in situation.closer.processes}
    for one in situation.directors:
        if one.is_alive and (now_ms := one.last.about.now_ms) is not None:
            ahead_s[f"the director {one.name}"] = round((now_ms - one.last.at_ms) / 1000)
    wrong = [
        f"the clock of {name} is {span(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'} Redis's"
        for name, seconds in ahead_s.items()
        if abs(seconds) >= CLOCK_OFF_S
    ]
    if wrong:
        clocks = some(wrong)
        yield _make_finding("clock_off", clocks=clocks[0].upper() + clocks[1:])


def _releases(situation: Situation) -> Iterator[Finding]:
    directors = [one for one in situation.directors if one.is_alive]
    releases = {one.name: one.last.about.version for one in directors}
    releases |= {one.name: one.version for one in situation.closer.processes}
    others = [f"{name} has {version}" for name, version in releases.items() if version not in ("", __version__)]
    if others:
        names, count = some(others), len(others)
        yield _make_finding("former_release", others=count, all=len(releases), ours=__version__, names=names)


def _flooding(situation: Situation) -> Iterator[Finding]:
    for queue, one in situation.closer.heaviest.items():
        waiting = work_of(situation.queues[queue])
        if waiting >= CROWDED and one.accounts > 1 and one.waiting >= FLOOD * waiting:
            others = several(one.accounts - 1, "other account")
            yield _make_finding(
                "tenant_flooding",
                queue,
                about={"account": one.account},
                account=one.account,
                its=one.waiting,
                waiting=waiting,
                others=others,
            )


def _dead(situation: Situation) -> Iterator[Finding]:
    for queue, stats in situation.queues.items():
        if stats.dead:
            newest, show, letter = "", "list", situation.closer.letters.get(queue)
            if letter is not None:
                ago, ends = span((situation.closer.now_ms - letter.at_ms) / 1000), ", ".join(letter.codes)
                newest = f" The newest, {letter.id}, {ago} ago: {ends}. Its input may be what breaks servers."
                show = f"show {letter.id}"
            yield _make_finding(
                "dead_letters",
                queue,
                since=None if letter is None else iso(letter.at_ms),
                predictions=several(stats.dead, "prediction"),
                newest=newest,
                show=show,
            )


FINDERS: Final[tuple[Callable[[Situation], Iterator[Finding]], ...]] = (
    _redis,
    _keeper,
    _files,
    _directors_gone,
    _servers_unwell,
    _devices,
    _queues,
    _hanging,
    _failing,
    _find_stopped,
    _objectives,
    _flooding,
    _memory,
    _dead,
    _webhooks,
    _expiring,
    _clocks,
    _releases,
)
