"""Read JSON that a model server wrote, as if it meant harm.

Never raises anything but `Unreadable` for what the server sent, and never re-encodes: parts that are only passed on
stay `msgspec.Raw`.
"""

from typing import Final, TypeVar

import msgspec

__all__ = ("EXCERPT_CHARS", "Unreadable", "excerpt", "one_line", "read_json")

EXCERPT_CHARS: Final = 500

T = TypeVar("T")


class Unreadable(ValueError):
    """The server sent what is no JSON, or not of the shape asked for. The message says which, for people."""


def read_json(body: bytes, shape: type[T]) -> T:
    """Decode `body` as `shape`, checking also what `Raw` parts would let through."""
    try:
        if not body.isascii():
            body.decode()  # msgspec skips over Raw parts without looking at their UTF-8
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as exc:
        raise Unreadable(f"not of the expected shape: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise Unreadable(f"not JSON: {exc}") from exc
    except RecursionError as exc:
        raise Unreadable("nested too deeply") from exc


def excerpt(body: bytes) -> str:
    """The beginning of a body that is not understood, in one line."""
    return one_line(body[: EXCERPT_CHARS * 4].decode(errors="replace"))


def one_line(text: str) -> str:
    """What fits in one line of a report."""
    line = " ".join(text[: EXCERPT_CHARS * 4].split())
    return line if len(line) <= EXCERPT_CHARS else line[: EXCERPT_CHARS - 1] + "…"
