import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A docstring or comment says what does what. These beginnings leave the subject out.
HEADLESS = re.compile(r"(What|That of|That which|One that|One who|Those|Of|How it|It|Who|Whoever)\b")
MAY_BE_HEADLESS = re.compile(rf'(?:#|""")\s*{HEADLESS.pattern}')
GIVEN_UP = re.compile(
    r"\b(?:[Ww]hoever|[Ss]omebody|[Nn]obody|[Ll]ately|[Aa]new|[Hh]eed(?:s|ed)?)\b"
    r"|\b(?:[Ll]et(?:s|ting)? go of|(?:is|are) none)\b"
)
OURS = (
    *("api/*.py", "director/*.py", "tests/*.py", "lua/*.lua", "*.md", "*.toml", "Makefile"),
    *("api/dashboard/static/*.js", "api/dashboard/static/views/*.js", "k8s/*.yaml"),
)
# Places that may use them: this list, the table of words, and texts that are not ours to choose
ALLOWED = {
    "docs/glossary.md": "the column of given-up words",
    "CHANGELOG.md": "what older releases said",
    "tests/unit/test_words.py": "the rules themselves",
}


def files(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    found = listed.stdout.split() or [
        str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.rglob(pattern) if ".venv" not in path.parts
    ]
    return [name for name in found if name not in ALLOWED and (ROOT / name).is_file()]


def texts_of(source: str) -> Iterator[str]:
    if not MAY_BE_HEADLESS.search(source):  # parsing all files takes 7 s
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    before = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            is_block = not token.line[: token.start[1]].strip()
            if not (is_block and before == token.start[0] - 1):
                yield token.string.lstrip("# ")
            before = token.start[0] if is_block else -1


def test_docstrings_and_comments_begin_with_a_subject_or_a_verb() -> None:
    headless = [
        f"{name}: {text.splitlines()[0]}"
        for name in files("api/*.py", "director/*.py", "tests/*.py")
        for text in texts_of((ROOT / name).read_text(encoding="utf-8"))
        if HEADLESS.match(text)
    ]
    assert headless == []


def test_given_up_words_stay_out() -> None:
    found = [
        f"{name}:{number}: {match[0]}"
        for name in files(*OURS)
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), start=1)
        if (match := GIVEN_UP.search(line.replace("_", " ")))
    ]
    assert found == []


OF_A_HOME = re.compile(r"(?<![\w.])/(?:root|home/\w+)/")


def test_no_file_has_a_path_of_a_home() -> None:
    named = files(*OURS, "*.json", "*.jsonl")
    assert [name for name in named if OF_A_HOME.search((ROOT / name).read_text(encoding="utf-8"))] == []


# Sentences of a page of the site, without code, tables, headings and what a program wrote between two marks
MOST_WORDS = 16
MOST_WORDS_OF_INTERNALS = 18
BLOCKS = re.compile(r"(?s:^```.*?^```|^<!-- ([^\n]+) -->$.*?^<!-- /\1 -->$)|^ {4}.*$|^[|#<].*$", re.MULTILINE)
BULLET = re.compile(r"^ *(?:[-*]|\d+\.) +", re.MULTILINE)
LINKED = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# not within `a.b` or 0.6
ENDING = re.compile(r"[.!?](?=\**\s+[A-Z`*\[\"(]|\**\s*$)")


def sentences(page: str) -> list[str]:
    text = BULLET.sub("\n\n", LINKED.sub(r"\1", BLOCKS.sub("\n", page)))
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    found = [sentence.strip() for paragraph in paragraphs for sentence in ENDING.split(paragraph)]
    return [sentence for sentence in found if sentence]


def test_sentences_end_where_a_reader_sees_an_end() -> None:
    page = "# Head\n\nOne `a.b` costs 0.6 KB. Two:\n- three\n- [four](x.md) five\n\n| six |\n\n    seven\n"
    assert sentences(page) == ["One `a.b` costs 0.6 KB", "Two:", "three", "four five"]


@pytest.mark.parametrize("name", files("docs/*.md", "README.md"))
def test_sentences_of_a_page_are_short(name: str) -> None:
    lengths = [len(sentence.split()) for sentence in sentences((ROOT / name).read_text(encoding="utf-8"))]
    most = MOST_WORDS_OF_INTERNALS if "/internals/" in name else MOST_WORDS
    assert not lengths or sum(lengths) / len(lengths) <= most
