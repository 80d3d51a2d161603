"""Read the headers that say how: Prefer (how long to hold the response), Cancel-After (how long to live), X-Start-By
(how long to wait for a start), X-Cost (how much of a slot it takes) and X-Affinity-Key (what it likes to run beside).

Pure. A Prefer that makes no sense is never an error: it is as if it were not there.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from api.refusals import invalid_header

__all__ = (
    "LONGEST_WAIT_S",
    "affinity_digest",
    "applied",
    "cancel_after_seconds",
    "cost_units",
    "start_by_seconds",
    "wait_seconds",
)

LONGEST_WAIT_S: Final = 60.0
SHORTEST_LIFE_S: Final = 5
LONGEST_LIFE_S: Final = 24 * 60 * 60
SHORTEST_START_S: Final = 1
SMALLEST_COST: Final = 0.001
LARGEST_COST: Final = 1_000_000
LONGEST_AFFINITY: Final = 255
AFFINITY_DIGITS: Final = 16

# possessive and with an optional end, so that no text makes it look twice at the same place
QUOTED: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"?', re.DOTALL)
SEPARATORS: Final = re.compile(r"[,;=]")
SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
COST: Final = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?")
WHOLE_SECONDS: Final = re.compile(r"[0-9]{1,6}")
UNITS_S: Final = (3600, 60, 1, 1)  # of the pattern's groups
DURATION: Final = re.compile(r"(?=.)(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?|([0-9]{1,6})")


def wait_seconds(prefer: Iterable[str], *, default: float = LONGEST_WAIT_S) -> float | None:
    """How long the response may be held, from all Prefer headers of a request; None: answer at once.

    A plain `wait` is `default`; more than a minute is a minute. `wait=0`, and a value that is not a number of
    seconds, are ignored. Other preferences are ignored too, and of several waits the first counts (RFC 7240).
    """
    asked = _asked(prefer)
    if asked is None:
        return None
    if not asked:
        return default
    if not SECONDS.fullmatch(asked):
        return None
    return min(float(asked), LONGEST_WAIT_S) or None


def applied(prefer: Iterable[str]) -> str | None:
    """The Preference-Applied header: `wait` or `wait=10`, as it was understood; None where there was no wait."""
    values = tuple(prefer)
    seconds = wait_seconds(values)
    if seconds is None:
        return None
    return f"wait={seconds:g}" if _asked(values) else "wait"


def cancel_after_seconds(text: str) -> int:
    """Seconds (`30`) or hours, minutes and seconds in that order (`90s`, `1h30m45s`), from 5 s to 24 h; else 422."""
    match = DURATION.fullmatch(text.strip())
    if match:
        total = sum(int(count or 0) * unit for count, unit in zip(match.groups(), UNITS_S, strict=True))
        if SHORTEST_LIFE_S <= total <= LONGEST_LIFE_S:
            return total
    raise invalid_header("Cancel-After", "a duration such as 90s, 5m or 1h30m, from 5 seconds to 24 hours")


def start_by_seconds(text: str) -> int:
    """Whole seconds, from 1 to those of a day; else 422."""
    asked = text.strip()
    if WHOLE_SECONDS.fullmatch(asked) and SHORTEST_START_S <= int(asked) <= LONGEST_LIFE_S:
        return int(asked)
    raise invalid_header("X-Start-By", f"a whole number of seconds from {SHORTEST_START_S} to {LONGEST_LIFE_S}")


def cost_units(text: str) -> float:
    """How much it takes, compared with others of this model: from a thousandth to a million; else 422."""
    asked = text.strip()
    if COST.fullmatch(asked) and SMALLEST_COST <= float(asked) <= LARGEST_COST:
        return float(asked)
    raise invalid_header("X-Cost", f"a number from {SMALLEST_COST} to {LARGEST_COST:,}")


def affinity_digest(text: str) -> str:
    """What stands for the caller's key: whoever sends the same one likes the same server. 422 for what is no key."""
    if not 0 < len(text) <= LONGEST_AFFINITY or not text.isprintable():
        raise invalid_header("X-Affinity-Key", f"a text of 1 to {LONGEST_AFFINITY} printable characters")
    return hashlib.sha256(text.encode()).hexdigest()[:AFFINITY_DIGITS]


def _asked(prefer: Iterable[str]) -> str | None:
    """The value of the first `wait`: empty where it has none, None where there is no `wait` at all."""
    for header in prefer:
        plain = QUOTED.sub(lambda quoted: SEPARATORS.sub("_", quoted[1]), header)
        for preference in plain.split(","):
            name, _, value = preference.partition(";")[0].partition("=")
            if name.strip().lower() == "wait":
                return value.strip()
    return None
