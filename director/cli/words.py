"""Durations and shares in the words of a person."""

from director.core.words import since, span

__all__ = ("share", "since", "span")


def share(part: int, rest: int) -> str:
    """How many of all, and what that is of a hundred."""
    return f"{part} of {part + rest} ({100 * part / (part + rest):.0f} %)" if part + rest else "none yet"
