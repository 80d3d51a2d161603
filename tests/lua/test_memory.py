"""A full server refuses new work and finishes what it has."""

from collections.abc import AsyncIterator

import pytest

from director.core.errors import BackendUnavailable
from director.core.ids import lowest_id_at
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, QueueDriver


@pytest.fixture
async def full(driver: QueueDriver) -> AsyncIterator[QueueDriver]:
    """Return a driver with three waiting predictions and no memory for more."""
    await driver.submit_many(3, streams=[0])
    await driver.redis.config_set("maxmemory", "1")
    yield driver
    await driver.redis.config_set("maxmemory", "0")


async def test_a_full_server_refuses_new_work_and_writes_nothing(full: QueueDriver) -> None:
    async with unchanged(full.redis):
        with pytest.raises(BackendUnavailable):
            await full.submit()
        with pytest.raises(BackendUnavailable):
            await full.scripts.enlist(full.new_id(), account=ACCOUNT, oldest=lowest_id_at(0))


async def test_a_full_server_claims_runs_and_finishes_its_work(full: QueueDriver) -> None:
    assert (await full.stats()).waiting == 3
    claims = await full.claim(3)
    await full.begin(claims[0], ("output", b"1"))
    assert await full.extend(*claims) == ["held"] * 3
    for claim in claims:
        assert await full.finish(claim, output=b"1", logs="x")
    assert await full.entries() == {}


async def test_a_full_server_releases_recovers_and_cancels_its_work(full: QueueDriver) -> None:
    released, reaped, canceled = await full.claim(3)
    assert await full.release(released, spent=True, delay_s=1) == "delayed"
    assert await full.cancel(released.id) == "canceled"
    assert await full.cancel(canceled.id) == "asked"
    full.pass_time(15)
    assert await full.reap() == {reaped.id: "waiting", canceled.id: "canceled"}
    assert (await full.claim_one()).id == reaped.id
