"""Show what accounts used: `director usage`, as a table, as JSON or as a CSV for a spreadsheet."""

import argparse
import csv
import io
import re
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any, Final

from director.cli.arguments import arg, flag
from director.cli.operators import Backend, operator
from director.cli.output import as_cell
from director.cli.tables import Answer, tabulate
from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.usage import KEYS, Key, Sum, day_of, last_of_month

FIGURES: Final = ("runs", "seconds", "input_tokens", "cached_tokens", "output_tokens", "file_bytes", "cost")


@operator(
    "usage",
    arg("--by KEYS", f"what to group by, of {', '.join(KEYS)} (%(default)s)", default="account,model"),
    arg("--month MONTH", "a month in UTC, as 2026-11; without it this one, so far"),
    arg("--account NAME", "only this account"),
    flag("--csv", "print a CSV, for a spreadsheet"),
    needs="view",
    examples=("", "--by account,model --month 2026-11 --csv > usage.csv", "--by day,token --account team-a"),
)
async def _show(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show what accounts used in a month: runs, seconds, tokens, bytes of files, and the cost by the models' prices."""
    keys = _keys(given.by)
    first, last = _days(given.month)
    if given.account:
        await backend.accounts.refuse_unknown(given.account)
    found = await backend.ledger.sums(keys, first, last, account=given.account)
    sums = found.result(await backend.ledger.prices(found.models))
    names = (*keys, *FIGURES)
    facts = [dict(zip(names, _cells(each), strict=True)) for each in sums]
    if given.csv:
        return Answer(facts, as_csv(names, [_cells(each) for each in sums]).removesuffix("\n"))
    shown = [list(map(_text, _cells(each))) for each in sums]
    empty = f"nothing ran from {first} to {last}"
    return Answer(facts, lambda: tabulate(names, shown, words=keys, empty=empty))


def _keys(text: str) -> list[Key]:
    asked = [word.strip() for word in text.split(",") if word.strip()]
    if not asked or not set(asked) <= set(KEYS):
        raise SettingsError(f"--by takes {', '.join(KEYS)}, separated by commas.")
    return [key for key in KEYS if key in asked]


def _days(month: str | None) -> tuple[date, date]:
    today = day_of(SystemClock().now_ms())
    if month is None:
        return today.replace(day=1), today
    if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", month) or month < "1970-01":
        raise SettingsError(f"{month!r} is no month: give one such as {today - timedelta(days=30):%Y-%m}.")
    return date.fromisoformat(f"{month}-01"), last_of_month(month.replace("-", ""))


def _cells(found: Sum) -> list[Any]:
    used = found.used
    tokens = (used.input_tokens, used.cached_tokens, used.output_tokens)
    return [*found.by, used.runs, round(used.ms / 1000, 3), *tokens, used.file_bytes, found.cost]


def _text(cell: Any) -> str:
    return f"{cell:,}" if isinstance(cell, int | float) else cell or ""


def as_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a CSV as RFC 4180 has it: a header, lines that end with CR LF. No cell is a formula."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(names)
    writer.writerows([[as_cell(cell) for cell in row] for row in rows])
    return out.getvalue()
