"""Read all keys of a server byte for byte, and find keys that will never be removed."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from director.broker import keys
from director.core.states import TERMINAL

Keyspace = dict[str, tuple[int, bytes]]
"""key -> (moment it expires or -1, its value as DUMP gives it)"""

OF_PREDICTION: Final = re.compile(r"^(\{p\d+\}):(?:rec|in|out|ev):(\w{26})$")
INDEX: Final = re.compile(
    r"^(\{p\d+\}):(?:q:.+:(?:live|leaving|lease|delayed|deadline|backlog:[a-z]+:[^:]+)|owed|unspent)$"
)
UNSETTLED: Final = re.compile(r"^(\{p\d+\}):unsettled$")
COUNTS: Final = re.compile(r"^(\{p\d+\}:q:.+):(?:queued|running|(?:vtime|debt|charged):[a-z]+)$")
OF_QUEUE: Final = re.compile(r"^\{p\d+\}:q:.+:([a-z]+)\d*$")
OUTSIDE: Final = re.compile(r"^(?:\{(?:a:[^}]+|p\d+)\}:)?([a-z]+)(?::.*)?$")


async def dump(redis: Any) -> Keyspace:
    names = sorted(await redis.keys("*"))
    pipe = redis.pipeline(transaction=False)
    for name in names:
        pipe.execute_command("PEXPIRETIME", name)
        pipe.dump(name)
    replies = iter(await pipe.execute())
    return {name.decode(): pair for name, pair in zip(names, zip(replies, replies, strict=True), strict=True)}


async def holders(redis: Any, text: bytes) -> list[str]:
    """Return the keys that hold a text, in their name or in any part of their value."""

    async def value(name: bytes) -> Any:
        match await redis.type(name):
            case b"string":
                return await redis.get(name)
            case b"hash":
                return await redis.hgetall(name)
            case b"list":
                return await redis.lrange(name, 0, -1)
            case b"zset":
                return await redis.zrange(name, 0, -1)
            case b"set":
                return await redis.smembers(name)
            case b"stream":
                return await redis.xrange(name)
            case b"none":
                return b""
            case other:
                raise AssertionError(other)

    # repr shows printable ASCII as it is, in bytes at any depth
    wanted = repr(text)[2:-1]
    return [name.decode() async for name in redis.scan_iter("*") if wanted in f"{name!r} {await value(name)!r}"]


@asynccontextmanager
async def unchanged(redis: Any, *, expiry: bool = True) -> AsyncIterator[None]:
    """Check that the block changes no key and no value and, with `expiry`, no time of expiry."""

    async def state() -> dict[str, object]:
        return {name: found if expiry else found[1] for name, found in (await dump(redis)).items()}

    before = await state()
    yield
    assert await state() == before


async def leaks(redis: Any) -> list[str]:
    """Return keys without a lifetime that are neither permanent nor part of a live prediction."""
    names = [name.decode() for name in await redis.keys("*")]
    records = [name for name in names if ":rec:" in name]
    pipe = redis.pipeline(transaction=False)
    for name in names:
        pipe.pttl(name)
    for name in records:
        pipe.hget(name, "status")
    replies = await pipe.execute()
    statuses = {name: status and status.decode() for name, status in zip(records, replies[len(names) :], strict=True)}
    endless = [name for name, lifetime in zip(names, replies, strict=False) if lifetime == -1]
    return sorted([name for name in endless if not await _may_stay(redis, name, statuses)])


async def _may_stay(redis: Any, name: str, statuses: dict[str, str | None]) -> bool:
    def status(tag: str, prediction_id: str) -> str | None:
        return statuses.get(f"{tag}:rec:{prediction_id}")

    if match := OF_PREDICTION.match(name):
        return status(*match.groups()) not in (None, *TERMINAL)
    if match := INDEX.match(name):
        members = [member.decode().partition(" ")[0] for member in await redis.zrange(name, 0, -1)]
        # a terminal prediction may still owe a webhook or have compute to spend
        of_ended = name.endswith((":owed", ":unspent"))
        ended = (None,) if of_ended else (None, *TERMINAL)
        return all(status(match[1], member) not in ended for member in members)
    if match := UNSETTLED.match(name):
        members = [member.decode().partition(" ")[0] for member in await redis.hkeys(name)]
        return all(status(match[1], member) is not None for member in members)
    if match := COUNTS.match(name):
        return bool(await redis.exists(f"{match[1]}:live"))
    match = OF_QUEUE.match(name) or OUTSIDE.match(name)
    return match is not None and match[1] in keys.PERMANENT
