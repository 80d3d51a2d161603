"""The history of 100 busy queues costs Redis less than a hundredth of its time."""

import time
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import new_prediction_id
from director.core.policy import Policy
from director.core.trends import STEPS
from director.keeper.recorder import STEP_S, Recorder
from director.keeper.registry import Registry
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.queues import Queues
from director.store.trends import ALL, Trends
from tests.support.queue_driver import VERSION

pytestmark = pytest.mark.heavy

QUEUES: Final = 100
ENDED: Final = 60  # of each queue in ten seconds: 600 predictions a second in all
MOST_SHARE: Final = 0.01


async def test_history_of_a_hundred_busy_queues_costs_little(redis: Redis, capsys: pytest.CaptureFixture[str]) -> None:
    catalog = Catalog(redis, Scripts(Gatherer(redis)), SystemClock())
    now_ms = time.time_ns() // 1_000_000
    until_s = STEPS[0].start(now_ms / 1000) + 2 * STEP_S
    queues = []
    for number in range(QUEUES):
        model = f"acme/model-{number}"
        queue = await catalog.register(model, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
        queues.append(queue)
        pipe = redis.pipeline(transaction=False)
        for at in range(ENDED):
            name = new_prediction_id(model=model, now_ms=now_ms - 3_000)
            pipe.hset(keys.record(name), mapping={"started": now_ms - 2_000 - 10 * at, "completed": now_ms})
            pipe.expire(keys.record(name), 600)
            for kind, detail in (("accepted", "normal"), ("claimed", "d1 1"), ("ended", "succeeded")):
                fields: Any = {"id": name, "kind": kind, "queue": queue, "account": "a", "at": now_ms, "detail": detail}
                pipe.xadd(keys.log(keys.queue_partition(queue)), fields)
        await pipe.execute()
    await redis.config_resetstat()
    trends = Trends(redis)
    store = Queues(redis, catalog, Scripts(Gatherer(redis)))
    recorder = Recorder(redis, Registry(redis, catalog, SystemClock()), trends, store)
    await recorder.record(until_s - STEP_S)
    await recorder.record(until_s)
    usec = {name: stats["usec"] for name, stats in (await redis.info("commandstats")).items()}
    counted = (await trends.of(ALL, "15m", now_s=until_s)).whole
    share = sum(usec.values()) / 1e6 / STEP_S
    with capsys.disabled():
        top = sorted(usec.items(), key=lambda one: -one[1])[:6]
        print(f"\n{share:.2%} of Redis's time for {QUEUES} queues, {top}")
    assert abs(counted.succeeded - QUEUES * ENDED) < 0.05 * QUEUES * ENDED  # two queues may share a busy log
    assert share < MOST_SHARE
