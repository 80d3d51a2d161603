"""`director queues`: what waits and runs in every queue, and an operator's hand on one.

Reads Redis itself, so it works while no API does.
"""

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from director.cli.arguments import CommandParser, Commands, add_json, add_redis

if TYPE_CHECKING:
    from director.core.ids import QueueName
    from director.core.queues import Queues, Tenant
    from director.core.scripts import QueueStats, Scripts

    Do = Callable[[Scripts, Queues, QueueName], Awaitable[Any]]

__all__ = ("add",)

MOST_TENANTS: Final = 10
MOST_STREAMS: Final = 32  # of core.shards, which is imported only when a command runs; a test holds the two together
MODES: Final = ("absorb", "bounded", "reject")


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    queues = commands.add_parser(
        "queues", help="show what waits and runs; pause, bound or resize a queue", description="Show every queue."
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

    async def read(scripts: "Scripts", queues: "Queues") -> "list[tuple[str, QueueStats]]":
        return [(queue, await scripts.stats(queue)) for queue in await queues.all()]

    found: list[tuple[str, QueueStats]] = _run(given, read)
    if given.json:
        _print_json([{"queue": queue, **msgspec.to_builtins(stats)} for queue, stats in found])
    elif found:
        print("\n".join(table(found)))
    else:
        print("no queues yet: a director makes one when it registers its model (`director run`)")
    return 0


def _show(given: argparse.Namespace) -> int:
    import msgspec

    from director.cli.queue_text import report

    async def read(scripts: "Scripts", queues: "Queues", queue: "QueueName") -> "tuple[str, QueueStats, list[Tenant]]":
        return queue, await scripts.stats(queue), await queues.tenants(queue, most=MOST_TENANTS)

    found: tuple[str, QueueStats, list[Tenant]] = _on_one(given, read)
    queue, stats, tenants = found
    if given.json:
        _print_json({"queue": queue, **msgspec.to_builtins(stats), "tenants": msgspec.to_builtins(tenants)})
    else:
        print("\n".join(report(queue, stats, tenants)))
    return 0


def _resize(given: argparse.Namespace) -> int:
    async def act(scripts: "Scripts", _: "Queues", queue: "QueueName") -> "tuple[str, int, int]":
        return (queue, *await scripts.resize(queue, streams=given.streams))

    found: tuple[str, int, int] = _on_one(given, act)
    queue, streams, read = found
    if given.json:
        _print_json({"queue": queue, "streams": streams, "read": read})
    elif read == streams:
        print(f"{queue}: {streams} streams in each lane")
    else:
        print(
            f"{queue}: new work goes to {streams} streams in each lane. Some above them still hold work, so {read} are "
            "read: nothing is lost, and the same command finishes this once they are empty."
        )
    return 0


def _pause(given: argparse.Namespace) -> int:
    from director.core.accounts import refuse_name

    if given.account:
        refuse_name(given.account)

    async def act(scripts: "Scripts", queues: "Queues", queue: "QueueName") -> "tuple[str, Tenant | None]":
        await scripts.pause(queue, paused=given.paused, tenant=given.account)
        return queue, await queues.tenant(queue, given.account) if given.account else None

    found: tuple[str, Tenant | None] = _on_one(given, act)
    queue, tenant = found
    if given.json:
        _print_json({"queue": queue, "account": given.account or None, "paused": given.paused})
        return 0
    whose = f" of {tenant.name}, which has {tenant.waiting} waiting and {tenant.running} running" if tenant else ""
    print(f"{queue} {'hands out nothing' if given.paused else 'hands out again what waits'}{whose}")
    return 0


def _bound(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError

    if (given.mode == "bounded") != (given.max_queued is not None):
        raise SettingsError("--max-queued N goes with bounded, and with nothing else.")

    async def act(scripts: "Scripts", _: "Queues", queue: "QueueName") -> str:
        await scripts.bound(queue, mode=given.mode, max_queued=given.max_queued)
        return queue

    queue: str = _on_one(given, act)
    if given.json:
        _print_json({"queue": queue, "mode": given.mode, "max_queued": given.max_queued})
    else:
        print(f"{queue}: {given.mode}{f', at most {given.max_queued} waiting' if given.max_queued else ''}")
    return 0


def _on_one(given: argparse.Namespace, do: "Do") -> Any:
    """Do something with the queue that the line names. Raises SettingsError where there is none."""
    from director.core.errors import SettingsError

    async def named(scripts: "Scripts", queues: "Queues") -> Any:
        queue = await queues.named(given.queue)
        if queue is None:
            raise SettingsError(f"there is no queue {given.queue}: `director queues` shows them.")
        return await do(scripts, queues, queue)

    return _run(given, named)


def _run(given: argparse.Namespace, do: "Callable[[Scripts, Queues], Awaitable[Any]]") -> Any:
    import anyio

    from director.cli.where import redis_url

    async def main(url: str) -> Any:
        from director.core.catalog import Catalog
        from director.core.clock import SystemClock
        from director.core.gatherer import Gatherer
        from director.core.queues import Queues
        from director.core.redis_client import client
        from director.core.scripts import Scripts

        redis = client(url, name="director-cli")
        gatherer = Gatherer(redis)
        scripts = Scripts(gatherer)
        try:
            return await do(scripts, Queues(redis, Catalog(redis, scripts, SystemClock())))
        finally:
            await gatherer.aclose()
            await redis.aclose()

    return anyio.run(main, redis_url(given))


def _print_json(body: object) -> None:
    import msgspec

    print(msgspec.json.encode(body).decode())
