"""The part of `director top` that looks, and that shows what it sees: once, or again and again until a key ends it.

Reads Redis for at most a hundredth of its time, as `core/overview.py` has it, and changes nothing but by a key that
was confirmed.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import anyio
from msgspec.structs import replace
from rich.text import Text

from director.cli.backend import Backend, typist
from director.cli.output import cut, printable
from director.cli.terminal import ENDED, Terminal
from director.cli.top_screen import Detail, Line, Rates, Seen, Style, screen, started_per_min, waited
from director.cli.top_state import Change, Row, State, pressed, shown
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, DirectorError
from director.core.ids import QueueName
from director.core.samples import PERIOD_S, Sample
from director.diagnosis.overview import LONGEST_S, REST, Snapshot
from director.diagnosis.views import QueueView

TREND: Final = 8  # parts of the last ten minutes
SAMPLES: Final = 60
MOST_TENANTS: Final = 50
AWAY_S: Final = 1.0
STYLES: Final[Mapping[Style, str]] = {
    "plain": "",
    "title": "bold",
    "head": "bold",
    "selected": "reverse",
    "alarm": "yellow",
    "dim": "dim",
}


async def once(backend: Backend, *, width: int | None) -> list[str]:
    """One screen with all queues."""
    snapshot, clock = await backend.overview.look(), SystemClock()
    history = await backend.history.many([each.name for each in snapshot.queues], most=SAMPLES)
    seen = _seen(snapshot, history, Rates(), now_ms=clock.now_ms())
    return [line.text for line in screen(State(), seen, width=width)]


async def watch(backend: Backend) -> None:
    """Until q, or a signal."""
    terminal = Terminal()
    with terminal.opened():
        top = Top(backend, terminal)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(terminal.hear_signals)
            tasks.start_soon(top.look)
            await top.listen()
            tasks.cancel_scope.cancel()


class Top:
    """A state, what was seen last, and the terminal that shows it."""

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
        """Do what the keys say; returns when they say that it is over."""
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
        """For ever."""
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
        """One look at everything; for how long to rest after it."""
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
        """Of those that are on the screen, as often as there is anything new."""
        rows = shown(self._state, [_row(each, [], self._rates, now_ms=0) for each in snapshot.queues])
        names = [row.queue.name for row in rows][: self._terminal.size[1]]
        if now_s - self._history_s >= PERIOD_S:
            self._history, self._history_s = {}, now_s
        self._history |= await self._backend.history.many(
            [name for name in names if name not in self._history], most=SAMPLES
        )

    async def _detail(self) -> Detail | None:
        """Of the queue that is shown by itself."""
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
            done = "hands out nothing" if change.paused else "hands out again what waits"
            self._state = replace(self._state, note=f"{change.queue} {done}")
            self._again.set()

    def _draw(self) -> None:
        width, height = self._terminal.size
        if self._seen is not None:
            seen = replace(self._seen, away=self._away)
            lines = screen(self._state, seen, width=width, height=height)
        else:
            lines = [Line(cut(printable(self._away or "looking …"), width, is_middle=False), "title")]
        self._terminal.draw([Text(line.text, STYLES[line.style], no_wrap=True, overflow="crop") for line in lines])


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
