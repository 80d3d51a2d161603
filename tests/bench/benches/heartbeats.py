"""Play the heartbeats of up to 1,000 directors from this process: their cost in Redis, and one prediction beside them.

A played director sends what a real one sends every five seconds: its slots, its state and its report on one model
server. It does not wait at the wakeup of its queue: `idle` has all that a real one asks.
"""

import asyncio
import time
from functools import partial
from itertools import count as counter
from typing import Final

import msgspec

from director import __version__
from director.core.clock import SystemClock
from director.execution.heartbeat import LONGEST_S
from director.lab.bench.load import ask
from director.store.directors import About, ServerFound
from tests.bench.benches.batches import used_by
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import per_second, until
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import MODEL, Ours, ours, queue_of
from tests.bench.sides.servers import own_redis
from tests.support.eventually import until_time

MANY: Final = (10, 100, 1_000)
SPREAD: Final = 100  # queues
SECONDS: Final = 10.0
REQUESTS: Final = 200
LIMIT_S: Final = 60.0
KB: Final = 1024
LEASE_S: Final = 15.0
MOST_ROUNDS: Final = 3


async def heartbeats(options: Options) -> Found:
    points = [*((count, 1) for count in MANY), (max(MANY), SPREAD)]
    found: dict[str, Rounds] = {}
    for _ in range(min(options.rounds, MOST_ROUNDS)):
        for count, spread in points:
            side = f"{count:,} of {'one model' if spread == 1 else f'{spread} models'}"
            for figure, value in (await _played(options, count, spread)).items():
                name, _, unit = figure.partition(", in ")
                found.setdefault(name, Rounds(name, unit, less_is_better=True, is_judged=False)).add(side, value)
                options.say(f"  {side:20} {figure}: {value:.4g}")
    async with own_redis(options.durability) as server:
        release = await server.release()
    return Found(
        what=f"played directors that send a heartbeat every {LONGEST_S:g} s, beside a real one, an API and a keeper",
        redis=release,
        durability={"all": options.durability},
        figures=[each.measured() for each in found.values()],
    )


async def _played(options: Options, count: int, spread: int) -> dict[str, float]:
    models = [MODEL, *(f"bench/model-{number}" for number in range(1, spread))]

    async def all_came() -> bool:
        if beating.done():
            beating.result()
        found = await asyncio.gather(*(installation.scripts.stats(queue_of(model)) for model in models))
        return sum(each.directors for each in found) > count

    async with (
        model_server() as model,
        own_redis(options.durability) as server,
        ours(server, models) as installation,
        installation.api() as (url, _),
    ):
        with installation.keeper(), installation.director(model.url):
            one_by_one = installation.asks(url, requests=options.many(REQUESTS), seconds=LIMIT_S)
            await ask(one_by_one)
            without = await ask(one_by_one)
            seconds = max(LONGEST_S, options.seconds(SECONDS))
            used = await server.used_bytes()
            idle = await per_second(partial(used_by, server), seconds)
            beating = asyncio.create_task(_beat(installation, count))
            try:
                await until("all have come", all_came, limit_s=LIMIT_S, every_s=1.0)
                busy = await per_second(partial(used_by, server), seconds)
                commands, beats_us = (max(0.0, now - alone) for now, alone in zip(busy, idle, strict=True))
                grown = await server.used_bytes() - used
                beside = await ask(one_by_one)
                if beating.done():
                    beating.result()
            finally:
                beating.cancel()
    return {
        "Redis's time of all heartbeats, a second, in ms": beats_us / 1000,
        "Redis's time of one heartbeat, in µs": beats_us * LONGEST_S / count,
        "commands of one heartbeat": commands * LONGEST_S / count,
        "Redis's memory of one director, in KB": grown / KB / count,
        "one prediction, p50 without them, in ms": without.p50_ms,
        "one prediction, p99 without them, in ms": without.p99_ms,
        "one prediction, p50 beside them, in ms": beside.p50_ms,
        "one prediction, p99 beside them, in ms": beside.p99_ms,
    }


async def _beat(installation: Ours, count: int) -> None:
    """Send the heartbeats of all, evenly over the time between two of one director."""
    clock, began = SystemClock(), time.monotonic()

    async def beat(number: int) -> None:
        now_ms = clock.now_ms()
        found = ServerFound(url="http://10.0.0.1:5000", state="READY", since_ms=now_ms - 60_000, slots=1)
        about = About(version=__version__, now_ms=now_ms, since_ms=now_ms - 90_000, held=0, servers=(found,))
        await installation.scripts.extend(
            queue_of(installation.models[number % len(installation.models)]),
            consumer=f"played-{number:04}-a1b2c3d4",
            lease_s=LEASE_S,
            claims=[],
            slots=1,
            about=msgspec.json.encode(about),
        )

    async with asyncio.TaskGroup() as tasks:
        for number in counter():
            await until_time(began + number * LONGEST_S / count)
            tasks.create_task(beat(number % count))
