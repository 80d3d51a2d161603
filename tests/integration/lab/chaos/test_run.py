"""Run the whole service under a seeded nemesis, also through an update from the former release and back."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from director.core.states import TERMINAL
from director.lab.chaos import scene
from director.lab.chaos.checker import Breach, Report, text
from director.lab.chaos.journal import Fault, Final, Healed, read
from director.lab.chaos.plan import CLUSTER, FAILOVERS, KEEPERS, MOVE_SLOT, REPLACE, SENTINEL, SINGLE, ServerKind
from director.lab.chaos.run import chaos
from director.lab.chaos.scene import REDIS_CLIENTS, Options, Rollout
from director.local.home import Home
from director.local.launcher.processes import UpError, is_alive
from tests.support.eventually import wait_until
from tests.support.release import OURS, Release, imported_from

BEYOND_THE_LOAD_S = 330  # to start, to calibrate, to come to rest, to judge


def breaches(folder: Path, *, seed: int, seconds: int, lease: int, kind: ServerKind = SINGLE) -> dict[str, Any]:
    """Run `director chaos` in its own process. Return the broken promises by invariant, except those about time."""
    report = folder / "report.json"
    options = ["--kind", kind, "--seed", str(seed), "--seconds", str(seconds), "--lease", str(lease)]
    ended = subprocess.run(
        [sys.executable, "-m", "director", "chaos", *options, "--json", str(report), "--home", str(folder / "home")],
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


@pytest.mark.chaos
def test_every_promise_holds_while_parts_die_freeze_and_fill(tmp_path: Path) -> None:
    assert breaches(tmp_path, seed=1, seconds=15, lease=3) == {}


@pytest.mark.chaos
def test_every_promise_holds_for_a_minute_with_the_default_lease(tmp_path: Path) -> None:
    assert breaches(tmp_path, seed=2, seconds=60, lease=15) == {}


@pytest.mark.heavy
def test_every_promise_holds_for_another_minute(tmp_path: Path) -> None:
    assert breaches(tmp_path, seed=3, seconds=60, lease=15) == {}


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "own"), [(SENTINEL, FAILOVERS), (CLUSTER, [MOVE_SLOT])])
def test_every_promise_holds_for_a_minute_on_several_servers(
    tmp_path: Path, kind: ServerKind, own: Sequence[str]
) -> None:
    assert breaches(tmp_path, seed=1, seconds=60, lease=15, kind=kind) == {}
    judged = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)
    assert set(own) & judged.faults.keys()
    assert (judged.failovers > 0) is (kind == SENTINEL)


LONGEST_S = 60.0
# server, sink, directors with their model servers, keepers, API
PROCESSES = 2 + 2 * len(scene.SERVED) + len(KEEPERS) + 1


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    yield Home(tmp_path / "run")
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


@pytest.mark.chaos
def test_a_run_without_faults_ends_everything_it_accepted_and_leaves_no_process(home: Home):
    said: list[str] = []
    options = scene.Options(seed=5, seconds=3, lease_s=3, home=home.path, calibration_s=1, has_faults=False)
    report = chaos(options, said.append)
    assert report.ok, text(report)
    assert report.acked == report.terminal > 20
    assert report.resumed > 0, "a reader of the ordinary load comes back at least once"
    assert set(report.bystander) == {"creates", "streams", "webhooks"}
    finals = [line for line in read(home.path / "journals" / "queue.jsonl") if isinstance(line, Final)]
    assert {final.record["status"] for final in finals} <= set(TERMINAL)
    assert any(isinstance(line, Healed) for line in read(home.path / "journals" / "nemesis.jsonl"))
    assert any("sustained" in line and "the load is 40%" in line for line in said)
    processes = home.read().processes
    assert len(processes) == PROCESSES
    assert not [name for name, one in processes.items() if is_alive(one)]


@pytest.mark.chaos
@pytest.mark.parametrize(("sent", "code", "within_s"), [(signal.SIGINT, 130, 0), (signal.SIGKILL, -9, LONGEST_S)])
def test_a_run_that_is_ended_early_leaves_no_process(home: Home, sent: signal.Signals, code: int, within_s: float):
    command = [sys.executable, "-m", "director", "chaos", "--seconds", "60", "--home", str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as running:
        assert any("processes are ready" in line for line in running.stdout)
        processes = home.read().processes
        running.send_signal(sent)
        assert running.wait(LONGEST_S) == code
    assert len(processes) == PROCESSES
    wait_until(lambda: not any(map(is_alive, processes.values())), "none is alive", limit_s=within_s)


@pytest.mark.chaos
def test_a_used_home_is_refused(home: Home):
    home.make()
    home.write(home.read())
    with pytest.raises(UpError, match="has been used"):
        chaos(scene.Options(seed=1, seconds=1, home=home.path), print)


SECONDS = 20.0


@pytest.mark.chaos
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
