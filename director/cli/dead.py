"""Commands on dead letters: `director dead`."""

import argparse
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from director.cli.arguments import CURSOR, EXAMPLE_ID, MOST_LISTED, arg, flag, group, whole
from director.cli.client import Client, Refused, Service, read
from director.cli.operators import Backend, operator, prediction_id, typist, unknown_queue
from director.cli.output import printable
from director.cli.tables import Answer, fold, line_width, progress, tabulate
from director.core.errors import SettingsError
from director.core.ids import PredictionId, QueueName
from director.core.words import several

if TYPE_CHECKING:
    from director.store.dead import DeadCursor, Shown

SHOWN: Final = 20
COLUMNS: Final = ("died", "id", "queue", "account", "why", "attempts")

group("dead", "list")


@operator(
    "dead list",
    arg("--queue", "list only this queue's", default=""),
    arg("-n N", "list at most N (%(default)s)", type=whole(MOST_LISTED), default=SHOWN),
    CURSOR,
    needs="view",
    examples=("--queue acme/painter:0123456789ab -n 100",),
)
async def _list(backend: Backend, given: argparse.Namespace) -> Answer:
    """List dead letters, newest first."""
    from director.store.dead import DeadCursor

    before = DeadCursor.parse(given.cursor)
    if given.cursor and before is None:
        raise SettingsError(f"{given.cursor!r} is not a cursor: use the one that an earlier list printed.")
    letters = await backend.dead.page(await _queues(backend, given.queue), before=before, count=given.n)
    rows = [
        (letter.died_at, letter.id, letter.queue, letter.account, letter.code, str(len(letter.attempts)))
        for letter in letters.results
    ]
    more = f"there are more: --cursor {letters.next}" if letters.next else ""
    empty = more or "no dead letters"
    return Answer(
        letters,
        lambda: tabulate(COLUMNS, rows, words=COLUMNS[:-1], empty=empty) + (f"\n{more}" if rows and more else ""),
    )


