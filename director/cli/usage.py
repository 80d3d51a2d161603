"""Show what accounts used: `director usage`, as a table, as JSON or as a CSV for a spreadsheet."""

import argparse
import csv
import io
import re
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any, Final

from msgspec import Struct

from director.cli.arguments import arg, flag
from director.cli.client import Client, Forbidden, Service, read
from director.cli.operators import Backend, operator
from director.cli.output import as_cell
from director.cli.tables import Answer, tabulate
from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.usage import KEYS, Key, Sum, day_of, last_of_month

FIGURES: Final = ("runs", "seconds", "input_tokens", "cached_tokens", "output_tokens", "file_bytes", "cost")
NOT_OTHERS: Final = "--account takes a token with the scope view: this one reads its own account."
MOST_SUMS: Final = 20_000  # in one answer, which the API may have to hold


def _ask_api(chosen: Service, given: argparse.Namespace) -> Answer:
    """Show the sums of all sites: of every account, or of the token's own without a scope over all accounts."""
    keys = _keys(given.by)
    first, last = _days(given.month)
    asked = {"from": str(first), "to": str(last)} | ({"account": given.account} if given.account else {})
    with Client(chosen) as client:
        try:
            found = client.usage({**asked, "by": ",".join(keys)}, of_all=True)
        except Forbidden:
            if given.account:
                raise SettingsError(NOT_OTHERS) from None
            keys = [key for key in keys if key != "account"]
            found = client.usage({**asked, "by": ",".join(keys)})
    names = (*keys, *FIGURES)
    cells = [[each.get(name) for name in names] for each in read(found, _Usage).results]
    return _answer(given, names, cells, words=keys, empty=f"nothing ran from {first} to {last}")


class _Usage(Struct, frozen=True):
    results: list[dict[str, Any]]


@operator(
    "usage",
    arg("--by KEYS", f"what to group by, of {', '.join(KEYS)} (%(default)s)", default="account,model"),
    arg("--month MONTH", "a month in UTC, as 2026-11; without it this one, so far"),
    arg("--account NAME", "only this account"),
    flag("--csv", "print a CSV, for a spreadsheet"),
    needs="view",
    ask_api=_ask_api,
    examples=("", "--by account,model --month 2026-11 --csv > usage.csv", "--by day,token --account team-a"),
)
async def _show(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show what accounts used in a month: runs, seconds, tokens, bytes of files, and the cost by the models' prices.
    It adds up all sites, and says which of them did not answer. With --redis it reads one server.
    """
    keys = _keys(given.by)
    first, last = _days(given.month)
    if given.account:
        await backend.accounts.refuse_unknown(given.account)
    found = await backend.ledger.sums(keys, first, last, account=given.account)
    sums = found.result(await backend.ledger.prices(found.models))
    if len(sums) > MOST_SUMS:
        raise SettingsError(f"these are {len(sums):,} sums, and at most {MOST_SUMS:,} are shown: leave a key out.")
    names = (*keys, *FIGURES)
    empty = f"nothing ran from {first} to {last}"
    return _answer(given, names, list(map(_cells, sums)), words=keys, empty=empty)


def _answer(
    given: argparse.Namespace, names: Sequence[str], cells: list[list[Any]], *, words: Sequence[str], empty: str
) -> Answer:
    facts = [dict(zip(names, each, strict=True)) for each in cells]
    if given.csv:
        return Answer(facts, as_csv(names, cells).removesuffix("\n"))
    shown = [list(map(_text, each)) for each in cells]
    return Answer(facts, lambda: tabulate(names, shown, words=words, empty=empty))


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
