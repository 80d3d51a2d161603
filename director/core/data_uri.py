"""Read data URIs (RFC 2397) as models and their callers write them: in any case, with base64 of either alphabet, broken
into lines or without its padding. Pure.
"""

import base64
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

NAME: Final = r"[a-z0-9][a-z0-9!#$&^.+_-]{0,126}"
VALUE: Final = r'(?:"[^"\\]{0,128}"|[^;,"]{0,128})'
HEAD: Final = re.compile(
    rf"data:[ ]?(?P<type>{NAME}/{NAME})?"
    rf"(?:[ ]?;[ ]?charset=(?P<charset>\"?[a-z0-9_-]{{1,32}}\"?)|[ ]?;[ ]?{NAME}={VALUE}){{0,4}}"
    r"(?P<base64>[ ]?;[ ]?base64)?,",
    re.IGNORECASE,
)
LONGEST_HEAD: Final = 1024
TEXT: Final = "text/plain"
BLANKS: Final = b" \t\r\n\f\v"
URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")


class DataUri(Struct, frozen=True):
    """A file in a data URI. `body` is its data as written there."""

    content_type: str
    is_base64: bool
    body: bytes

    @property
    def size(self) -> int:
        return len(self.body)

    def decode(self) -> bytes:
        """Return the file. Raises ValueError if the body is not valid base64."""
        data = unquote_to_bytes(self.body) if b"%" in self.body else self.body
        if not self.is_base64:
            return data
        letters = data.translate(URL_SAFE, BLANKS).rstrip(b"=")
        return base64.b64decode(letters + b"=" * (-len(letters) % 4), validate=True)


def is_data_uri(text: bytes) -> bool:
    return text[:5].lower() == b"data:"


def read_data_uri(text: bytes) -> DataUri | None:
    """Return the file of a data URI. None for other text, also for one that only begins like it, such as `data:,x`."""
    head = HEAD.match(text[:LONGEST_HEAD].decode("ascii", errors="replace"))
    if head is None or not (head["type"] or head["base64"]):
        return None
    kind = (head["type"] or TEXT).lower()
    charset = (head["charset"] or "").strip('"').lower()
    words = f"; charset={charset}" if charset and kind.startswith("text/") else ""
    return DataUri(kind + words, bool(head["base64"]), text[head.end() :])


# A model's picture, as small as its other texts: lists of models have it for each of a hundred
PICTURE: Final = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")
MOST_PICTURE: Final = 12_000  # characters


def is_picture(text: str) -> bool:
    """Return whether this is a small picture, which a model may have in place of the address of one."""
    return len(text) <= MOST_PICTURE and PICTURE.fullmatch(text) is not None
