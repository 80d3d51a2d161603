"""What operators do with queues, over HTTP: pause, resume, drain, bound, resize, migrate. Each is noted, with who did.

For tokens with the scope `admin` alone. Each may be asked for twice. A call that takes long ends after a while and says
that more is left, so that no answer is waited for without end.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from api.admin.queues import queue_of, stats_of
from api.answers import json_response
from api.auth import authenticate, named
from api.body import decode_json, read_body
from api.problems import InvalidField
from api.refusals import invalid_input, not_found
from api.sites.sites import parts_asked
from director.broker.scripts import Admission
from director.core.clock import Clock
from director.core.errors import SettingsError, UnknownQueue
from director.core.ids import QueueName
from director.core.shards import MAX_STREAMS
from director.diagnosis.queue_view import QueueView, view_of
from director.store.accounts import ACCOUNT_NAME
from director.store.migration import Moved

__all__ = (
    "AskedBound",
    "AskedMigration",
    "AskedPause",
    "AskedSize",
    "Drained",
    "Migrated",
    "bound_queue",
    "drain_queue",
    "migrate_queue",
    "pause_queue",
    "resize_queue",
    "resume_queue",
)

MAX_BODY: Final = 4_096
LONGEST_S: Final = 20.0  # below the usual time-out of a proxy in front
LONGEST_NAME: Final = 200


class AskedPause(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one account, or of all where none is named."""

    account: Annotated[str, Meta(pattern=ACCOUNT_NAME)] | None = None


class AskedSize(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The streams of each lane from now on."""

    streams: Annotated[int, Meta(ge=1, le=MAX_STREAMS)]


class AskedBound(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of more than the queue can run: it is all taken, up to `max_queued` of it, or only what can start at
    once. `max_queued` goes with `bounded`.
    """

    mode: Admission
    max_queued: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None


class AskedMigration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`to`: another queue of the model, or `owner/name` for that of its latest version. `dry_run`: only count."""

    to: Annotated[str, Meta(max_length=LONGEST_NAME)]
    dry_run: bool = False


class Drained(Struct, frozen=True, kw_only=True):
    """`drained`: nothing runs any more; else ask again. What waits keeps its place until the queue is resumed."""

    drained: bool
    queue: QueueView


class Migrated(Struct, frozen=True, kw_only=True):
    """How many were moved, or would be. Some stay: `claimed` run, `held` are of accounts that are paused there.

    `done`: it looked through all of the queue; else ask again.
    """

    to: QueueName
    dry_run: bool
    moved: int
    claimed: int
    held: int
    done: bool


async def pause_queue(request: Request) -> Response:
    """POST …/pause: nothing is handed out any more, of one account or at all; what runs goes on."""
    queue, by = await _entered(request)
    account = await _account(request)
    await parts_asked(request).queue_administration.pause(queue, account=account, by=by)
    return await _answer(request, queue)


async def resume_queue(request: Request) -> Response:
    """POST …/resume: what waits is handed out again."""
    queue, by = await _entered(request)
    account = await _account(request)
    await parts_asked(request).queue_administration.resume(queue, account=account, by=by)
    return await _answer(request, queue)


async def drain_queue(request: Request) -> Response:
    """POST …/drain: pause it, and say whether anything still runs. Asked again, it tells how far it is."""
    queue, by = await _entered(request)
    try:
        view = view_of(queue, await parts_asked(request).queue_administration.drain(queue, by=by))
    except UnknownQueue as exc:
        raise not_found() from exc
    return json_response(Drained(drained=view.claimed == 0, queue=view))


async def resize_queue(request: Request) -> Response:
    """POST …/resize: change the streams of each lane; `read` is more than `streams` until the others are empty."""
    queue, by = await _entered(request)
    asked = decode_json(await read_body(request, max_bytes=MAX_BODY), AskedSize)
    await parts_asked(request).queue_administration.resize(queue, streams=asked.streams, by=by)
    return await _answer(request, queue)


async def bound_queue(request: Request) -> Response:
    """POST …/bound: see `AskedBound`."""
    queue, by = await _entered(request)
    asked = decode_json(await read_body(request, max_bytes=MAX_BODY), AskedBound)
    if (asked.mode == "bounded") != (asked.max_queued is not None):
        raise invalid_input([InvalidField("invalid", "max_queued", "Goes with the mode bounded, and with no other")])
    await parts_asked(request).queue_administration.bound(queue, mode=asked.mode, max_queued=asked.max_queued, by=by)
    return await _answer(request, queue)


async def migrate_queue(request: Request) -> Response:
    """POST …/migrate: what waits goes to the queue of another version, with its records."""
    queue, by = await _entered(request)
    asked = decode_json(await read_body(request, max_bytes=MAX_BODY), AskedMigration)
    parts = parts_asked(request)
    to = await parts.queues.named(asked.to)
    if to is None:
        raise invalid_input([InvalidField("enum", "to", "There is no such queue")])
    try:
        steps = parts.queue_administration.migrate(queue, to, by=by, only_asks=asked.dry_run)
        moved, is_done = await _within(steps, parts.clock)
    except UnknownQueue as exc:
        raise not_found() from exc
    except SettingsError as exc:
        raise invalid_input([InvalidField("invalid", "to", str(exc))]) from exc
    return json_response(
        Migrated(
            to=to,
            dry_run=asked.dry_run,
            moved=moved.moved,
            claimed=moved.claimed,
            held=moved.held,
            done=is_done,
        )
    )


async def _within(steps: AsyncGenerator[Moved], clock: Clock) -> tuple[Moved, bool]:
    """How far they came, and whether that is all."""
    until, moved = clock.monotonic() + LONGEST_S, Moved()
    async with aclosing(steps):
        async for step in steps:
            moved = step
            if clock.monotonic() > until:
                return moved, False
    return moved, True


async def _entered(request: Request) -> tuple[QueueName, str]:
    """The queue, and who changes it; 404 where there is none, so that nothing is noted of what is not done."""
    operator = await authenticate(request, "admin")
    queue = queue_of(request)
    if not await parts_asked(request).queues.has(queue):
        raise not_found()
    return queue, named(operator)


async def _account(request: Request) -> str:
    """Whose; '' for all. Without a body too."""
    body = await read_body(request, max_bytes=MAX_BODY)
    asked = decode_json(body, AskedPause) if body.strip() else AskedPause()
    if asked.account is None:
        return ""
    if not await parts_asked(request).accounts.exists(asked.account):
        raise invalid_input([InvalidField("enum", "account", "There is no such account")])
    return asked.account


async def _answer(request: Request, queue: QueueName) -> Response:
    return json_response(view_of(queue, await stats_of(request, queue)))
