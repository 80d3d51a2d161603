"""The loops of `director top`: read Redis, follow keys, and draw. It reads Redis for at most a hundredth of its time
(see operate/overview.py).
"""

import argparse
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
from msgspec.structs import replace
from rich.console import Console
from rich.control import Control
from rich.text import Text

from director.cli.arguments import JSON, REDIS, command, flag
from director.cli.backend import Backend, on_backend
from director.cli.operators import typist
from director.cli.output import printable
from director.cli.tables import line_width, print_json
from director.cli.top_screen import (
    TITLE,
    Change,
    Detail,
    Rates,
    Row,
    Seen,
    State,
    pressed,
    screen,
    shown,
    started_per_min,
    waited,
)
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, DirectorError
from director.core.ids import QueueName
from director.core.samples import PERIOD_S, Sample
from director.operate.overview import LONGEST_S, REST, Snapshot
from director.operate.views import QueueView

RESIZED: Final = "resized"
ENDED: Final = "ended"
ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
SENT: Final = {
    "escape": ("\x1b",),
    "enter": ("\r", "\n"),
    "backspace": ("\x7f", "\b"),
    "up": ("\x1b[A", "\x1bOA"),
    "down": ("\x1b[B", "\x1bOB"),
    "page_up": ("\x1b[5~",),
    "page_down": ("\x1b[6~",),
    "home": ("\x1b[H", "\x1b[1~"),
    "end": ("\x1b[F", "\x1b[4~"),
}
NAMES: Final = {each: name for name, sent in SENT.items() for each in sent}
TREND: Final = 8  # columns of blocks for the last ten minutes
SAMPLES: Final = 60
MOST_TENANTS: Final = 50
AWAY_S: Final = 1.0


@command("top", JSON, *REDIS, flag("--once", "print one screen with all queues, and end"), examples=("", "--once"))
def _top(given: argparse.Namespace) -> int:
    """Watch queues and directors live. Without a terminal: print one screen, as with --once."""
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if given.json:
        print_json(on_backend(given, lambda backend: backend.overview.look()))
    elif given.once or not is_interactive:
        print("\n".join(on_backend(given, lambda backend: _once(backend, width=line_width()))))
    else:
        on_backend(given, _watch)
    return 0


def keys_in(text: str) -> list[str]:
    """Return the names of the pressed keys, or the characters they write. An unknown escape sequence is one key."""
    return [NAMES.get(one, one) for one in KEY.findall(text)]


class Terminal:
    """A terminal with its own screen while it is `opened`. It is restored also after a failure or a signal."""

    def __init__(self) -> None:
        self._in = sys.stdin.fileno()
        self._was = termios.tcgetattr(self._in)
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._console = Console(file=sys.stdout, highlight=False)
        self._screen = self._console.screen(hide_cursor=True)

    @contextmanager
    def opened(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._enter()
        loop.add_reader(self._in, self._read)
        try:
            yield
        finally:
            loop.remove_reader(self._in)
            self._leave()

    async def key(self) -> str:
        """Return the next key, RESIZED if the screen must be drawn again, or ENDED if the command must end."""
        return await self._keys.get()

    @property
    def size(self) -> tuple[int, int]:
        return self._console.size

    def draw(self, lines: Sequence[Text]) -> None:
        try:
            with self._console:  # collects both in one write
                self._console.control(Control.home())
                self._screen.update(*lines)
        except OSError:  # the terminal was closed
            self._keys.put_nowait(ENDED)

    async def hear_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT, *ENDING) as heard:
            async for number in heard:
                if number == signal.SIGTSTP:
                    self._leave()
                    os.kill(os.getpid(), signal.SIGSTOP)
                    self._enter()  # before anything is drawn on the shell's screen
                elif number == signal.SIGCONT:
                    tty.setcbreak(self._in)
                self._keys.put_nowait(ENDED if number in ENDING else RESIZED)

    def _read(self) -> None:
        try:
            data = os.read(self._in, 4096)
        except OSError:  # the terminal was closed
            data = b""
        for key in keys_in(data.decode(errors="ignore")) if data else [ENDED]:
            self._keys.put_nowait(key)

    def _enter(self) -> None:
        tty.setcbreak(self._in)
        self._screen.__enter__()

    def _leave(self) -> None:
        with suppress(OSError, termios.error):  # a closed terminal needs no restoring
            self._screen.__exit__(None, None, None)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._was)


async def _once(backend: Backend, *, width: int | None) -> list[str]:
    snapshot, clock = await backend.overview.look(), SystemClock()
    history = await backend.history.many([each.name for each in snapshot.queues], most=SAMPLES)
    seen = _seen(snapshot, history, Rates(), now_ms=clock.now_ms())
    return [line.plain for line in screen(State(), seen, width=width)]


