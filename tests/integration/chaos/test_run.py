"""Run the whole service under a seeded nemesis: every promise holds, by the journals of the other parties.

Machines are noisy, so the time of recovery (I12) is not judged here. `director chaos` judges it.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

BEYOND_THE_LOAD_S = 240  # to start, to calibrate, to come to rest, to judge


def breaches(folder: Path, *, seed: int, seconds: int, lease: int) -> dict[str, Any]:
    """Run `director chaos` in its own process. Return the broken promises by invariant, except those about time."""
    report = folder / "report.json"
    options = ["--seed", str(seed), "--seconds", str(seconds), "--lease", str(lease), "--json", str(report)]
    ended = subprocess.run(
        [sys.executable, "-m", "director", "chaos", *options, "--home", str(folder / "home")],
        capture_output=True,
        text=True,
        timeout=seconds + BEYOND_THE_LOAD_S,
        check=False,
    )
    print(ended.stdout, ended.stderr)
    judged = msgspec.json.decode(report.read_bytes(), type=dict[str, Any])
    assert judged["faults"], "a run without faults shows nothing"
    assert judged["acked"], "nor does one in which nothing was accepted"
    assert judged["resumed"], "nor does one in which no reader came back"
    return {invariant: found for invariant, found in judged["breaches"].items() if invariant != "I12"}


@pytest.mark.long
def test_every_promise_holds_while_parts_die_freeze_and_fill(tmp_path: Path) -> None:
    assert breaches(tmp_path, seed=1, seconds=15, lease=3) == {}


@pytest.mark.chaos
def test_every_promise_holds_for_a_minute_with_the_default_lease(tmp_path: Path) -> None:
    assert breaches(tmp_path, seed=2, seconds=60, lease=15) == {}


@pytest.mark.heavy
def test_every_promise_holds_for_another_minute(tmp_path: Path) -> None:
    assert breaches(tmp_path, seed=3, seconds=60, lease=15) == {}
