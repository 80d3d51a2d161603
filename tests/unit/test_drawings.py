import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench import picture
from tests.site.draw import COLOURS, PICTURES, SOURCES, DrawingError, draw, inline
from tests.site.record import FILM, KILLS, RECORDING, REST_S, Print, lines_of, read
from tests.site.record import draw as film

ROOT = Path(__file__).parents[2]
DRAWN = sorted(SOURCES.glob("*.toml"))
TALLEST = 560  # a telephone shows it whole
LEAST_CONTRAST = 4.5  # WCAG AA
LEAST_CONTRAST_OF_LINES = 3.0  # WCAG AA for graphics
LEAST_PAGES = 20


def brightness(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted([brightness(one), brightness(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("source", DRAWN, ids=lambda path: path.stem)
def test_picture_is_what_its_source_says(source: Path) -> None:
    """Repair it with `python -m tests.site.draw`."""
    picture = PICTURES / f"{source.stem}.svg"
    assert picture.read_text(encoding="utf-8") == draw(source.read_text(encoding="utf-8"))
    width, height = map(int, ElementTree.parse(picture).getroot().attrib["viewBox"].split()[2:])  # noqa: S314
    assert (width, height) <= (440, TALLEST)


def test_each_picture_has_a_source_and_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = set(
        re.findall(r"assets/drawings/([\w-]+)\.svg", "".join(page.read_text(encoding="utf-8") for page in pages))
    )
    assert {path.stem for path in PICTURES.glob("*.svg")} == {path.stem for path in DRAWN} == shown


def test_at_least_twenty_pages_to_read_have_a_picture() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "reference" not in page.parts]
    shown = [page for page in pages if re.search(r"^!\[", page.read_text(encoding="utf-8"), re.MULTILINE)]
    assert len(shown) >= LEAST_PAGES


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("words", ["ink", "soft"])
@pytest.mark.parametrize("behind", ["plain", "own", "good", "bad", "warm"])
def test_words_of_a_picture_can_be_read_in_both_themes(words: str, behind: str, theme: int) -> None:
    assert contrast(COLOURS[words][theme], COLOURS[behind][theme]) >= LEAST_CONTRAST


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", *picture.LINES])
def test_words_and_lines_of_a_chart_can_be_seen_in_both_themes(name: str, theme: int) -> None:
    least = LEAST_CONTRAST if name == "ink" else LEAST_CONTRAST_OF_LINES
    assert contrast(picture.COLOURS[name][theme], picture.COLOURS["paper"][theme]) >= least


@pytest.mark.parametrize(
    "fault",
    [
        'text = [{at = [10, 20], text = "words that are longer than the whole picture is wide, and a few more"}]',
        'box = [{at = [10, 20], size = [40, 40], text = "too wide"}]',
        'arrow = [{path = ["nothing.left", [1, 2]]}]',
    ],
)
def test_picture_that_would_be_wrong_is_refused(fault: str) -> None:
    with pytest.raises(DrawingError):
        draw(f'about = "a fault"\nheight = 100\n{fault}')


def test_picture_in_a_page_follows_the_switch_of_the_site() -> None:
    page = inline("one\n\n![two](../assets/drawings/lease.svg)\n")
    assert "<svg" in page
    assert "[data-md-color-scheme=slate]" in page
    assert "prefers-color-scheme" not in page


def test_film_is_what_its_recording_says() -> None:
    """Repair it with `python -m tests.site.record --draw`."""
    prints = read(RECORDING.read_text(encoding="utf-8"))
    assert FILM.read_text(encoding="utf-8") == film(prints)
    assert len([each for each in prints if "kill -9 " in each.text]) == len(KILLS)


def test_first_picture_of_the_film_shows_the_kills_and_the_end() -> None:
    prints = read(RECORDING.read_text(encoding="utf-8"))
    delay = re.search(r"step-end -([\d.]+)s", FILM.read_text(encoding="utf-8"))
    assert delay is not None
    shown = [each for each in lines_of(prints) if each.since <= float(delay[1]) < each.until]
    assert len([each for each in shown if each.text.startswith("$ kill -9 ")]) == len(KILLS)
    assert [each.text for each in shown if "succeeded after" in each.text]


def test_film_shows_each_line_while_it_is_on_the_screen() -> None:
    prints = [
        Print(0.0, 0, "one\r\n"),
        Print(1.0, 0, "wait"),
        Print(2.0, 0, "\r\x1b[2Ktwo\r\n"),
        Print(3.0, 1, "kill\r\n"),
    ]
    assert {(each.text, each.row, each.since, each.until) for each in lines_of(prints)} == {
        ("one", 0, 0.0, 3.0 + REST_S),
        ("wait", 1, 1.0, 2.0),
        ("two", 1, 2.0, 3.0 + REST_S),
        ("kill", 0, 3.0, 3.0 + REST_S),
    }
