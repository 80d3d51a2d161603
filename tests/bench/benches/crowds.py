"""Hold 10,000 responses, then 10,000 readers of event streams, on one API process: what each costs, and other callers.

A played director claims what they wait for and ends it at a steady pace. Another model has a real director: requests
to it, one at a time, show what others wait while the crowd is there.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx
import msgspec

from director.core.figures import percentile
from director.core.schema import Claim
from director.core.states import Status
from director.lab.bench.load import ask
from director.runtime.startup import raise_descriptor_limit
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import Child, per_second, until
from tests.bench.sides.crowd import Crowd, Heard
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import INPUT, MODEL, Ours, ours, queue_of, version_of
from tests.bench.sides.servers import OwnRedis, own_redis
from tests.support.eventually import until_time

MANY: Final = 10_000
ROOM: Final = 1_000  # above what the API holds by default, for the other callers
CLIENTS: Final = 4  # processes
PER_S: Final = 1_000.0  # clients that come, and predictions that end, in a second
AT_ONCE: Final = 20
OTHER: Final = "bench/held"
IDLE_S: Final = 5.0
REQUESTS: Final = 100
LEASE_S: Final = 600.0
LIMIT_S: Final = 300.0
KB: Final = 1024
MOST_ROUNDS: Final = 1


async def crowds(options: Options) -> Found:
    raise_descriptor_limit()
    many = options.many(MANY)
    found: dict[str, Rounds] = {}
    for _ in range(min(options.rounds, MOST_ROUNDS)):
        for side, is_reading in (("held responses", False), ("readers", True)):
            for figure, value in (await _held(options, many, is_reading=is_reading)).items():
                name, _, unit = figure.partition(", in ")
                found.setdefault(name, Rounds(name, unit, less_is_better=True, is_judged=False)).add(side, value)
                options.say(f"  {side:14} {figure}: {value:.4g}")
    async with own_redis(options.durability) as server:
        release = await server.release()
    return Found(
        what=f"{many:,} held responses, then {many:,} readers, each of its own prediction, on one API process",
        redis=release,
        durability={"all": options.durability},
        figures=[each.measured() for each in found.values()],
    )


async def _held(options: Options, many: int, *, is_reading: bool) -> dict[str, float]:
    limits = {"MAX_WAITS": many + ROOM, "MAX_STREAMS": many + ROOM, "MAX_CONNECTIONS": many + 2 * ROOM}
    async with (
        model_server() as model,
        own_redis(options.durability) as server,
        ours(server, (MODEL, OTHER)) as installation,
        installation.api(**limits, MAX_PEER_CONNECTIONS=many + 2 * ROOM) as (url, api),
    ):
        with installation.keeper(), installation.director(model.url):
            one_by_one = installation.asks(url, requests=options.many(REQUESTS), seconds=LIMIT_S)
            await ask(one_by_one)
            alone = await ask(one_by_one)
            before = api.resident_bytes()
            async with _crowd(installation, url, many, is_reading=is_reading) as heard:
                await _there(url, many, api, is_reading=is_reading)
                grown = api.resident_bytes() - before
                descriptors = api.descriptors()
                idle = await _idle(options, api, server)
                beside = await ask(one_by_one)
                took_s = await _ended(installation, many, is_reading=is_reading)
                all_heard = await heard
    late_ms = [late for each in all_heard for late in each.late_ms]
    ran_out, refused = sum(each.ran_out for each in all_heard), [each.said for each in all_heard if each.refused]
    if refused or sum(each.ended for each in all_heard) + ran_out != many:
        raise ChildProcessError(f"not all of {many} saw the end of their prediction. Another answer: {refused[:1]}")
    return {
        "API memory of one, in KB": grown / KB / many,
        "descriptors of the API": descriptors,
        "the API's time while nothing happens, a second, in ms": 1000 * idle[0],
        "Redis's time while nothing happens, a second, in ms": 1000 * idle[1],
        "another request, p50 without them, in ms": alone.p50_ms,
        "another request, p99 without them, in ms": alone.p99_ms,
        "another request, p50 beside them, in ms": beside.p50_ms,
        "another request, p99 beside them, in ms": beside.p99_ms,
        "ends a second": many / took_s,
        "held until their 60 s ran out": ran_out,
        "written → with its client, p50, in ms": percentile(late_ms, 0.5),
        "written → with its client, p99, in ms": percentile(late_ms, 0.99),
    }


@asynccontextmanager
async def _crowd(
    installation: Ours, url: str, many: int, *, is_reading: bool
) -> AsyncIterator["asyncio.Future[list[Heard]]"]:
    """Start the clients. What they heard is there once all their predictions have ended."""
    body = msgspec.json.encode({"version": version_of(OTHER), "input": INPUT}).decode()
    shares = [many // CLIENTS + (number < many % CLIENTS) for number in range(CLIENTS)]
    crowds = [
        Crowd(url=url, token=installation.token, body=body, clients=each, per_s=PER_S / CLIENTS, is_reading=is_reading)
        for each in shares
    ]
    heard = asyncio.gather(*map(_heard, crowds))
    try:
        yield heard
    finally:
        heard.cancel()
        await asyncio.wait([heard])


async def _heard(crowd: Crowd) -> Heard:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.bench.sides.crowd")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        out, err = await process.communicate(msgspec.json.encode(crowd))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ChildProcessError(f"the crowd broke off: {err.decode(errors='replace')[-1000:]}")
    return msgspec.json.decode(out, type=Heard)


async def _there(url: str, many: int, api: Child, *, is_reading: bool) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as http:

        async def holds() -> bool:
            load = (await http.get(f"{url}/readyz")).json()["load"]
            return bool(load["streams" if is_reading else "waits"] >= many)

        await until(f"{many:,} are held", holds, limit_s=LIMIT_S, every_s=0.2, alive=[api])


async def _idle(options: Options, api: Child, server: OwnRedis) -> tuple[float, float]:
    """Return the processor time of API and Redis in a second, as parts of one."""

    async def used() -> tuple[float, float]:
        return api.cpu_s(), await server.cpu_s()

    api_s, redis_s = await per_second(used, max(2.0, options.seconds(IDLE_S)))
    return api_s, redis_s


async def _ended(installation: Ours, many: int, *, is_reading: bool) -> float:
    """Claim them, then write a token of each that is read, and its end. Return how long the ends took."""
    scripts, queue, claims = installation.scripts, queue_of(OTHER), list[Claim]()
    while len(claims) < many:
        claims += await scripts.claim(queue, consumer="played", nonce=f"n{len(claims)}", count=100, lease_s=LEASE_S)

    async def end(claim: Claim) -> None:
        seq, written = claim.record.seq, f"{time.time():.6f}".encode()
        if is_reading:
            events = [("output", b'"' + written + b'"')]
            advanced = await scripts.advance(claim.id, token=claim.token, seq=seq, ran_ms=1, events=events)
            seq = advanced.seq
        await scripts.finish(
            claim.id,
            queue=queue,
            token=claim.token,
            status=Status.SUCCEEDED,
            output=b'"' + written + b'"',
            ran_ms=1,
            seq=seq,
        )

    began = time.monotonic()
    for first in range(0, many, AT_ONCE):
        await until_time(began + first / PER_S)
        await asyncio.gather(*map(end, claims[first : first + AT_ONCE]))
    return time.monotonic() - began
