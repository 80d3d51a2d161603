"""Tell the processes that a dead one started from those of others."""

import subprocess
import sys
from pathlib import Path

import pytest

from director.local.launcher import processes
from director.local.launcher.processes import Mark, end_family, family, mark

WORD = "MODEL_SERVER_ID=none-has-this"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tell")


def test_session_of_a_dead_leader_is_its_family_until_the_next_boot() -> None:
    shell = ["/bin/sh", "-c", "read line; sleep 60 & true"]
    leader = subprocess.Popen(shell, stdin=subprocess.PIPE, start_new_session=True)
    known = mark(leader.pid)
    assert known is not None
    leader.communicate(b"\n")
    [left] = family(known, WORD)
    started, _, _ = known.started.partition("@")
    assert family(Mark(known.pid, f"{started}@another-boot"), WORD) == []
    end_family(known, WORD)
    assert mark(left.pid) is None


def test_name_that_the_kernel_cut_within_a_character_ends_no_look(tmp_path: Path) -> None:
    script = tmp_path / ("é" * 8)  # 16 bytes, of which the kernel keeps 15
    script.write_text("#!/bin/sh\nread line\n")
    script.chmod(0o755)
    with subprocess.Popen([str(script)], stdin=subprocess.PIPE) as other:
        with pytest.raises(UnicodeDecodeError):
            Path(f"/proc/{other.pid}/stat").read_bytes().decode()
        known = mark(other.pid)
        assert known is not None
        assert family(Mark(1 << 30, known.started), WORD) == []


def test_process_that_began_during_a_look_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    word = f"{WORD}-but-one"
    name, _, value = word.partition("=")
    began = subprocess.Popen(["sleep", "60"], env={name: value}, start_new_session=True)
    known = mark(began.pid)
    assert known is not None
    listed = processes._pids
    before = [pid for pid in listed() if pid != began.pid]
    looks = iter([before])
    monkeypatch.setattr(processes, "_pids", lambda: next(looks, None) or listed())
    assert family(Mark(1 << 30, known.started), word) == [known]
    end_family(Mark(1 << 30, known.started), word)
    assert began.wait(5) < 0
