"""When an owed webhook is tried again, and when never again. Pure."""

from typing import Final, Literal

from msgspec import Struct

from director.webhooks.sender import Delivery

__all__ = ("SCHEDULE_S", "Noted", "Outcome", "noted")

Outcome = Literal["delivered", "failed", "gone", "refused", "given_up", "revived"]

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE

# Wait after the first, second, … attempt that failed: seconds for a restart, minutes for a deploy, then days.
SCHEDULE_S: Final = (
    *(2.0, 5.0, 15.0, 30.0, 60.0),
    *(2 * MINUTE, 5 * MINUTE, 30 * MINUTE),
    *(2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR),
)
# Up to a tenth sooner or later: an outage fails many at one moment, and they must not come back as one.
SPREAD: Final = 0.1


class Noted(Struct, frozen=True):
    """What one attempt comes to. Without `delay_s` there is no other."""

    outcome: Outcome
    delay_s: float | None = None

    @property
    def is_last(self) -> bool:
        return self.delay_s is None


def noted(delivery: Delivery, *, tellings: int, jitter: float) -> Noted:
    """Judge an attempt that came after `tellings` others. `jitter` is drawn by the caller, from 0 to 1."""
    ends: tuple[tuple[bool, Outcome], ...] = (
        (delivery.ok, "delivered"),
        (delivery.gone, "gone"),
        (delivery.refused, "refused"),
        (tellings >= len(SCHEDULE_S), "given_up"),
    )
    for is_so, outcome in ends:
        if is_so:
            return Noted(outcome)
    delay_s = SCHEDULE_S[tellings] * (1 - SPREAD + 2 * SPREAD * jitter)
    return Noted("failed", max(delay_s, delivery.retry_after_s or 0.0))
