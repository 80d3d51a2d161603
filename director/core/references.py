"""Define what Redis keeps of an input or an output whose bytes are in the file store.

A reference begins with a byte that begins no JSON. Inputs and outputs are JSON, so no caller and no model can write
one. It names no prediction: its file is looked for among those of the prediction that it was read of.
"""

import re
from typing import Final

from msgspec import Raw, Struct

BYTES: Final = 44  # of every reference: so most other values are told apart by their size
FORM: Final = re.compile(rb"\0([0-9a-f]{32}) ([0-9]{10})")


class Reference(Struct, frozen=True):
    """`digest`: the start of the SHA-256 of the bytes, in hex. `size`: their number."""

    digest: str
    size: int

    def __bytes__(self) -> bytes:
        return f"\0{self.digest} {self.size:010}".encode()


def reference_in(kept: bytes | Raw | None) -> Reference | None:
    """Return the reference that stands in place of the data, or None if this is the data."""
    if kept is None or len(kept) != BYTES:
        return None
    found = FORM.fullmatch(bytes(kept))
    return Reference(found[1].decode(), int(found[2])) if found else None
