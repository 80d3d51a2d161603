"""The worlds: each is small enough to try every order of its calls. A world is a row: what is asked for, how many
directors there are, which calls are made, and how often replies are lost and directors die.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from director.core.ids import PredictionId, QueueName, lowest_id_at, queue_name
from director.core.policy import Policy

MODEL: Final = "prove/w2056"  # of partition 0, as the ids are
VERSION: Final = "5e" * 32
QUEUE: Final[QueueName] = queue_name(MODEL, VERSION)
START_MS: Final = 2_000_000_000_000  # in the future, so that no lifetime is over
TICK_MS: Final = 1000
LEASE_TICKS: Final = 2

RUNS: Final = ("enqueue", "claim", "begin", "finish", "tick", "reap", "extend")


PLAIN: Final = Policy(streams=1, size=1, attempts=2, backoff_s=0, backoff_cap_s=0, breaker_after=0)


class Wish(Struct, frozen=True, kw_only=True):
    """A prediction that may be asked for. Times are in ticks. `key`: an idempotency key."""

    account: str = "x"
    lane: str = "normal"
    lifetime: int | None = None
    start_by: int | None = None
    start_after: int | None = None
    most_running: int | None = None
    most_queued: int | None = None
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
    policy: Policy = PLAIN
    twice: bool = False
    depth: int | None = None

    @property
    def accounts(self) -> list[str]:
        return sorted({wish.account for wish in self.wishes})


def id_of(number: int) -> PredictionId:
    """Return the id of the wish with this number. Ids sort as wishes do."""
    return lowest_id_at(START_MS + number)


LATE: Final = Wish(lifetime=2)

WORLDS: Final[dict[str, World]] = {
    "first": World(
        about="One director runs two predictions. Nothing fails.",
        calls=("enqueue", "repeat", "claim", "begin", "finish", "reconcile"),
        twice=True,
    ),
    "takeover": World(
        about="Two directors and leases: one that stands still comes back with its old token.",
        calls=(*RUNS, "reconcile", "recover"),
        directors=2,
        twice=True,
    ),
    "faults": World(
        about="As takeover; replies are lost, and directors die.", calls=RUNS, directors=2, losses=2, deaths=1
    ),
    "keys": World(
        about="Two requests with one idempotency key, and one that is refused behind another.",
        calls=("enqueue", "repeat", "claim", "finish"),
        wishes=(Wish(key="k"), Wish(key="k"), Wish(most_queued=1)),
        twice=True,
    ),
    "cancel": World(
        about="Callers cancel and deadlines pass, before and during a run.",
        calls=(*RUNS, "cancel", "expire"),
        wishes=(Wish(), LATE, Wish(start_by=1)),
        twice=True,
    ),
    "retries": World(
        about="Runs fail, are given back, are retried later, and die.",
        calls=(*RUNS, "release", "fail", "promote", "cancel"),
        twice=True,
        losses=1,
    ),
    "letters": World(
        about="A dead letter with a webhook is revived or dropped.",
        calls=("enqueue", "claim", "finish", "fail", "revive", "drop", "cancel", "tick", "due", "deliver"),
        wishes=(Wish(webhook=True),),
        policy=replace(PLAIN, attempts=1),
        losses=1,
        twice=True,
    ),
    "once": World(
        about="A call may be shown once: a run that is lost before it begins again, and after it fails.",
        calls=(*RUNS, "output", "release", "fail", "promote"),
        wishes=(Wish(once_shown=True), Wish()),
        losses=2,
        directors=2,
    ),
    "lost": World(
        about="A model whose runs must not happen twice: a run that began and is lost ends as failed.",
        calls=(*RUNS, "release", "fail", "promote"),
        directors=2,
        policy=replace(PLAIN, on_lost="fail"),
        twice=True,
    ),
    "webhooks": World(
        about="Two couriers, a receiver that fails, replies that are lost.",
        calls=("enqueue", "claim", "finish", "fail", "promote", "tick", "due", "deliver", "revive"),
        wishes=(Wish(webhook=True), Wish(webhook=True)),
        losses=2,
    ),
    "lines": World(
        about="Two accounts with lines of their own: who goes first.",
        calls=("enqueue", "claim", "begin", "finish", "release"),
        wishes=(Wish(), Wish(), Wish(), Wish(account="y"), Wish(account="y")),
        slots=2,
    ),
    "shares": World(
        about="Two accounts and idle work; an operator pauses accounts and the queue, and limits one.",
        calls=("enqueue", "claim", "finish", "release", "hold", "limit", "pause"),
        wishes=(Wish(), Wish(), Wish(account="y"), Wish(account="y", lane="idle")),
    ),
    "spare": World(
        about="Idle work beside other work: three of four slots stay free for that. Directors drain and come back.",
        calls=("enqueue", "claim", "finish", "fail", "drain"),
        wishes=(Wish(lane="idle"), Wish(lane="idle"), Wish(account="y", most_running=2)),
        directors=2,
        slots=2,
        policy=replace(PLAIN, attempts=1, spare_slots=3),
    ),
    "room": World(
        about="Idle work with more room: one of three slots stays free. Accounts are paused, and retries come later.",
        calls=("enqueue", "claim", "finish", "fail", "tick", "promote", "hold"),
        wishes=(Wish(lane="idle"), Wish(lane="idle"), Wish(account="y")),
        directors=3,
    ),
    "planned": World(
        about="One prediction is asked for later, and another one for now.",
        calls=("enqueue", "repeat", "claim", "finish", "fail", "tick", "promote", "cancel"),
        wishes=(Wish(start_after=1), Wish()),
        twice=True,
    ),
    "slots": World(
        about="Directors with two slots each, and two streams that become one.",
        calls=(*RUNS, "resize"),
        wishes=(Wish(), Wish(), Wish(account="y")),
        directors=2,
        slots=2,
        policy=replace(PLAIN, streams=2, size=2),
    ),
    "losses": World(
        about="The server loses one key or another, and the keeper repairs it.",
        calls=(*RUNS, "lose", "fail", "promote"),
        wishes=(Wish(), LATE),
        deaths=1,
    ),
    "breaker": World(
        about="Servers fail in a row: the breaker opens, and then one prediction may try.",
        calls=("enqueue", "claim", "begin", "finish", "fail", "release", "cancel", "tick", "promote"),
        slots=2,
        policy=replace(PLAIN, breaker_after=2, breaker_cool_s=1, attempts=3),
    ),
    "moves": World(
        about="Predictions leave for another server, are canceled on the way, and come back.",
        calls=(*RUNS, "depart", "stay", "cancel", "reconcile"),
        twice=True,
    ),
}
