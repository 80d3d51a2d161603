"""Which faults get another attempt, and how long it waits. Pure: the caller brings the dice."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

__all__ = ("RULES", "ErrorClass", "Rule", "backoff_s")


class ErrorClass(StrEnum):
    """What kind of fault ended a run."""

    CAPACITY = "capacity"  # no room, or not ready: nothing was tried
    INFRASTRUCTURE = "infrastructure"  # the server, its worker or the connection died under it
    MODEL = "model"  # the model's own code raised: it would again
    INPUT = "input"  # the input was refused: it would be again


class Rule(Struct, frozen=True):
    """`again`: it may run again, as long as attempts are left. `spent`: this was one of them."""

    again: bool
    spent: bool


RULES: Final[dict[ErrorClass, Rule]] = {
    ErrorClass.CAPACITY: Rule(again=True, spent=False),
    ErrorClass.INFRASTRUCTURE: Rule(again=True, spent=True),
    ErrorClass.MODEL: Rule(again=False, spent=True),
    ErrorClass.INPUT: Rule(again=False, spent=True),
}

# A server that had no room gets this long to have some, unless it says how long itself.
CAPACITY_S: Final = 1.0


def backoff_s(
    error: ErrorClass, attempt: int, *, base_s: float, cap_s: float, dice: float, asked_s: float | None = None
) -> float:
    """How long to wait after the `attempt`-th attempt ended so. `dice` is 0..1.

    Full jitter, anywhere up to base, twice that, four times … up to the cap, so that a fleet never marches in step. A
    server's own Retry-After (`asked_s`) is the least, up to the cap.
    """
    asked = min(asked_s or 0.0, cap_s)
    if not RULES[error].spent:
        return max(CAPACITY_S, asked)
    return max(dice * min(cap_s, base_s * 2.0 ** (attempt - 1)), asked)
