"""Keep what the trials found as JSON, and show it as the table of docs/reference/internals/measurements.md."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tests.bench.deaths.faults import SHOWN, planned
from tests.bench.deaths.judge import Spread, Verdict
from tests.bench.deaths.sides import SLOTS
from tests.bench.deaths.trial import RATE, RUN_S, Trial
from tests.bench.results import MOST_BUSY, Load, Machine

KEPT: Final = Path(__file__).parents[1] / "deaths.json"


class Tried(Struct, frozen=True, kw_only=True):
    name: str
    versions: str
    settings: str
    pages: tuple[str, ...]
    verdict: Verdict


class Report(Struct, frozen=True, kw_only=True):
    trial: Trial
    at: str
    commit: str
    machine: Machine
    load: tuple[Load, Load]
    sides: list[Tried] = []
    left_out: dict[str, str] = {}


def read_report(path: Path = KEPT) -> Report | None:
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else None


def deaths_table(report: Report | None) -> str:
    if report is None:
        return "**Not measured yet:** no trial was kept. Its command is `make deaths`."
    trial, machine, sides = report.trial, report.machine, report.sides
    rows = [(what, *(shown(tried.verdict, trial) for tried in sides)) for what, shown in ROWS.items()]
    table = [("", *(tried.name for tried in sides)), ["---"] * (len(sides) + 1), *rows]
    faults = Counter(fault.kind for fault in planned(trial.seed, trial.kinds))
    facts = [report.at[:10], f"commit {report.commit}", f"{machine.cores} × {machine.cpu}", machine.redis]
    return "\n".join(
        [
            f'    make deaths ARGS="--seed {trial.seed}"',
            "",
            f"{trial.jobs} jobs of {RUN_S:g} s, {RATE:g} a second, on two workers of {SLOTS} slots."
            f" A trial ends {trial.limit_s:g} s after its first job, or when all are answered and all faults are over.",
            "",
            *(f"| {' | '.join(row)} |" for row in table),
            "",
            "Faults, the same at the same times under each:",
            "",
            *(f"- {count} × {SHOWN[kind].format(freeze_s=trial.freeze_s)}" for kind, count in faults.items()),
            *(f"- **not all of these under {tried.name}**" for tried in sides if tried.verdict.faults != faults),
            "",
            "Versions and settings:",
            "",
            *(f"- {tried.name} ({tried.versions}): {tried.settings}.{_pages(tried)}" for tried in sides),
            "",
            f"{', '.join(facts)}, python {machine.python}, durability always on all sides,"
            f" load {report.load[0]} before, {report.load[1]} after.{_doubt(report)}"
            + "".join(f" Left out: {name} ({why})." for name, why in report.left_out.items()),
        ]
    )


def _doubt(report: Report) -> str:
    is_doubtful = max(load.busy for load in report.load) > MOST_BUSY
    return " **The machine was busy with something else.**" if is_doubtful else ""


def _pages(tried: Tried) -> str:
    links = ", ".join(f"[{number}]({page})" for number, page in enumerate(tried.pages, start=1))
    return f" Its documents: {links}." if links else ""


def _times(spread: Spread | None) -> str:
    return f"{spread.p50:.1f} / {spread.p99:.1f} / {spread.longest:.1f} s" if spread else "–"


def _rest(verdict: Verdict, trial: Trial) -> str:
    return f"not within {trial.limit_s:g} s" if verdict.rest_s is None else f"{verdict.rest_s:.1f} s"


ROWS: Final[dict[str, Callable[[Verdict, Trial], str]]] = {
    "jobs accepted": lambda verdict, _: f"{verdict.accepted}",
    "refused, and the caller was told": lambda verdict, _: f"{verdict.refused}",
    "**lost: no answer at the end, and the queue does not have it**": lambda verdict, _: f"{verdict.lost}",
    "late: no answer at the end, and the queue still has it": lambda verdict, _: f"{verdict.late}",
    "answered with a failure": lambda verdict, _: f"{verdict.told_failed}",
    "**an answer replaced by another one**": lambda verdict, _: f"{verdict.changed}",
    "answered without a run that ended": lambda verdict, _: f"{verdict.unfounded}",
    "begun twice or more": lambda verdict, _: f"{verdict.begun_twice}",
    "run to an end twice or more": lambda verdict, _: f"{verdict.ended_twice}",
    "runs cut off": lambda verdict, _: f"{verdict.cut_off}",
    "of these, not begun again": lambda verdict, _: f"{verdict.not_begun_again}",
    "cut off until begun again, p50 / p99 / longest": lambda verdict, _: _times(verdict.begun_again_s),
    "accepted until answered, p50 / p99 / longest": lambda verdict, _: _times(verdict.answered_s),
    "last job accepted until all are answered": _rest,
}
