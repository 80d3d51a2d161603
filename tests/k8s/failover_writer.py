"""Write through Director's own client, as an API process does, and print the time and number of each accepted write."""

import asyncio
import sys
import time
from functools import partial
from itertools import count

from director.broker.redis_client import ask, client
from director.core.errors import BackendUnavailable
from tests.support.eventually import every

WRITERS = 4  # one that waits for an answer does not hide what others get
EVERY_S = 0.05


async def main(url: str) -> None:
    redis, numbers = client(url), count()

    async def write() -> None:
        async for _ in every(EVERY_S):
            number = next(numbers)
            try:
                await ask(partial(redis.set, f"model:written:{number}", b"1"))
                print(f"{time.monotonic():.3f} {number}", flush=True)
            except BackendUnavailable as exc:
                print(f"{time.monotonic():.3f} - {exc}", flush=True)

    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(write())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
