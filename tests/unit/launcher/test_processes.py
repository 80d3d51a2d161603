"""Tell the processes that a dead one started from those of others."""

import subprocess
import sys

import pytest

from director.launcher.processes import Mark, end_family, family, mark

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
