"""note records an operator's change once, in a bounded log."""

from typing import Any

from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts

NOTED: dict[str, Any] = {
    "kind": "limits_set",
    "by": "cli:root",
    "account": "acme",
    "queue": "",
    "detail": b'{"limits":[]}',
    "at_ms": 7,
}


async def noted(redis: Redis) -> list[dict[str, str]]:
    found: Any = await redis.xrange(keys.changes())
    return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in found]


async def test_a_change_is_kept_as_it_was_reported(scripts: Scripts, redis: Redis) -> None:
    assert await scripts.note("n", **NOTED)
    [entry] = await noted(redis)
    assert entry == {"id": "n", "at": "7", "detail": '{"limits":[]}'} | {
        name: NOTED[name] for name in ("kind", "queue", "account", "by")
    }


async def test_a_repeated_call_adds_nothing_and_later_steps_still_count(scripts: Scripts, redis: Redis) -> None:
    assert await scripts.note("n", **NOTED)
    assert await scripts.note("other", **NOTED)
    assert not await scripts.note("n", **NOTED)
    assert await scripts.note("n", **{**NOTED, "kind": "void"})
    found = [(entry["id"], entry["kind"]) for entry in await noted(redis)]
    assert found == [("n", "limits_set"), ("other", "limits_set"), ("n", "void")]


async def test_the_log_is_bounded(scripts: Scripts, redis: Redis) -> None:
    pipe = redis.pipeline()
    for _ in range(10_500):
        pipe.xadd(keys.changes(), {"id": "x", "kind": "x"})
    await pipe.execute()
    await scripts.note("n", **NOTED)
    assert await redis.xlen(keys.changes()) <= 10_200, "whole blocks of a hundred are cut"
