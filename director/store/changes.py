"""Log what operators change: who, when and what. The log holds no secret.

A change is logged before it is made, so that none is missing. If it is then refused, or changes nothing, a `void` entry
with the same id follows. A change that was made in part is not void.
"""

import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, DirectorError

log = logging.getLogger(__name__)

FIRST: Final = "0-0"  # before every entry

ChangeKind = Literal[
    "accounts_brought",
    "account_created",
    "account_erased",
    "account_resumed",
    "account_suspended",
    "account_type_set",
    "alias_removed",
    "alias_set",
    "batch_canceled",
    "collection_removed",
    "collection_written",
    "example_hidden",
    "example_shown",
    "hardware_removed",
    "hardware_written",
    "letters_dropped",
    "letters_revived",
    "limits_set",
    "model_changed",
    "model_configured",
    "model_ordered",
    "predictions_canceled",
    "predictions_retried",
    "queue_bounded",
    "queue_migrated",
    "queue_paused",
    "queue_resized",
    "queue_resumed",
    "secret_rotated",
    "token_changed",
    "token_created",
    "token_revoked",
    "void",
    "webhooks_redelivered",
]


class Change(Struct, frozen=True, kw_only=True):
    """One entry: `entry` is its position, `id` is of the change, `at` in ms. `account` or `queue` is '' if none."""

    entry: str
    id: str
    kind: str
    by: str
    account: str
    queue: str
    at: int
    detail: Raw


class Note:
    """A block tells it whether its change changed nothing, or is done in part."""

    def __init__(self) -> None:
        self.is_void = False
        self.is_begun = False

    def void(self) -> None:
        self.is_void = True

    def begin(self) -> None:
        self.is_begun = True


class Changes:
    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._scripts = scripts
        self._clock = clock

    @asynccontextmanager
    async def noting(
        self, kind: ChangeKind, *, by: str, account: str = "", queue: str = "", **facts: object
    ) -> AsyncGenerator[Note]:
        """Make a change within this block. If it cannot be logged, the block does not run."""
        change, noted = secrets.token_hex(8), Note()
        detail, whose = msgspec.json.encode(facts), {"account": account, "queue": queue}

        async def write(kind: ChangeKind) -> None:
            at_ms = self._clock.now_ms()
            await self._scripts.note(change, kind=kind, by=by, **whose, detail=detail, at_ms=at_ms)

        await write(kind)
        try:
            yield noted
        except BackendUnavailable:  # the change may have been made all the same
            raise
        except DirectorError:
            if not noted.is_begun:
                await write("void")
            raise
        if noted.is_void:
            await write("void")
            return
        log.info("changed by an operator", extra={"change": kind, "by": by, **whose, "detail": facts})

    async def after(self, entry: str, *, count: int) -> list[Change]:
        """Return at most `count` entries after one, oldest first. About the last 10,000 entries are kept."""
        found = await ask(lambda: self._redis.xrange(keys.changes(), min=f"({entry}", count=count))
        return [_change(name, fields) for name, fields in found]

    async def before(self, entry: str | None, *, count: int) -> list[Change]:
        """Return at most `count` entries before one, newest first. None starts with the newest of all."""
        last = "+" if entry is None else f"({entry}"
        found = await ask(lambda: self._redis.xrevrange(keys.changes(), max=last, count=count))
        return [_change(name, fields) for name, fields in found]


def _change(entry: bytes, fields: dict[bytes, bytes]) -> Change:
    values = {name.decode(): value.decode() for name, value in fields.items() if name != b"detail"}
    return Change(
        entry=entry.decode(),
        id=values["id"],
        kind=values["kind"],
        by=values["by"],
        account=values["account"],
        queue=values["queue"],
        at=int(values["at"]),
        detail=Raw(fields[b"detail"]),
    )
