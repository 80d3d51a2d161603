"""Test that a prediction that kills its model server does not take others along at each attempt."""

import asyncio
import json

import pytest

from tests.support.live_director import Caller, Live
from tests.support.scripted_cog import Exchange, Script, answer, scripted_cog

pytestmark = pytest.mark.cog


@pytest.mark.faults
@pytest.mark.parametrize("attempts", [2, 3, 5])
async def test_poison_takes_its_neighbour_along_twice_and_never_at_its_last_attempt(
    caller: Caller, live: Live, attempts: int
) -> None:
    poison, innocent = caller.new_id(), caller.new_id()
    dying = asyncio.Event()

    async def die(exchange: Exchange) -> None:
        await asyncio.sleep(0.3)  # so that its neighbour runs beside it
        dying.set()
        await lost.act(exchange)

    async def live_on(exchange: Exchange) -> None:
        dying.clear()
        try:
            async with asyncio.timeout(1):
                await dying.wait()
            await lost.act(exchange)
        except TimeoutError:
            await answer(200, {"status": "succeeded", "output": ["x"]}).act(exchange)

    lost = answer(502, json.dumps({"error": "gone"}).encode())
    async with scripted_cog(streams=False) as cog:
        cog.on("PUT", f"/predictions/{poison}", Script(die))
        cog.on("PUT", f"/predictions/{innocent}", Script(live_on))
        async with live.keeper(), live.director(cog.url, concurrent_predictions=4, attempts=attempts, backoff_s=0):
            await asyncio.gather(caller.submit(poison), caller.submit(innocent))
            ends = [await caller.ended(each) for each in (poison, innocent)]
        assert [end["status"] for end in ends] == ["failed", "succeeded"]
        assert (await caller.record(innocent)).attempt == min(3, attempts)
