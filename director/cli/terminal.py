"""A terminal that one command has for itself: a screen of its own, keys as they are pressed, its size.

Always gives it back as it was, also where the command fails or is stopped.
"""

import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import anyio
from rich.console import Console
from rich.control import Control
from rich.text import Text

RESIZED: Final = "resized"
ENDED: Final = "ended"
ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

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
        self._console = Console(file=sys.stdout, highlight=False)
        self._screen = self._console.screen(hide_cursor=True)

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
        return self._console.size

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines from the top, and nothing below them."""
        try:
            with self._console:  # one write for both
                self._console.control(Control.home())
                self._screen.update(*lines)
        except OSError:  # it was closed
            self._keys.put_nowait(ENDED)

    async def hear_signals(self) -> None:
        """For ever: they are told as keys are."""
        with anyio.open_signal_receiver(signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT, *ENDING) as heard:
            async for number in heard:
                if number == signal.SIGTSTP:
                    self._leave()
                    os.kill(os.getpid(), signal.SIGSTOP)
                    self._enter()  # at once: nothing is drawn on the shell's screen before
                elif number == signal.SIGCONT:
                    tty.setcbreak(self._in)
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
        self._screen.__enter__()

    def _leave(self) -> None:
        with suppress(OSError, termios.error):  # one that was closed is nobody's
            self._screen.__exit__(None, None, None)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._was)
