"""The state of `director top` and its screen: lines that fit any size, and the effect of each key. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text

from director.cli.output import printable
from director.cli.status import device_lines, director_lines
from director.cli.tables import fit
from director.core.ids import LANES, QueueName
from director.core.samples import Sample
from director.core.words import several, span
from director.operate.overview import Snapshot
from director.operate.views import QueueView
from director.store.queues import Tenant

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
    queue: QueueView
    per_min: float | None = None
    trend: tuple[int, ...] = ()

    @property
    def waiting(self) -> int:
        lanes = self.queue.waiting
        return lanes.high + lanes.normal + lanes.low


class Change(Struct, frozen=True):
    queue: QueueName
    paused: bool


class State(Struct, frozen=True, kw_only=True):
    """The view, its order and its filter. `asked` waits for a confirmation; `note` is the result of the last change."""

    view: View = "queues"
    sort: str = "waiting"
    wanted: str = ""
    is_typing: bool = False
    selected: QueueName | None = None
    scroll: int = 0
    asked: Change | None = None
    note: str = ""


class Step(Struct, frozen=True, kw_only=True):
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
    found = [row for row in rows if state.wanted.lower() in row.queue.name]
    return sorted(found, key=lambda row: (SORTS[state.sort](row), row.queue.name))


def chosen(state: State, rows: Sequence[Row]) -> int:
    return next((at for at, row in enumerate(rows) if row.queue.name == state.selected), 0)


def pressed(state: State, key: str, rows: Sequence[Row]) -> Step:
    state = replace(state, note="")
    if state.asked is not None:
        return Step(state=replace(state, asked=None), change=state.asked if key in ("y", "Y") else None)
    if state.is_typing:
        return Step(state=_typed(state, key))
    if key in MOVES:
        return Step(state=_moved(state, MOVES[key], rows))
    if key == "q" and state.view == "queues":
        return Step(state=state, is_over=True)
    act = ACTIONS.get(key)
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
        # the number of lines is unknown here
        return state if by > PAGE else replace(state, scroll=max(0, state.scroll + by))
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
    meant = rows[chosen(state, rows)].queue.name if rows and state.view == "queues" else state.selected
    found = next((row.queue for row in rows if row.queue.name == meant), None)
    if found is None or state.view in ("directors", "findings"):
        return state
    return replace(state, asked=Change(found.name, not found.paused))


def _entered(state: State, rows: Sequence[Row]) -> State:
    if not rows or state.view != "queues":
        return state
    return replace(state, view="queue", selected=rows[chosen(state, rows)].queue.name, scroll=0)


def _toggled(view: View) -> Callable[[State, Sequence[Row]], State]:
    return lambda state, _: replace(state, view="queues" if state.view == view else view, scroll=0)


def _back(state: State, _: Sequence[Row]) -> State:
    return replace(state, view="queues", scroll=0, wanted="" if state.view == "queues" else state.wanted)


ACTIONS: Final[Mapping[str, Callable[[State, Sequence[Row]], State]]] = {
    "s": _sorted,
    "/": _filtering,
    "p": _asking,
    "enter": _entered,
    "d": _toggled("directors"),
    "f": _toggled("findings"),
    "escape": _back,
    "backspace": _back,
    "q": _back,
}


WINDOW_S: Final = 60.0
LEAST_S: Final = 5.0  # over less, a rate says little
BLOCKS: Final = "▁▂▃▄▅▆▇█"
TREND_S: Final = 600.0


class Rates:
    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[QueueName, int]]] = deque()

    def note(self, at_s: float, queues: Iterable[QueueView]) -> None:
        self._looks.append((at_s, {each.name: each.started for each in queues}))
        while at_s - self._looks[0][0] > WINDOW_S:
            self._looks.popleft()

    def per_min(self, queue: QueueName) -> float | None:
        """Return the rate of a queue, or None if it was seen for less than LEAST_S."""
        seen = [(at_s, started[queue]) for at_s, started in self._looks if queue in started]
        if not seen or seen[-1][0] - seen[0][0] < LEAST_S:
            return None
        began_s, ended_s = seen[0][0], seen[-1][0]
        # a queue that was removed and made again counts from 0
        return sum(max(0, now - was) for (_, was), (_, now) in pairwise(seen)) * 60 / (ended_s - began_s)


def started_per_min(samples: Sequence[Sample], *, now_ms: int) -> float | None:
    """Return the rate from a keeper's samples, or None without samples in the last minute."""
    starts = [sample.started for sample in samples if sample.at_ms > now_ms - WINDOW_S * 1000]
    return float(sum(starts)) if starts else None


def waited(samples: Sequence[Sample], *, now_ms: int, now: int, parts: int) -> list[int]:
    """Return the most that waited in each part of the last ten minutes; the last part includes `now`."""
    found = [0] * parts
    for sample in samples:
        at = parts - 1 - int((now_ms - sample.at_ms) / 1000 / TREND_S * parts)
        if 0 <= at < parts:
            found[at] = max(found[at], sum(sample.waiting.values()))
    return [*found[:-1], max(found[-1], now)]


