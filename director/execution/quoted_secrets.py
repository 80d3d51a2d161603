"""Remove from what a model server says of an input the secret values that it quotes. Pure."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw

from director.core.schema import Record
from director.core.view import secret_places

HIDDEN: Final = "[REDACTED]"
MASK: Final = "\0"  # until all are replaced: a value may be a part of HIDDEN
SHORTEST: Final = 4  # a shorter value is also a part of innocent words
EXCERPT_CHARS: Final = 20  # pydantic shows the first and the last 24 or so of a long value
MOST_READ_CHARS: Final = 32_768  # of what is said, and of each value: more than is kept of an error
MOST_CUT_CHARS: Final = 2_000  # of the beginning of a value: runners cut at this length, or before
MOST_TEXTS: Final = 1_000  # beyond it all that is said is hidden


def without_secrets(said: str, record: Record, given: Raw) -> str:
    """Return the text without the secret values of the input, nor the beginning of one at its end."""
    texts = list(islice(_secret_texts(bytes(given), record.secret), MOST_TEXTS + 1))
    if len(texts) > MOST_TEXTS:
        return HIDDEN
    forms = sorted(_forms(texts), key=len, reverse=True)  # a value may be a part of another
    said = said[:MOST_READ_CHARS]
    for form in forms:
        said = said.replace(form, MASK)
    for form in forms:
        said = _without_begun(said, form)
    for form in forms:
        if len(form) > 2 * EXCERPT_CHARS:
            said = said.replace(form[:EXCERPT_CHARS], MASK).replace(form[-EXCERPT_CHARS:], MASK)
    return said.replace(MASK, HIDDEN)


def _secret_texts(given: bytes, secret: str) -> Iterator[str]:
    for start, end in secret_places(secret):
        if end > len(given):  # the input is gone, and something else in its place
            return
        value = msgspec.json.decode(given[start:end])
        if isinstance(value, str):
            yield given[start:end].decode().strip().strip('"')  # as the caller escaped it
        yield from _texts(value)


def _texts(value: object) -> Iterator[str]:
    """Yield all texts and numbers in a value, as texts. The keys of a secret are secret too."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from _texts(member)
    elif isinstance(value, list):
        for element in value:
            yield from _texts(element)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _forms(texts: Iterable[str]) -> set[str]:
    """Return how a server may quote these texts: as they are, escaped, and in one line."""
    forms: set[str] = set()
    for text in texts:
        value = text[:MOST_READ_CHARS]
        forms |= {value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    forms |= {" ".join(form.split()) for form in forms}
    return {form for form in forms if len(form) >= SHORTEST}


def _without_begun(said: str, form: str) -> str:
    """Remove the beginning of a form from the end of a text: runners cut what a server says."""
    tail = said.rstrip(" …")
    at = tail.find(form[:SHORTEST], max(0, len(tail) - min(len(form), MOST_CUT_CHARS)))
    while at >= 0 and not form.startswith(tail[at:]):
        at = tail.find(form[:SHORTEST], at + 1)
    return said if at < 0 else tail[:at] + MASK
