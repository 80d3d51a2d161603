"""Find things by words: how well a text of several parts, of different weight, matches what somebody typed. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

WORD: Final = re.compile(r"\w+")
MOST_WORDS: Final = 8
MOST_QUERY: Final = 500
# what a word is worth in a name: all of one of its words, the beginning of one, anywhere
IN_NAME: Final = (8, 5, 4)
IN_OWNER: Final = 3
IN_TEXT: Final = 2
IN_GIST: Final = 1


class Card(Struct, frozen=True):
    """One thing that can be found, in lower case."""

    name: str
    owner: str = ""
    text: str = ""
    gist: str = ""


def words_of(query: str) -> Sequence[str]:
    """The different words of a query, the first few, in lower case."""
    return list(dict.fromkeys(WORD.findall(query[:MOST_QUERY].lower())))[:MOST_WORDS]


def matched(card: Card, words: Sequence[str]) -> float:
    """From 0, where some word is nowhere, to 1, where each is a word of its name."""
    worth = [_worth(card, word) for word in words]
    return sum(worth) / (IN_NAME[0] * len(worth)) if worth and all(worth) else 0.0


def _worth(card: Card, word: str) -> int:
    if word in card.name:
        parts = re.split(r"[\W_]+", card.name)
        whole, beginning, anywhere = IN_NAME
        return whole if word in parts else beginning if any(part.startswith(word) for part in parts) else anywhere
    if word in card.owner:
        return IN_OWNER
    return IN_TEXT if word in card.text else IN_GIST if word in card.gist else 0
