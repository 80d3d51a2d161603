"""`director queues`: what waits and runs in every queue. Reads Redis itself, so it works while no API does."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from director.cli.arguments import Commands, add_json, add_redis

if TYPE_CHECKING:
    from director.core.scripts import QueueStats

__all__ = ("add",)

COLUMNS: Final = ("queue", "high", "normal", "low", "running", "delayed", "dead", "directors", "oldest")


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    queues = commands.add_parser("queues", help="show what waits and runs", description="Show every queue.")
    add_json(queues)
    add_redis(queues)
    queues.set_defaults(run=_queues)


def _queues(given: argparse.Namespace) -> int:
    import anyio
    import msgspec

    from director.cli.where import redis_url

    found = anyio.run(_read, redis_url(given))
    if given.json:
        print(msgspec.json.encode([{"queue": queue, **msgspec.to_builtins(stats)} for queue, stats in found]).decode())
    elif found:
        _print_table([COLUMNS, *(_row(queue, stats) for queue, stats in found)])
    else:
        print("no queues yet: a director makes one when it registers its model (`director run`)")
    return 0


async def _read(url: str) -> "list[tuple[str, QueueStats]]":
    from director.core.catalog import Catalog
    from director.core.clock import SystemClock
    from director.core.gatherer import Gatherer
    from director.core.redis_client import client
    from director.core.scripts import Scripts

    redis = client(url, name="director-cli")
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    try:
        queues = await Catalog(redis, scripts, SystemClock()).queues()
        return [(queue, await scripts.stats(queue)) for queue in queues]
    finally:
        await gatherer.aclose()
        await redis.aclose()


def _row(queue: str, stats: "QueueStats") -> Sequence[str]:
    counts = (stats.high, stats.normal, stats.low, stats.claimed, stats.delayed, stats.dead, stats.directors)
    oldest = f"{stats.oldest_ms / 1000:.0f} s" if stats.live else "-"
    return (f"{queue} (paused)" if stats.paused else queue, *map(str, counts), oldest)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        first, *rest = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]))
