"""`director top`: queues and directors live, from the snapshots that the page shows too. A `Screen` says what is shown
and what each key does, and is pure. The API sends the snapshots. With --redis, Redis is read for at most a hundredth of
the time (see operate/overview.py).
"""

import argparse
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Final, Literal, NamedTuple, Protocol

import anyio
import msgspec
from msgspec import Raw, Struct
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from director.cli.arguments import JSON, REDIS_OR_SERVICE, command, flag
from director.cli.backend import Backend, on_backend
from director.cli.client import Service, read
from director.cli.live import LIVE, LiveClient
from director.cli.operators import ask_or_read_redis, typist
from director.cli.output import printable
from director.cli.remote import CommandResult
from director.cli.status import device_lines, director_lines
from director.cli.tables import fit, line_width, print_json
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, DirectorError, SettingsError
from director.core.ids import LANES, QueueName
from director.core.words import several, span
from director.operate.findings import Finding
from director.operate.overview import Snapshot
from director.operate.views import QueueView

View = Literal["queues", "directors", "findings"]

KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
SENT: Final = {
    "escape": ("\x1b",),
    "up": ("k", "\x1b[A", "\x1bOA"),
    "down": ("j", "\x1b[B", "\x1bOB"),
    "page_up": ("\x1b[5~",),
    "page_down": ("\x1b[6~",),
}
NAMES: Final = {each: name for name, sent in SENT.items() for each in sent}
MOVES: Final = {"up": -1, "down": 1, "page_up": -10, "page_down": 10}
VIEWS: Final[Mapping[str, View]] = {"d": "directors", "f": "findings"}
KEYS: Final = "↑↓ move  d directors  f findings  p pause or resume  q back or quit"
COLUMNS: Final = ("queue", *LANES, "oldest", "running", "state")
CALM: Final = ("good", "calm")
TITLE: Final = "bold"
ALARM: Final = "yellow"
DIM: Final = "dim"
SELECTED: Final = "reverse"
MOST_FINDINGS: Final = 3
ROOMY: Final = 16  # lines of a screen that has room for findings above the queues
AWAY_S: Final = 1.0
AGAIN_S: Final = 0.2
ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Change(NamedTuple):
    queue: QueueName
    paused: bool


