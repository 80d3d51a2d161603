"""Read JSON that msgspec refuses for half of a surrogate pair, and count its members. For texts of a bounded depth."""

import json
from typing import Any


def read_leniently(text: bytes) -> dict[str, Any] | None:
    """Return the members of an object, with numbers as they are written, or None for anything else."""
    try:
        value = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def count_members(text: bytes) -> int:
    """Return how many members an object has, repeated ones too."""
    count: int = json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=len)
    return count


def _refuse(constant: str) -> None:
    raise ValueError(constant)