@operator("dead show", arg("id ID", "the prediction"), needs="view", examples=(EXAMPLE_ID,))
async def _show(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show a dead letter with all its attempts."""
    from director.store.dead import DeadLetters

    letters = DeadLetters(backend.redis, backend.scripts_with_files, backend.clock)
    shown = await letters.show(_id(given.id))
    if shown is None:
        raise SettingsError(f"{given.id} is not a dead letter: `director dead list` shows them.")
    body = {**msgspec.structs.asdict(shown.letter), "input": shown.input}
    return Answer(body, fold(map(printable, _lines(shown)), hang=4, width=line_width()))


def _lines(shown: "Shown") -> list[str]:
    letter = shown.letter
    head = (letter.died_at, letter.id, letter.queue, letter.account, letter.code)
    removed = "removed: it can no longer be revived"
    return [
        "  ".join([*head, several(len(letter.attempts), "attempt")]),
        f"  {letter.error}",
        f"  accepted {letter.created_at}, revived {letter.revivals} times before",
        *(
            f"  attempt {one.number}: {one.director}, {one.claimed_at or '?'} to {one.ended_at}, {one.code}"
            for one in letter.attempts
        ),
        f"  input {removed if shown.input is None else bytes(shown.input).decode(errors='replace')}",
    ]


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: give a number above 0")
    return rate


MANY: Final = (
    arg("ids ID", "predictions", nargs="*"),
    flag("--all", "all dead letters that there are now"),
    arg("--queue", "with --all: only this queue's", default=""),
    arg("--rate N", "at most N a second", type=_rate),
)


class _Done(Struct, frozen=True):
    done: int
    refused: list[str]
    secret: list[str] = []
    next: str | None = None


def _ask_to(action: str) -> Callable[[Service, argparse.Namespace], Answer]:
    """Return how the API is asked: again and again, since each answer comes after some seconds at most."""

    def ask(chosen: Service, given: argparse.Namespace) -> Answer:
        asked, cursor = _select(given, action), ""
        done, refused, secret = 0, list[str](), list[str]()
        with Client(chosen) as client, progress() as show:
            while True:
                one = read(client.change_dead(action, {**asked, **({"cursor": cursor} if cursor else {})}), _Done)
                done, refused, secret = done + one.done, refused + one.refused, secret + one.secret
                show(f"{done} done")
                if not one.next:
                    return _answer(action, done, refused, secret)
                if one.next == cursor:  # release 0.3.0 begins again with the first id
                    raise Refused(f"{done} done. This API goes no further: name fewer ids, or leave --rate out.")
                cursor = one.next

    return ask


def _select(given: argparse.Namespace, action: str) -> dict[str, object]:
    """Return which letters are meant. Raises SettingsError."""
    if bool(given.ids) == given.all or (given.queue and not given.all):
        raise SettingsError(f"name some: `director dead {action} ID …`, or --all, or --all --queue NAME.")
    rate = {} if given.rate is None else {"rate": given.rate}
    if given.all:
        return {"all": True, "queue": given.queue, **rate}
    return {"ids": [_id(name) for name in dict.fromkeys(given.ids)], **rate}


def _answer(action: str, done: int, refused: Sequence[str], secret: Sequence[str]) -> Answer:
    why = "is not a dead letter, or its input was removed. Nothing was changed"
    gone = "had secret inputs, which were removed at its end: its caller must create it again"
    lines = [
        f"{done} {'revived' if action == 'revive' else 'dropped'}",
        *(f"{name} {gone if name in secret else why}" for name in refused),
    ]
    body = {"done": done, "refused": refused, "secret": secret}
    return Answer(body, "\n".join(lines), code=1 if refused else 0)


@operator("dead revive", *MANY, needs="operate", ask_api=_ask_to("revive"), examples=(EXAMPLE_ID, "--all --rate 5"))
async def _revive(backend: Backend, given: argparse.Namespace) -> Answer:
    """Return dead letters to their queue."""
    return await _do(backend, given, "revive")


@operator(
    "dead drop", *MANY, needs="operate", ask_api=_ask_to("drop"), examples=("--all --queue acme/painter:0123456789ab",)
)
async def _drop(backend: Backend, given: argparse.Namespace) -> Answer:
    """Drop dead letters: they cannot be revived afterwards."""
    return await _do(backend, given, "drop")


async def _do(backend: Backend, given: argparse.Namespace, action: str) -> Answer:
    _select(given, action)
    from director.store.dead import Asked

    ids, dead = [_id(name) for name in dict.fromkeys(given.ids)], backend.dead
    act = dead.revive if action == "revive" else dead.drop
    queues = await _queues(backend, given.queue)
    slices = dead.every(queues) if given.all else _slices(await dead.find(ids))
    asked = Asked(ids=ids, queue=given.queue)
    with progress() as show:
        done = await act(_count(slices, given.rate, show), by=typist(), asked=asked, rate=given.rate)
    return _answer(action, done.done, done.refused, done.secret)


def _id(name: str) -> PredictionId:
    return prediction_id(name, ": `director dead list` shows them")


async def _queues(backend: Backend, queue: str) -> list[QueueName]:
    known = await backend.catalog.queues()
    if queue and queue not in known:
        raise unknown_queue(queue)
    return [QueueName(queue)] if queue else known


async def _slices(cursors: "list[DeadCursor]") -> "AsyncIterator[list[DeadCursor]]":
    yield cursors


async def _count(
    slices: "AsyncIterator[list[DeadCursor]]", rate: float | None, show: Callable[[str], None]
) -> "AsyncIterator[list[DeadCursor]]":
    met = 0
    async for cursors in slices:
        step = 1 if rate else len(cursors)
        for start in range(0, len(cursors), step):
            show(f"{met} done")
            yield cursors[start : start + step]
            met += len(cursors[start : start + step])
