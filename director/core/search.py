"""Rank things by how well their texts match the words of a query. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

WORD: Final = re.compile(r"\w+")
MOST_WORDS: Final = 8
MOST_QUERY: Final = 500
# worth of a word in a name: equal to one of its words, the beginning of one, anywhere
IN_NAME: Final = (8, 5, 4)
IN_OWNER: Final = 3
IN_TEXT: Final = 2
IN_GIST: Final = 1


class Card(Struct, frozen=True):
    name: str
    owner: str = ""
    text: str = ""
    gist: str = ""


def words_of(query: str) -> Sequence[str]:
    return list(dict.fromkeys(WORD.findall(query[:MOST_QUERY].lower())))[:MOST_WORDS]


def matched(card: Card, words: Sequence[str]) -> float:
    """Return the match from 0, if some word is missing, to 1, if each is a word of the name."""
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
