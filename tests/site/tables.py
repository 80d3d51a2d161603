"""Mark the tables of a page for small screens. Styles cannot know that a table will not fit, so this module estimates
its least width: a phone shows a table of numbers in a smaller type, and a wider one as a card for each row.
"""

import re
from html import escape, unescape
from typing import Final

TABLE: Final = re.compile(r"<table>\n<thead>\n.*?</table>", re.DOTALL)  # as Markdown makes them
ROW: Final = re.compile(r"<tr>.*?</tr>", re.DOTALL)
CELL: Final = re.compile(r"<(?P<tag>t[hd])(?P<more>[^>]*)>(?P<inner>.*?)</(?P=tag)>", re.DOTALL)
TAG: Final = re.compile(r"<[^>]+>")
DATE: Final = re.compile(r"<td>(\d{4}-\d\d-\d\d)")
BREAK: Final = re.compile(r"\s+|(?<=-)")
FEW: Final = 3  # columns that always fit, because their words break
PHONE: Final = 356  # pixels that a page of 390 has for a table
PLAIN: Final = (7.1, 18)  # pixels of a character, and of what is around a cell
DENSE: Final = (6.3, 12)


def marked(html: str) -> str:
    return TABLE.sub(lambda table: _marked(DATE.sub(r'<td><span class="whole">\1</span>', table[0])), html)


def _marked(table: str) -> str:
    rows = [[_words(cell["inner"]) for cell in CELL.finditer(row)] for row in ROW.findall(table)]
    heads = rows[0]
    if len(heads) <= FEW:
        return table
    is_dense = len(heads) > FEW + 1
    if least_width(rows, *(DENSE if is_dense else PLAIN)) <= PHONE:
        return table.replace("<table>", '<table data-phone="dense">', 1) if is_dense else table
    cards = ROW.sub(lambda row: _labelled(row[0], heads), table)
    return cards.replace("<table>", '<table data-phone="cards">', 1)


def least_width(rows: list[list[str]], char: float, around: float) -> float:
    """Return the pixels that a table needs if it breaks wherever a browser may."""
    longest = [max(len(word) for cell in column for word in BREAK.split(cell)) for column in zip(*rows, strict=True)]
    return sum(longest) * char + len(longest) * around


def _words(inner: str) -> str:
    return unescape(TAG.sub("", inner)).strip()


def _labelled(row: str, heads: list[str]) -> str:
    """Return a row whose cells say the heads of their columns. The first cell is the title of the card."""
    column = iter(heads)

    def cell(found: re.Match[str]) -> str:
        head = next(column)
        if found["tag"] == "th" or head in ("", heads[0]):
            return found[0]
        return f'<td data-label="{escape(head)}"{found["more"]}>{found["inner"]}</td>'

    return CELL.sub(cell, row)