@dataclass(slots=True, eq=False)
class Screen:
    """A snapshot and what is shown of it. `away`: why nothing newer is known. `asked` waits for a confirmation."""

    snapshot: Snapshot | None = None
    away: str = ""
    view: View = "queues"
    selected: QueueName | None = None
    scroll: int = 0
    asked: Change | None = None
    note: str = ""
    is_over: bool = False

    @property
    def queues(self) -> list[QueueView]:
        """Return all queues, the worst first."""
        found = self.snapshot.queues if self.snapshot else ()
        return sorted(found, key=lambda one: (one.shade in CALM, -_waiting(one), one.name))

    def press(self, key: str) -> Change | None:
        """Return the change that this key confirms."""
        asked, self.asked, self.note = self.asked, None, ""
        if asked is not None:
            return asked if key in ("y", "Y") else None
        if key in MOVES:
            self._move(MOVES[key])
        elif key in VIEWS:
            self._show("queues" if self.view == VIEWS[key] else VIEWS[key])
        elif key in ("escape", "q"):
            self.is_over = key == "q" and self.view == "queues"
            self._show("queues")
        elif key == "p" and self.view == "queues" and self.queues:
            chosen = self.queues[self._at()]
            self.asked = Change(chosen.name, not chosen.paused)
        return None

    def _show(self, view: View) -> None:
        self.view, self.scroll = view, 0

    def _move(self, by: int) -> None:
        if self.view != "queues":
            self.scroll = max(0, self.scroll + by)
        elif queues := self.queues:
            self.selected = queues[min(max(0, self._at() + by), len(queues) - 1)].name

    def _at(self) -> int:
        return next((at for at, one in enumerate(self.queues) if one.name == self.selected), 0)

    def lines(self, width: int | None, height: int | None = None) -> list[Text]:
        """Return a screen of this size. Without a width no line is cut, and without a height none is left out."""
        if self.snapshot is None:
            return [Text(printable(self.away or "looking …"), TITLE)]
        head = [Text(_title(self.snapshot), TITLE), Text(_totals(self.snapshot))]
        if self.view == "queues" and (height is None or height >= ROOMY):
            head += [_headline(one) for one in self.snapshot.findings[:MOST_FINDINGS]]
        head.append(self._mode(self.snapshot))
        room = None if height is None else max(1, height - len(head) - 1)
        names, *rows = self._body(self.snapshot, width, room)
        if room is not None and height is not None:
            self.scroll = min(self.scroll, max(0, len(rows) + 1 - room))
            rows = rows[self.scroll :][: room - 1]
            rows += [Text() for _ in range(room - 1 - len(rows))]
            lines = [*head, names, *rows, self._bottom()][:height]
        else:
            lines = [*head, names, *rows]
        for line in lines:
            line.no_wrap = True
            if width is not None:
                line.truncate(width, overflow="ellipsis")
        return lines

    def _mode(self, snapshot: Snapshot) -> Text:
        if self.away:
            return Text(f"{printable(self.away)}: last seen at {snapshot.at[11:19]}", ALARM)
        if self.view != "queues":
            return Text(self.view, TITLE)
        left = len(snapshot.findings)
        return Text("worst first" + (f"; {several(left, 'finding')}: press f" if left else ""), DIM)

    def _body(self, snapshot: Snapshot, width: int | None, room: int | None) -> list[Text]:
        if self.view == "queues":
            return self._queues(width, room)
        if self.view == "findings":
            return [line for one in snapshot.findings for line in _finding(one, width)] or [Text("no findings", DIM)]
        now_ms = SystemClock().now_ms()
        names, *lines = director_lines(snapshot.directors, now_ms=now_ms, width=width)
        return [
            Text(names, TITLE),
            *map(Text, [*lines, "", *device_lines(snapshot.devices, now_ms=now_ms, width=width)]),
        ]

    def _queues(self, width: int | None, room: int | None) -> list[Text]:
        queues, at = self.queues, self._at()
        first = 0 if room is None else max(0, min(at - room + 2, len(queues) - room + 1))
        shown = queues if room is None else queues[first:][: room - 1]  # a table of 1,000 rows takes half a second
        names, *lines = fit(COLUMNS, map(_row, shown), width=width and width - 2, words=("queue", "state"))
        found = [Text(f"  {names}", TITLE)]
        for number, (one, line) in enumerate(zip(shown, lines, strict=True), first):
            is_selected = room is not None and number == at
            style = "" if one.shade in CALM else ALARM
            found.append(Text(f"{'›' if is_selected else ' '} {line}", SELECTED if is_selected else style))
        return found if queues else [*found, Text("  no queue yet", DIM)]

    def _bottom(self) -> Text:
        if self.asked is not None:
            return Text(
                f"{'pause' if self.asked.paused else 'resume'} {self.asked.queue}? y: yes, any other key: no", ALARM
            )
        return Text(printable(self.note), TITLE) if self.note else Text(KEYS, DIM)


def _waiting(one: QueueView) -> int:
    return one.waiting.high + one.waiting.normal + one.waiting.low


def _row(one: QueueView) -> list[str]:
    return [
        one.name,
        *(str(getattr(one.waiting, lane)) for lane in LANES),
        "-" if one.oldest_s is None else span(one.oldest_s),
        f"{one.claimed}/{one.slots}",
        one.words,
    ]


def _title(snapshot: Snapshot) -> str:
    silent = sum(not one.alive for one in snapshot.directors)
    more = f" and {snapshot.more_queues} more" if snapshot.more_queues else ""
    directors = len(snapshot.directors) + snapshot.more_directors
    return (
        f"director top  {snapshot.at[11:19]}  queues: {len(snapshot.queues)}{more}  "
        f"directors: {directors}{f' ({silent} silent)' if silent else ''}"
    )


