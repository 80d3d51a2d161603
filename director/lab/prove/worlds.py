"""The worlds: each is small enough to try every order of its calls. A world is a row: what is asked for, how many
directors there are, which calls are made, and how often replies are lost and directors die.
"""

from typing import Final

from msgspec import Struct

from director.core.ids import PredictionId, QueueName, lowest_id_at, queue_name
from director.core.policy import Policy

MODEL: Final = "prove/w2056"  # of partition 0, as the ids are
VERSION: Final = "5e" * 32
QUEUE: Final[QueueName] = queue_name(MODEL, VERSION)
START_MS: Final = 2_000_000_000_000  # in the future, so that no lifetime is over
TICK_MS: Final = 1000
LEASE_TICKS: Final = 2

# Calls by process. Faults are not among them: a world has a number of each
CALLER: Final = ("enqueue", "cancel")
DIRECTOR: Final = ("claim", "begin", "output", "finish", "release", "fail", "extend")
KEEPER: Final = ("reap", "promote", "expire")
RUNS: Final = ("enqueue", "claim", "begin", "finish", "tick", "reap", "extend")


class Wish(Struct, frozen=True, kw_only=True):
    """A prediction that may be asked for. Times are in ticks. `key`: an idempotency key."""

    account: str = "x"
    lane: str = "normal"
    lifetime: int | None = None
    start_by: int | None = None
    most_running: int | None = None
    webhook: bool = False
    once_shown: bool = False
    key: str = ""


class World(Struct, frozen=True, kw_only=True):
    """`losses`: replies that may be lost, `deaths`: directors that may die, in one history. `twice`: each call is also
    made twice at once. `depth`: calls in a row after which it ends, None for never.
    """

    about: str
    calls: tuple[str, ...]
    wishes: tuple[Wish, ...] = (Wish(), Wish())
    directors: int = 1
    slots: int = 1
    losses: int = 0
    deaths: int = 0
    policy: Policy = Policy(streams=1, size=1, attempts=2, backoff_s=0, backoff_cap_s=0, breaker_after=0)
    twice: bool = False
    depth: int | None = None

    @property
    def accounts(self) -> list[str]:
        return sorted({wish.account for wish in self.wishes})


def id_of(number: int) -> PredictionId:
    """Return the id of the wish with this number. Ids sort as wishes do."""
    return lowest_id_at(START_MS + number)


WORLDS: Final[dict[str, World]] = {
    "first": World(
        about="One director runs two predictions. Nothing fails.", calls=("enqueue", "claim", "begin", "finish")
    ),
    "takeover": World(
        about="Two directors and leases: one that stands still comes back with its old token.",
        calls=RUNS,
        directors=2,
    ),
}
