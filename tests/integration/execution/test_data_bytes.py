"""A director counts what a prediction left behind, where its account was counted for less, or not so long."""

from typing import Any

from redis.asyncio import Redis

from director.core.clock import SystemClock
from director.core.data_bytes import RECORD_BYTES
from director.core.ids import PredictionId, new_prediction_id
from director.store.accounts import Accounts
from tests.support.eventually import eventually
from tests.support.live_director import Caller, live_director
from tests.support.queue_driver import ACCOUNT, MODEL
from tests.support.scripted_cog import HEALTHY, ScriptedCog, answer, scripted_cog
from tests.support.servers import RedisServer

OUTPUT_BYTES = 50_000


async def ended(caller: Caller, cog: ScriptedCog, output: str, *, age_s: int = 0) -> dict[str, Any]:
    created_ms = SystemClock().now_ms() - 1000 * age_s
    name: PredictionId = new_prediction_id(model=MODEL, now_ms=created_ms)
    cog.on("PUT", f"/predictions/{name}", answer(200, {"status": "succeeded", "output": output}))
    await caller.submit(name, now_ms=created_ms)
    return await caller.ended(name)


async def test_much_output_and_a_late_end_are_counted_and_a_small_end_is_not(
    caller: Caller, server: RedisServer, redis: Redis
) -> None:
    async def used() -> int:
        return (await Accounts(redis).usage(ACCOUNT, day=0)).data_bytes

    async with scripted_cog(streams=False, is_array=False) as cog:
        cog.on("GET", "/health-check", answer(200, HEALTHY))
        async with live_director(server.url, cog.url):
            assert (await ended(caller, cog, "small"))["status"] == "succeeded"
            assert await used() == 0
            await ended(caller, cog, "x" * OUTPUT_BYTES)
            large = await eventually(used, "the output is counted")
            assert OUTPUT_BYTES < large < 2.1 * OUTPUT_BYTES
            await ended(caller, cog, "small", age_s=1_200)
            late = await eventually(used, "the late end is counted", until=lambda size: size > large)
            assert RECORD_BYTES < late - large < RECORD_BYTES + 200
