"""Show queues and directors at one moment in the words of operators: over HTTP, on a page, in a terminal. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from director.broker.replies import QueueStats
from director.core.hours import show_opening
from director.core.ids import QueueName
from director.core.view import iso
from director.store.directors import DirectorFound, ShelfFound
from director.store.processes import Process, Role

QueueState = Literal[
    "serving",
    "paused",
    "closed",
    "breaker_open",
    "no_director",
    "loading",
    "waiting_for_device",
    "at_rest",
    "servers_starting",
    "setup_failed",
    "server_auth",
]
"""The reason why nothing of a queue starts now, as waiting callers read it; `serving` if predictions start, `at_rest`
if nothing waits for a model that is not loaded.
"""


Shade = Literal["good", "calm", "warn", "bad"]
SHOWN: Final[Mapping[QueueState, tuple[str, Shade]]] = {
    "serving": ("serving", "good"),
    "paused": ("paused", "warn"),
    "closed": ("closed", "calm"),
    "breaker_open": ("breaker open", "bad"),
    "no_director": ("no director", "bad"),
    "loading": ("loading its model", "warn"),
    "waiting_for_device": ("waiting for a device", "warn"),
    "at_rest": ("at rest", "calm"),
    "servers_starting": ("starting", "warn"),
    "setup_failed": ("setup failed", "bad"),
    "server_auth": ("servers refuse their key", "bad"),
}


class Waiting(Struct, frozen=True, kw_only=True):
    """How many wait in each lane."""

    high: int
    normal: int
    low: int


class QueueView(Struct, frozen=True, kw_only=True):
    """One queue. `opens_at` is when its open hours begin, or null while they are open. `oldest_s` is the age of its
    oldest live prediction. `run_s` is the recent time in a slot, or null.

    `directors` counts those with a recent heartbeat. `accepted`, `started` and `ended` count from the beginning.
    `words` are the state for a person, and `shade` says how bad it is. A finding may change them: a run that hangs.
    """

    name: QueueName
    model: str
    state: QueueState
    opens_at: str | None
    paused: bool
    breaker: str
    mode: str
    max_queued: int | None
    waiting: Waiting
    claimed: int
    delayed: int
    dead: int
    live: int
    oldest_s: float | None
    slots: int
    directors: int
    run_s: float | None
    streams: int
    read: int
    accepted: int
    started: int
    ended: int
    words: str = ""
    shade: Shade = "good"


def words_of(stats: QueueStats) -> tuple[str, Shade]:
    """Return the state of a queue for a person. A queue without directors and without work is idle."""
    state = state_of(stats)
    if stats.opens_ms is not None and state == "closed":
        return f"closed until {show_opening(stats.opens_ms, stats.zone)}", "calm"
    return ("idle", "calm") if state == "no_director" and not stats.live else SHOWN[state]


def view_of(queue: QueueName, stats: QueueStats) -> QueueView:
    same = {name: getattr(stats, name) for name in QueueView.__struct_fields__ if hasattr(stats, name)}
    words, shade = words_of(stats)
    differing = {
        "name": queue,
        "words": words,
        "shade": shade,
        "model": queue.rpartition(":")[0] or queue,  # a model without a queue stands under its own name
        "state": state_of(stats),
        "opens_at": None if stats.opens_ms is None else iso(stats.opens_ms),
        "breaker": stats.breaker or "closed",
        "mode": stats.mode or "absorb",
        "waiting": Waiting(high=stats.high, normal=stats.normal, low=stats.low),
        "oldest_s": stats.oldest_ms / 1000 if stats.live else None,
        "slots": stats.slots if stats.directors else 0,
        "run_s": stats.service_ms / 1000 if stats.service_ms else None,
    }
    return QueueView(**{**same, **differing})


def state_of(stats: QueueStats) -> QueueState:
    """Return the first state that applies, in the order in which waiting callers are informed: see lib/outlook."""
    found: tuple[tuple[QueueState, bool], ...] = (
        ("paused", stats.paused),
        ("closed", stats.opens_ms is not None),
        ("breaker_open", bool(stats.breaker)),
        ("no_director", not stats.directors),
        ("serving", stats.slots > 0),
        ("at_rest", stats.swap == "waiting_for_device" and not stats.waiting),
        ("loading", stats.swap == "loading"),
        ("waiting_for_device", stats.swap == "waiting_for_device"),
        ("servers_starting", stats.starting > 0),
        ("server_auth", stats.server_auth > 0),
        ("setup_failed", stats.setup_failed > 0),
    )
    return next((state for state, is_so in found if is_so), "no_director")


NOTHING: Final = QueueStats(
    high=0,
    normal=0,
    low=0,
    claimed=0,
    delayed=0,
    dead=0,
    live=0,
    oldest_ms=0,
    directors=0,
    streams=0,
    read=0,
    paused=False,
    slots=0,
    service_ms=0,
    service_cost=0,
    mode="",
    max_queued=None,
    breaker="",
    starting=0,
    setup_failed=0,
    server_auth=0,
    leaving=0,
    tally={},
)


def stats_of_newcomers(directors: Sequence[DirectorFound]) -> dict[QueueName, QueueStats]:
    """Return a row for each model that has directors and no queue yet, under the model's name: nothing can wait there,
    and operators see why it is not served.
    """
    states: dict[QueueName, list[str]] = {}
    for one in directors:
        states.setdefault(one.last.queue, []).append(one.last.state)
    return {
        queue: replace(
            NOTHING,
            directors=len(found),
            starting=found.count("starting"),
            setup_failed=found.count("setup_failed"),
            server_auth=found.count("server_auth"),
        )
        for queue, found in states.items()
    }


class ServerView(Struct, frozen=True, kw_only=True):
    """A model server as its director sees it: `state` holds `since`. `detail` says why it gets no work.

    `failed_starts` counts starts in a row after none of which it could run anything. `log`: the last lines of a setup
    that failed.
    """

    url: str
    state: str
    since: str
    slots: int
    detail: str
    failed_starts: int
    log: str = ""


class BeatView(Struct, frozen=True, kw_only=True):
    """The last heartbeat of a director for one queue: its slots there, and the state of its servers."""

    queue: QueueName
    at: str
    slots: int
    state: str
    held: int | None


SILENT: Final = "silent"


class DirectorView(Struct, frozen=True, kw_only=True):
    """One director. `alive`: it sent a recent heartbeat; else `state` is `silent`, or `draining` if it said so, and its
    servers and claims are those of its last one. `held`: the claims that it then had.

    `version` (of the software), `since` and `held` are null if its release does not report them.
    """

    name: str
    alive: bool
    seen_at: str
    since: str | None
    version: str | None
    state: str
    slots: int
    held: int | None
    queues: list[BeatView]
    servers: list[ServerView]
    more_servers: int


class ModelOnDevice(Struct, frozen=True, kw_only=True):
    """A model that shares a device. `bytes`: what it takes, or would take. `loads`, `lost_s`: in the last hour.

    `lost_s` is the time that its loads and rests took. `order` is an operator's. `behind`: what it waits for.
    """

    queue: QueueName
    state: str
    since: str
    bytes: int
    loads: int
    lost_s: float
    order: str
    failed: int
    why: str
    behind: tuple[str, ...]


class DeviceView(Struct, frozen=True, kw_only=True):
    """A device that models share, its memory and what is taken of it. `lost_s`: the time of swaps in the last hour."""

    name: str
    machine: str
    bytes: int
    taken: int
    swaps: int
    lost_s: float
    models: list[ModelOnDevice]


def devices_of(directors: Sequence[DirectorFound]) -> list[DeviceView]:
    """Return the devices of directors that are there. A device is known by the models that use it."""
    sizes: dict[tuple[str, str], int] = {}
    models: dict[tuple[str, str], list[ModelOnDevice]] = {}
    for one in directors:
        for heartbeat in one.heartbeats if one.is_alive else ():
            if (shelf := heartbeat.about.shelf) is None:
                continue
            for device, size in shelf.place.items():
                sizes[shelf.machine, device] = shelf.room.get(device, 0)
                models.setdefault((shelf.machine, device), []).append(_on_device(heartbeat.queue, shelf, size))
    return [
        DeviceView(
            name=device,
            machine=machine,
            bytes=sizes[machine, device],
            taken=sum(model.bytes for model in found if model.state != "absent"),
            swaps=sum(model.loads for model in found),
            lost_s=sum(model.lost_s for model in found),
            models=sorted(found, key=lambda model: model.queue),
        )
        for (machine, device), found in sorted(models.items())
    ]


def _on_device(queue: QueueName, shelf: ShelfFound, size: int) -> ModelOnDevice:
    same = {name: getattr(shelf, name) for name in ("state", "loads", "lost_s", "order", "failed", "why", "behind")}
    return ModelOnDevice(queue=queue, since=iso(shelf.since_ms), bytes=size, **same)


def director_view(found: DirectorFound) -> DirectorView:
    last, about = found.last, found.last.about
    return DirectorView(
        name=found.name,
        alive=found.is_alive,
        seen_at=iso(last.at_ms),
        since=None if about.since_ms is None else iso(about.since_ms),
        version=about.version or None,
        state=last.state if found.is_alive or last.state == "draining" else SILENT,
        slots=last.slots,
        held=found.held,
        queues=[
            BeatView(queue=each.queue, at=iso(each.at_ms), slots=each.slots, state=each.state, held=each.about.held)
            for each in found.heartbeats
        ],
        servers=[convert({**asdict(server), "since": iso(server.since_ms)}, ServerView) for server in about.servers],
        more_servers=about.more,
    )


class ProcessView(Struct, frozen=True, kw_only=True):
    """A keeper or an API process that gave a sign in the last 30 s. `ahead_s`: its clock before Redis's, in seconds."""

    name: str
    role: Role
    version: str
    since: str
    ahead_s: int


def process_view(found: Process) -> ProcessView:
    return ProcessView(
        name=found.name, role=found.role, version=found.version, since=iso(found.since_ms), ahead_s=found.ahead_s
    )
