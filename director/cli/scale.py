"""`director scale`: what an autoscaler is told of a queue, as the keeper answers it. Changes nothing."""

import argparse
from typing import TYPE_CHECKING

from director.cli.arguments import Commands, add_json, add_redis
from director.cli.backend import Backend, on_backend
from director.cli.output import print_json

if TYPE_CHECKING:
    from director.core.ids import QueueName
    from director.diagnosis.scaling import Scale


def add(commands: Commands) -> None:
    """Add the command of this file."""
    scale = commands.add_parser(
        "scale",
        help="tell how many directors a queue wants, as the keeper tells an autoscaler",
        description="Tell how many directors a queue wants, what of it could run, and what runs.",
    )
    scale.add_argument("queue", metavar="QUEUE", help="a queue, or owner/name for that of its latest version")
    scale.add_argument(
        "--key", action="store_true", help="print the Redis key whose ZCARD is all that waits, is delayed or runs"
    )
    scale.set_defaults(run=_scale)
    add_json(scale)
    add_redis(scale)


def _scale(given: argparse.Namespace) -> int:
    import msgspec

    from director.broker import keys
    from director.core.errors import SettingsError, UnknownQueue

    async def asked(backend: Backend) -> "tuple[QueueName, Scale]":
        queue = await backend.scaling.named(given.queue)
        return queue, await backend.scaling.of(queue)

    try:
        queue, scale = on_backend(given, asked)
    except UnknownQueue as exc:
        raise SettingsError(f"there is no queue {given.queue}: `director queues` shows them.") from exc
    told = {"key": keys.live(queue)} if given.key else msgspec.to_builtins(scale)
    if given.json:
        print_json(told)
    else:
        print(told["key"] if given.key else "  ".join(f"{name} {value}" for name, value in told.items()))
    return 0
