"""Test that a step of the server's clock takes no claim from a living director, and leaves none with a dead one."""

from collections.abc import AsyncIterator
from typing import Final

import anyio
import pytest
from msgspec import Struct

from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId, QueueName, new_prediction_id
from director.core.policy import Policy
from director.core.schema import Claim
from director.keeper.reaper import Reaper, ServerTime
from director.keeper.registry import Registry
from director.lab.chaos.scene import SteppedClock
from director.store.catalog import Catalog
from tests.support.eventually import every
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, driving, enqueue
from tests.support.servers import stepped_server

pytestmark = pytest.mark.faketime

LEASE_S: Final = 2.0
TICK_S: Final = 0.05
CLAIMS: Final = 8


class Director(Struct):
    """The claims of one director, which extends them as long as it lives."""

    name: str
    claims: list[Claim]


class Service:
    """A queue on a server with a stepped clock, its directors, and a reaper on the machine's clock."""

    def __init__(self, scripts: Scripts, queue: QueueName, reaper: Reaper, clock: SteppedClock) -> None:
        self.scripts = scripts
        self.clock = clock
        self.taken: set[PredictionId] = set()
        self._queue = queue
        self._reaper = reaper

    async def director(self, name: str, *, claims: int = CLAIMS) -> Director:
        for _ in range(claims):
            await enqueue(
                self.scripts,
                new_prediction_id(model=MODEL, now_ms=SystemClock().now_ms()),
                queue=self._queue,
                account=ACCOUNT,
                model=MODEL,
                version=VERSION,
                shard=[0],
            )
        held = await self.scripts.claim(
            self._queue, consumer=name, nonce=f"nonce-{name}", count=claims, lease_s=LEASE_S
        )
        director = Director(name, list(held))
        assert len(director.claims) == claims
        await self.beat(director)
        return director

    async def beat(self, director: Director) -> list[str]:
        return list(
            await self.scripts.extend(
                self._queue,
                consumer=director.name,
                lease_s=LEASE_S,
                claims=[(claim.id, claim.token) for claim in director.claims],
                slots=CLAIMS,
            )
        )

    async def tick(self) -> bool:
        """Let the reaper look once. Return False while its contact with the server is too recent."""
        reaped = await self._reaper.run_once()
        self.taken |= {name for name, _ in reaped.claims}
        return not reaped.is_held_off

    async def go_on(self, *living: Director, seconds: float) -> None:
        until = anyio.current_time() + seconds
        async for _ in every(TICK_S):
            if anyio.current_time() >= until:
                break
            for director in living:
                await self.beat(director)
            await self.tick()

    async def prove_contact(self, *living: Director) -> None:
        async for _ in every(TICK_S):
            if await self.tick():
                break
            for director in living:
                await self.beat(director)


@pytest.fixture(params=[3, 1], ids=["three-attempts", "one-attempt"])
async def service(request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    with stepped_server() as (server, stepped):
        async with driving(server.url, Policy(attempts=request.param)) as driver:
            redis, scripts, clock = driver.redis, driver.scripts, SystemClock()
            time = ServerTime(redis, scripts, clock, lease_s=LEASE_S)
            reaper = Reaper(scripts, Registry(redis, Catalog(redis, scripts, clock), clock), time, LEASE_S)
            yield Service(scripts, driver.queue, reaper, stepped)


async def test_clock_step_forward_takes_no_claim_from_a_living_director(service: Service) -> None:
    director = await service.director("alive")
    await service.prove_contact(director)
    await service.beat(director)
    service.clock.step(60)
    await service.tick()
    assert service.taken == set()
    assert await service.beat(director) == ["held"] * CLAIMS
    await service.go_on(director, seconds=2 * LEASE_S)
    assert service.taken == set()
    assert await service.beat(director) == ["held"] * CLAIMS


async def test_dead_directors_claim_is_recovered_after_a_step_forward(service: Service) -> None:
    dead = await service.director("dead", claims=1)
    await service.prove_contact(dead)
    service.clock.step(60)
    await service.go_on(seconds=2 * LEASE_S)
    assert service.taken == {claim.id for claim in dead.claims}


async def test_step_back_delays_no_recovery_and_spares_living_directors(service: Service) -> None:
    alive, dead = await service.director("alive"), await service.director("dead", claims=2)
    await service.prove_contact(alive, dead)
    await service.beat(dead)
    service.clock.step(-600)
    await service.tick()
    assert service.taken == set()
    await service.go_on(alive, seconds=2 * LEASE_S)
    assert service.taken == {claim.id for claim in dead.claims}
    assert await service.beat(alive) == ["held"] * CLAIMS
