"""`director tail`: follow the steps of all predictions, or the events of one. It reads Redis, so it works while no API
does, and continues after an outage of Redis where it was.
"""

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import anyio
import msgspec

from director.broker.keys import queue_partition
from director.broker.replies import Replayed
from director.cli.arguments import EXAMPLE_ID, JSON, REDIS, arg, command
from director.cli.backend import Backend, on_backend
from director.cli.operators import prediction_id
from director.cli.output import harmless, printable
from director.cli.printing import Pieces
from director.cli.tables import cut, json_line, line_width, print_json
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import PredictionId
from director.core.states import TERMINAL
from director.core.view import EventView, iso, show_event
from director.store.logs import KINDS, AuditLog, Entry, Following

T = TypeVar("T")

SHORTEST_S: Final = 0.3
LONGEST_S: Final = 2.0
REST: Final = 20  # rest after a round, as a multiple of its duration
AWAY_S: Final = 1.0
LOOK_S: Final = 0.15  # between two reads of one prediction
EVENTS: Final = 256
MOST_BYTES: Final = 1 << 20
KIND: Final = 8
ID: Final = 26
QUEUE: Final = 32
CLOCK: Final = slice(11, 24)  # the time of the day in a moment
WORDS: Final[Mapping[str, str]] = {
    "retried": "recovered from {director}; another attempt follows: {code}",
    "released": "released by {director}: {code}",
    "restarted": "restarted: {code}",
    "completed": "{status}",
    "webhook": "attempt {attempt} to deliver {event} to {host}: {outcome}",
    "metric": "metric {name} = {value}",
}
STARTS_AGAIN: Final = frozenset({"retried", "restarted", "revived"})


@command(
    "tail",
    JSON,
    *REDIS,
    arg("id ID", "follow this prediction until it has ended", nargs="?", default=""),
    arg("--queue QUEUE", "show only steps in this queue", default=""),
    arg("--account NAME", "show only steps of this account's predictions", default=""),
    arg("--kind KIND", "show only steps of this kind: ended, retried, …", action="append", default=[]),
    examples=("--queue acme/painter --kind retried --kind ended", EXAMPLE_ID, "--json"),
)
def _tail(given: argparse.Namespace) -> int:
    """Follow the steps of all predictions and the changes by operators, until Ctrl-C. With an ID: follow the events of
    one prediction from the first to the last, with its output on stdout.
    """
    if unknown := sorted(set(given.kind) - KINDS):
        raise SettingsError(f"there is no kind {', '.join(unknown)}: the kinds are {', '.join(sorted(KINDS))}.")
    if not given.id:
        on_backend(given, lambda backend: _follow_all(backend, given))
        return 0
    if given.queue or given.account or given.kind:
        raise SettingsError("--queue, --account and --kind do not go with an ID.")
    name = prediction_id(given.id)
    on_backend(given, lambda backend: _follow_one(backend, name, is_json=given.json))
    return 0


async def _follow_all(backend: Backend, given: argparse.Namespace) -> None:
    queue = await backend.queue(given.queue) if given.queue else None
    following = Following(AuditLog(backend.redis), [queue_partition(queue)] if queue else [])
    await following.begin()
    _tell(f"following {queue or 'all queues'}")

    def is_wanted(entry: Entry) -> bool:
        return (
            queue in (None, entry.queue)
            and given.account in ("", entry.account)
            and (not given.kind or entry.kind in given.kind)
        )

    while True:
        began_s = anyio.current_time()
        news = await _ask_until_answered(following.read)
        wanted = [entry for entry in news.entries if is_wanted(entry)]
        if given.json:
            # as `director audit --to FILE` writes them
            gap = [{"kind": "missed", "count": news.missed}] if news.missed else []
            lines = [json_line(each) for each in (*gap, *wanted)]
        else:
            lines = [_step(entry, width=line_width()) for entry in wanted]
            if news.missed:
                _tell(f"{news.missed} steps were removed before they could be read")
        if lines:
            print("\n".join(lines), flush=True)
        if not news.more:
            await anyio.sleep(min(max(SHORTEST_S, REST * (anyio.current_time() - began_s)), LONGEST_S))


def _step(entry: Entry, *, width: int | None) -> str:
    by = f"by {entry.by} " if entry.by else ""
    words = (
        iso(entry.at)[CLOCK],
        f"{entry.kind:<{KIND}}",
        f"{entry.id:<{ID}}",
        cut(entry.queue or "-", QUEUE),
        entry.account or "-",
        f"{by}{entry.detail}",
    )
    line = printable("  ".join(words).rstrip())
    return line if width is None else cut(line, width, is_middle=False)


async def _follow_one(backend: Backend, prediction_id: PredictionId, *, is_json: bool) -> None:
    pieces, after = Pieces(sys.stdout), 0

    async def read() -> Replayed | None:
        return await backend.scripts.replay(prediction_id, after=after, count=EVENTS, most_bytes=MOST_BYTES)

    while True:
        page = await _ask_until_answered(read)
        if page is None:
            raise SettingsError(f"there is no prediction {prediction_id}, or it was removed.")
        for event in map(show_event, page.events):
            if is_json:
                print_json(event)
            else:
                _show(event, pieces)
        sys.stdout.flush()
        after = page.events[-1].seq if page.events else after
        if page.moved:
            raise SettingsError(f"{prediction_id} moved to another Redis server: {page.moved}.")
        if page.status in TERMINAL and after >= page.last:
            break
        if not page.events:
            await anyio.sleep(LOOK_S)
    pieces.end()
    if not page.last:
        _tell(f"{page.status}; its events were removed: see `director explain {prediction_id}`")


def _show(event: EventView, pieces: Pieces) -> None:
    """Print an event: output as one text on stdout, all else as lines on stderr."""
    data = msgspec.json.decode(event.data)
    if event.type == "output":
        pieces.put(data)
    elif event.type == "logs":
        sys.stderr.write(harmless(str(data), sys.stderr))
        sys.stderr.flush()
    else:
        pieces.end()
        words = WORDS[event.type].format(**data) if event.type in WORDS else event.type
        again = "; its output starts again" if event.type in STARTS_AGAIN else ""
        _tell(f"{event.at[CLOCK]} {printable(words)}{again}")


async def _ask_until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until Redis answers. The begin and the end of an outage are each reported once."""
    is_away = False
    while True:
        try:
            answer = await ask()
        except BackendUnavailable as exc:
            if not is_away:
                _tell(f"{exc}: asking again")
            is_away = True
            await anyio.sleep(AWAY_S)
        else:
            if is_away:
                _tell("Redis is back")
            return answer


def _tell(text: str) -> None:
    print(f"» {text}", file=sys.stderr, flush=True)
