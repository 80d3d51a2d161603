"""`director queues`: what waits and runs in every queue, and an operator's hand on one.

Reads Redis itself, so it works while no API does.
"""

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from director.cli import departing
from director.cli.arguments import CommandParser, Commands, add_json, add_redis
from director.cli.audit import typist
from director.cli.backend import Backend, on_backend
from director.cli.pipe import print_json

if TYPE_CHECKING:
    from director.broker.scripts import QueueStats
    from director.core.ids import QueueName
    from director.core.objectives import Burns
    from director.core.setup_run import SetupRun
    from director.store.queues import Tenant

__all__ = ("add",)

Done = TypeVar("Done")

MOST_TENANTS: Final = 10
LOOK_AGAIN_S: Final = 0.5
MOST_STREAMS: Final = 32  # of core.shards, which is imported only when a command runs; a test holds the two together
AT_ONCE: Final = 25  # queues of one write
MODES: Final = ("absorb", "bounded", "reject")


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    queues = commands.add_parser(
        "queues",
        help="show what waits and runs; pause, drain, bound, resize or migrate a queue",
        description="Show every queue.",
    )
    add_json(queues)
    add_redis(queues)
    queues.set_defaults(run=_list)
    actions = queues.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser)
    _action(actions, "show", "show one queue: who waits, and how good its estimates were", _show)
    resized = _action(actions, "resize", "change the streams of each lane", _resize)
    resized.add_argument("streams", type=_number(MOST_STREAMS), metavar="STREAMS", help=f"from 1 to {MOST_STREAMS}")
    for name, text in (("pause", "hand nothing out; what runs goes on"), ("resume", "hand out again")):
        paused = _action(actions, name, text, _pause)
        paused.add_argument("--account", default="", metavar="NAME", help="of this account only")
        paused.set_defaults(paused=name == "pause")
    drained = _action(actions, "drain", "pause it, and wait until nothing of it runs", _drain)
    drained.add_argument("--timeout", type=_number(), metavar="SECONDS", help="wait no longer: it ends with 1 then")
    migrated = _action(actions, "migrate", "move what waits to the queue of another version, or server", _migrate)
    migrated.add_argument("to", metavar="TO", nargs="?", default="", help="the other queue, of the same model")
    migrated.add_argument("--dry-run", action="store_true", help="only say how many would be moved")
    departing.add_options(migrated)
    bounded = _action(actions, "bound", "say what becomes of more than the queue can run", _bound)
    bounded.add_argument("mode", choices=MODES, help="take all, so many, or only what can start at once")
    bounded.add_argument("--max-queued", type=_number(), metavar="N", help="with bounded: most that may wait")