def blocks(numbers: Sequence[int]) -> str:
    """Draw numbers as blocks. The largest has the highest block, and only 0 has the lowest."""
    most = max(numbers, default=0)
    return "".join(BLOCKS[-(-number * (len(BLOCKS) - 1) // most) if most else 0] for number in numbers)


COLUMNS: Final = ("queue", "high", "normal", "low", "oldest", "running", "/min", "waiting", "state")
WORDS: Final = ("queue", "waiting", "state")
TENANTS: Final = ("account", "waiting", "running", "weight", "at most", "state")
KEYS: Final = {
    "queues": "↑↓ enter: open  d directors  f findings  s sort  / filter  p pause  q quit",
    "queue": "↑↓ scroll  p pause or resume  esc back  d directors  f findings",
    "directors": "↑↓ scroll  esc back  f findings",
    "findings": "↑↓ scroll  esc back  d directors",
}
BELOW: Final = 1
TITLE: Final = "bold"
ALARM: Final = "yellow"
DIM: Final = "dim"
SELECTED: Final = "reverse"
MOST_FINDINGS: Final = 3
ROOMY: Final = 16
MOST_WIDE: Final = 1_000


class Detail(Struct, frozen=True, kw_only=True):
    queue: QueueName
    tenants: Sequence[Tenant] = ()
    heat: Mapping[str, Sequence[int]] = {}


class Seen(Struct, frozen=True, kw_only=True):
    """The data of a screen. `away` says why nothing newer could be read."""

    now_ms: int
    snapshot: Snapshot
    rows: Sequence[Row]
    detail: Detail | None = None
    away: str = ""


class Frame(NamedTuple):
    """The data of a screen and the size of its body. None is unlimited."""

    state: State
    seen: Seen
    rows: Sequence[Row]
    width: int | None
    room: int | None

    def window(self, body: list[Text]) -> list[Text]:
        if self.room is None:
            return body
        first = min(max(0, self.state.scroll), max(0, len(body) - self.room))
        return [body[0], *body[1 + first : first + self.room]]


def screen(state: State, seen: Seen, *, width: int | None, height: int | None = None) -> list[Text]:
    """Return a screen of this size. Without a height return all lines; without a width do not cut them."""
    rows = shown(state, seen.rows)
    fixed = [Text(_title(seen), TITLE), Text(_totals(seen)), *_attention(state, seen, height)]
    fixed.append(_mode(state, seen, len(rows)))
    room = None if height is None else max(1, height - len(fixed) - BELOW)
    body = BODIES[state.view](Frame(state, seen, rows, width, room))
    lines = [*fixed, *body]
    if height is not None and room is not None:
        lines = [*lines, *(Text() for _ in range(room - len(body))), _bottom(state)][:height]
    if width is not None:
        for line in lines:
            line.truncate(width, overflow="ellipsis")
    return lines


def _title(seen: Seen) -> str:
    directors = seen.snapshot.directors
    silent = sum(not one.alive for one in directors)
    quiet = f" ({silent} silent)" if silent else ""
    more = f" and {seen.snapshot.more_queues} more" if seen.snapshot.more_queues else ""
    return (
        f"director top  {seen.snapshot.at[11:19]}  queues: {len(seen.rows)}{more}  "
        f"directors: {len(directors) + seen.snapshot.more_directors}{quiet}"
    )


def _totals(seen: Seen) -> str:
    queues, owed = [row.queue for row in seen.rows], seen.snapshot.owed
    lanes = [sum(getattr(each.waiting, lane) for each in queues) for lane in LANES]
    rates = [row.per_min for row in seen.rows if row.per_min is not None]
    late = f" ({owed.late} late)" if owed.late else ""
    return (
        f"waiting {sum(lanes)}  running {sum(each.claimed for each in queues)}"
        f" of {sum(each.slots for each in queues)}  delayed {sum(each.delayed for each in queues)}"
        f"  dead {sum(each.dead for each in queues)}  webhooks owed {owed.count}{late}"
        f"  starts {sum(rates):.0f}/min"
    )


def _attention(state: State, seen: Seen, height: int | None) -> list[Text]:
    if state.view != "queues" or (height is not None and height < ROOMY):
        return []
    return [
        Text(printable(f"! {one.title}{f' ({one.queue})' if one.queue else ''}: {one.detail}"), ALARM)
        for one in seen.snapshot.findings[:MOST_FINDINGS]
    ]


def _mode(state: State, seen: Seen, count: int) -> Text:
    if seen.away:
        return Text(f"{printable(seen.away)}: last seen at {seen.snapshot.at[11:19]}", ALARM)
    if state.view == "queue":
        return Text(state.selected or "", TITLE)
    if state.view != "queues":
        return Text(state.view, TITLE)
    wanted = f"{count} with {state.wanted!r} in their names, " if state.wanted else ""
    left = len(seen.snapshot.findings)
    more = f"; {several(left, 'finding')}: press f" if left else ""
    return Text(f"{wanted}by {state.sort}{more}", DIM)


def _queues(frame: Frame) -> list[Text]:
    state, _, rows, width, room = frame
    at = chosen(state, rows) if width else -1
    first = 0 if room is None else max(0, min(at - room + 2, len(rows) - room + 1))
    seen_rows = rows if room is None else rows[first : first + room - 1]  # a table of 1,000 rows takes half a second
    head, *lines = fit(COLUMNS, [_row(row) for row in seen_rows], width=width and width - 2, words=WORDS)
    found = [Text(f"  {head}", TITLE)]
    for number, (row, line) in enumerate(zip(seen_rows, lines, strict=True), first):
        mark = "› " if number == at else "  "
        style = "" if row.queue.shade in ("good", "calm") else ALARM
        found.append(Text(mark + line, SELECTED if number == at else style))
    return found if rows else [*found, Text("  no queue" + (" with this name" if state.wanted else " yet"), DIM)]


def _row(row: Row) -> list[str]:
    queue = row.queue
    return [
        queue.name,
        *map(str, (queue.waiting.high, queue.waiting.normal, queue.waiting.low)),
        "-" if queue.oldest_s is None else span(queue.oldest_s),
        f"{queue.claimed}/{queue.slots}",
        "-" if row.per_min is None else f"{row.per_min:.0f}",
        blocks(row.trend),
        queue.words,
    ]


def _queue(frame: Frame) -> list[Text]:
    state, seen, _, width, _ = frame
    row = next((row for row in seen.rows if row.queue.name == state.selected), None)
    if row is None:
        return [Text("the queue was removed", ALARM)]
    queue, detail = row.queue, seen.detail
    takes = f", one run takes {span(queue.run_s)}" if queue.run_s is not None else ""
    rate = "" if row.per_min is None else f", {row.per_min:.0f} starts a minute"
    mode = queue.mode if queue.max_queued is None else f"{queue.mode} {queue.max_queued}"
    facts = {
        "state": queue.words,
        "running": f"{queue.claimed} in {queue.slots} slots{takes}{rate}",
        "waiting": f"{row.waiting} {blocks(row.trend)}; {queue.delayed} delayed, {queue.dead} dead",
        "oldest": "-" if queue.oldest_s is None else span(queue.oldest_s),
        "mode": f"{mode}; breaker {queue.breaker}",
    }
    found = [Text(f"  {name:<8} {fact}") for name, fact in facts.items()]
    if detail is None or detail.queue != queue.name:
        return frame.window([*found, Text("  …", DIM)])
    for lane in LANES:
        heat = detail.heat.get(lane, ())
        count = getattr(queue.waiting, lane)
        found.append(Text(f"  {lane:<8} {count} waiting; in its streams {sum(heat)} {blocks(heat)}"))
    tenants = fit(TENANTS, [_tenant(one) for one in detail.tenants], width=width and width - 2, words=TENANTS[::5])
    found += [Text(""), *(Text(f"  {line}", "" if at else TITLE) for at, line in enumerate(tenants))]
    return frame.window(found)


def _tenant(one: Tenant) -> list[str]:
    state = "suspended" if one.is_suspended else "paused" if one.is_paused else ""
    most = "-" if one.max_running is None else str(one.max_running)
    return [one.name, str(one.waiting), str(one.running), f"{one.weight:g}", most, state]


def _directors(frame: Frame) -> list[Text]:
    seen = frame.seen
    head, *lines = director_lines(seen.snapshot.directors, now_ms=seen.now_ms, width=frame.width)
    devices = device_lines(seen.snapshot.devices, now_ms=seen.now_ms, width=frame.width)
    return frame.window([Text(head, TITLE), *map(Text, [*lines, *([""] if devices else []), *devices])])


def _findings(frame: Frame) -> list[Text]:
    findings = frame.seen.snapshot.findings
    found = [Text("  no findings" if not findings else "", DIM)]
    for each in findings:
        found.append(Text(printable(each.title), ALARM if each.level == "bad" else TITLE))
        for text in (
            each.detail,
            *(f"| {line}" for line in each.log.splitlines()),
            f"→ {each.ask}" if each.ask else "",
        ):
            found += [Text(f"  {line}") for line in wrap(printable(text), max(20, (frame.width or MOST_WIDE) - 2))]
    return frame.window(found)


def _bottom(state: State) -> Text:
    if state.asked is not None:
        what = "pause" if state.asked.paused else "resume"
        return Text(f"{what} {state.asked.queue}? y: yes, any other key: no", ALARM)
    if state.is_typing:
        return Text(f"only queues with: {state.wanted}_  enter: done, esc: all", TITLE)
    if state.note:
        return Text(printable(state.note), TITLE)
    return Text(KEYS[state.view], DIM)


BODIES: Final[Mapping[str, Callable[[Frame], list[Text]]]] = {
    "queues": _queues,
    "queue": _queue,
    "directors": _directors,
    "findings": _findings,
}
