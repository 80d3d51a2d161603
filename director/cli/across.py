"""Commands on predictions of all accounts, through the API with a token that has the scope admin."""

import argparse
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from director.cli.arguments import EXAMPLE_ID, JSON, SERVICE, arg, command, flag, group, model_name, whole
from director.cli.client import Client, name_service, read, service
from director.cli.output import printable
from director.cli.tables import Answer, progress, tabulate
from director.core.errors import SettingsError
from director.core.states import Status
from director.core.words import several

COLUMNS: Final = ("created", "id", "model", "account", "status", "code")
SHOWN: Final = 20
AGE: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
WHY: Final = {
    "unknown": "is unknown, or its record was removed",
    "moved": "is at another site",
    "has_ended": "has ended already",
    "has_not_ended": "has not ended yet",
    "data_removed": "has lost its input: its caller must create it again",
    "data_away": "has data that the file store does not give now",
    "secrets_gone": "had secret inputs, which were removed at its end: its caller must create it again",
    "no_queue": "is of a version that no director serves",
    "account_suspended": "is of a suspended account",
    "compute_exhausted": "is of an account without compute left",
    "data_full": "is of an account without room left",
    "refused": "is of a queue that takes no more now",
}

group("predictions", "list --status failed --newer-than 1h")


def age(text: str) -> str:
    """Return the moment that was this long ago."""
    match = AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: give a number with s, m, h or d, such as 90s or 2h")
    ago = timedelta(**{UNITS[match[2]]: int(match[1])})
    return (datetime.now(UTC) - ago).isoformat(timespec="milliseconds")


FILTERS: Final = (
    arg("--account NAME", "only of this account"),
    arg("--model OWNER/NAME", "only of this model", type=model_name),
    arg("--status", "only with this status", choices=list(Status)),
    arg("--code", "only with this error code"),
    arg("--older-than AGE", "only older ones; AGE is such as 90s, 10m, 2h or 3d", type=age),
    arg("--newer-than AGE", "only newer ones", type=age),
    arg("--kind", "runs of this kind instead of predictions", choices=["prediction", "training", "procedure"]),
)
MANY: Final = (arg("ids ID", "predictions", nargs="*"), *FILTERS, flag("--all", "all predictions"))


class Row(Struct, frozen=True):
    id: str
    account: str
    model: str
    status: str
    created_at: str
    code: str | None = None


class Listed(Struct, frozen=True):
    results: list[Row]
    next: str | None


class LeftAlone(Struct, frozen=True):
    id: str
    why: str


class Retried(Struct, frozen=True):
    id: str
    new_id: str


class Done(Struct, frozen=True):
    done: int
    refused: list[LeftAlone]
    next: str | None
    retried: list[Retried] = []


def _read_filter(given: argparse.Namespace) -> dict[str, str]:
    asked = {name: getattr(given, name) for name in ("account", "model", "status", "code", "kind")}
    asked |= {"created_before": given.older_than, "created_after": given.newer_than}
    return {name: str(value) for name, value in asked.items() if value is not None}


@command(
    "predictions list",
    JSON,
    *SERVICE,
    *FILTERS,
    arg("-n N", "list at most N (%(default)s)", type=whole(10_000), default=SHOWN),
    examples=("--status failed --newer-than 1h", "--account acme --model acme/painter -n 100"),
)
def _list(given: argparse.Namespace) -> int:
    """List predictions of all accounts, newest first. The token needs the scope admin."""
    rows: list[Row] = []
    with Client(service(given)) as client, progress() as show:
        page: Listed | None = None
        while len(rows) < given.n and (page is None or page.next):
            page = read(client.all_predictions(_read_filter(given), after=page.next if page else None), Listed)
            rows += page.results
            show(f"{len(rows)} found")
    rows = rows[: given.n]
    cells = [(one.created_at, one.id, one.model, one.account, one.status, one.code or "") for one in rows]
    body = {"results": msgspec.to_builtins(rows)}
    return Answer(body, lambda: tabulate(COLUMNS, cells, words=COLUMNS, empty="no predictions")).show(
        is_json=given.json
    )


@command("predictions cancel", JSON, *SERVICE, *MANY, examples=(EXAMPLE_ID, "--account acme --status starting"))
def _cancel(given: argparse.Namespace) -> int:
    """Cancel predictions of any account: those named, or all that match. The token needs the scope admin."""
    return _change(given, "cancel", "canceled")


@command("predictions retry", JSON, *SERVICE, *MANY, examples=(EXAMPLE_ID, "--code server_lost --newer-than 1h"))
def _retry(given: argparse.Namespace) -> int:
    """Run predictions of any account again: those named, or all that match. The token needs the scope admin.

    A dead letter returns to its queue. For any other one that has ended a new one with the same input is made.
    Without --status, a filter and --all take those that failed.
    """
    return _change(given, "retry", "retried")


def _change(given: argparse.Namespace, verb: str, word: str) -> int:
    asked = _read_filter(given)
    if sum((bool(given.ids), bool(asked), given.all)) != 1:
        raise SettingsError(f"name some: `director predictions {verb} ID …`, or give a filter, or --all.")
    body: Mapping[str, Any] = {"ids": given.ids} if given.ids else asked or {"all": True}
    done, refused, retried = 0, list[LeftAlone](), list[Retried]()
    chosen = service(given)
    name_service(chosen)
    with Client(chosen) as client, progress() as show:
        cursor: str | None = ""
        while cursor is not None:
            one = read(client.change_predictions(verb, {**body, **({"cursor": cursor} if cursor else {})}), Done)
            done, cursor = done + one.done, one.next
            refused, retried = refused + one.refused, retried + one.retried
            show(f"{done} {word}")
    lines = [f"{several(done, 'prediction')} {word}"]
    lines += [f"{one.id} is now {one.new_id}" for one in retried if one.id != one.new_id]
    lines += [f"{one.id} {WHY.get(one.why, one.why)}" for one in refused]
    answer = {"done": done, "refused": refused, **({"retried": retried} if verb == "retry" else {})}
    code = 1 if refused and given.ids else 0
    return Answer(answer, "\n".join(map(printable, lines)), code=code).show(is_json=given.json)
