"""What a key does in `director top`: another order, another screen, a change that is asked for and then confirmed.

Pure: what is to be done is returned, and somebody else does it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from director.core.ids import QueueName
from director.diagnosis.views import QueueView

View = Literal["queues", "queue", "directors", "findings"]

PAGE: Final = 10
MOVES: Final = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page_up": -PAGE,
    "page_down": PAGE,
    "home": -1_000_000,
    "end": 1_000_000,
}


class Row(Struct, frozen=True):
    """A queue, how many start in a minute, and how many waited lately."""

    queue: QueueView
    per_min: float | None = None
    trend: tuple[int, ...] = ()

    @property
    def waiting(self) -> int:
        lanes = self.queue.waiting
        return lanes.high + lanes.normal + lanes.low


class Change(Struct, frozen=True):
    """Pause a queue, or let it go on."""

    queue: QueueName
    paused: bool


class State(Struct, frozen=True, kw_only=True):
    """What is looked at. `asked`: what waits for a yes; `note`: what to say of the last thing that was done."""

    view: View = "queues"
    sort: str = "waiting"
    wanted: str = ""
    is_typing: bool = False
    selected: QueueName | None = None
    scroll: int = 0
    asked: Change | None = None
    note: str = ""


class Step(Struct, frozen=True, kw_only=True):
    """What follows a key."""

    state: State
    change: Change | None = None
    is_over: bool = False


SORTS: Final[Mapping[str, Callable[[Row], float]]] = {
    "waiting": lambda row: -row.waiting,
    "oldest": lambda row: -(row.queue.oldest_s or 0),
    "running": lambda row: -row.queue.claimed,
    "starts": lambda row: -(row.per_min or 0),
    "trouble": lambda row: row.queue.state == "serving",
    "name": lambda _: 0,
}


def shown(state: State, rows: Sequence[Row]) -> list[Row]:
    """Those that are wanted, in order; by name where they are alike."""
    found = [row for row in rows if state.wanted.lower() in row.queue.name]
    return sorted(found, key=lambda row: (SORTS[state.sort](row), row.queue.name))


def chosen(state: State, rows: Sequence[Row]) -> int:
    """Which of these rows is selected: the first, where none of them was."""
    return next((at for at, row in enumerate(rows) if row.queue.name == state.selected), 0)


def pressed(state: State, key: str, rows: Sequence[Row]) -> Step:
    """A key, while these rows are shown."""
    state = replace(state, note="")
    if state.asked is not None:
        return Step(state=replace(state, asked=None), change=state.asked if key in ("y", "Y") else None)
    if state.is_typing:
        return Step(state=_typed(state, key))
    if key in MOVES:
        return Step(state=_moved(state, MOVES[key], rows))
    if key == "q" and state.view == "queues":
        return Step(state=state, is_over=True)
    act = KEYS.get(key)
    return Step(state=act(state, rows) if act else state)


def _typed(state: State, key: str) -> State:
    if key == "enter":
        return replace(state, is_typing=False)
    if key == "escape":
        return replace(state, is_typing=False, wanted="")
    if key == "backspace":
        return replace(state, wanted=state.wanted[:-1])
    return replace(state, wanted=state.wanted + key) if len(key) == 1 and key.isprintable() else state


def _moved(state: State, by: int, rows: Sequence[Row]) -> State:
    if state.view != "queues":
        return state if by > PAGE else replace(state, scroll=max(0, state.scroll + by))  # nobody knows the end here
    if not rows:
        return state
    at = min(max(0, chosen(state, rows) + by), len(rows) - 1)
    return replace(state, selected=rows[at].queue.name)


def _sorted(state: State, _: Sequence[Row]) -> State:
    names = list(SORTS)
    return replace(state, sort=names[(names.index(state.sort) + 1) % len(names)])


def _filtering(state: State, _: Sequence[Row]) -> State:
    return replace(state, is_typing=True) if state.view == "queues" else state


def _asking(state: State, rows: Sequence[Row]) -> State:
    """Of the queue that is selected; of the one that is shown, where one is."""
    meant = rows[chosen(state, rows)].queue.name if rows and state.view == "queues" else state.selected
    found = next((row.queue for row in rows if row.queue.name == meant), None)
    if found is None or state.view in ("directors", "findings"):
        return state
    return replace(state, asked=Change(found.name, not found.paused))


def _entered(state: State, rows: Sequence[Row]) -> State:
    if not rows or state.view != "queues":
        return state
    return replace(state, view="queue", selected=rows[chosen(state, rows)].queue.name, scroll=0)


def _directors(state: State, _: Sequence[Row]) -> State:
    return replace(state, view="queues" if state.view == "directors" else "directors", scroll=0)


def _findings(state: State, _: Sequence[Row]) -> State:
    return replace(state, view="queues" if state.view == "findings" else "findings", scroll=0)


def _back(state: State, _: Sequence[Row]) -> State:
    """From the first screen: to all queues."""
    return replace(state, view="queues", scroll=0, wanted="" if state.view == "queues" else state.wanted)


KEYS: Final[Mapping[str, Callable[[State, Sequence[Row]], State]]] = {
    "s": _sorted,
    "/": _filtering,
    "p": _asking,
    "enter": _entered,
    "d": _directors,
    "f": _findings,
    "escape": _back,
    "backspace": _back,
    "q": _back,
}
