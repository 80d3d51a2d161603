"""A terminal that one command has for itself: a screen of its own, keys as they are pressed, its size.

Always gives it back as it was, also where the command fails or is stopped.
"""

import asyncio
import os
import re
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

import anyio

RESIZED: Final = "resized"
ENDED: Final = "ended"
ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # another screen, no cursor, no wrapping
LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
BELOW: Final = "\n\x1b[J"
KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
NAMES: Final[Mapping[str, str]] = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page_up",
    "\x1b[6~": "page_down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
}
Painted = tuple[str, str]  # a line, and the codes that it is shown with


def is_interactive() -> bool:
    """Is somebody there, at a terminal that can do this?"""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def keys_in(text: str) -> list[str]:
    """What was pressed: the name of a key, or what it writes. A sequence that is none of ours is one key too."""
    return [NAMES.get(one, one) for one in KEY.findall(text)]


class Terminal:
    """Use it within `opened`."""

    def __init__(self) -> None:
        self._in = sys.stdin.fileno()
        self._was = termios.tcgetattr(self._in)
        self._keys: asyncio.Queue[str] = asyncio.Queue()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The terminal is ours meanwhile. Keys that were not waited for are kept."""
        loop = asyncio.get_running_loop()
        self._enter()
        loop.add_reader(self._in, self._read)
        try:
            yield
        finally:
            loop.remove_reader(self._in)
            self._leave()

    async def key(self) -> str:
        """The next key, RESIZED when all has to be drawn again, or ENDED when it is to end."""
        return await self._keys.get()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return shutil.get_terminal_size()

    def draw(self, lines: list[Painted]) -> None:
        """Show these lines from the top, and nothing below them."""
        # a line is emptied before: behind a full one the cursor still stands on its last column
        text = "\n".join(f"\x1b[2K{codes}{line}\x1b[0m" if codes else f"\x1b[2K{line}" for line, codes in lines)
        try:
            sys.stdout.write(f"\x1b[H{text}{BELOW if len(lines) < self.size[1] else ''}")
            sys.stdout.flush()
        except OSError:  # it was closed
            self._keys.put_nowait(ENDED)

    async def hear_signals(self) -> None:
        """For ever: they are told as keys are."""
        with anyio.open_signal_receiver(signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT, *ENDING) as heard:
            async for number in heard:
                if number == signal.SIGTSTP:
                    self._leave()
                    os.kill(os.getpid(), signal.SIGSTOP)
                elif number == signal.SIGCONT:
                    self._enter()
                self._keys.put_nowait(ENDED if number in ENDING else RESIZED)

    def _read(self) -> None:
        try:
            data = os.read(self._in, 4096)
        except OSError:  # it was closed
            data = b""
        for key in keys_in(data.decode(errors="ignore")) if data else [ENDED]:
            self._keys.put_nowait(key)

    def _enter(self) -> None:
        tty.setcbreak(self._in)
        sys.stdout.write(ENTER)
        sys.stdout.flush()

    def _leave(self) -> None:
        with suppress(OSError, termios.error):  # one that was closed is nobody's
            sys.stdout.write(LEAVE)
            sys.stdout.flush()
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._was)
