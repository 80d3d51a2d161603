"""Identify processes by pid and start time, end them, and find free ports of this machine. A pid that the system gave
to another process is never signalled. Names and command lines prove nothing. No installed
package is imported: see guard.py.
"""

import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from director.core.errors import DirectorError

LOOK_S: Final = 0.05
SOON_S: Final = 0.001
STOP_S: Final = 5.0
PROC: Final = Path("/proc")
STATE, PARENT, SESSION, STARTED = 0, 1, 3, 19  # the fields of its `stat` after the name
GONE: Final = ("Z", "X")
PORTS: Final = range(20_000, 32_768)
_given: Final[set[int]] = set()


class UpError(DirectorError):
    """This machine is not as needed: a port is taken, another `up` runs, or a part did not start. Read on."""


class Mark(NamedTuple):
    """One process. Its start time tells it from a later process with the same pid."""

    pid: int
    started: str


def mark(pid: int) -> Mark | None:
    """Return None if no process has this pid, or a zombie."""
    started = _read_start_on_linux(pid) if sys.platform == "linux" else _read_start_elsewhere(pid)
    return Mark(pid, started) if started else None


def is_alive(process: Mark) -> bool:
    return mark(process.pid) == process


def signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
        os.killpg(leader, number)


def until_stopped(pid: int) -> None:
    """Wait until a process that got SIGSTOP stands still: a system call, such as a sync, ends first."""
    give_up = time.monotonic() + STOP_S
    while time.monotonic() < give_up and _ask_ps(pid, "stat=")[:1] not in ("T", "Z", ""):
        time.sleep(SOON_S)


def end(process: Mark, *, grace_s: float) -> None:
    """End a process, and the group that it leads: SIGTERM first, SIGKILL after `grace_s`."""
    if not is_alive(process):
        return
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    give_up = time.monotonic() + grace_s
    while is_alive(process):
        if time.monotonic() >= give_up:
            signal_group(process.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def family(leader: Mark, word: str) -> list[Mark]:
    """Return the processes that `leader` started, directly or not: its descendants, those of the session that it leads,
    and those with `word` in their environment, which a process inherits that has left both. Only Linux can tell.
    """
    # a process that starts another and ends during a look hides it from that look: it is not listed yet
    return _find(leader, word) or _find(leader, word)


def _find(leader: Mark, word: str) -> list[Mark]:
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid))}
    if leader.pid in stats:
        leads = _mark_of(leader.pid, stats[leader.pid]) == leader
    else:
        leads = leader.started.endswith(f"@{_boot()}")  # after another boot its session is another's
    found = {pid for pid, stat in stats.items() if (leads and _is_of(stat, leader)) or _has(pid, word)} - {leader.pid}
    while more := {pid for pid, stat in stats.items() if int(stat[PARENT]) in found} - found:
        found |= more
    return [_mark_of(pid, stats[pid]) for pid in found if stats[pid][STATE] not in GONE]


def end_family(leader: Mark, word: str) -> None:
    """Kill the processes that `leader` started, until none is left."""
    while left := family(leader, word):
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def _pids() -> list[int]:
    return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()] if sys.platform == "linux" else []


def _is_of(stat: Sequence[str], leader: Mark) -> bool:
    return leader.pid in (int(stat[PARENT]), int(stat[SESSION]))


def _has(pid: int, word: str) -> bool:
    assert word  # noqa: S101 - an empty one is in every environment
    try:
        return word.encode() in (PROC / str(pid) / "environ").read_bytes()
    except OSError:  # gone since, or of another user
        return False


def _stat(pid: int) -> Sequence[str]:
    """Return the fields after the name, which may contain anything: state, parent, group, session and so on.
    The name may be no text: the kernel cuts it after 15 bytes, also within a character.
    """
    try:
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):
        return ()


def _mark_of(pid: int, stat: Sequence[str]) -> Mark:
    return Mark(pid, f"{stat[STARTED]}@{_boot()}")


def _read_start_on_linux(pid: int) -> str:
    stat = _stat(pid)
    return _mark_of(pid, stat).started if stat and stat[STATE] not in GONE else ""


def _boot() -> str:
    # start times count from boot: after another boot, an equal pid and time is another process
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _read_start_elsewhere(pid: int) -> str:
    state, _, started = _ask_ps(pid, "stat=,lstart=").partition(" ")
    return "" if state.startswith("Z") else started.strip()


def _ask_ps(pid: int, columns: str) -> str:
    answer = subprocess.run(["/bin/ps", "-o", columns, "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def free_port() -> int:
    """Return a free port of this machine that was not returned before. No connection gets it meanwhile: Linux gives
    those higher ones.
    """
    while True:
        port = secrets.choice(PORTS)
        if port not in _given:
            with suppress(OSError):
                _given.add(_bind("127.0.0.1", port))
                return port


def claimable(host: str, port: int) -> int:
    """Return this port, or a free one for 0. Raises UpError with the next step if it is not free."""
    try:
        return _bind(host, port)
    except socket.gaierror as exc:
        raise UpError(f"{host} is not an address of this machine. Choose one with --host, such as 127.0.0.1.") from exc
    except PermissionError as exc:
        raise UpError(f"Port {port} is reserved for the system. Choose one above 1023 with --port.") from exc
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise UpError(
                f"Port {port} of {host} is taken. Stop what listens there, or choose another with --port."
            ) from exc
        raise UpError(f"Cannot listen on {host}:{port}: {os.strerror(exc.errno or 0)}. Choose with --host.") from exc


def _bind(host: str, port: int) -> int:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # as the API does: a port that was just closed is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen()  # on Linux, bind alone succeeds beside a socket that does not listen yet
        return int(probe.getsockname()[1])