def _totals(snapshot: Snapshot) -> str:
    queues, owed = snapshot.queues, snapshot.owed
    return (
        f"waiting {sum(map(_waiting, queues))}  running {sum(one.claimed for one in queues)}"
        f" of {sum(one.slots for one in queues)}  delayed {sum(one.delayed for one in queues)}"
        f"  dead {sum(one.dead for one in queues)}"
        f"  webhooks owed {owed.count}{f' ({owed.late} late)' if owed.late else ''}"
    )


def _headline(one: Finding) -> Text:
    return Text(printable(f"! {one.title}{f' ({one.queue})' if one.queue else ''}: {one.detail}"), ALARM)


def _finding(one: Finding, width: int | None) -> list[Text]:
    told = (one.detail, *(f"| {line}" for line in one.log.splitlines()), *(f"→ {command}" for command in one.commands))
    lines = [line for text in told for line in wrap(printable(text), max(20, (width or 1_000) - 2))]
    return [Text(printable(one.title), ALARM), *(Text(f"  {line}") for line in lines)]


@command(
    "top", JSON, *REDIS_OR_SERVICE, flag("--once", "print one screen with all queues, and end"), examples=("", "--once")
)
def _top(given: argparse.Namespace) -> int:
    """Watch queues and directors live. Without a terminal: print one screen, as with --once."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    watch = Top.watch if is_terminal and not (given.once or given.json) else partial(_print_once, is_json=given.json)
    return ask_or_read_redis(given, partial(_watch_there, watch), partial(_watch_here, watch, given))


class Snapshots(Protocol):
    """Gives snapshots of the service, and makes a change that was confirmed. `rest_s`: how long to rest after one."""

    @property
    def rest_s(self) -> float: ...

    async def look(self) -> Snapshot:
        """Raises BackendUnavailable while the service cannot be seen."""
        ...

    async def make(self, change: Change) -> None:
        """Raises DirectorError."""
        ...


Watch = Callable[[Snapshots], Awaitable[None]]


def _watch_here(watch: Watch, given: argparse.Namespace) -> int:
    on_backend(given, lambda backend: watch(SnapshotsOfRedis(backend)))
    return 0


def _watch_there(watch: Watch, chosen: Service) -> int:
    async def begin() -> None:
        async with LiveClient(chosen) as client, aclosing(SnapshotsOfApi(client)) as views:
            await views.begin()
            await watch(views)

    anyio.run(begin)
    return 0


async def _print_once(snapshots: Snapshots, *, is_json: bool) -> None:
    snapshot = await snapshots.look()
    if is_json:
        print_json(snapshot)
    else:
        print("\n".join(line.plain for line in Screen(snapshot).lines(line_width())))


class SnapshotsOfRedis:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def rest_s(self) -> float:
        return self._backend.overview.rest_s

    async def look(self) -> Snapshot:
        return await self._backend.overview.look()

    async def make(self, change: Change) -> None:
        hand = self._backend.queue_administration
        await (hand.pause if change.paused else hand.resume)(change.queue, by=typist())


class _Away(Struct, frozen=True):
    reason: str


class SnapshotsOfApi:
    """Follows the feed of the page. It says when there is something new, so there is no rest between two looks."""

    rest_s = 0.0

    def __init__(self, client: LiveClient) -> None:
        self._client = client
        self._events: AsyncGenerator[tuple[str, Raw]] | None = None
        self._first: tuple[str, Raw] | None = None

    async def begin(self) -> None:
        """Wait for the first event, so that a refusal is raised before there is a screen."""
        self._events = self._client.events(LIVE)
        self._first = await anext(self._events, None)

    async def look(self) -> Snapshot:
        while True:
            events = self._events = self._events or self._client.events(LIVE)
            first, self._first = self._first, None
            try:
                name, data = first if first is not None else await anext(events)
            except StopAsyncIteration:  # the API leaves, or ends the feed now and then
                self._events = None
                await anyio.sleep(AGAIN_S)
            except DirectorError:
                self._events = None
                raise
            else:
                return self._read(name, data)

    async def aclose(self) -> None:
        if self._events is not None:
            await self._events.aclose()

    def _read(self, name: str, data: Raw) -> Snapshot:
        if name == "away":
            raise BackendUnavailable(read(data, _Away).reason)
        try:
            return msgspec.json.decode(data, type=Snapshot)
        except msgspec.ValidationError as exc:
            raise SettingsError(f"the API is of another release: {exc}. With --redis, Redis is read.") from exc

    async def make(self, change: Change) -> None:
        line = ["queues", "pause" if change.paused else "resume", "--", change.queue]
        ran = read(await self._client.ask("POST", "/v1/admin/commands", {"line": line}), CommandResult)
        if ran.error:
            raise DirectorError(ran.error)


class Top:
    """Looks, follows keys and signals, and draws. Ctrl-Z does nothing, because it would leave the screen."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._screen = Screen()
        self._live = Live(console=Console(file=sys.stdout, highlight=False), screen=True, auto_refresh=False)
        self._again = anyio.Event()
        self._over = anyio.Event()

    @classmethod
    async def watch(cls, snapshots: Snapshots) -> None:
        await cls(snapshots).run()

    async def run(self) -> None:
        # first: a signal without a receiver ends the process at once, and the terminal keeps the mode of the screen
        with anyio.open_signal_receiver(signal.SIGWINCH, *ENDING) as signals, _single_keys(), self._shown():
            async with anyio.create_task_group() as tasks:
                for loop in (self._look, self._follow_keys, partial(self._follow_signals, signals)):
                    tasks.start_soon(loop)
                await self._over.wait()
                tasks.cancel_scope.cancel()

    @contextmanager
    def _shown(self) -> Iterator[None]:
        self._live.start()
        try:
            yield
        finally:
            with suppress(OSError):  # the terminal was closed
                self._live.stop()

    async def _look(self) -> None:
        while True:
            self._again = anyio.Event()
            try:
                self._screen.snapshot, self._screen.away = await self._snapshots.look(), ""
                rest_s = self._snapshots.rest_s
            except DirectorError as exc:
                self._screen.away, rest_s = str(exc), AWAY_S
            self._draw()
            with anyio.move_on_after(rest_s):
                await self._again.wait()

    async def _follow_keys(self) -> None:
        while data := await _read():
            for key in keys_in(data.decode(errors="ignore")):
                if (change := self._screen.press(key)) is not None:
                    await self._make(change)
            if self._screen.is_over:
                break
            self._draw()
        self._over.set()

    async def _follow_signals(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for number in signals:
            if number in ENDING:
                self._over.set()
            self._draw()

    async def _make(self, change: Change) -> None:
        try:
            await self._snapshots.make(change)
        except DirectorError as exc:
            self._screen.note = str(exc)
        else:
            self._screen.note = f"{change.queue} is {'paused' if change.paused else 'resumed'}"
            self._again.set()

    def _draw(self) -> None:
        width, height = self._live.console.size
        try:
            self._live.update(Group(*self._screen.lines(width, height)), refresh=True)
        except OSError:  # the terminal was closed
            self._over.set()


@contextmanager
def _single_keys() -> Iterator[None]:
    """Let each key arrive at once, without its echo."""
    was = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    ours = termios.tcgetattr(sys.stdin)
    ours[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, ours)
    try:
        yield
    finally:
        with suppress(termios.error):  # a closed terminal needs no restoring
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, was)


async def _read() -> bytes:
    """Return what is typed next, or nothing once the terminal is closed."""
    await anyio.wait_readable(sys.stdin)
    try:
        return os.read(sys.stdin.fileno(), 4096)
    except OSError:
        return b""


def keys_in(text: str) -> list[str]:
    """Return the names of the pressed keys, or the characters they write. An unknown escape sequence is one key."""
    return [NAMES.get(one, one) for one in KEY.findall(text)]
