"""The table of docs/compatibility.md: what clients and model servers could do when a test last tried them.

A test tries one row and compares it with the page, or writes it with `--update-pages`. A row that cannot be tried on a
machine stays as it is, with the date and the release of its last run.
"""

import fcntl
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from director import __version__

PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
YES: Final = "yes"
NONE: Final = "–"  # a test's word for: it has no such function
HAS_NO: Final = "It has no: "


class Table(Struct, frozen=True, kw_only=True):
    """`theirs`: why something does not work for a reason that is not ours, by row and column."""

    name: str
    columns: Mapping[str, str]
    rows: Sequence[str]
    theirs: Mapping[tuple[str, str], str] = {}

    def works(self, row: str, seen: Mapping[str, str]) -> str:
        """Say what works, from what was seen. A fault that is not explained fails here."""
        unexplained = {
            name: found for name, found in seen.items() if found not in (YES, NONE) and (row, name) not in self.theirs
        }
        assert not unexplained, f"{row} cannot: {unexplained}"
        ended = {row_name[1] for row_name in self.theirs if row_name[0] == row and seen[row_name[1]] == YES}
        assert ended == set(), f"{row} can do this by now: remove its reason"
        return self.said(row, {name for name in self.columns if seen.get(name, NONE) == NONE})

    def said(self, row: str, missing: Collection[str]) -> str:
        """Say what works in a row. `missing`: the columns of which it has no such function."""
        faults = [f"{self.columns[name]}: {why}" for (whose, name), why in self.theirs.items() if whose == row]
        nothing = [head for name, head in self.columns.items() if name in missing and (row, name) not in self.theirs]
        works = f"all but {'; '.join(faults)}" if faults else "all"
        return f"{works}. {HAS_NO}{'; '.join(nothing)}" if nothing else works

    def head(self) -> list[str]:
        tried = f"Tried with each: {'; '.join(self.columns.values())}."
        return [tried, "", "|  | works | last run |", "|---|---|---|"]


def shown_rows(table: Table, page: str) -> dict[str, list[str]]:
    """Return the cells of each row of a table as the page has them. The last one is when it ran."""
    found = re.search(rf"<!-- {table.name} -->\n(.*?)<!-- /{table.name} -->", page, re.DOTALL)
    assert found is not None, f"the page has no place for the table {table.name}"
    lines, head = found[1].splitlines(), table.head()
    assert lines[: len(head)] == head, "the head of the table is another"
    parts = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[len(head) :]]
    return {cells[0]: cells[1:] for cells in parts}


def last_run(table: Table, row: str) -> str:
    cells = shown_rows(table, PAGE.read_text()).get(row)
    return cells[-1] if cells else "never"


def compare_or_keep(table: Table, row: str, seen: Mapping[str, str], *, keeps: bool) -> None:
    works = table.works(row, seen)
    if keeps:
        _keep(table, row, works)
    else:
        shown = shown_rows(table, PAGE.read_text()).get(row, [])
        assert shown[:-1] == [works], "the page shows something else: run the command at its head"


def _keep(table: Table, row: str, works: str) -> None:
    with PAGE.open("r+") as page:
        fcntl.flock(page, fcntl.LOCK_EX)  # tests of other rows run beside this one
        text = page.read()
        kept = {**_known(table, text), row: [works, f"{datetime.now(UTC):%Y-%m-%d}, {__version__}"]}
        lines = [f"| {' | '.join([name, *kept[name]])} |" for name in table.rows if name in kept]
        made = "\n".join([*table.head(), *lines])
        marks = rf"(<!-- {table.name} -->\n).*?(<!-- /{table.name} -->)"
        page.seek(0)
        page.write(re.sub(marks, lambda found: f"{found[1]}{made}\n{found[2]}", text, flags=re.DOTALL))
        page.truncate()


def _known(table: Table, text: str) -> dict[str, list[str]]:
    try:
        return shown_rows(table, text)
    except AssertionError:  # its columns changed
        return {}


FEATURES: Final = {
    "run": "run",
    "predictions": "create, wait, get, list",
    "cancel": "cancel",
    "failure": "error of the model",
    "stream": "stream",
    "files": "files in and out",
    "trainings": "trainings",
    "models_and_versions": "models, versions",
    "deployments": "deployments",
}
CLIENTS: Final = Table(
    name="clients",
    columns=FEATURES,
    rows=(
        *(f"PyPI replicate {version}" for version in ("0.8.4", "0.15.7", "0.20.0", "0.25.2", "0.34.2", "1.0.7")),
        "PyPI replicate 2.0.0b4",
        *(f"npm replicate {version}" for version in ("0.20.1", "0.30.2", "1.0.1", "1.4.0")),
    ),
    theirs={
        ("npm replicate 0.20.1", "files"): "it sends a Buffer as an object; a data URI works",
    },
)
COGS: Final = Table(
    name="cogs",
    columns={
        "predict": "predict",
        "failure": "error of the model",
        "refusal": "422",
        "stream": "stream, partial output",
        "cancel": "cancel",
        "deadline": "Cancel-After",
        "webhooks": "webhooks",
        "files": "files",
        "training": "training",
        "training_cancel": "cancel of a training",
    },
    rows=tuple(f"Cog {version}" for version in ("0.9.26", "0.10.0a27", "0.14.12", "0.16.12", "0.23.1")),
    theirs={
        (
            "Cog 0.9.26",
            "training_cancel",
        ): "it hears nothing during a run that may make files. The training is `canceled` "
        "after 30 s, when its server is given up",
    },
)
LIBRARIES: Final = Table(
    name="libraries",
    columns={
        "complete": "complete",
        "stream": "stream",
        "asynchronous": "async",
        "many": "batch",
        "chat": "chat",
        "stop": "stop words",
        "failure": "error of the model",
    },
    rows=("PyPI langchain-community 0.4.2", "PyPI llama-index-llms-replicate 0.7.0"),
)
OPENAI: Final = Table(
    name="openai",
    columns={
        "chat": "chat",
        "streamed": "stream",
        "tools": "tools",
        "schema": "`response_format`",
        "logprobs": "`logprobs`",
        "choices": "`n` = 2",
        "images": "images",
        "parts": "reasoning, refusal, cached tokens",
        "embeddings": "embeddings",
        "models": "models",
        "errors": "errors",
        "failed": "failed run",
        "broken": "error within a stream",
        "waiting": "comments while it waits",
        "timeouts": "time-out",
        "repeats": "repeats",
        "cancel": "loop left",
        "asynchronous": "async call canceled",
    },
    rows=(
        "PyPI openai 2.54.0",
        "npm openai 6.49.0",
        "PyPI langchain-openai 1.7.4",
        "PyPI llama-index-llms-openai-like 0.8.1",
        "npm ai 6.0.326",
        "PyPI litellm 1.110.2",
    ),
    theirs={
        ("PyPI litellm 1.110.2", "models"): "it asks for `/v1/models` of the host, whatever the path of the base is",
        **dict.fromkeys(
            [("PyPI llama-index-llms-openai-like 0.8.1", "failed"), ("npm ai 6.0.326", "failed")],
            "it repeats the call, whatever `x-should-retry` says",
        ),
    },
)
OPENAI_ALSO: Final[Mapping[str, Sequence[str]]] = {
    "llama-index-llms-openai-like": ("llama-index-embeddings-openai-like==0.4.0",),
    "ai": ("@ai-sdk/openai-compatible@2.0.92", "zod@4"),
}
"""What a row of OPENAI needs besides its package."""
TABLES: Final = (CLIENTS, LIBRARIES, COGS, OPENAI)
