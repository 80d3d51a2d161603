"""Write numbers, durations and shares in plain words. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

EXACT_S: Final = 10
UNITS_S: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
LONGEST_LIST: Final = 3


def span(seconds: float) -> str:
    """Return a duration: 0.4 s, 12 s, 3.5 min, 2.5 h, 12 d. At least two of a unit, for enough precision."""
    for unit, length_s in UNITS_S:
        if seconds >= 2 * length_s:
            return f"{f'{seconds / length_s:.1f}'.removesuffix('.0')} {unit}"
    return f"{seconds:.{1 if seconds < EXACT_S else 0}f} s"


def size(count: int) -> str:
    """Return a number of bytes: 512 MiB, 1.5 GiB, 80 GiB."""
    return f"{count / (1 << 30):.4g} GiB" if abs(count) >= 1 << 30 else f"{count / (1 << 20):.4g} MiB"


def since(moment: str, now_ms: int) -> str:
    """Return how long ago an API time was. Clocks differ, so a time in the future counts as now."""
    return span(max(0.0, now_ms / 1000 - datetime.fromisoformat(moment).timestamp()))


def several(count: int, one: str) -> str:
    ending = "" if count == 1 else "es" if one.endswith("ch") else "s"
    return f"{count:,} {one}{ending}"


def some(facts: Sequence[str]) -> str:
    more = f" and {len(facts) - LONGEST_LIST} more" if len(facts) > LONGEST_LIST else ""
    return ", ".join(facts[:LONGEST_LIST]) + more


def share(part: int, rest: int) -> str:
    return f"{part} of {part + rest} ({100 * part / (part + rest):.0f} %)" if part + rest else "none yet"
