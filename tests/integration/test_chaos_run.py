"""The whole service under a seeded nemesis: every promise holds, by the evidence of everybody else."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

BEYOND_THE_LOAD_S = 240  # to start, to calibrate, to come to rest, to judge


def run(folder: Path, *, seed: int, seconds: int, lease: int) -> tuple[int, str, dict[str, object]]:
    """`director chaos` in a process of its own: its exit code, what it printed, and its report."""
    report = folder / "report.json"
    options = ["--seed", str(seed), "--seconds", str(seconds), "--lease", str(lease), "--json", str(report)]
    ended = subprocess.run(
        [sys.executable, "-m", "director", "chaos", *options, "--home", str(folder / "home")],
        capture_output=True,
        text=True,
        timeout=seconds + BEYOND_THE_LOAD_S,
        check=False,
    )
    return (
        ended.returncode,
        ended.stdout + ended.stderr,
        msgspec.json.decode(report.read_bytes(), type=dict[str, object]),
    )


def test_every_promise_holds_while_parts_die_freeze_and_fill(tmp_path: Path) -> None:
    code, printed, report = run(tmp_path, seed=1, seconds=15, lease=3)
    assert code == 0, printed
    assert (report["lost"], report["double"], report["stale"], report["webhooks_missing"]) == (0, 0, 0, 0)
    assert report["faults"], "a run without faults shows nothing"


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [2, 3])
def test_every_promise_holds_for_a_minute_with_the_lease_that_is_shipped(tmp_path: Path, seed: int) -> None:
    code, printed, report = run(tmp_path, seed=seed, seconds=60, lease=15)
    assert code == 0, printed
    assert (report["lost"], report["double"], report["stale"], report["webhooks_missing"]) == (0, 0, 0, 0)
