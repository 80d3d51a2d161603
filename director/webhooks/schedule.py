"""When an owed webhook is tried again, and when never again. Pure."""

import re
from typing import Final, Literal

from msgspec import Struct

from director.core.errors import SettingsError
from director.core.settings import WEBHOOK_SCHEDULE
from director.webhooks.sender import Delivery

__all__ = ("LONGEST_S", "SCHEDULE", "Noted", "Outcome", "Schedule")

Outcome = Literal["delivered", "failed", "gone", "refused", "given_up", "revived"]

# Up to a tenth sooner or later: an outage fails many at one moment, and they must not come back as one.
SPREAD: Final = 0.1
# However it came so late, by receivers that ask for patience or hosts that are away: what is owed keeps its data for
# four days (lua/lib/keys.lua), and is told or given up before they are over.
LONGEST_S: Final = 90 * 3600.0

WAIT: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(s|m|h)")
UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Noted(Struct, frozen=True):
    """What one attempt comes to. Without `delay_s` there is no other; `is_asked`: the receiver asked for it.

    `host_answers`: what it shows of the receiver, None where that was not asked.
    """

    outcome: Outcome
    delay_s: float | None = None
    is_asked: bool = False
    host_answers: bool | None = None

    @property
    def is_last(self) -> bool:
        return self.delay_s is None


class Schedule(Struct, frozen=True):
    """The waits after the first, second, … attempt that failed; after the last one it is given up."""

    waits_s: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """Read the setting: waits such as 2s, 5m or 24h, between commas. Raises SettingsError."""
        matches = [WAIT.fullmatch(part.strip()) for part in text.split(",")]
        waits_s = tuple(float(match[1]) * UNITS_S[match[2]] for match in matches if match)
        if len(waits_s) < len(matches) or 0.0 in waits_s:
            raise SettingsError("DIRECTOR_WEBHOOK_SCHEDULE: give waits such as 2s,30s,5m,2h, between commas.")
        if sum(waits_s) * (1 + SPREAD) > LONGEST_S:
            raise SettingsError(
                f"DIRECTOR_WEBHOOK_SCHEDULE: all waits together are {sum(waits_s) / 3600:.1f} h, and may be "
                f"{LONGEST_S / (1 + SPREAD) / 3600:.1f} h: what is owed is kept for four days."
            )
        return cls(waits_s)

    def noted(self, delivery: Delivery, *, tellings: int, owed_s: float, jitter: float) -> Noted:
        """Judge an attempt that came after `tellings` others, of what was owed for `owed_s` by then.

        `jitter` is drawn by the caller, from 0 to 1.
        """
        ends: tuple[tuple[bool, Outcome], ...] = (
            (delivery.ok, "delivered"),
            (delivery.gone, "gone"),
            (delivery.refused, "refused"),
            (tellings >= len(self.waits_s) or owed_s >= LONGEST_S, "given_up"),
        )
        for is_so, outcome in ends:
            if is_so:
                return Noted(outcome, host_answers=delivery.host_answers)
        own_s = self.waits_s[tellings] * (1 - SPREAD + 2 * SPREAD * jitter)
        asked_s = delivery.retry_after_s or 0.0
        delay_s = min(max(own_s, asked_s), LONGEST_S - owed_s)
        return Noted("failed", delay_s, is_asked=asked_s > own_s, host_answers=delivery.host_answers)


SCHEDULE: Final = Schedule.parse(WEBHOOK_SCHEDULE)
