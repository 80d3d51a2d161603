"""Commands on dead letters: `director dead`. They read Redis, so they work while no API does."""

import argparse
import math
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from director.cli.arguments import EXAMPLE_ID, Commands, add_action, add_group
from director.cli.backend import Backend, on_backend, typist
from director.cli.output import print_json, printable, progress

if TYPE_CHECKING:
    from director.core.ids import PredictionId, QueueName
    from director.store.catalog import Catalog
    from director.store.dead import DeadLetter, Done, Letters, Place, Shown


SHOWN: Final = 20
COLUMNS: Final = ("died", "id", "queue", "account", "why", "attempts")


def add(commands: Commands) -> None:
    actions = add_group(
        commands, "dead", "list, revive or drop dead letters: predictions without attempts left", "director dead list"
    )
    listed = add_action(
        actions,
        "list",
        "list dead letters, newest first",
        _list,
        "director dead list --queue acme/painter:0123456789ab -n 100",
    )
    listed.add_argument("--queue", default="", help="list only this queue's")
    listed.add_argument("-n", type=int, default=SHOWN, metavar="N", help="list at most N (%(default)s)")
    listed.add_argument("--cursor", default="", help="continue where an earlier list ended")
    shown = add_action(
        actions, "show", "show a dead letter with all its attempts", _show, f"director dead show {EXAMPLE_ID}"
    )
    shown.add_argument("id", metavar="ID")
    revived = add_action(
        actions,
        "revive",
        "return dead letters to their queue",
        _do,
        f"director dead revive {EXAMPLE_ID}",
        "director dead revive --all --rate 5",
    )
    dropped = add_action(
        actions,
        "drop",
        "drop dead letters: they cannot be revived afterwards",
        _do,
        "director dead drop --all --queue acme/painter:0123456789ab",
    )
    for name, many in (("revive", revived), ("drop", dropped)):
        many.add_argument("ids", nargs="*", metavar="ID")
        many.add_argument("--all", action="store_true", help="all dead letters that there are now")
        many.add_argument("--queue", default="", help="with --all: only this queue's")
        many.add_argument("--rate", type=_rate, metavar="N", help="at most N a second")
        many.set_defaults(action=name)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: give a number above 0")
    return rate


def _list(given: argparse.Namespace) -> int:
    from director.cli.output import fitted, line_width
    from director.core.errors import SettingsError
    from director.store.dead import Place

    before = Place.parse(given.cursor)
    if given.cursor and before is None:
        raise SettingsError(f"{given.cursor!r} is not a cursor: use the one that an earlier list printed.")

    async def read(backend: Backend) -> "Letters":
        queues = await _queues(backend.catalog, given.queue)
        return await backend.dead.page(queues, before=before, count=max(1, given.n))

    letters = on_backend(given, read)
    if given.json:
        print_json(letters)
        return 0
    if letters.results:
        rows = [_row(letter) for letter in letters.results]
        print("\n".join(fitted(COLUMNS, rows, width=line_width(), words=COLUMNS[:-1])))
    if letters.next:
        print(f"there are more: --cursor {letters.next}")
    elif not letters.results:
        print("no dead letters")
    return 0


def _show(given: argparse.Namespace) -> int:
    import msgspec

    from director.cli.output import folded, line_width
    from director.core.errors import SettingsError

    [name] = _ids([given.id])

    async def read(backend: Backend) -> "Shown | None":
        return await backend.dead.show(name)

    shown = on_backend(given, read)
    if shown is None:
        raise SettingsError(f"{given.id} is not a dead letter: `director dead list` shows them.")
    if given.json:
        print_json({**msgspec.structs.asdict(shown.letter), "input": shown.input})
    else:
        print(folded(map(printable, [_line(shown.letter), *_told(shown)]), hang=4, width=line_width()))
    return 0


def _do(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError
    from director.store.dead import Asked

    if bool(given.ids) == given.all or (given.queue and not given.all):
        raise SettingsError(f"name some: `director dead {given.action} ID …`, or --all, or --all --queue NAME.")
    ids = _ids(given.ids)

    async def do(backend: Backend) -> "Done":
        dead = backend.dead
        act = dead.revive if given.action == "revive" else dead.drop
        queues = await _queues(backend.catalog, given.queue)
        slices = dead.every(queues) if given.all else _slices(await dead.named(ids))
        asked = Asked(ids=ids, queue=given.queue)
        with progress() as show:
            return await act(_counted(slices, given.rate, show), by=typist(), asked=asked, rate=given.rate)

    done = on_backend(given, do)
    if given.json:
        print_json({"done": done.done, "refused": done.refused})
    else:
        print(f"{done.done} {'revived' if given.action == 'revive' else 'dropped'}")
        for name in done.refused:
            print(f"{name} is not a dead letter, or its input was removed. Nothing was changed")
    return 1 if done.refused else 0


async def _queues(catalog: "Catalog", queue: str) -> "list[QueueName]":
    from director.core.errors import SettingsError
    from director.core.ids import QueueName

    known = await catalog.queues()
    if queue and queue not in known:
        raise SettingsError(f"there is no queue {queue}: `director queues` shows them.")
    return [QueueName(queue)] if queue else known


async def _slices(places: "list[Place]") -> "AsyncIterator[list[Place]]":
    yield places


async def _counted(
    slices: "AsyncIterator[list[Place]]", rate: float | None, show: Callable[[str], None]
) -> "AsyncIterator[list[Place]]":
    """Yield the same places, and show on a terminal how many are done.

    With a rate, yield one place at a time: each may take seconds.
    """
    met = 0
    async for places in slices:
        step = 1 if rate else len(places)
        for start in range(0, len(places), step):
            show(f"{met} done")
            yield places[start : start + step]
            met += len(places[start : start + step])


def _ids(names: list[str]) -> "list[PredictionId]":
    from director.core.errors import SettingsError
    from director.core.ids import PredictionId, is_prediction_id

    for name in names:
        if not is_prediction_id(name):
            raise SettingsError(f"{name!r} is not the id of a prediction: `director dead list` shows them.")
    return [PredictionId(name) for name in dict.fromkeys(names)]


def _row(letter: "DeadLetter") -> list[str]:
    return [letter.died_at, letter.id, letter.queue, letter.account, letter.code, str(len(letter.attempts))]


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
    removed = "removed: it can no longer be revived"
    return [*lines, f"  input {removed if shown.input is None else bytes(shown.input).decode(errors='replace')}"]
