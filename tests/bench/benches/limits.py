"""Measure the raw limits of this machine: Redis, the model server and our load. No figure is judged."""

import csv
import shutil
import subprocess
from typing import Final

import anyio.to_thread

from director.lab.bench.load import Load, ask
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.sides.others import bare, model_server
from tests.bench.sides.servers import OwnRedis, own_redis

BENCHMARK: Final = "redis-benchmark"
COMMAND: Final = ("XADD", "limit", "*", "input", "x" * 64)
REQUESTS: Final = 50_000
LIMIT_S: Final = 60.0
RAW: Final = "raw"


async def limits(options: Options) -> Found:
    plain = Rounds("XADD a second, 64 connections", "")
    piped = Rounds("XADD a second, 64 connections, 16 in one write", "")
    model_per_s = Rounds("POST to the model server a second, 16 connections", "")
    handler_per_s = Rounds("POST to a bare handler a second, 32 connections", "")
    is_there = shutil.which(BENCHMARK) is not None
    async with own_redis(options.durability) as server, model_server() as model, bare(server) as (url, _):
        for _ in range(options.rounds):
            seconds = options.seconds(1.5)
            handler = Load(url=f"{url}/one", body='{"input":{}}', connections=32, seconds=seconds)
            runs = Load(url=f"{model.url}/run", connections=16, seconds=seconds)
            handler_per_s.add(RAW, (await ask(handler)).per_s)
            model_per_s.add(RAW, (await ask(runs)).per_s)
            if is_there:
                plain.add(RAW, await _benchmark(server, options.many(REQUESTS), 1))
                piped.add(RAW, await _benchmark(server, options.many(REQUESTS), 16))
            await server.flush()
        return Found(
            what="raw limits",
            redis=await server.release(),
            durability={RAW: options.durability},
            figures=[each.measured() for each in (*([plain, piped] if is_there else []), model_per_s, handler_per_s)],
            left_out={} if is_there else {BENCHMARK: "is not installed"},
        )


async def _benchmark(server: OwnRedis, requests: int, piped: int) -> float:
    port = server.url.rpartition(":")[2].partition("/")[0]
    options = ("-p", port, "-n", str(requests), "-c", "64", "-P", str(piped), "--csv")

    def run() -> str:
        command = [BENCHMARK, *options, *COMMAND]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout

    said = await anyio.to_thread.run_sync(run)
    return float(list(csv.reader(said.splitlines()))[-1][1])
