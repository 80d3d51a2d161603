"""Test that odd answers run once through a whole director, and harm neither the server nor the next prediction."""

import json
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from director.broker import keys
from tests.support.eventually import eventually
from tests.support.live_director import Caller, live_director
from tests.support.odd_answers import KINDS, ROWS
from tests.support.odd_server import GOOD, odd_server
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.faults]

SHOWN: Final = {"succeeded": "succeeded", "failed": "failed", "invalid": "failed"}


@pytest.mark.parametrize("kind", KINDS)
async def test_odd_answers_run_once_and_harm_no_other(
    caller: Caller, redis: Redis, server: RedisServer, kind: str
) -> None:
    rows = [row for row in ROWS if row.kind == kind and row.is_harmless]
    config: dict[str, Any] = {"runner": KINDS[kind]["kind"], "runner_config": json.dumps(KINDS[kind])}
    async with (
        odd_server(kind, *rows) as (odd, url),
        live_director(server.url, url, concurrent_predictions=4, **config) as director,
    ):
        ids = [await caller.submit(prompt=f"{number}") for number in range(len(rows))]
        await eventually(lambda: ended_of(caller, ids), "all have ended", limit_s=30)
        wrong = {}
        for number, (row, prediction_id) in enumerate(zip(rows, ids, strict=True)):
            record = await caller.record(prediction_id)
            if (record.status, odd.runs[f"{number}"]) != (SHOWN[row.end], 1) or row.words not in (record.error):
                wrong[row.name] = (record.status, record.error, odd.runs[f"{number}"])
        assert wrong == {}
        [one] = director.servers.all
        assert (one.trust.failures, one.is_resting, one.doubt.is_set(), odd.shutdowns) == (0, False, False, 0)
        assert not await redis.hget(keys.meta(caller.queue), "breaker")
        assert (await caller.ended(await caller.submit(prompt=GOOD)))["status"] == "succeeded"
        assert await caller.dead() == []


async def ended_of(caller: Caller, ids: list[Any]) -> bool:
    return all([await caller.status(each) in ("succeeded", "failed") for each in ids])
