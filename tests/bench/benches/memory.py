"""Measure the memory of a waiting prediction, a held response and a reader. Each round has new processes."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec

from director.broker import keys
from director.core.ids import partition_of_model
from director.lab.bench.load import Load
from director.runtime.startup import raise_descriptor_limit
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import Child, until
from tests.bench.results import OURS
from tests.bench.sides.others import bare, prototype
from tests.bench.sides.ours import INPUT, MODEL, Ours, ours
from tests.bench.sides.servers import OwnRedis, own_redis

PROTOTYPE: Final = "prototype"
BARE: Final = "bare handler"
FILED: Final = 20_000
LOGGED: Final = 12_000  # more than the log of a partition keeps, so that it does not grow any more
ENDED: Final = 3_000
HELD: Final = 1_000
WARM: Final = 20
AT_ONCE: Final = 20
MOST_ROUNDS: Final = 3
LIMIT_S: Final = 60.0
KB: Final = 1024


async def memory(options: Options) -> Found:
    raise_descriptor_limit()
    ended = Rounds("bytes of an ended prediction", "bytes", less_is_better=True)
    bare_ended = Rounds("bytes of an ended prediction whose data is removed", "bytes", less_is_better=True)
    each = Rounds("bytes of a waiting prediction beside input and log", "bytes", less_is_better=True)
    clients = Rounds("API memory of a waiting client", "KB", less_is_better=True)
    readers = Rounds("API memory of an SSE reader", "KB", less_is_better=True)
    many = options.many(HELD) + WARM
    for _ in range(min(options.rounds, MOST_ROUNDS)):
        async with own_redis(options.durability) as server:
            release = await server.release()
            await _bytes_each(server, options.many(FILED), each)
            await server.flush()
            await _bytes_kept(server, options.many(ENDED), ended, bare_ended)
            await server.flush()
            async with bare(server) as (url, process):
                held_kb = await _grown_kb(process, [Load(url=f"{url}/hold")] * many)
                clients.add(BARE, held_kb)
                readers.add(BARE, held_kb)
            async with ours(server) as installation:
                async with installation.api() as (url, process):
                    clients.add(OURS, await _grown_kb(process, [installation.asks(url)] * many, f"{url}/readyz"))
                async with installation.api() as (url, process):
                    streams = await _streams(installation, url, many)
                    readers.add(OURS, await _grown_kb(process, streams, f"{url}/readyz"))
        options.say("  a round has ended")
    return Found(
        what=f"{many:,} of each held at once",
        redis=release,
        durability=dict.fromkeys((OURS, PROTOTYPE, BARE), options.durability),
        figures=[rounds.measured() for rounds in (each, ended, bare_ended, clients, readers)],
    )


async def _bytes_each(server: OwnRedis, many: int, each: Rounds) -> None:
    given = len(msgspec.json.encode(INPUT))
    bare = await prototype(server)
    before = await server.used_bytes()
    await bare.preload(many)
    each.add(PROTOTYPE, (await server.used_bytes() - before) / many - given)
    await server.flush()
    async with ours(server) as installation:
        await installation.preload(LOGGED)  # what the queue and the log take is not counted
        before = await server.used_bytes()
        await installation.preload(many)
        each.add(OURS, (await server.used_bytes() - before) / many - given)


async def _bytes_kept(server: OwnRedis, many: int, ended: Rounds, bare: Rounds) -> None:
    """Return the bytes of one terminal prediction with its input, output and events, and without them."""
    async with ours(server) as installation:

        async def kept() -> int:
            steps = keys.log(partition_of_model(MODEL))
            return await server.used_bytes() - int(await server.redis.memory_usage(steps, samples=0) or 0)

        await installation.preload(1)  # what is there once, scripts too, is not of each
        await installation.end(1)
        before = await kept()
        made = await installation.preload(many)
        await installation.end(many)
        ended.add(OURS, (await kept() - before) / many)
        for one in made:
            await server.redis.delete(keys.input_data(one), keys.output_data(one), keys.events(one))
        bare.add(OURS, (await kept() - before) / many)


async def _streams(installation: Ours, url: str, many: int) -> Sequence[Load]:
    asked = installation.asks(url)
    async with httpx.AsyncClient(headers=installation.headers, trust_env=False, timeout=LIMIT_S) as http:

        async def create() -> Load:
            async with gate:
                made = (await http.post(asked.url, content=asked.body)).json()
            return Load(url=made["urls"]["stream"], body="", headers={"accept": "text/event-stream"})

        gate = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(create() for _ in range(many)))


async def _grown_kb(process: Child, loads: Sequence[Load], ready: str = "") -> float:
    """Return the kB that the process grew by for each request while all are held."""
    async with AsyncExitStack() as stack:
        for load in loads[:WARM]:
            await stack.enter_async_context(_held(load))
        await _settled(ready, WARM)
        before = process.resident_bytes()
        for load in loads[WARM:]:
            await stack.enter_async_context(_held(load))
        await _settled(ready, len(loads))
        return max(0.1, (process.resident_bytes() - before) / KB / (len(loads) - WARM))


async def _settled(ready: str, many: int) -> None:
    if not ready:
        await asyncio.sleep(1)  # there is no count to wait for
        return

    async def holds() -> bool:
        async with httpx.AsyncClient(trust_env=False) as http:
            held = json.loads((await http.get(ready, timeout=LIMIT_S)).content)["load"]
            return bool(held["waits"] + held["streams"] >= many)

    await until(f"{many} are held", holds, limit_s=LIMIT_S, every_s=0.1)


@asynccontextmanager
async def _held(load: Load) -> AsyncIterator[None]:
    parts = urlsplit(load.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    headers = {"host": parts.netloc, "content-length": str(len(load.body)), **load.headers}
    method = "POST" if load.body else "GET"
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "\r\n"]).encode() + load.body.encode())
    if not load.body:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if not re.match(r"HTTP/1\.1 2", head):
            raise ChildProcessError(f"{load.url} was not answered well: {head.splitlines()[0]}")
    try:
        yield
    finally:
        writer.close()