async def _watch(backend: Backend) -> None:
    terminal = Terminal()
    with terminal.opened():
        top = Top(backend, terminal)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(terminal.hear_signals)
            tasks.start_soon(top.look)
            await top.listen()
            tasks.cancel_scope.cancel()


class Top:
    def __init__(self, backend: Backend, terminal: Terminal) -> None:
        self._backend = backend
        self._terminal = terminal
        self._clock = SystemClock()
        self._state = State()
        self._rates = Rates()
        self._history: dict[QueueName, list[Sample]] = {}
        self._history_s = -PERIOD_S
        self._seen: Seen | None = None
        self._away = ""
        self._again = anyio.Event()

    async def listen(self) -> None:
        while True:
            key = await self._terminal.key()
            rows = shown(self._state, self._seen.rows) if self._seen else []
            before = self._state
            step = pressed(before, key, rows)
            if step.is_over or key == ENDED:
                return
            self._state = step.state
            if step.change is not None:
                await self._change(step.change)
            if (before.view, before.selected) != (self._state.view, self._state.selected):
                self._again.set()
            self._draw()

    async def look(self) -> None:
        while True:
            self._again = anyio.Event()
            try:
                rest_s = await self._look()
            except BackendUnavailable as exc:
                self._away, rest_s = str(exc), AWAY_S
            self._draw()
            with anyio.move_on_after(rest_s):
                await self._again.wait()

    async def _look(self) -> float:
        """Return the seconds to rest afterwards."""
        snapshot = await self._backend.overview.look()
        began_s = self._clock.monotonic()
        self._rates.note(began_s, snapshot.queues)
        await self._read_history(snapshot, began_s)
        detail = await self._detail() if self._state.view == "queue" else None
        now_ms = self._clock.now_ms()
        self._seen, self._away = _seen(snapshot, self._history, self._rates, now_ms=now_ms, detail=detail), ""
        more_s = REST * (self._clock.monotonic() - began_s)
        return max(self._backend.overview.rest_s, min(more_s, LONGEST_S))

    async def _read_history(self, snapshot: Snapshot, now_s: float) -> None:
        rows = shown(self._state, [_row(each, [], self._rates, now_ms=0) for each in snapshot.queues])
        names = [row.queue.name for row in rows][: self._terminal.size[1]]
        if now_s - self._history_s >= PERIOD_S:
            self._history, self._history_s = {}, now_s
        self._history |= await self._backend.history.many(
            [name for name in names if name not in self._history], most=SAMPLES
        )

    async def _detail(self) -> Detail | None:
        found = [row for row in self._seen.rows if row.queue.name == self._state.selected] if self._seen else []
        if not found:
            return None
        queue = found[0].queue
        return Detail(
            queue=queue.name,
            tenants=await self._backend.queues.tenants(queue.name, most=MOST_TENANTS),
            heat=await self._backend.queues.heat(queue.name, read=queue.read),
        )

    async def _change(self, change: Change) -> None:
        hand = self._backend.queue_administration
        try:
            await (hand.pause if change.paused else hand.resume)(change.queue, by=typist())
        except DirectorError as exc:
            self._state = replace(self._state, note=str(exc))
        else:
            done = "is paused" if change.paused else "is resumed"
            self._state = replace(self._state, note=f"{change.queue} {done}")
            self._again.set()

    def _draw(self) -> None:
        width, height = self._terminal.size
        if self._seen is not None:
            seen = replace(self._seen, away=self._away)
            lines = screen(self._state, seen, width=width, height=height)
        else:
            lines = [Text(printable(self._away or "looking …"), TITLE, overflow="ellipsis")]
        for line in lines:
            line.no_wrap = True
        self._terminal.draw(lines)


def _seen(
    snapshot: Snapshot,
    history: Mapping[QueueName, Sequence[Sample]],
    rates: Rates,
    *,
    now_ms: int,
    detail: Detail | None = None,
) -> Seen:
    rows = [_row(each, history.get(each.name, ()), rates, now_ms=now_ms) for each in snapshot.queues]
    return Seen(now_ms=now_ms, snapshot=snapshot, rows=rows, detail=detail)


def _row(queue: QueueView, samples: Sequence[Sample], rates: Rates, *, now_ms: int) -> Row:
    per_min = rates.per_min(queue.name)
    row = Row(queue, started_per_min(samples, now_ms=now_ms) if per_min is None else per_min)
    return replace(row, trend=tuple(waited(samples, now_ms=now_ms, now=row.waiting, parts=TREND)))
