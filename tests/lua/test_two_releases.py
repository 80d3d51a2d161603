"""Each release serves what the other one wrote, in every mixture of steps, with the users that this release ships."""

import random
from collections.abc import AsyncIterator
from copy import copy
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from typing import Any, cast

import pytest

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.data_bytes import FOR_EVER_MS, NOTHING, Counted, count_bytes
from director.core.ids import PredictionId, lowest_id_at, new_prediction_id
from director.core.policy import Policy
from tests.support.former_scripts import FormerScripts
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.release import Release
from tests.support.servers import RedisServer

pytestmark = pytest.mark.chaos

Drivers = dict[str, QueueDriver]

WHO = ("new", "old")


@pytest.fixture
async def drivers(driver: QueueDriver, former: Release, server: RedisServer) -> AsyncIterator[Drivers]:
    """Return a driver of one queue for each release. The queue has no breaker, since its directors die one by one."""
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(breaker_after=0))
    theirs = FormerScripts(former, server.url)
    former_driver = copy(driver)  # with its nonces, since no two claims may have the same
    former_driver.scripts = cast(Scripts, theirs)
    yield {"new": driver, "old": former_driver}
    await theirs.aclose()


async def runs_and_succeeds(files: QueueDriver, holds: QueueDriver, ends: QueueDriver) -> None:
    prediction_id = await files.submit(webhook="http://receiver.example/")
    claim = await holds.claim_one()
    assert await ends.extend(claim) == ["held"]
    seq = await ends.begin(claim, ("output", b'"a"'))
    assert await ends.finish(claim, output=b'"a"', ran_ms=5, seq=seq)
    assert (await files.record(prediction_id)).status == "succeeded"
    assert await holds.kinds(prediction_id) == ["created", "started", "output", "completed"]


async def loses_its_director(files: QueueDriver, holds: QueueDriver, ends: QueueDriver) -> None:
    prediction_id = await files.submit()
    lost = await holds.claim_one()
    assert await files.extend(lost) == ["held"]
    ends.pass_time(16)
    assert await ends.reap() == {prediction_id: "waiting"}
    files.now_ms = holds.now_ms = ends.now_ms
    again = await files.claim_one(consumer="d2")
    assert not await holds.finish(lost), "its claim is lost"
    assert await holds.finish(again)


async def dies_and_is_revived(files: QueueDriver, holds: QueueDriver, ends: QueueDriver) -> None:
    prediction_id = await files.submit()
    for who in (holds, ends, files):
        became = await who.release(await holds.claim_one(), spent=True, error="It broke.", code="broken")
    assert became == "dead"
    assert await ends.revive(prediction_id)
    assert await files.finish(await holds.claim_one())


async def waits_until_it_is_too_late(files: QueueDriver, holds: QueueDriver, ends: QueueDriver) -> None:
    prediction_id = await files.submit(lifetime_ms=1_000)
    assert (await holds.outlook(prediction_id)).ahead == 0
    ends.pass_time(2)
    assert (await ends.expire())[0] == 1
    files.now_ms = holds.now_ms = ends.now_ms


async def is_canceled(files: QueueDriver, holds: QueueDriver, ends: QueueDriver) -> None:
    waiting = await files.submit()
    assert await ends.cancel(waiting) == "canceled"
    running = await files.submit()
    claim = await holds.claim_one()
    await ends.cancel(running)
    assert await holds.extend(claim) == ["user"]
    await holds.finish(claim)


STORIES = (runs_and_succeeds, loses_its_director, dies_and_is_revived, waits_until_it_is_too_late, is_canceled)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_either_release_can_carry_out_each_step(drivers: Drivers, story: Any) -> None:
    for mixture in product(WHO, repeat=3):
        named = [drivers[who] for who in mixture]
        latest = max(driver.now_ms for driver in drivers.values())
        for driver in drivers.values():
            driver.now_ms = latest
        await story(*named)
        for who, driver in drivers.items():
            stats = await driver.stats()
            assert (stats.waiting, stats.claimed, stats.live) == (0, 0, 0), (mixture, who)
            assert await driver.counts(keys.queued(driver.queue)) == {}, (mixture, who)
            assert await driver.counts(keys.running(driver.queue)) == {}, (mixture, who)


async def test_bytes_of_an_account_never_go_below_zero_and_end(drivers: Drivers, former: Release, redis: Any) -> None:
    """One release may release what the other one counted, and each knows only its own kinds of bytes."""
    ours, theirs = drivers["new"].scripts, cast(FormerScripts, drivers["old"].scripts).scripts
    found = spec_from_file_location("former_data_bytes", former.folder / "director/core/data_bytes.py")
    assert found is not None
    assert found.loader is not None
    reader = module_from_spec(found)
    found.loader.exec_module(reader)
    coin, now, oldest = random.Random(3), 2**41, lowest_id_at(0)
    listed: list[tuple[PredictionId, Counted, Counted]] = []
    again = {"account": ACCOUNT, "now_ms": now}
    for _ in range(400):
        who, is_ours = coin.choice([(ours, True), (theirs, False)])
        counts = Counted(coin.randrange(1, 50), now + coin.choice([5, 9]))
        lasting = Counted(coin.randrange(1, 50), now + 90) if is_ours else NOTHING
        match coin.randrange(5):
            case 0 | 1:
                listed.append((new_prediction_id(model=MODEL, now_ms=now), counts, lasting))
                more = {"lasting": lasting} if is_ours else {}
                await who.enlist(listed[-1][0], oldest=oldest, counts=counts, **more, **again)
            case 2 if listed:
                name, counts, lasting = listed.pop(coin.randrange(len(listed)))
                more = {"lasting": lasting} if is_ours else {}
                await who.delist(name, account=ACCOUNT, counted=counts, **more)
            case 3:
                await who.weigh(ACCOUNT, counts, Counted(coin.randrange(60), now + 5), now_ms=now)
            case _:
                await ours.retain(ACCOUNT, coin.randrange(60), now_ms=now)
                await ours.weigh(ACCOUNT, NOTHING, Counted(coin.randrange(40), FOR_EVER_MS), now_ms=now)
                await who.recount(ACCOUNT, coin.randrange(50), until_ms=now + 30, now_ms=now)
        buckets = {key.decode(): value.decode() for key, value in (await redis.hgetall(keys.data(ACCOUNT))).items()}
        assert all(int(value.partition(" ")[0]) >= 0 for value in buckets.values()), buckets
        assert reader.counted(buckets.items(), now_ms=now) == count_bytes(buckets.items(), now_ms=now)
    retained = int(buckets.get(str(FOR_EVER_MS), "0"))
    assert count_bytes(buckets.items(), now_ms=now + 90) == retained, "all else has ended"
    await theirs.recount(ACCOUNT, 0, until_ms=now + 30, now_ms=now + 90)
    await ours.recount(ACCOUNT, 0, until_ms=now + 30, retained=7, was_retained=retained, now_ms=now + 90)
    assert await redis.hgetall(keys.data(ACCOUNT)) == {str(FOR_EVER_MS).encode(): b"7"}, "a keeper's pass sets it right"
