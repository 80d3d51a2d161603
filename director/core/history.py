"""How a record remembers the attempts that did not end its prediction. Pure; `lua/lib/settle.lua` writes it."""

from msgspec import Struct

__all__ = ("Spent", "spent_attempts")


class Spent(Struct, frozen=True, kw_only=True):
    """One attempt that was used up: who held it, from when to when, and why it ended. Times in ms."""

    number: int
    director: str
    claimed: int | None
    ended: int
    code: str


def spent_attempts(history: str) -> tuple[Spent, ...]:
    """Oldest first: number, holder, claimed, ended, code of each; a semicolon between two."""
    return tuple(_spent(*line.split(" ", 4)) for line in history.split(";") if line)


def _spent(number: str, director: str, claimed: str, ended: str, code: str) -> Spent:
    return Spent(
        number=int(number), director=director, claimed=int(claimed) if claimed else None, ended=int(ended), code=code
    )
