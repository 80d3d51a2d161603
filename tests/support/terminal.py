"""Run a command in a pseudo terminal: read its last whole screen and send it keys."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

SCREEN = re.compile(r"\x1b\[H(.*?)(?=\x1b\[H|\x1b\[\?1049l|\Z)", re.DOTALL)
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class PlayedTerminal:
    def __init__(self, line: Sequence[str], *, columns: int, lines: int, env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._set_size(columns, lines)
        self.was = termios.tcgetattr(theirs)
        self.said = ""
        self._theirs = theirs
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            line,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**kept, "TERM": "xterm-256color", **env},
            # a session with this terminal, so that Ctrl-C and changes of size arrive
            start_new_session=True,
            preexec_fn=_have_terminal,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def screen(self) -> list[str]:
        found = SCREEN.findall(self.said)
        return CODES.sub("", found[-1]).split("\r\n") if found else []

    @property
    def is_given_back(self) -> bool:
        return self.said.rstrip().endswith("\x1b[?25h\x1b[?1049l") and termios.tcgetattr(self._theirs) == self.was

    def shows(self, text: str) -> bool:
        return any(text in line for line in self.screen)

    def type(self, keys: str | bytes) -> None:
        os.write(self._ours, keys if isinstance(keys, bytes) else keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self._set_size(columns, lines)
        os.kill(self.process.pid, signal.SIGWINCH)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        self._reader.join(timeout=10)
        os.close(self._ours)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self) -> None:
        pending = b""
        while True:
            try:
                pending += os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                return
            text = pending.decode(errors="ignore")
            self.said += text
            pending = pending[len(text.encode()) :]


def hear_ctrl_c() -> None:
    """React to Ctrl-C in a new process. A shell makes its background processes ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _have_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    hear_ctrl_c()


@contextmanager
def played(
    line: Sequence[str], *, columns: int = 80, lines: int = 24, env: Mapping[str, str] | None = None
) -> Iterator[PlayedTerminal]:
    terminal = PlayedTerminal(line, columns=columns, lines=lines, env=env or {})
    try:
        yield terminal
    finally:
        terminal.close()
