"""Find values by JSON pointer (RFC 6901) in JSON that stays bytes, so a value is passed on as it was written. Pure.
Values that are passed over are never built, so a large malicious document costs no more than its bytes.
"""

import re
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw, Struct

MOST_CHARS: Final = 256
MOST_STEPS: Final = 16
MOST_INDEX: Final = 255
INDEX: Final = re.compile(r"0|[1-9][0-9]*")
NO_NAME: Final = re.compile(r'["\\\x00-\x1f]')
BAD_ESCAPE: Final = re.compile(r"~(?![01])")
SPACE: Final = b" \t\r\n"
NOTHING: Final = Raw(b"")


class Pointer:
    __slots__ = ("_steps", "text")

    def __init__(self, text: str) -> None:
        """Raises ValueError with the form that a pointer must have."""
        if text and not text.startswith("/"):
            raise ValueError("a JSON pointer is empty or begins with /, like /data/0")
        if len(text) > MOST_CHARS or text.count("/") > MOST_STEPS:
            raise ValueError(f"a JSON pointer has at most {MOST_CHARS} characters and {MOST_STEPS} steps")
        if BAD_ESCAPE.search(text):
            raise ValueError("in a JSON pointer ~ is written ~0, and / in a name ~1")
        if NO_NAME.search(text):
            raise ValueError("a JSON pointer cannot lead through names with quotes, backslashes or control characters")
        self.text = text
        self._steps = [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]

    def __repr__(self) -> str:
        return f"Pointer({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pointer) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def find(self, document: Raw) -> Raw | None:
        """Return the value there, or None. The document must be valid JSON: it is not checked here."""
        found: Raw | None = document
        for step in self._steps:
            if found is None:
                return None
            found = _step(found, step)
        return found


WHOLE: Final = Pointer("")


def _step(document: Raw, step: str) -> Raw | None:
    match _first(document):
        case b"{":
            place = msgspec.json.decode(document, type=_member(step))
        case b"[" if INDEX.fullmatch(step) and int(step) <= MOST_INDEX:
            place = msgspec.json.decode(document, type=_item(int(step)))
        case _:
            return None
    found: Raw = place.found  # type: ignore[attr-defined]
    return None if found == NOTHING else found


def _first(document: Raw) -> bytes:
    """Return the first character that is not a space. A leading space is rare, and only then the document is copied."""
    first = memoryview(document)[:1].tobytes()
    return first if first not in SPACE else bytes(document).lstrip(SPACE)[:1]


# Structs with one field: the decoder skips all other values without building them
@lru_cache(maxsize=256)
def _member(name: str) -> type[Struct]:
    return msgspec.defstruct("Member", [("found", Raw, msgspec.field(name=name, default=NOTHING))])


@lru_cache(maxsize=256)
def _item(index: int) -> type[Struct]:
    before = [(f"item{number}", Raw, NOTHING) for number in range(index)]
    return msgspec.defstruct("Item", [*before, ("found", Raw, NOTHING)], array_like=True)
