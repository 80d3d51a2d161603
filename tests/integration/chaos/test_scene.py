"""Run a short fault-injection run from end to end without faults, and check what Ctrl-C leaves."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from director.chaos import scene
from director.chaos.checker import text
from director.chaos.journal import Final, Healed, read
from director.chaos.run import chaos
from director.core.states import TERMINAL
from director.local.home import Home
from director.local.processes import UpError, is_alive

pytestmark = pytest.mark.chaos

LONGEST_S = 60.0
# server, sink, directors with their model servers, keepers, API
PROCESSES = 2 + 2 * len(scene.SERVED) + scene.KEEPERS + 1


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    yield Home(tmp_path / "run")
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_a_run_without_faults_ends_everything_it_accepted_and_leaves_no_process(home: Home):
    said: list[str] = []
    options = scene.Options(seed=5, seconds=3, lease_s=3, home=home.path, calibration_s=1, has_faults=False)
    report = chaos(options, said.append)
    assert report.ok, text(report)
    assert report.acked == report.terminal > 20
    assert report.resumed >= report.followed > 0, "who follows a prediction comes back at least once"
    finals = [line for line in read(home.path / "journals" / "queue.jsonl") if isinstance(line, Final)]
    assert {final.record["status"] for final in finals} <= set(TERMINAL)
    assert any(isinstance(line, Healed) for line in read(home.path / "journals" / "nemesis.jsonl"))
    assert any("sustained" in line and "the load is 40%" in line for line in said)
    processes = home.read().processes
    assert len(processes) == PROCESSES
    assert not [name for name, one in processes.items() if is_alive(one)]


def test_ctrl_c_ends_every_process(home: Home):
    command = [sys.executable, "-m", "director", "chaos", "--seconds", "60", "--home", str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as running:
        assert running.stdout is not None
        assert any("processes are ready" in line for line in running.stdout)
        processes = home.read().processes
        running.send_signal(signal.SIGINT)
        assert running.wait(LONGEST_S) == 130
    assert len(processes) == PROCESSES
    assert not [name for name, one in processes.items() if is_alive(one)]


def test_a_run_that_is_killed_leaves_no_process_either(home: Home):
    command = [sys.executable, "-m", "director", "chaos", "--seconds", "60", "--home", str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as running:
        assert running.stdout is not None
        assert any("processes are ready" in line for line in running.stdout)
        processes = home.read().processes
        running.kill()
    give_up = time.monotonic() + LONGEST_S
    while [name for name, one in processes.items() if is_alive(one)] and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not [name for name, one in processes.items() if is_alive(one)]


def test_a_used_home_is_refused(home: Home):
    home.make()
    home.write(home.read())
    with pytest.raises(UpError, match="has been used"):
        chaos(scene.Options(seed=1, seconds=1, home=home.path), print)
