"""Plan the faults of a trial from its seed: the same ones at the same times under every queue."""

import random
from typing import Final, Literal

from msgspec import Struct

Kind = Literal["kill", "stop", "redis", "cut", "freeze"]

KINDS: Final[tuple[Kind, ...]] = ("kill", "kill", "kill", "stop", "stop", "redis", "redis", "cut")
WORKERS: Final = 2
FIRST_S: Final = 4.0
EVERY_S: Final = 8.0
LATER_S: Final = 2.0
CUT_S: Final = 5.0
FREEZE_S: Final = 45.0  # a lock of BullMQ lives 30 s, a lease of Director 15 s

SHOWN: Final[dict[Kind, str]] = {
    "kill": "kill -9 of a worker with all its processes",
    "stop": "SIGTERM of a worker, killed after 30 s",
    "redis": "kill -9 of Redis, started again after 1 s",
    "cut": f"no byte passes between a worker and Redis for {CUT_S:g} s",
    "freeze": "SIGSTOP of a worker, SIGCONT after {freeze_s:g} s",
}


class Fault(Struct, frozen=True, kw_only=True):
    """`worker`: the number of the one that it hits; a fault of Redis hits both."""

    at_s: float
    kind: Kind
    worker: int


def planned(seed: int, kinds: tuple[Kind, ...] = KINDS) -> list[Fault]:
    """Return the faults in order. They hit the workers in turn, so that each finds one that is at work.

    The long freeze comes last, so that no other fault hits what it leaves.
    """
    dice = random.Random(seed)
    first = dice.randrange(WORKERS)
    return [
        Fault(
            at_s=round(FIRST_S + EVERY_S * number + dice.uniform(0, LATER_S), 2),
            kind=kind,
            worker=(first + number) % WORKERS,
        )
        for number, kind in enumerate([*dice.sample(kinds, len(kinds)), "freeze"])
    ]
