"""Run one server, and end it with all that it started. Started by a director as a process of its own, with its task on
stdin, so that it outlives a director that was killed.

On Linux the guard adopts every process that the server started, also those that left its group. So the guard ends when
the last of them has, and the memory of the server is free then. It runs with `-I -S`, which hides installed packages:
import only the standard library here, and modules of ours that do the same.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from director.local.launcher import child
from director.local.launcher.processes import family, how_it_ended, mark, signal_group

PR_SET_CHILD_SUBREAPER: Final = 36
LOOK_S: Final = 1.0
KILL_AGAIN_S: Final = 0.05
READ_BYTES: Final = 1 << 16
ROOT: Final = Path(__file__).parents[3]
CODE: Final = "import sys; sys.path.insert(0, sys.argv[1]); from director.local.launcher.guard import main; main()"


def guarding() -> list[str]:
    """Return the command of a guard. It takes its task, as JSON, from stdin up to the end of that: see `Guard`."""
    return [sys.executable, "-I", "-S", "-c", CODE, str(ROOT)]


class Guard:
    """Guards the server of one task.

    Its `command` runs in `cwd` with `env`, which has `word`. `log` gets its output: at most `log_bytes`, and as much
    again in a file with `.1` at its end. SIGTERM to the guard is passed on, and after `grace_s` all is killed. The same
    happens when no process has held the lock of the file `owner` for `orphan_s`.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._log = Path(task["log"])
        self._owner = os.open(task["owner"], os.O_RDONLY)
        self._owned_at = time.monotonic()
        self._kill_at: float | None = None
        self._code = 1
        self._is_asked_to_end = False
        self._woken, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        signal.signal(signal.SIGTERM, self._ask_to_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._server = subprocess.Popen(
            child.bind_to_parent(*task["command"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=task["cwd"],
            env=task["env"],
            process_group=0,
        )
        assert self._server.stdout is not None  # noqa: S101 - for the type checker
        self._output = self._server.stdout.fileno()
        os.set_blocking(self._output, False)

    def run(self) -> int:
        """Return once the server and all that it started have ended. The result is the server's exit code."""
        while self._reap():
            self._look_at_owner()
            self._end()
            self._wait()
        if sys.platform != "linux":  # only its group is known there
            signal_group(self._server.pid, signal.SIGKILL)
        while self._output >= 0:  # all that could write has ended
            self._copy_output()
        self._write(f"the server ended: {how_it_ended(self._code)}\n".encode())
        return self._code

    def _ask_to_end(self, *_: object) -> None:
        self._is_asked_to_end = True

    def _reap(self) -> bool:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._server.pid:
                    self._code = os.waitstatus_to_exitcode(status)
                    self._kill_at = time.monotonic()  # one of its workers may still run
        return False

    def _look_at_owner(self) -> None:
        if _is_held(self._owner):
            self._owned_at = time.monotonic()
        elif time.monotonic() - self._owned_at >= self._task["orphan_s"]:
            self._is_asked_to_end = True

    def _end(self) -> None:
        if self._is_asked_to_end and self._kill_at is None:
            self._kill_at = time.monotonic() + self._task["grace_s"]
            signal_group(self._server.pid, signal.SIGTERM)
        if self._is_killing:
            self._kill()

    def _kill(self) -> None:
        own = mark(os.getpid())
        assert own is not None  # noqa: S101 - for the type checker
        for process in family(own, self._task["word"]):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)

    @property
    def _is_killing(self) -> bool:
        return self._kill_at is not None and time.monotonic() >= self._kill_at

    def _wait(self) -> None:
        until_s = KILL_AGAIN_S if self._is_killing else LOOK_S
        if self._kill_at is not None and not self._is_killing:
            until_s = min(LOOK_S, self._kill_at - time.monotonic())
        watched = [self._woken] if self._output < 0 else [self._woken, self._output]
        ready, _, _ = select.select(watched, [], [], max(0.0, until_s))
        if self._woken in ready:
            os.read(self._woken, READ_BYTES)
        if self._output in ready:
            self._copy_output()

    def _copy_output(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._output, READ_BYTES)
            if data:
                self._write(data)
            else:
                self._output = -1

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk
            if self._log.exists() and self._log.stat().st_size + len(data) > self._task["log_bytes"]:
                self._log.replace(f"{self._log}.1")
            with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
                log.write(data)


def _is_held(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


def main() -> None:
    try:
        task = json.loads(sys.stdin.read())
    except ValueError:
        sys.exit("the director ended before it named a server")
    code = Guard(task).run()
    sys.exit(code if code >= 0 else 128 - code)
