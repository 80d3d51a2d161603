"""Try each side in turn and report what the journals say."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import msgspec

from tests.bench.deaths.judge import judged, read, write
from tests.bench.deaths.page import Report, Tried, deaths_table
from tests.bench.deaths.sides import SIDES, Side
from tests.bench.deaths.trial import Trial, tried
from tests.bench.machine import commit, load, machine, now
from tests.bench.sides.peers import NotInstalled


def try_all(sides: Sequence[Side], trial: Trial, folder: Path, say: Callable[[str], None]) -> Report:
    """Write journals and the report into the folder. A side that breaks off is left out, with its reason."""
    report = Report(trial=trial, at=now(), commit=commit(), machine=machine(""), load=(load(), load()))
    for side in sides:
        say(f"  {side.name}")
        logs = _logs(folder, side.name)
        shutil.rmtree(logs, ignore_errors=True)  # logs of a former run would be taken for those of this one
        logs.mkdir(parents=True)
        try:
            events, release = anyio.run(tried, side, trial, logs, say)
        except (OSError, TimeoutError, NotInstalled, subprocess.SubprocessError) as exc:
            report.left_out[side.name] = f"{exc!r}"
            say(f"    BROKE OFF: {exc!r}")
            continue
        write(logs / "journal.jsonl", events)
        report = msgspec.structs.replace(report, machine=machine(release), load=(report.load[0], load()))
        report.sides.append(_tried(side, logs))
        (folder / "report.json").write_bytes(msgspec.json.encode(report))
    say(deaths_table(report))
    return report


def judge_again(folder: Path) -> Report:
    """Judge the journals of the folder, and write its report again."""
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)
    sides = [
        msgspec.structs.replace(each, verdict=judged(read(_logs(folder, each.name) / "journal.jsonl")))
        for each in report.sides
    ]
    report = msgspec.structs.replace(report, sides=sides)
    (folder / "report.json").write_bytes(msgspec.json.encode(report))
    return report


def _logs(folder: Path, name: str) -> Path:
    return folder / name.replace(", ", "-").replace(" ", "")


def _tried(side: Side, logs: Path) -> Tried:
    return Tried(
        name=side.name,
        versions=side.versions(),
        settings=side.settings,
        pages=side.pages,
        verdict=judged(read(logs / "journal.jsonl")),
    )


def named(names: str) -> list[Side]:
    return [side for side in SIDES if not names or side.queue in names.split(",")]
