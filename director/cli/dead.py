"""`director dead`: what used up its attempts, and what becomes of it. Reads Redis itself, as `queues` does."""

import argparse
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from director.cli.arguments import CommandParser, Commands, add_json, add_redis

if TYPE_CHECKING:
    from director.core.catalog import Catalog
    from director.core.dead import DeadLetter, DeadLetters, Done, Place, Shown
    from director.core.ids import PredictionId, QueueName

__all__ = ("add",)

SHOWN: Final = 20


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    dead = commands.add_parser(
        "dead", help="list, revive or drop dead letters", description="What used up its attempts."
    )
    actions = dead.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    listed = _action(actions, "list", "show dead letters, newest first", _list)
    listed.add_argument("--queue", default="", help="of this queue only")
    listed.add_argument("-n", type=int, default=SHOWN, metavar="N", help="at most so many (%(default)s)")
    listed.add_argument("--cursor", default="", help="go on where an earlier list ended")
    shown = _action(actions, "show", "show one dead letter with all its attempts", _show)
    shown.add_argument("id", metavar="ID")
    for name, text in (("revive", "return dead letters to their queue"), ("drop", "let go of dead letters")):
        many = _action(actions, name, text, _do)
        many.add_argument("ids", nargs="*", metavar="ID")
        many.add_argument("--all", action="store_true", help="all that there are now")
        many.add_argument("--queue", default="", help="with --all: of this queue only")
        many.add_argument("--rate", type=_rate, metavar="N", help="at most so many in a second")
        many.set_defaults(action=name)


def _action(actions: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> CommandParser:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_json(parser)
    add_redis(parser)
    parser.set_defaults(run=run)
    return parser


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: give a number above 0")
    return rate


def _list(given: argparse.Namespace) -> int:
    from director.core.dead import Letters, Place
    from director.core.errors import SettingsError

    before = Place.parse(given.cursor)
    if given.cursor and before is None:
        raise SettingsError(f"{given.cursor!r} is no cursor: take the one that an earlier list printed.")

    async def read(dead: "DeadLetters", catalog: "Catalog") -> Letters:
        return await dead.page(await _queues(catalog, given.queue), before=before, count=max(1, given.n))

    letters: Letters = _run(given, read)
    if given.json:
        print(_json(letters))
        return 0
    for letter in letters.results:
        print(_line(letter))
    if letters.next:
        print(f"there are more: --cursor {letters.next}")
    elif not letters.results:
        print("no dead letters")
    return 0


def _show(given: argparse.Namespace) -> int:
    import msgspec

    from director.core.errors import SettingsError

    [name] = _ids([given.id])

    async def read(dead: "DeadLetters", _: "Catalog") -> "Shown | None":
        return await dead.show(name)

    shown: Shown | None = _run(given, read)
    if shown is None:
        raise SettingsError(f"{given.id} is no dead letter: `director dead list` shows them.")
    if given.json:
        print(_json({**msgspec.structs.asdict(shown.letter), "input": shown.input}))
    else:
        print("\n".join([_line(shown.letter), *_told(shown)]))
    return 0


def _do(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError

    if bool(given.ids) == given.all or (given.queue and not given.all):
        raise SettingsError(f"say which: `director dead {given.action} ID …`, or --all, or --all --queue NAME.")
    ids = _ids(given.ids)

    async def do(dead: "DeadLetters", catalog: "Catalog") -> "Done":
        act = dead.revive if given.action == "revive" else dead.drop
        slices = dead.every(await _queues(catalog, given.queue)) if given.all else _slices(await dead.named(ids))
        return await act(slices, rate=given.rate)

    done: Done = _run(given, do)
    if given.json:
        print(_json({"done": done.done, "refused": done.refused}))
    else:
        print(f"{done.done} {'revived' if given.action == 'revive' else 'dropped'}")
        for name in done.refused:
            print(f"{name} is no dead letter, or its input was removed: nothing was done")
    return 1 if done.refused else 0


def _run(given: argparse.Namespace, do: "Callable[[DeadLetters, Catalog], Awaitable[Any]]") -> Any:
    import anyio

    from director.cli.where import redis_url

    url = redis_url(given)

    async def main() -> Any:
        async with _opened(url) as (dead, catalog):
            return await do(dead, catalog)

    return anyio.run(main)


@asynccontextmanager
async def _opened(url: str) -> "AsyncIterator[tuple[DeadLetters, Catalog]]":
    from director.core.catalog import Catalog
    from director.core.clock import SystemClock
    from director.core.dead import DeadLetters
    from director.core.gatherer import Gatherer
    from director.core.redis_client import client
    from director.core.scripts import Scripts

    redis, clock = client(url, name="director-cli"), SystemClock()
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    try:
        yield DeadLetters(redis, scripts, clock), Catalog(redis, scripts, clock)
    finally:
        await gatherer.aclose()
        await redis.aclose()


async def _queues(catalog: "Catalog", queue: str) -> "list[QueueName]":
    from director.core.errors import SettingsError
    from director.core.ids import QueueName

    known = await catalog.queues()
    if queue and queue not in known:
        raise SettingsError(f"there is no queue {queue}: `director queues` shows them.")
    return [QueueName(queue)] if queue else known


async def _slices(places: "list[Place]") -> "AsyncIterator[list[Place]]":
    yield places


def _ids(names: list[str]) -> "list[PredictionId]":
    from director.core.errors import SettingsError
    from director.core.ids import PredictionId, is_prediction_id

    for name in names:
        if not is_prediction_id(name):
            raise SettingsError(f"{name!r} is no id of a prediction: `director dead list` shows them.")
    return [PredictionId(name) for name in dict.fromkeys(names)]


def _line(letter: "DeadLetter") -> str:
    attempts = f"{len(letter.attempts)} attempt{'' if len(letter.attempts) == 1 else 's'}"
    return f"{letter.died_at}  {letter.id}  {letter.queue}  {letter.account}  {letter.code}  {attempts}"


def _told(shown: "Shown") -> list[str]:
    letter = shown.letter
    lines = [f"  {letter.error}", f"  accepted {letter.created_at}, revived {letter.revivals} times before"]
    lines += [
        f"  attempt {one.number}: {one.director}, {one.claimed_at or '?'} to {one.ended_at}, {one.code}"
        for one in letter.attempts
    ]
    removed = "removed: it cannot be revived any more"
    return [*lines, f"  input {removed if shown.input is None else bytes(shown.input).decode(errors='replace')}"]


def _json(body: object) -> str:
    import msgspec

    return msgspec.json.encode(body).decode()
