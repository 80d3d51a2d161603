"""What a request for several runs used, split over them. Pure.

Whole numbers stay whole, and add up to what the server told. What is no number is nobody's.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from director.core.json_pointer import Pointer
from director.core.runner_config import BatchConfig
from director.servers.runners.untrusted import Unreadable, read_json

__all__ = ("MOST", "split", "used_by")

MOST: Final = 2**48  # of more than that, rounding alone may be whole units
DIGITS: Final = 6


def used_by(
    document: Raw, headers: Mapping[str, str], items: Sequence[Raw], batch: BatchConfig, costs: Sequence[float]
) -> list[dict[str, Raw]]:
    """The metrics of each run, in the order of the items: by the share that an item tells, else by cost."""
    told = {name: _number(bytes(where.find(document) or b"")) for name, where in batch.usage.items()}
    told |= {name: _number(headers.get(header.lower(), "").encode()) for name, header in batch.usage_headers.items()}
    weights = _shares(items, batch.share) or costs
    parts = {name: split(total, weights) for name, total in told.items() if total is not None}
    return [
        {name: Raw(msgspec.json.encode(part[index])) for name, part in parts.items()} for index in range(len(items))
    ]


def split(total: float, weights: Sequence[float]) -> list[float]:
    """In proportion; evenly where nobody has any weight. Of a whole number, the rest goes where most was cut off."""
    everything = math.fsum(weights)
    exact = [total * weight / everything if everything > 0 else total / len(weights) for weight in weights]
    if not isinstance(total, int):
        return [round(part, DIGITS) for part in exact]
    parts = [math.floor(part) for part in exact]
    by_cut = sorted(range(len(parts)), key=lambda index: parts[index] - exact[index])
    for index in by_cut[: total - sum(parts)]:
        parts[index] += 1
    return list(parts)


def _shares(items: Sequence[Raw], share: Pointer | None) -> list[float]:
    """None at all where one of them tells none."""
    found = [] if share is None else [_number(bytes(share.find(item) or b"")) for item in items]
    told = [number for number in found if number is not None]
    return told if len(told) == len(items) else []


def _number(text: bytes) -> float | None:
    try:
        number = read_json(text, int | float)  # type: ignore[arg-type]
    except Unreadable:
        return None
    return number if 0 <= number <= MOST else None
