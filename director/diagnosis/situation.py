"""How the service stands at one moment, as far as findings are made of it; and what a finding is. Asks nobody.

What is dear to ask (`closer_look.py` does) is there of some queues alone: of those where it may tell of a fault.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from msgspec import Struct

from director.broker.scripts import QueueStats
from director.core.ids import QueueName
from director.core.objectives import Burns
from director.core.words import span
from director.store.directors import DirectorFound
from director.store.owed import FailingHost

__all__ = (
    "CODES",
    "Closer",
    "Code",
    "Finding",
    "Heaviest",
    "Letter",
    "Level",
    "Neglected",
    "Situation",
    "waits",
    "work_of",
)

Level = Literal["bad", "warn"]
"""`bad`: work is lost, refused or left lying; `warn`: it will be, or somebody should know."""

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
    """One thing that needs a person. `title`: what it is, in few words; `detail`: who, how many, since when.

    `ask`: the command that tells more of it, or mends it.
    """

    code: Code
    level: Level
    title: str
    detail: str
    queue: QueueName | None = None
    ask: str


class Neglected(Struct, frozen=True, kw_only=True):
    """What a keeper should have looked after by now, of one queue."""

    expired_leases: int = 0
    due_retries: int = 0
    due_deadlines: int = 0


class Heaviest(Struct, frozen=True, kw_only=True):
    """The account that has the most waiting in a queue, of `accounts` that have anything."""

    account: str
    waiting: int
    accounts: int


class Letter(Struct, frozen=True, kw_only=True):
    """The newest dead letter of a queue. `codes`: how each of its attempts ended."""

    id: str
    at_ms: int
    codes: tuple[str, ...]


class Closer(Struct, frozen=True, kw_only=True):
    """What was asked beside the numbers of the queues. `now_ms`: by the server's clock; `redis_ms`: how long it took to
    answer, at the least.
    """

    now_ms: int
    redis_ms: float = 0.0
    neglected: Mapping[QueueName, Neglected] = {}
    heaviest: Mapping[QueueName, Heaviest] = {}
    letters: Mapping[QueueName, Letter] = {}
    burns: Mapping[QueueName, Burns] = {}
    failing: Sequence[FailingHost] = ()


class Situation(Struct, frozen=True, kw_only=True):
    """All of it. `owed_late`: webhooks that are due, and that nobody tried."""

    queues: Mapping[QueueName, QueueStats] = {}
    directors: Sequence[DirectorFound] = ()
    owed_late: int = 0
    closer: Closer

    @property
    def now_ms(self) -> int:
        """By the server's clock."""
        return self.closer.now_ms


def work_of(stats: QueueStats) -> int:
    """How many of a queue are still to be run."""
    return stats.waiting + stats.delayed


def waits(stats: QueueStats) -> str:
    """The same for a person, and since when."""
    if not work_of(stats):
        return "Nothing waits"
    delayed = f" and {stats.delayed:,} delayed" if stats.delayed else ""
    return f"{stats.waiting:,} waiting{delayed}, the oldest for {span(max(0, stats.oldest_ms) / 1000)}"
