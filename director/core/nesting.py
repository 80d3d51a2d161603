"""Say whether JSON nests deeper than a bound, before it is decoded. What Python itself bears differs by its version:
about 1,000 levels before 3.14, and from then on as many as the stack has room for.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

# An answer of more is refused, as many readers of JSON would. Functions that walk through a document call themselves
# twice for a level at most, and Python bears 1,000 calls.
MOST_LEVELS: Final = 300
OPEN, CLOSE = b"[{", b"]}"
STRUCTURE: Final = OPEN + CLOSE + b'"'
NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in STRUCTURE)
AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
STEPS: Final = {ord("["): 1, ord("]"): -1}
BLOCK_BYTES: Final = 64 << 10


def is_deeper(text: bytes, most: int) -> bool:
    """Return True if arrays and objects nest deeper than `most`, in linear time. It may be True for text that is not
    JSON.
    """
    if sum(map(text.count, OPEN)) <= most:
        return False
    # escapes first (in pairs, from the left), so that every remaining quote opens or closes a string
    brackets = _outside_strings(text.replace(rb"\\", b"").replace(rb"\"", b""))
    # The innermost pairs are one level, and usually most of all. To count those of `{},{},…` took 0.1 s a MB.
    left = b"".join(block.replace(b"[]", b"") for block in _blocks(brackets))
    most -= len(left) < len(brackets)
    depth = 0
    for block in _blocks(left):
        depths = list(accumulate(map(STEPS.__getitem__, block), initial=depth))
        depth = depths[-1]
        if max(depths) > most:
            return True
    return False


def _outside_strings(text: bytes) -> bytes:
    """Return the brackets outside of strings, and braces as brackets. In blocks: one call over 14 MB of quotes takes
    half a second, and no other thread runs meanwhile.
    """
    found, is_inside = [], False
    for start in range(0, len(text), BLOCK_BYTES):
        parts = text[start : start + BLOCK_BYTES].translate(AS_BRACKETS, NOT_STRUCTURE).split(b'"')
        found += parts[is_inside::2]
        is_inside ^= len(parts) % 2 == 0
    return b"".join(found)


def _blocks(brackets: bytes) -> Iterator[bytes]:
    """Cut where no pair is parted. Between two blocks other threads get their turn."""
    start = 0
    while start < len(brackets):
        end = start + BLOCK_BYTES
        if brackets[end - 1 : end + 1] == b"[]":
            end += 1
        yield brackets[start:end]
        start = end
