"""Test how tables of the site are marked for small screens."""

import re

from tests.site.tables import marked


def table(*rows: list[str]) -> str:
    head, *body = ["".join(f"<{tag}>{cell}</{tag}>\n" for cell in row) for tag, row in zip("hdd", rows, strict=False)]
    lines = [f"<tr>\n{row}</tr>\n" for row in body]
    made = f"<table>\n<thead>\n<tr>\n{head}</tr>\n</thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table>"
    return re.sub(r"<(/?)([hd])>", r"<\1t\2>", made)


def test_words_of_a_narrow_table_stay_whole() -> None:
    page = table(["name", "type", "meaning"], ["a", "text " * 20, "words " * 40])
    assert marked(page) == page.replace("<table>", '<table data-phone="whole">')


def test_words_of_two_columns_that_do_not_fit_may_break() -> None:
    page = table(["name", "meaning"], ["a_long_name_of_a_setting", "another_long_name_of_a_type"])
    assert marked(page) == page


def test_numbers_that_fit_take_a_smaller_type() -> None:
    page = table(["streams", "API", "director", "Redis", "all", "before"], ["16", "56", "144", "52", "252", "252"])
    assert marked(page) == page.replace("<table>", '<table data-phone="dense">')


def test_row_of_a_wide_table_becomes_a_card_with_the_heads() -> None:
    page = table(
        ["setting", "type", "<code>de_<wbr>fault</code>", "is &lt; 9"],
        ["<code>DIRECTOR_REDIS_URL</code>", "text", "redis://" * 5, ""],
    )
    found = marked(page)
    assert '<table data-phone="cards">' in found
    assert "<td><code>DIRECTOR_REDIS_URL</code></td>" in found
    assert '<td data-label="type" data-short>text</td>' in found
    assert '<td data-label="de_fault">redis' in found
    assert '<td data-label="is &lt; 9" data-short></td>' in found


def test_words_break_after_a_hyphen_a_blank_and_where_the_site_says() -> None:
    heads = ["a", "b", "c", "d", "e"]
    assert "dense" in marked(table(heads, ["well-kept-and-long-name with-more and-more", *"1234"]))
    assert "dense" in marked(table(heads, ["well_kept_and_<wbr>long_name_<wbr>with_more", *"1234"]))
    assert "cards" in marked(table(heads, ["well_kept_and_long_name_with_more_and_more", *"1234"]))


def test_sentences_beside_three_columns_become_cards() -> None:
    said = "It has an error and, if the service decided it, a code that a program may read."
    page = table(["status", "meaning", "last", "next"], ["failed", said, "yes", ""])
    found = marked(page)
    assert f'<td data-label="meaning">{said}</td>' in found
    assert '<td data-label="last" data-short>yes</td>' in found
