"""Mark the tables of a page for small screens. Styles cannot know that a table will not fit, so this module estimates
its least width: a phone shows a table of numbers in a smaller type, and a wider one as a card for each row.
"""

import re
from collections.abc import Sequence
from html import escape, unescape
from typing import Final

TABLE: Final = re.compile(r"<table>\n<thead>.*?</table>", re.DOTALL)
ROW: Final = re.compile(r"<tr>.*?</tr>", re.DOTALL)
CELL: Final = re.compile(r"<(?P<tag>t[hd])(?P<more>[^>]*)>(?P<inner>.*?)</(?P=tag)>", re.DOTALL)
TAG: Final = re.compile(r"<[^>]+>")
DATE: Final = re.compile(r"<td>(\d{4}-\d\d-\d\d)")
WORD_END: Final = re.compile(r"<wbr[^>]*>")
BREAK: Final = re.compile(r"[\s\u200b]+|(?<=-)")
SHORT: Final = 22  # characters of a label and its value, of which a line of a card has two
SENTENCE: Final = 60  # characters of a cell that no column beside three others has room for
LEAST: Final = 6  # characters that a column has in any case, and the first one of two
LEAST_OF_TWO: Final = 15
PHONE: Final = 356  # pixels that a page of 390 has for a table
PLAIN: Final = (7.4, 18)  # pixels of a character, and of what is around a cell
DENSE: Final = (6.3, 12)


def marked(html: str) -> str:
    return TABLE.sub(lambda table: _marked(DATE.sub(r'<td><span class="whole">\1</span>', table[0])), html)


def _marked(table: str) -> str:
    cells = [[cell["inner"] for cell in CELL.finditer(row)] for row in ROW.findall(table)]
    rows, heads = [[_words(cell) for cell in row] for row in cells], [_text(cell) for cell in cells[0]]
    is_wide, is_dense = len(heads) > 3, len(heads) > 4
    has_sentences = is_wide and max(len(cell) for row in rows for cell in row) > SENTENCE
    if not has_sentences and least_width(rows, *(DENSE if is_dense else PLAIN)) <= PHONE:
        return table.replace("<table>", f'<table data-phone="{"dense" if is_dense else "whole"}">', 1)
    if len(heads) <= 2:
        return table  # its words break
    cards = ROW.sub(lambda row: _labelled(row[0], heads), table)
    return cards.replace("<table>", '<table data-phone="cards">', 1)


def least_width(rows: Sequence[Sequence[str]], char: float, around: float) -> float:
    """Return the pixels that a table needs if it breaks wherever a browser may."""
    longest = [
        max(LEAST, *(len(word) for cell in column for word in BREAK.split(cell))) for column in zip(*rows, strict=True)
    ]
    if len(longest) == 2:
        longest[0] = max(LEAST_OF_TWO, longest[0])
    return sum(longest) * char + len(longest) * around


def _words(inner: str) -> str:
    """Return the words of a cell. The frame of code takes the room of a character."""
    return _text(WORD_END.sub("\u200b", inner.replace("<code", "\u00b7<code")))


def _text(inner: str) -> str:
    return unescape(TAG.sub("", inner)).strip()


def _labelled(row: str, heads: Sequence[str]) -> str:
    """Return a row whose cells say the heads of their columns. The first cell is the title of the card."""
    column = iter(heads)

    def cell(found: re.Match[str]) -> str:
        head = next(column)
        if found["tag"] == "th" or head in ("", heads[0]):
            return found[0]
        short = " data-short" if len(head) + len(_text(found["inner"])) <= SHORT else ""
        return f'<td data-label="{escape(head)}"{short}{found["more"]}>{found["inner"]}</td>'

    return CELL.sub(cell, row)
