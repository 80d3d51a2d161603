"""The job under taskiq, on Redis Streams, with its result."""

import asyncio
import os
import sys

import aiohttp
from taskiq import TaskiqEvents, TaskiqState
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

REDIS, MODEL = os.environ["BENCH_REDIS"], os.environ["BENCH_MODEL"]

broker = RedisStreamBroker(REDIS).with_result_backend(RedisAsyncResultBackend(REDIS, result_ex_time=3600))


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def connect(state: TaskiqState) -> None:
    state.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    run.http = state.http


@broker.task(task_name="run")
async def run(given: dict[str, object]) -> object:
    async with run.http.post(f"{MODEL}/run", json={"input": given}) as answer:
        return (await answer.json())["output"]


async def file(many: int) -> None:
    await broker.startup()
    for _ in range(many):
        await run.kiq({"text": "hello", "n": 3})
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(file(int(sys.argv[1])))
