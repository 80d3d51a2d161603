"""Ask the search of the built site what readers ask. It needs Node, and what builds the site."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASKED = tomllib.loads((ROOT / "tests/site/search.toml").read_text(encoding="utf-8"))
FIRST = 3


def test_words_and_questions_of_the_search_name_pages() -> None:
    pages = {*ASKED["words"], *(f"{page}.md" for page in ASKED["questions"].values())}
    assert [page for page in sorted(pages) if not (ROOT / "docs" / page).is_file()] == []
    assert len(ASKED["questions"]) >= 60


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="what builds the site is not installed: make docs")
def test_each_question_finds_its_page_among_the_first_three(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    questions = ASKED["questions"]
    ask = ["node", str(ROOT / "tests/site/search.js"), str(tmp_path)]
    found = subprocess.run(ask, input="\n".join(questions), capture_output=True, text=True, check=True).stdout
    answers = dict(zip(questions, map(json.loads, found.splitlines()), strict=True))
    missed = {
        one: answers[one][:FIRST] for one, page in questions.items() if f"{page}.html" not in answers[one][:FIRST]
    }
    assert missed == {}