def _action(actions: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> CommandParser:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("queue", metavar="QUEUE", help="its name, or owner/name for that of the latest version")
    add_json(parser, again=True)
    add_redis(parser, again=True)
    parser.set_defaults(run=run)
    return parser


def _number(most: int | None = None) -> Callable[[str], int]:
    to = f" to {most}" if most else ""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < 1 or (most and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} will not do: give a whole number from 1{to}")
        return int(text)

    return read


def _list(given: argparse.Namespace) -> int:
    import msgspec

    from director.cli.queue_text import table
    from director.cli.tables import line_width

    async def read(backend: Backend) -> "list[tuple[QueueName, QueueStats]]":
        found, names = list["tuple[QueueName, QueueStats]"](), await backend.queues.all()
        for start in range(0, len(names), AT_ONCE):
            found += await backend.queues.stats_of(names[start : start + AT_ONCE])
        return found

    found = on_backend(given, read)
    if given.json:
        print_json([{"queue": queue, **msgspec.to_builtins(stats)} for queue, stats in found])
    elif found:
        print("\n".join(table(found, width=line_width())))
    else:
        print("no queues yet: a director makes one when it registers its model (`director run`)")
    return 0


def _show(given: argparse.Namespace) -> int:
    import msgspec

    from director.cli.queue_text import HANG, report
    from director.cli.tables import folded, line_width
    from director.core.clock import SystemClock
    from director.core.objectives import burns

    async def read(
        backend: Backend, queue: "QueueName"
    ) -> "tuple[str, QueueStats, list[Tenant], SetupRun | None, Burns]":
        tenants = await backend.queues.tenants(queue, most=MOST_TENANTS)
        stats, setup = await backend.scripts.stats(queue), await backend.catalog.setup_run_of(queue)
        samples = await backend.history.of(queue) if stats.objectives else []
        return queue, stats, tenants, setup, burns(samples, stats.objectives, now_ms=SystemClock().now_ms())

    queue, stats, tenants, setup, burnt = _on_one(given, read)
    if given.json:
        more = {"tenants": tenants, "setup_run": setup, "burn": burnt}
        print_json({"queue": queue, **msgspec.to_builtins(stats), **msgspec.to_builtins(more)})
    else:
        print(folded(report(queue, stats, tenants, setup, burnt), hang=HANG, width=line_width()))
    return 0


def _resize(given: argparse.Namespace) -> int:
    async def act(backend: Backend, queue: "QueueName") -> tuple[str, int, int]:
        return (queue, *await backend.queue_administration.resize(queue, streams=given.streams, by=typist()))

    queue, streams, read = _on_one(given, act)
    if given.json:
        print_json({"queue": queue, "streams": streams, "read": read})
    elif read == streams:
        print(f"{queue}: {streams} streams in each lane")
    else:
        print(
            f"{queue}: new work goes to {streams} streams in each lane. Some above them still hold work, so {read} are "
            "read: nothing is lost, and the same command finishes this once they are empty."
        )
    return 0


def _pause(given: argparse.Namespace) -> int:
    async def act(backend: Backend, queue: "QueueName") -> "tuple[str, Tenant | None]":
        if given.account:
            await backend.accounts.refuse_unknown(given.account)
        hand = backend.queue_administration
        await (hand.pause if given.paused else hand.resume)(queue, account=given.account, by=typist())
        return queue, await backend.queues.tenant(queue, given.account) if given.account else None

    queue, tenant = _on_one(given, act)
    if given.json:
        print_json({"queue": queue, "account": given.account or None, "paused": given.paused})
        return 0
    whose = f" of {tenant.name}, which has {tenant.waiting} waiting and {tenant.running} running" if tenant else ""
    print(f"{queue} {'hands out nothing' if given.paused else 'hands out again what waits'}{whose}")
    return 0


def _drain(given: argparse.Namespace) -> int:
    import anyio

    async def act(backend: Backend, queue: "QueueName") -> "tuple[str, QueueStats]":
        stats = await backend.queue_administration.drain(queue, by=typist())
        with anyio.move_on_after(given.timeout):
            while stats.claimed:
                departing.progress(stats.claimed, "running")
                await anyio.sleep(LOOK_AGAIN_S)
                stats = await backend.scripts.stats(queue)
        return queue, stats

    queue, stats = _on_one(given, act)
    departing.progress(None)
    if given.json:
        print_json({"queue": queue, "drained": not stats.claimed, "claimed": stats.claimed, "waiting": stats.waiting})
    elif stats.claimed:
        print(f"{queue} hands out nothing, and {stats.claimed} still run: the same command goes on waiting")
    else:
        print(f"{queue} is drained: nothing runs, and {stats.waiting} wait until `director queues resume {queue}`")
    return 1 if stats.claimed else 0


def _migrate(given: argparse.Namespace) -> int:
    import msgspec

    from director.core.errors import SettingsError
    from director.store.migration import Moved

    if given.to_redis:
        return departing.depart(given)
    if given.put_back or not given.to:
        raise SettingsError("--put-back goes with --to-redis." if given.put_back else "TO, or --to-redis, is missing.")

    async def act(backend: Backend, queue: "QueueName") -> "tuple[QueueName, QueueName, Moved]":
        to, done = await backend.queue(given.to), Moved()
        async for done in backend.queue_administration.migrate(queue, to, by=typist(), only_asks=given.dry_run):
            departing.progress(done.moved)
        return queue, to, done

    queue, to, done = _on_one(given, act)
    departing.progress(None)
    if given.json:
        print_json({"queue": queue, "to": to, "dry_run": given.dry_run, **msgspec.to_builtins(done)})
        return 0
    print(f"{done.moved} {'would be ' if given.dry_run else ''}moved from {queue} to {to}")
    if done.claimed:
        print(f"{done.claimed} run, and end where they are; what comes back to wait there, the same command moves")
    if done.held:
        print(f"{done.held} stay, since their accounts are paused there: `director queues resume` lets them go")
    return 0


def _bound(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError

    if (given.mode == "bounded") != (given.max_queued is not None):
        raise SettingsError("--max-queued N goes with bounded, and with nothing else.")

    async def act(backend: Backend, queue: "QueueName") -> str:
        await backend.queue_administration.bound(queue, mode=given.mode, max_queued=given.max_queued, by=typist())
        return queue

    queue = _on_one(given, act)
    if given.json:
        print_json({"queue": queue, "mode": given.mode, "max_queued": given.max_queued})
    else:
        print(f"{queue}: {given.mode}{f', at most {given.max_queued} waiting' if given.max_queued else ''}")
    return 0


def _on_one(given: argparse.Namespace, act: "Callable[[Backend, QueueName], Awaitable[Done]]") -> Done:
    """Do something with the queue that the line names. Raises SettingsError where there is none."""

    async def named(backend: Backend) -> Done:
        return await act(backend, await backend.queue(given.queue))

    return on_backend(given, named)
