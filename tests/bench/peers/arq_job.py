"""The job under arq; it keeps results by itself."""

import asyncio
import os
import sys
from typing import Any

import aiohttp
import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

REDIS, MODEL = RedisSettings.from_dsn(os.environ["BENCH_REDIS"]), os.environ["BENCH_MODEL"]


async def connect(ctx: dict[str, Any]) -> None:
    ctx["http"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def run(ctx: dict[str, Any], given: dict[str, object]) -> object:
    async with ctx["http"].post(f"{MODEL}/run", json={"input": given}) as answer:
        return (await answer.json())["output"]


async def file(many: int) -> None:
    pool = await create_pool(REDIS)
    for _ in range(many):
        await pool.enqueue_job("run", {"text": "hello", "n": 3})
    await pool.aclose()


async def work() -> None:
    # polled 50 times as often as by default: with 0.5 s it would do nothing most of the time
    worker = Worker(
        [run], redis_settings=REDIS, on_startup=connect, max_jobs=int(os.environ["BENCH_SLOTS"]), poll_delay=0.01
    )
    await worker.async_run()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        asyncio.run(work())
    else:
        asyncio.run(file(int(sys.argv[1])))
