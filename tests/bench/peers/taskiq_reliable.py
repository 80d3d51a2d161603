"""The job under taskiq on Redis Streams, the broker that its README names for durable work, with its result."""

import asyncio
import os
import sys

import aiohttp
from taskiq import TaskiqEvents, TaskiqState
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

REDIS, MODEL = os.environ["BENCH_REDIS"], os.environ["BENCH_MODEL"]
TIMEOUT_S = os.environ.get("BENCH_TIMEOUT_S", "")

# Entries are acknowledged when the result is saved, the default (taskiq-python.github.io/guide/cli.html).
# The broker's docstring: the lock time-out is for workers that are killed. `idle_timeout` is 600 s by default.
# A short one counts the wait in the worker's buffer too, so that worker reads no more than it has slots.
short = {"idle_timeout": int(TIMEOUT_S) * 1000, "xread_count": int(os.environ["BENCH_SLOTS"])} if TIMEOUT_S else {}
broker = RedisStreamBroker(REDIS, unacknowledged_lock_timeout=10, **short).with_result_backend(
    RedisAsyncResultBackend(REDIS, result_ex_time=3600)
)


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def connect(state: TaskiqState) -> None:
    state.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    run.http = state.http


@broker.task(task_name="run")
async def run(job: str) -> object:
    async with run.http.post(f"{MODEL}/run", json={"input": {"job": job}}) as answer:
        return (await answer.json())["output"]


async def file(job: str) -> None:
    try:
        await run.kicker().with_task_id(job).kiq(job)
    except Exception as exc:  # noqa: BLE001 - the caller learns that it was not filed, whatever the reason
        print(f"refused {job} {exc!r}".splitlines()[0], flush=True)
    else:
        print(f"accepted {job}", flush=True)


async def file_all() -> None:
    await broker.startup()
    filing = set[asyncio.Task[None]]()
    while line := await asyncio.to_thread(sys.stdin.readline):
        filing.add(task := asyncio.create_task(file(line.strip())))
        task.add_done_callback(filing.discard)


if __name__ == "__main__":
    asyncio.run(file_all())
