"""`director tail`: follow the steps of all predictions, or the events of one.

It reads Redis, so it works while no API does. After an outage of Redis it continues where it was.
"""

import argparse
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from director.cli.arguments import EXAMPLE_ID, Commands, add_action
from director.cli.backend import Backend, on_backend

if TYPE_CHECKING:
    from director.audit.log import Entry
    from director.broker.replies import Replayed
    from director.core.ids import PredictionId


T = TypeVar("T")

SHORTEST_S: Final = 0.3
LONGEST_S: Final = 2.0
REST: Final = 20  # rest after a round, as a multiple of its duration
AWAY_S: Final = 1.0
LOOK_S: Final = 0.15  # between two reads of one prediction
EVENTS: Final = 256
MOST_BYTES: Final = 1 << 20


def add(commands: Commands) -> None:
    tail = add_action(
        commands,
        "tail",
        "follow the steps of all predictions, or one prediction with its output",
        _tail,
        "director tail --queue acme/painter --kind retried --kind ended",
        f"director tail {EXAMPLE_ID}",
        "director tail --json",
        about="Follow the steps of all predictions and the changes by operators, until Ctrl-C. With an ID: follow the "
        "events of one prediction from the first to the last, with its output on stdout.",
    )
    tail.add_argument("id", nargs="?", default="", metavar="ID", help="follow this prediction until it has ended")
    tail.add_argument("--queue", default="", metavar="QUEUE", help="show only steps in this queue")
    tail.add_argument("--account", default="", metavar="NAME", help="show only steps of this account's predictions")
    tail.add_argument(
        "--kind", action="append", default=[], metavar="KIND", help="show only steps of this kind: ended, retried, …"
    )


def _tail(given: argparse.Namespace) -> int:
    from director.audit.log import KINDS
    from director.core.errors import SettingsError
    from director.core.ids import PredictionId, is_prediction_id

    if unknown := sorted(set(given.kind) - KINDS):
        raise SettingsError(f"there is no kind {', '.join(unknown)}: the kinds are {', '.join(sorted(KINDS))}.")
    if not given.id:
        on_backend(given, lambda backend: _follow_all(backend, given))
        return 0
    if given.queue or given.account or given.kind:
        raise SettingsError("--queue, --account and --kind do not go with an ID.")
    if not is_prediction_id(given.id):
        raise SettingsError(f"{given.id!r} is not the id of a prediction.")
    on_backend(given, lambda backend: _follow_one(backend, PredictionId(given.id), is_json=given.json))
    return 0


async def _follow_all(backend: Backend, given: argparse.Namespace) -> None:
    """Print steps until the command is interrupted."""
    import anyio

    from director.audit.log import AuditLog, Following
    from director.broker.keys import queue_partition
    from director.cli.output import line_width
    from director.cli.printing import step, steps_json

    queue = await backend.queue(given.queue) if given.queue else None
    following = Following(AuditLog(backend.redis), [queue_partition(queue)] if queue else [])
    await following.begin()
    _tell(f"following {queue or 'all queues'}")

    def is_wanted(entry: "Entry") -> bool:
        return (
            queue in (None, entry.queue)
            and given.account in ("", entry.account)
            and (not given.kind or entry.kind in given.kind)
        )

    while True:
        began_s = anyio.current_time()
        news = await _asked(following.read)
        wanted = [entry for entry in news.entries if is_wanted(entry)]
        if given.json:
            lines = steps_json(wanted, news.missed)
        else:
            lines = [step(entry, width=line_width()) for entry in wanted]
            if news.missed:
                _tell(f"{news.missed} steps were removed before they could be read")
        if lines:
            print("\n".join(lines), flush=True)
        if not news.more:
            await anyio.sleep(min(max(SHORTEST_S, REST * (anyio.current_time() - began_s)), LONGEST_S))


async def _follow_one(backend: Backend, prediction_id: "PredictionId", *, is_json: bool) -> None:
    """Print the events of one prediction until its last."""
    import anyio

    from director.cli.output import print_json
    from director.cli.printing import EventPrinter
    from director.core.errors import SettingsError
    from director.core.states import TERMINAL
    from director.core.view import shown_event

    printer, after = EventPrinter(sys.stdout, sys.stderr), 0

    async def read() -> "Replayed | None":
        return await backend.scripts.replay(prediction_id, after=after, count=EVENTS, most_bytes=MOST_BYTES)

    while True:
        page = await _asked(read)
        if page is None:
            raise SettingsError(f"there is no prediction {prediction_id}, or it was removed.")
        for event in map(shown_event, page.events):
            if is_json:
                print_json(event)
            else:
                printer.show(event)
        sys.stdout.flush()
        after = page.events[-1].seq if page.events else after
        if page.moved:
            raise SettingsError(f"{prediction_id} moved to another Redis server: {page.moved}.")
        if page.status in TERMINAL and after >= page.last:
            break
        if not page.events:
            await anyio.sleep(LOOK_S)
    printer.end()
    if not page.last:
        _tell(f"{page.status}; its events were removed: see `director explain {prediction_id}`")


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until Redis answers. The begin and the end of an outage are each reported once."""
    import anyio

    from director.core.errors import BackendUnavailable

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
