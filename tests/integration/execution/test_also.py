"""Test a director that serves the queue of an older version beside its own: claims, leases, cancels and the drain."""

import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.errors import SettingsError
from director.core.ids import QueueName, queue_name
from director.core.policy import Policy
from director.execution.director import check_settings
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, settings_for
from tests.support.queue_driver import MODEL, VERSION

pytestmark = [pytest.mark.anyio, pytest.mark.cog]

NEWER = "b2" * 32
OLD, NEW = queue_name(MODEL, VERSION), queue_name(MODEL, NEWER)


@pytest.fixture
async def newer(redis: Redis, scripts: Scripts, catalog: Catalog, caller: Caller) -> Caller:
    """Create a caller of the newer version. `caller` asks for the old one, which no director serves as its own."""
    await catalog.register(MODEL, NEWER, schema=OPEN_SCHEMA, server="", policy=Policy())
    return Caller(redis, scripts, version=NEWER)


async def test_one_slot_alternates_between_both_queues(
    caller: Caller, newer: Caller, live: Live, tmp_path: Path
) -> None:
    log = tmp_path / "order"
    asked = [await each.submit(n=0, count=str(log)) for each in (caller, newer) for _ in range(4)]
    async with live.director(version=NEWER, also=(OLD,)) as director:
        for one in asked:
            assert (await caller.ended(one))["status"] == "succeeded"
        for queue in (OLD, NEW):
            assert (await caller.scripts.stats(queue)).slots == 1
            assert await caller.redis.zscore(keys.directors(queue), director.name) is not None
    steps = await caller.redis.xrange(keys.log(keys.queue_partition(NEW)))
    ran = [step[b"queue"].decode() for _, step in steps if step[b"kind"] == b"claimed"]
    assert ran in ([OLD, NEW] * 4, [NEW, OLD] * 4)
    records = [await caller.record(one) for one in asked]
    assert {(record.queue, record.version) for record in records} == {(OLD, VERSION), (NEW, NEWER)}
    for one in (caller, newer):
        await one.nothing_is_left()


async def test_old_queue_wakes_the_director_and_keeps_leases_and_cancels(
    caller: Caller, newer: Caller, live: Live, gate: Gate
) -> None:
    async with live.director(version=NEWER, also=(OLD,), lease_s=0.6):
        for one in (newer, caller, newer):
            assert (await one.ended(await one.submit(n=1)))["status"] == "succeeded"
        held = await caller.running(n=1, gate=str(gate))
        first = await caller.redis.zscore(keys.lease(OLD), held)
        await eventually(
            lambda: caller.redis.zscore(keys.lease(OLD), held), "its lease is extended", until=lambda at: at > first
        )
        assert await caller.cancel(held) == "asked"
        assert (await caller.ended(held))["status"] == "canceled"


async def test_drain_leaves_both_queues(caller: Caller, newer: Caller, live: Live, gate: Gate) -> None:
    async with live.process(version=NEWER, also=OLD, drain_s=0) as director:
        held = await caller.running(n=1, gate=str(gate))
        director.send(signal.SIGTERM)
        assert await director.exit_code() == 0
    record = await caller.record(held)
    assert (record.token, record.attempt) == ("", 0), "handed back, unspent"
    assert [(await caller.scripts.stats(queue)).slots for queue in (OLD, NEW)] == [0, 0]


@pytest.mark.parametrize(
    "queue",
    [
        pytest.param(QueueName("acme/other:a1a1a1a1a1a1"), id="another model"),
        pytest.param(QueueName(f"{OLD}~training"), id="another kind"),
    ],
)
def test_additional_queue_must_have_the_same_model_and_kind(queue: QueueName) -> None:
    with pytest.raises(SettingsError, match="is no queue of predictions of acme/echo"):
        check_settings(settings_for("redis://r", ["http://m:1"], also=(queue,)))
