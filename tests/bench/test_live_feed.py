"""Operators who watch 200 queues cost Redis at most one hundredth of its time."""

import sys

import anyio
import pytest
from redis.asyncio import Redis

from api.services.watching import Watching
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import QueueName, new_prediction_id
from director.core.policy import Policy
from director.operate.overview import CloserLook, Overview
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.directors import Directors
from director.store.owed import Owed
from director.store.queues import Queues
from tests.bench.processes import per_second
from tests.support.eventually import eventually
from tests.support.queue_driver import ACCOUNT, VERSION, enqueue
from tests.support.servers import RedisServer
from tests.support.terminal import played

pytestmark = pytest.mark.heavy

QUEUES = 200
WAITING = 20  # in each queue
CROWDED, CROWD = 20, 150  # so many queues have so many waiting, of two accounts: who floods them is looked for
WATCHERS = 20
SNAPSHOTS = 12
MOST_SHARE = 0.01
SAMPLES = 60
SCREEN_S = 30
IDLE_S = 5.0


async def busy_s(redis: Redis) -> float:
    used = await redis.info("cpu")
    return float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])


async def busy_share(redis: Redis, seconds: float) -> float:
    """Return the part of these seconds in which Redis works."""

    async def busy() -> list[float]:
        return [await busy_s(redis)]

    [share] = await per_second(busy, seconds)
    return share


async def test_watching_two_hundred_queues_takes_little_of_redis(
    redis: Redis, catalog: Catalog, scripts: Scripts
) -> None:
    for number in range(QUEUES):
        await _fill(catalog, scripts, f"acme/model-{number:03d}", CROWD if number < CROWDED else WAITING)
    clock = SystemClock()
    owed = Owed(redis, catalog)
    queues = Queues(redis, catalog, scripts)
    overview = Overview(queues, Directors(redis), owed, CloserLook(redis, owed), clock)
    watching = Watching(overview, clock)
    sizes: list[int] = []

    async def watch() -> None:
        number = 0
        with watching.watcher():
            for _ in range(SNAPSHOTS):
                told = await watching.after(number)
                number = told.number
                sizes.append(len(told.data))

    idle = await busy_share(redis, IDLE_S)
    began, before_s = anyio.current_time(), await busy_s(redis)
    async with anyio.create_task_group() as tasks:
        for _ in range(WATCHERS):
            tasks.start_soon(watch)
    took_s, spent_s = anyio.current_time() - began, await busy_s(redis) - before_s
    share = spent_s / took_s - idle
    print(
        f"\n{QUEUES} queues, {WATCHERS} watch: {SNAPSHOTS} snapshots of {max(sizes) / 1000:.0f} kB in {took_s:.1f} s; "
        f"Redis: {share:.2%} of its time (at most {MOST_SHARE:.0%}) beside the {idle:.2%} that it takes idle"
    )
    assert len(sizes) == WATCHERS * SNAPSHOTS
    assert share <= MOST_SHARE


async def test_a_screen_of_two_hundred_queues_takes_little_of_redis(
    server: RedisServer, redis: Redis, catalog: Catalog, scripts: Scripts
) -> None:
    for number in range(QUEUES):
        queue = await _fill(catalog, scripts, f"acme/model-{number:03d}")
        for _ in range(SAMPLES):
            await scripts.sample(queue, period_s=0.001, most=SAMPLES)
    with played([sys.executable, "-m", "director", "top", "--redis", server.url], lines=50) as terminal:
        await eventually(lambda: terminal.screen, "a screen", until=lambda _: terminal.shows("queues: 200"))
        terminal.type("\r")  # one queue, of which more is read
        share = await busy_share(redis, SCREEN_S)
    print(f"\n{QUEUES} queues on a screen: {share:.2%} of Redis's time (at most {MOST_SHARE:.0%})")
    assert share <= MOST_SHARE


async def _fill(catalog: Catalog, scripts: Scripts, model: str, waiting: int = WAITING) -> QueueName:
    queue = await catalog.register(model, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await scripts.extend(queue, consumer=f"director-of-{model[5:]}", lease_s=60, claims=[], slots=4)
    for number in range(waiting):
        await enqueue(
            scripts,
            new_prediction_id(model=model, now_ms=SystemClock().now_ms()),
            queue=queue,
            account=ACCOUNT if number else "another",
            model=model,
            version=VERSION,
            shard=[0, 1],
        )
    return queue
