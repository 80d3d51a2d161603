"""Test the former release and this one in one service, under load and faults, through an update and back.

Times and shares of time are not judged, since machines are noisy. Everything else is.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from director.chaos.checker import Breach, Report, text
from director.chaos.journal import Fault, read
from director.chaos.plan import REPLACE
from director.chaos.run import chaos
from director.chaos.scene import REDIS_CLIENTS, Options, Rollout
from tests.support.release import OURS, Release, imported_from

pytestmark = pytest.mark.chaos

SECONDS: Final = 20.0


@pytest.mark.parametrize(("is_rollback", "seed"), [(False, 1), (True, 2)], ids=["upgrade", "rollback"])
def test_rolling_update_between_releases_keeps_every_promise(
    former: Release, tmp_path: Path, is_rollback: bool, seed: int
) -> None:
    before, after = (OURS, former.folder) if is_rollback else (former.folder, OURS)
    assert [imported_from(folder) for folder in (before, after)] == [{before}, {after}], "each is what it is taken for"
    options = Options(
        seed=seed,
        seconds=SECONDS,
        lease_s=3,
        home=tmp_path / "run",
        calibration_s=2,
        rollout=Rollout(before=before, after=after),
        is_kept=True,
    )
    report = chaos(options, print)
    print(f"{former.version} and this one, {'back' if is_rollback else 'forth'}\n{text(report)}")
    assert list(_broken(report)) == []
    assert _replaced(tmp_path / "run", by=after) == set(REDIS_CLIENTS)
    assert sum(count for kind, count in report.faults.items() if kind.startswith(("kill", "crash"))) >= 2
    assert report.acked == report.terminal > 50
    assert report.resumed, "readers came back through it"
    assert list(_complaints(tmp_path / "run" / "logs")) == []


def _broken(report: Report) -> Iterator[tuple[str, Breach]]:
    for invariant, found in report.breaches.items():
        for breach in found:
            if invariant != "I12" and "of the model servers' time" not in breach.what:
                yield invariant, breach


def _replaced(home: Path, *, by: Path) -> set[str]:
    """Return the processes whose successor was ready."""
    lines = [line for line in read(home / "journals" / "nemesis.jsonl") if isinstance(line, Fault)]
    return {line.target for line in lines if (line.kind, line.phase, line.detail) == (REPLACE, "end", str(by))}


def _complaints(logs: Path) -> Iterator[str]:
    """Return the errors and tracebacks of all product processes that no fault of the run explains."""
    for name in REDIS_CLIENTS:
        for line in (logs / f"{name}.log").read_text().splitlines():
            try:
                entry = msgspec.json.decode(line, type=dict[str, object])
            # the last line of a process that died by itself, or the half line of a killed one
            except msgspec.DecodeError:
                if not line.startswith("{"):
                    yield f"{name}: {line}"
                continue
            if entry["level"] in ("error", "critical") or "exception" in entry:
                yield f"{name}: {line}"
