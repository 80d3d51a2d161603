"""The job under SAQ; it keeps results by itself."""

import os
import sys
from typing import Any

import aiohttp
import uvloop
from saq import Queue, Worker

REDIS, MODEL = os.environ["BENCH_REDIS"], os.environ["BENCH_MODEL"]


async def connect(ctx: dict[str, Any]) -> None:
    ctx["http"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def run(ctx: dict[str, Any], *, given: dict[str, object]) -> object:
    async with ctx["http"].post(f"{MODEL}/run", json={"input": given}) as answer:
        return (await answer.json())["output"]


async def file(many: int) -> None:
    queue = Queue.from_url(REDIS)
    for _ in range(many):
        await queue.enqueue("run", given={"text": "hello", "n": 3})
    await queue.disconnect()


async def work() -> None:
    slots = int(os.environ["BENCH_SLOTS"])
    await Worker(Queue.from_url(REDIS), [run], concurrency=slots, startup=connect).start()


if __name__ == "__main__":
    uvloop.run(work() if sys.argv[1] == "work" else file(int(sys.argv[1])))
