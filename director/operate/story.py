"""Tell the story of one prediction: how it was accepted, who claimed it, why it waits, how it ended, what comes next.

Input, output and all of a webhook's URL but its host are left out, since they may be secret.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from director.core.ids import PredictionId, QueueName
from director.core.policy import LATE_MS
from director.core.schema import Eta, Known, Outlook, Place, Record, parse_history
from director.core.split import explain, read_mark
from director.core.states import Status
from director.core.view import DeliveryAttempt, delivery_attempt, iso, place
from director.core.webhooks import host_of
from director.core.words import span
from director.operate.kinds import Code, Stage, Who

CROWD: Final = 20
SLOW_STORY_MS: Final = 50.0  # of one answer, to which a busy process may add


class Told(Struct, frozen=True):
    """The place and the estimate (None without one) that its caller received on acceptance: see `Place`."""

    position: int
    ahead: int
    eta_s: Eta | None


class Submitted(Struct, frozen=True):
    """Its acceptance. `revived_at`: it was a dead letter, and starts again from then."""

    at: str
    lane: str
    account: str
    told: Told | None
    revivals: int = 0
    revived_at: str | None = None


class Holding(Struct, frozen=True, kw_only=True):
    """One claim. `number` is of the attempt; the next claim has the same number if `is_spent` is false.

    `how` is its end: a status, or the code of what went wrong, '' while it continues. Unknown times are None.
    """

    number: int
    director: str
    waited_s: float | None
    claimed_at: str | None
    started_at: str | None
    ended_at: str | None
    held_s: float | None
    how: str
    is_spent: bool


class Ended(Struct, frozen=True, kw_only=True):
    """Its end. `ran_s` is None if it never began."""

    at: str
    status: Status
    code: str
    error: str
    total_s: float
    ran_s: float | None


class Owed(Struct, frozen=True, kw_only=True):
    """The events that its caller wants, and the delivery of its end. `last` is the outcome of the last attempt.

    `deliveries` are those attempts, as long as the prediction's events exist.
    """

    host: str
    events: tuple[str, ...]
    is_owed: bool
    attempts: int
    last: str
    next_at: str | None
    deliveries: tuple[DeliveryAttempt, ...] = ()


class Coming(Struct, frozen=True):
    """The next step: a word for programs, the moment if there is one, and words for people."""

    what: str
    at: str | None
    detail: str


class Cause(Struct, frozen=True, kw_only=True):
    """A finding that concerns it. `who` can act, and `ask` is the command that shows more or repairs it."""

    code: Code
    title: str
    who: Who
    detail: str
    ask: str


class Swapped(Struct, frozen=True):
    """A load of its model that it waited for. `ready_at`: None if the load failed. `instead_of`: what made room."""

    began_at: str
    ready_at: str | None
    instead_of: tuple[str, ...]


class Story(Struct, frozen=True, kw_only=True):
    """The whole story. `queue` is as on a prediction, only while it waits. `causes` say what holds it up, worst first,
    and `swaps` for which loads of its model it waited, in the last hour: only operators read them.

    `version_because`: why it has this version, if its deployment tried another one. Without events it is unknown which
    directors released it. `redis_ms` is set if Redis was slow to tell this.
    """

    id: PredictionId
    model: str
    version: str
    queue_name: QueueName
    status: Status
    now: str
    submitted: Submitted
    held: tuple[Holding, ...]
    next: tuple[Coming, ...]
    version_because: str | UnsetType = UNSET
    queue: Place | UnsetType = UNSET
    ended: Ended | None = None
    webhook: Owed | None = None
    has_events: bool = True
    causes: Sequence[Cause] | UnsetType = UNSET
    swaps: Sequence[Swapped] | UnsetType = UNSET
    redis_ms: float | UnsetType = UNSET


class Stay(Struct, frozen=True):
    number: int
    director: str
    claimed: int | None
    ended: int | None
    how: str
    is_spent: bool = True


def tell(
    known: Known,
    *,
    took_ms: float = 0,
    causes: Sequence[Cause] | UnsetType = UNSET,
    swaps: Sequence[Swapped] | UnsetType = UNSET,
) -> Story:
    """Return the story so far. `took_ms` is how long it took to read."""
    record = known.record
    return Story(
        id=record.id,
        model=record.model,
        version=record.version,
        queue_name=record.queue,
        status=record.status,
        now=iso(known.now),
        submitted=_tell_submission(known),
        held=tuple(_list_claims(known)),
        next=tuple(_next(known)),
        version_because=_tell_version(record),
        queue=place(known.outlook, record) if known.outlook else UNSET,
        ended=_tell_end(record),
        webhook=_tell_webhook(known),
        has_events=bool(known.events),
        causes=causes,
        swaps=swaps or UNSET,
        redis_ms=round(took_ms, 1) if took_ms > SLOW_STORY_MS else UNSET,
    )


def _tell_version(record: Record) -> str | UnsetType:
    """Say why it has its version. One that an operator moved to another version since has another reason."""
    mark = read_mark(record.split)
    if mark is None or not record.version.startswith(mark.version):
        return UNSET
    return explain(mark, record.deployment, iso(mark.since_ms))


def stage_of(known: Known) -> Stage | None:
    """Return what goes on with it, or None if nothing does."""
    if known.record.is_terminal:
        return None if known.owed is None else "owes"
    return "runs" if known.record.token else "waits"


def _tell_submission(known: Known) -> Submitted:
    record, told = known.record, None
    if record.place:
        position, ahead = map(int, record.place.split())
        eta = None if record.eta90 is None else Eta((record.eta50 or 0) / 1000, record.eta90 / 1000)
        told = Told(position, ahead, eta)
    at, revived_at = iso(record.created), _iso(_find_revival(known))
    return Submitted(at, record.lane, record.account, told, record.revivals, revived_at)


def _find_revival(known: Known) -> int | None:
    return next((event.at for event in known.events if event.kind == "revived"), None)


def _list_claims(known: Known) -> Iterator[Holding]:
    record, revived = known.record, _find_revival(known)
    starts = sorted(event.at for event in known.events if event.kind == "started")
    since: int | None = record.created
    for stay in _stays(known):
        if record.revivals and not known.events:
            since = None  # it is unknown how long it was a dead letter
        elif revived is not None and since is not None and since < revived <= (stay.claimed or 0):
            since = revived
        until = known.now if stay.ended is None else stay.ended
        seen = [at for at in (record.started, *starts) if at and stay.claimed and stay.claimed <= at <= until]
        yield Holding(
            number=stay.number,
            director=stay.director,
            waited_s=_seconds(since, stay.claimed),
            claimed_at=_iso(stay.claimed),
            started_at=_iso(min(seen, default=None)),
            ended_at=_iso(stay.ended),
            held_s=_seconds(stay.claimed, until),
            how=stay.how,
            is_spent=stay.is_spent,
        )
        since = stay.ended


def _stays(known: Known) -> list[Stay]:
    """Combine spent attempts from the record, released claims from the events while they last, and the last claim."""
    history = parse_history(known.record.history)
    spent = [Stay(one.number, one.director, one.claimed, one.ended, one.code) for one in history]
    back = []
    for event in known.events:
        if event.kind == "released":
            code, director, claimed, *_ = [*event.data.decode().split(" "), "", ""]
            number = 1 + sum((_find_revival(known) or 0) <= one.ended <= event.at for one in history)
            back.append(Stay(number, director, int(claimed) if claimed else None, event.at, code, is_spent=False))
    before = sorted([*spent, *back], key=lambda stay: stay.ended or 0)
    return [*before, *_last(known, before)]


def _last(known: Known, before: Sequence[Stay]) -> list[Stay]:
    record = known.record
    if record.claimed is None:
        return []
    ends = {stay.claimed for stay in before} | {stay.ended for stay in before if stay.claimed is None}
    was_held = bool(known.events) and record.claimed not in ends
    if not (record.token or record.ended_by or (record.is_terminal and was_held)):
        return []
    how = record.status if record.is_terminal else ""
    return [Stay(record.attempt, record.holder, record.claimed, record.completed, how)]


def _tell_end(record: Record) -> Ended | None:
    if record.completed is None:
        return None
    return Ended(
        at=iso(record.completed),
        status=record.status,
        code=record.code,
        error=record.error,
        total_s=(record.completed - record.created) / 1000,
        ran_s=_seconds(record.started, record.completed),
    )


def _tell_webhook(known: Known) -> Owed | None:
    record = known.record
    if not record.webhook:
        return None
    return Owed(
        host=host_of(record.webhook),
        events=tuple(record.webhook_events.split(",")),
        is_owed=known.owed is not None,
        attempts=record.webhook_attempts,
        last=record.webhook_outcome,
        next_at=_iso(known.owed),
        deliveries=tuple(delivery_attempt(event) for event in known.events if event.kind == "webhook"),
    )


def _next(known: Known) -> Iterator[Coming]:
    if known.record.is_terminal:
        yield from _after_its_end(known)
    else:
        yield from _list_holds(known) if known.record.token else _list_causes(known)
        yield from _limits(known.record)


def _after_its_end(known: Known) -> Iterator[Coming]:
    record = known.record
    if known.owed is not None:
        last = f"; {host_of(record.webhook)} failed the last one" if record.webhook_outcome == "failed" else ""
        detail = f"attempt {record.webhook_attempts + 1} to deliver its webhook, at the latest{last}"
        yield Coming("webhook", iso(known.owed), detail)
    if known.is_dead:
        codes = ", ".join(one.code for one in parse_history(record.history))
        detail = f"it is a dead letter: its attempts ended with {codes}. An operator may revive it"
        yield Coming("dead_letter", None, detail)
    elif known.owed is None:
        yield Coming("nothing", None, "it has ended")


def _list_causes(known: Known) -> Iterator[Coming]:
    attempt = _attempt(known.record.attempt + 1, known.attempts)
    if known.record.leaving:
        yield Coming("move", None, "it is on its way to another Redis server: `director queues migrate` continues")
    elif known.due is not None and known.due < known.now - LATE_MS:
        yield Coming("attempt", iso(known.due), f"{attempt}, overdue for {_overdue(known.due, known)}: no keeper acts")
    elif known.due is not None:
        yield Coming("attempt", iso(known.due), f"{attempt}, not before that")
    else:
        yield Coming("attempt", None, f"{attempt}, when {_turn(known.outlook)}")


def _turn(outlook: Outlook | None) -> str:
    """Say what has to come first. A prediction behind a crowd of its own account says so: other accounts take turns."""
    if outlook is not None and outlook.reason != "waiting_its_turn":
        return STOPPED.get(outlook.reason, "its turn has come")
    own = 0 if outlook is None else outlook.position - 1
    if own < CROWD:
        return "its turn has come"
    return f"its turn has come: {own:,} of its own account go first, while other accounts have turns of their own"


STOPPED: Final = {
    "paused": "it is no longer paused",
    "closed": "its open hours begin",
    "no_director": "a director serves its queue: none does now",
    "setup_failed": "the setup of a model server succeeds: each one fails now",
    "server_auth": "a model server accepts the key of its director",
    "servers_starting": "a model server is ready: none is now",
    "loading": "its model is loaded: that goes on now",
    "waiting_for_device": "its model is loaded: it waits for room on a device that other models use",
    "breaker_open": "a run has succeeded: the servers failed in a row",
}


def _list_holds(known: Known) -> Iterator[Coming]:
    record = known.record
    if record.cancel:
        yield Coming("cancel", None, f"{record.holder} was asked to stop it")
    elif record.started is None:
        yield Coming("start", None, f"{record.holder} starts {_attempt(record.attempt, known.attempts)}")
    else:
        yield Coming("end", None, f"{record.holder} runs {_attempt(record.attempt, known.attempts)} to its end")
    is_last = known.attempts is not None and record.attempt >= known.attempts
    lost = "it is a dead letter" if is_last else f"{_attempt(record.attempt + 1, known.attempts)} begins"
    if known.lease is not None and known.lease > known.now:
        yield Coming("lease", iso(known.lease), f"if {record.holder} sends no heartbeat until then, {lost}")
    elif known.lease is not None and known.lease < known.now - LATE_MS:
        detail = f"it expired {_overdue(known.lease, known)} ago and no keeper acts: once one takes it back, {lost}"
        yield Coming("lease", iso(known.lease), detail)
    else:
        yield Coming("lease", _iso(known.lease), f"its director went silent: a keeper takes it back, and {lost}")


def _overdue(at_ms: int, known: Known) -> str:
    return span((known.now - at_ms) / 1000)


def _limits(record: Record) -> Iterator[Coming]:
    if record.start_by is not None and not record.begun:
        yield Coming("start_by", iso(record.start_by), "failed if it has not begun by then")
    if record.deadline is not None:
        late = Status.CANCELED if record.begun else record.deadline_status or Status.FAILED
        yield Coming("deadline", iso(record.deadline), f"{late} if it has not ended by then")


def _attempt(number: int, most: int | None) -> str:
    return f"attempt {number}" if most is None else f"attempt {number} of {most}"


def _seconds(since: int | None, until: int | None) -> float | None:
    return None if since is None or until is None else (until - since) / 1000


def _iso(at: int | None) -> str | None:
    return None if at is None else iso(at)
