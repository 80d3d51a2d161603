"""`director tail`: follow the steps of all predictions, or the events of one. It asks the API, or reads Redis with
--redis, and continues after an outage where it was.
"""

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

import anyio
import msgspec
from msgspec import Struct

from director.broker.keys import queue_partition
from director.cli.arguments import EXAMPLE_ID, JSON, REDIS_OR_SERVICE, arg, command
from director.cli.backend import Backend, on_backend
from director.cli.client import Away, Missing, PredictionAnswer, Service, read
from director.cli.live import LiveClient, StepsOfApi
from director.cli.operators import ask_or_read_redis, prediction_id
from director.cli.output import harmless, printable
from director.cli.printing import Pieces
from director.cli.tables import cut, json_line, line_width, print_json
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import PredictionId
from director.core.states import TERMINAL, Status
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
    *REDIS_OR_SERVICE,
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
    if given.id and (given.queue or given.account or given.kind):
        raise SettingsError("--queue, --account and --kind do not go with an ID.")
    name = prediction_id(given.id) if given.id else None
    return ask_or_read_redis(given, partial(_tail_there, given, name), partial(_tail_here, given, name))


def _tail_there(given: argparse.Namespace, name: PredictionId | None, chosen: Service) -> int:
    async def follow() -> None:
        async with LiveClient(chosen) as client:
            if name is not None:
                await _follow_one(EventsOfApi(client, name), name, is_json=given.json)
            else:
                log = StepsOfApi(client, given.queue)
                following = Following(log)
                await following.begin()
                await _follow_all(following, given, log.queue)

    anyio.run(follow)
    return 0


def _tail_here(given: argparse.Namespace, name: PredictionId | None) -> int:
    async def follow(backend: Backend) -> None:
        if name is not None:
            await _follow_one(EventsOfRedis(backend, name), name, is_json=given.json)
        else:
            queue = await backend.queue(given.queue) if given.queue else None
            following = Following(AuditLog(backend.redis, [queue_partition(queue)] if queue else []))
            await following.begin()
            await _follow_all(following, given, queue or "")

    on_backend(given, follow)
    return 0


async def _follow_all(following: Following, given: argparse.Namespace, queue: str) -> None:
    _tell(f"following {queue or 'all queues'}")

    def is_wanted(entry: Entry) -> bool:
        return (
            queue in ("", entry.queue)
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


class EventPage(Struct, frozen=True):
    """Some events of a prediction. `status` is known once there are no more."""

    events: list[EventView]
    status: Status | None = None


class Events(Protocol):
    """The events of one prediction. Raises SettingsError if it is unknown, BackendUnavailable during an outage."""

    async def after(self, seq: int) -> EventPage: ...


class EventsOfRedis:
    def __init__(self, backend: Backend, name: PredictionId) -> None:
        self._backend = backend
        self._name = name

    async def after(self, seq: int) -> EventPage:
        page = await self._backend.scripts.replay(self._name, after=seq, count=EVENTS, most_bytes=MOST_BYTES)
        if page is None:
            raise _unknown(self._name)
        if page.moved:
            raise SettingsError(f"{self._name} moved to another Redis server: {page.moved}.")
        is_over = page.status in TERMINAL and (page.events[-1].seq if page.events else seq) >= page.last
        return EventPage([show_event(event) for event in page.events], Status(page.status) if is_over else None)


class _Events(Struct, frozen=True):
    events: list[EventView]
    data_removed: bool = False


class EventsOfApi:
    def __init__(self, client: LiveClient, name: PredictionId) -> None:
        self._client = client
        self._path = f"/v1/predictions/{quote(name, safe='')}"
        self._name = name
        self._status: Status | None = None

    async def after(self, seq: int) -> EventPage:
        try:
            found = read(await self._client.ask("GET", f"{self._path}/events?after={seq}&limit={EVENTS}"), _Events)
            if found.data_removed:
                return EventPage([], read(await self._client.ask("GET", self._path), PredictionAnswer).status)
        except Missing as exc:
            raise _unknown(self._name) from exc
        for event in found.events:
            if event.type == "completed":
                self._status = Status(msgspec.json.decode(event.data)["status"])
            elif event.type in STARTS_AGAIN:
                self._status = None
        return EventPage(found.events, None if found.events else self._status)


def _unknown(name: PredictionId) -> SettingsError:
    return SettingsError(f"there is no prediction {name}, or it was removed.")


async def _follow_one(found: Events, name: PredictionId, *, is_json: bool) -> None:
    pieces, after, page = Pieces(sys.stdout), 0, await found.after(0)
    while True:
        for event in page.events:
            if is_json:
                print_json(event)
            else:
                _show(event, pieces)
        sys.stdout.flush()
        after = page.events[-1].seq if page.events else after
        if page.status is not None:
            break
        if not page.events:
            await anyio.sleep(LOOK_S)
        page = await _ask_until_answered(partial(found.after, after))
    pieces.end()
    if not after:
        _tell(f"{page.status}; its events were removed: see `director explain {name}`")


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
    """Ask until there is an answer. The begin and the end of an outage are each reported once."""
    away = ""
    while True:
        try:
            answer = await ask()
        except BackendUnavailable as exc:
            if not away:
                _tell(f"{exc}: asking again")
            away = "the service" if isinstance(exc, Away) else "Redis"
            await anyio.sleep(AWAY_S)
        else:
            if away:
                _tell(f"{away} is back")
            return answer


def _tell(text: str) -> None:
    print(f"» {text}", file=sys.stderr, flush=True)
