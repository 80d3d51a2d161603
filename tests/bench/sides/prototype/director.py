"""Run predictions: `python -m tests.bench.sides.prototype.director REDIS_URL MODEL_URL SLOTS`."""

import asyncio
import sys
from typing import Any, Final

import msgspec
import uvloop

from director.broker.redis_client import blocking_client, client
from director.servers.runners.transport import OneServer, read_body
from tests.bench.sides.prototype.gathered import Gathered
from tests.bench.sides.prototype.steps import CONSUMER, FINISH, GROUP, STREAM, record

BLOCK_MS: Final = 1_000
MOST_BYTES: Final = 1 << 20


class Slots:
    def __init__(self, many: int) -> None:
        self.free = many
        self.some = asyncio.Event()
        self.some.set()

    def take(self, many: int) -> None:
        self.free -= many
        if not self.free:
            self.some.clear()

    def give_back(self) -> None:
        self.free += 1
        self.some.set()


async def direct(redis_url: str, model_url: str, many: int) -> None:
    redis, waiting = client(redis_url), blocking_client(redis_url, block_s=BLOCK_MS / 1000)
    calls, server, slots = Gathered(redis), OneServer(model_url, keep=many), Slots(many)
    finish = await redis.script_load(FINISH)

    async def run(entry: bytes, fields: dict[bytes, bytes]) -> None:
        response = await server.send("POST", "/run", content=b'{"input":%b}' % fields[b"input"])
        body, _ = await read_body(response, MOST_BYTES)
        await response.aclose()
        slots.give_back()
        output = bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["output"])
        prediction_id = fields[b"id"].decode()
        named = (record(prediction_id), STREAM, GROUP, entry, output, fields[b"waits"], prediction_id)
        await calls.call("EVALSHA", finish, 2, *named)

    async with asyncio.TaskGroup() as runs:
        while True:
            await slots.some.wait()
            claimed: Any = await waiting.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=slots.free, block=BLOCK_MS)
            entries = claimed[0][1] if claimed else []
            slots.take(len(entries))
            for entry, fields in entries:
                runs.create_task(run(entry, fields))


if __name__ == "__main__":
    uvloop.run(direct(sys.argv[1], sys.argv[2], int(sys.argv[3])))
