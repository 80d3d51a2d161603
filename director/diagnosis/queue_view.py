"""A queue at one moment in the words that operators read: over HTTP, in a page, in a terminal. Asks nobody."""

from typing import Final, Literal

from msgspec import Struct

from director.broker.scripts import QueueStats
from director.core.ids import QueueName

__all__ = ("QueueState", "QueueView", "Waiting", "state_of", "view_of")

QueueState = Literal[
    "serving", "paused", "breaker_open", "no_director", "servers_starting", "setup_failed", "server_auth"
]
"""Why nothing of a queue starts now, in the words that those are told who wait; `serving` where it does."""

OPEN_TO_ALL: Final = "absorb"


class Waiting(Struct, frozen=True, kw_only=True):
    """How many wait in each lane."""

    high: int
    normal: int
    low: int


class QueueView(Struct, frozen=True, kw_only=True):
    """One queue. `oldest_s`: since when the oldest that has not ended is there; `run_s`: how long one has a slot,
    lately, null while nobody knows. `directors`: those that gave a sign of life lately. `accepted`, `started` and
    `ended` are since ever.
    """

    name: QueueName
    model: str
    state: QueueState
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


def view_of(queue: QueueName, stats: QueueStats) -> QueueView:
    return QueueView(
        name=queue,
        model=queue.rpartition(":")[0],
        state=state_of(stats),
        paused=stats.paused,
        breaker=stats.breaker or "closed",
        mode=stats.mode or OPEN_TO_ALL,
        max_queued=stats.max_queued,
        waiting=Waiting(high=stats.high, normal=stats.normal, low=stats.low),
        claimed=stats.claimed,
        delayed=stats.delayed,
        dead=stats.dead,
        live=stats.live,
        oldest_s=stats.oldest_ms / 1000 if stats.live else None,
        slots=stats.slots if stats.directors else 0,
        directors=stats.directors,
        run_s=stats.service_ms / 1000 if stats.service_ms else None,
        streams=stats.streams,
        read=stats.read,
        accepted=stats.accepted,
        started=stats.started,
        ended=stats.ended,
    )


def state_of(stats: QueueStats) -> QueueState:
    """The first of these that is so, in the order in which those who wait are told: see lib/outlook."""
    found: tuple[tuple[QueueState, bool], ...] = (
        ("paused", stats.paused),
        ("breaker_open", bool(stats.breaker)),
        ("no_director", not stats.directors),
        ("serving", stats.slots > 0),
        ("servers_starting", stats.starting > 0),
        ("server_auth", stats.server_auth > 0),
        ("setup_failed", stats.setup_failed > 0),
    )
    return next((state for state, is_so in found if is_so), "no_director")
