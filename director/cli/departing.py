"""`director queues migrate QUEUE [TO] --to-redis URL`: what waits goes to another Redis server.

Reads both servers itself, so it works while no API does.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from director.cli.arguments import CommandParser
from director.cli.audit import typist
from director.cli.backend import Backend, connected, on_backend
from director.cli.pipe import print_json

if TYPE_CHECKING:
    from director.core.ids import QueueName
    from director.store.departure import Left

__all__ = ("add_options", "depart", "progress")

STAYS = {
    "claimed": "run, and end where they are; what comes back to wait there, the same command moves",
    "held": "stay, since their accounts are paused or suspended here",
    "strange": "stay, since their accounts are not known there: `director account create` makes them",
    "elsewhere": "are on their way to another server, or could not be brought: repeat that command, or --put-back",
}


def add_options(parser: CommandParser) -> None:
    """What this way of `migrate` has beside the other one's."""
    parser.add_argument("--to-redis", metavar="URL", help="move it to this other server, where TO is QUEUE if left out")
    parser.add_argument(
        "--put-back", action="store_true", help="with --to-redis: what is on its way there waits here again"
    )
    parser.epilog = "It may be cut short and repeated at any time."


def depart(given: argparse.Namespace) -> int:
    """Move, or put back."""
    import msgspec

    async def act(here: Backend) -> "tuple[QueueName, QueueName, Left]":
        async with connected(given.to_redis) as there:
            return await _moved(here, there, given)

    queue, to, done = on_backend(given, act)
    progress(None)
    facts = msgspec.to_builtins(done)
    if given.json:
        print_json({"queue": queue, "to": to, "dry_run": given.dry_run, **facts})
        return 0
    print(f"{done.moved} {'would be ' if given.dry_run else ''}moved from {queue} to {to} there")
    if done.stayed:
        print(f"{done.stayed} wait here again")
    for name, why in STAYS.items():
        if facts[name]:
            print(f"{facts[name]} {why}")
    return 0


def progress(count: int | None, what: str = "moved") -> None:
    """Of a terminal one line, which goes at the end; to a file nothing."""
    if sys.stderr.isatty():
        print("\r\x1b[K" + ("" if count is None else f"{count} {what}"), end="", file=sys.stderr, flush=True)


async def _moved(here: Backend, there: Backend, given: argparse.Namespace) -> "tuple[QueueName, QueueName, Left]":
    from director.broker.durability import check
    from director.broker.redis_client import describe
    from director.core.errors import SettingsError
    from director.core.settings import CommonSettings, load
    from director.store.departure import Departure, Left, Site

    queue, to = await here.queues.named(given.queue), await there.queues.named(given.to or given.queue)
    if given.dry_run and given.put_back:
        raise SettingsError("--dry-run says what would be moved: it does not go with --put-back.")
    if queue is None:
        raise SettingsError(f"there is no queue {given.queue}: `director queues` shows them.")
    if to is None:
        raise SettingsError(f"there is no queue {given.to or given.queue} there: a director there makes it.")
    await check(there.redis, load(CommonSettings))
    one, other = (Site(each.redis, each.scripts, each.accounts) for each in (here, there))
    departure, done = Departure(one, other, queue, to), Left()
    steps = departure.put_back() if given.put_back else departure.steps(only_asks=given.dry_run)
    if given.dry_run:
        async for done in steps:
            progress(done.moved)
        return queue, to, done
    facts = {"to": to, "to_redis": describe(given.to_redis), "put_back": given.put_back}
    async with here.changes.noting("queue_migrated", by=typist(), queue=queue, **facts):
        async for done in steps:
            progress(done.moved + done.stayed)
    return queue, to, done
