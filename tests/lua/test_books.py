"""The books of a queue, whatever happens to it: accepted = waiting + delayed + claimed + ended, and all is served.

Random walks of callers, directors and keepers over one queue; every step is a typed call, the model is a dict.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio.from_thread
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from director.core import keys
from director.core.catalog import OPEN_SCHEMA, Catalog
from director.core.clock import SystemClock
from director.core.gatherer import Gatherer
from director.core.ids import PredictionId
from director.core.policy import Policy
from director.core.redis_client import client
from director.core.schema import Claim
from director.core.scripts import Scripts
from tests.support.keyspace import leaks
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer

# few places, so that steps meet
STREAMS, LANES = st.sampled_from([0, 2]), st.sampled_from(["normal", "low"])
STEPS = st.one_of(
    st.tuples(st.just("submit"), STREAMS, LANES),
    st.tuples(st.just("submit late"), STREAMS, LANES),
    st.tuples(st.just("claim"), st.integers(1, 4), st.sampled_from(["d1", "d2"])),
    st.tuples(st.just("finish"), st.integers(0, 20), st.none()),
    st.tuples(st.just("release"), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("delay"), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("cancel"), st.integers(0, 40), st.none()),
    st.tuples(st.just("extend"), st.integers(0, 20), st.none()),
    st.tuples(st.just("pass time"), st.sampled_from([1, 6, 16]), st.none()),
    st.tuples(st.just("keep"), st.none(), st.none()),
    st.tuples(st.just("resize"), st.integers(1, 6), st.none()),
    st.tuples(st.just("lose group"), st.integers(0, 40), st.none()),
)


@dataclass
class Walk:
    """What happened so far. `held` has stale claims too: their holders do not know yet."""

    driver: QueueDriver
    accepted: list[PredictionId] = field(default_factory=list)
    held: list[Claim] = field(default_factory=list)
    finished: list[PredictionId] = field(default_factory=list)

    async def take(self, what: str, first: object, second: object) -> None:
        driver = self.driver
        match what, first, second:
            case (("submit" | "submit late"), int(stream), str(lane)):
                lifetime_ms = 5_000 if what == "submit late" else None
                self.accepted.append(await driver.submit(streams=[stream], lane=lane, lifetime_ms=lifetime_ms))
            case "claim", int(count), str(consumer):
                leased = await driver.members(keys.lease(driver.queue))
                claims = await driver.claim(count, consumer=consumer)
                assert not leased.keys() & {claim.id for claim in claims}, "stolen from its holder"
                self.held += claims
            case "finish", int(which), _ if self.held:
                claim = self.held[which % len(self.held)]
                before = (await driver.record(claim.id)).is_terminal
                if await driver.finish(claim) and not before:
                    self.finished.append(claim.id)
            case "release", int(which), bool(spent) if self.held:
                await driver.release(self.held[which % len(self.held)], spent=spent)
            case "delay", int(which), bool(spent) if self.held:
                await driver.release(self.held[which % len(self.held)], spent=spent, delay_s=3)
            case "cancel", int(which), _ if self.accepted:
                await driver.cancel(self.accepted[which % len(self.accepted)])
            case "extend", int(which), _ if self.held:
                claim = self.held[which % len(self.held)]
                await driver.extend(claim, consumer=claim.record.holder)
            case "pass time", int(seconds), _:
                driver.pass_time(seconds)
            case "keep", _, _:
                await self.keep()
            case "resize", int(streams), _:
                await driver.scripts.resize(driver.queue, streams=streams)
            case "lose group", int(which), _ if self.accepted:
                prediction_id = self.accepted[which % len(self.accepted)]
                if stream := await driver.field(prediction_id, "stream"):
                    lane = (await driver.record(prediction_id)).lane
                    await driver.redis.xgroup_destroy(keys.stream(driver.queue, lane, int(stream)), keys.GROUP)

    async def keep(self) -> None:
        await self.driver.reap()
        await self.driver.scripts.promote(self.driver.queue, limit=100, now_ms=self.driver.now_ms)
        await self.driver.scripts.expire(self.driver.queue, limit=100, now_ms=self.driver.now_ms)

    async def check(self) -> None:
        """Every accepted prediction is in exactly one place, and every place knows the same."""
        driver = self.driver
        stand = [i for lane in keys.LANES for ids in (await driver.entries(lane)).values() for i in ids]
        assert len(stand) == len(set(stand)), "two entries of one prediction"
        leased = await driver.members(keys.lease(driver.queue))
        delayed = await driver.members(keys.delayed(driver.queue))
        live = await driver.members(keys.live(driver.queue))
        open_ones = set()
        for prediction_id in self.accepted:
            record = await driver.record(prediction_id)
            if record.is_terminal:
                assert prediction_id not in {*stand, *leased, *delayed, *live}
            else:
                open_ones.add(prediction_id)
                assert (prediction_id in leased) == bool(record.token)
                assert (prediction_id in delayed) != (prediction_id in stand)
        assert set(live) == open_ones
        assert len(self.finished) == len(set(self.finished)), "finished twice"

    async def drain(self) -> None:
        """With patience everything ends: nothing is stranded behind a cleared bit or in an upper stream."""
        for _ in range(8):
            self.driver.pass_time(61)
            await self.keep()
            for claim in await self.driver.claim_all(consumer="d3"):
                assert await self.driver.finish(claim)
                self.finished.append(claim.id)
        await self.check()
        assert await self.driver.members(keys.live(self.driver.queue)) == {}
        assert all([(await self.driver.record(i)).is_terminal for i in self.accepted])
        assert await leaks(self.driver.redis) == []


@pytest.fixture(scope="module")
def run(server: RedisServer) -> Callable[[list[tuple[str, object, object]]], None]:
    async def walk(steps: list[tuple[str, object, object]]) -> None:
        redis = client(server.url)
        try:
            await redis.flushall()
            gatherer = Gatherer(redis)
            scripts = Scripts(gatherer)
            catalog = Catalog(redis, scripts, SystemClock())
            queue = await catalog.register(
                MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy(streams=6, size=1)
            )
            taken = Walk(QueueDriver(redis, scripts, queue))
            for step in steps:
                await taken.take(*step)
            await taken.check()
            await taken.drain()
            await gatherer.aclose()
        finally:
            await redis.aclose()

    return lambda steps: anyio.run(walk, steps)


@given(steps=st.lists(STEPS, min_size=10, max_size=50))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_accepted_is_lost_doubled_or_stranded(
    run: Callable[[list[tuple[str, object, object]]], None], steps: list[tuple[str, object, object]]
) -> None:
    run(steps)
