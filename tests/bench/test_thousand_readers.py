"""A thousand event streams and a thousand held responses on one API process: none is lost, and what they cost."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from statistics import quantiles
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.ids import PredictionId, QueueName
from director.core.schema import Claim
from director.core.states import Status
from director.runtime.startup import raise_descriptor_limit
from tests.integration.api.conftest import token as token
from tests.support.api import LiveApi, live_api
from tests.support.eventually import eventually
from tests.support.queue_driver import VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.heavy

MANY: Final = 1_000
ROUNDS: Final = 10
AT_ONCE: Final = 20  # creates on their way together, and tokens that are written in one moment
PAUSE_S: Final = 0.02  # between two such moments: each prediction has a token a second
MOST_CONNECTIONS: Final = 8
LIMIT_S: Final = 60.0
FEW: Final = 50


@asynccontextmanager
async def asked(method: str, url: str, *headers: str, body: bytes = b"") -> AsyncGenerator[asyncio.StreamReader]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = [f"{method} {parts.path} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(body)}", *headers]
    writer.write("\r\n".join([*head, "\r\n"]).encode() + body)
    try:
        yield reader
    finally:
        writer.close()


class Reader:
    def __init__(self, made: dict[str, Any]) -> None:
        self.id = PredictionId(made["id"])
        self._url = made["urls"]["stream"]
        self.took_ms: list[float] = []
        self.is_done = False

    async def read(self) -> None:
        async with asked("GET", self._url) as reader:
            while line := await reader.readline():
                if line == b"event: output\n":
                    await reader.readline()
                    sent = float((await reader.readline()).removeprefix(b"data: "))
                    self.took_ms.append((time.time() - sent) * 1000)
                elif line == b"event: done\n":
                    self.is_done = True
                    return


class Crowd:
    def __init__(self, live: LiveApi, token: str, scripts: Scripts, queue: QueueName) -> None:
        self._live = live
        self._authorization = f"Authorization: Bearer {token}"
        self._scripts = scripts
        self._queue = queue
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.ended_at: dict[str, float] = {}
        self.waits_ms: list[float] = []

    async def create(self) -> dict[str, Any]:
        async with self._gate:
            return await self._post("Prefer: none")

    async def wait(self) -> None:
        answer = await self._post("Prefer: wait=60")
        self.waits_ms.append((time.monotonic() - self.ended_at[answer["id"]]) * 1000)
        assert answer["status"] == "succeeded"

    async def _post(self, prefer: str) -> dict[str, Any]:
        url = f"{self._live.url}/v1/predictions"
        body = msgspec.json.encode({"version": VERSION, "input": {}})
        async with asked("POST", url, self._authorization, prefer, body=body) as reader:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", head)
            assert length is not None
            answer: dict[str, Any] = msgspec.json.decode(await reader.readexactly(int(length[1])))
        assert head.startswith("HTTP/1.1 201 "), answer
        return answer

    async def holds(self, many: int) -> dict[str, int]:
        async with httpx.AsyncClient(trust_env=False) as http:

            async def load() -> dict[str, int]:
                return (await http.get(f"{self._live.url}/readyz", timeout=LIMIT_S)).json()["load"]

            return await eventually(
                load,
                f"{many} of each are held",
                until=lambda load: (
                    (load["streams"], load["waits"]) == (many, many) and load["descriptors"] < 2 * many + FEW
                ),
                limit_s=LIMIT_S,
            )

    async def claims(self) -> list[Claim]:
        claims: list[Claim] = []
        while len(claims) < 2 * MANY:
            claims += await self._scripts.claim(
                self._queue, consumer="played", nonce=f"nonce{len(claims)}", count=100, lease_s=600
            )
        return claims

    async def produce(self, claims: list[Claim]) -> dict[PredictionId, int]:
        seqs = {claim.id: claim.record.seq for claim in claims}

        async def token(claim: Claim) -> None:
            event = ("output", f'"{time.time()!r}"'.encode())
            advanced = await self._scripts.advance(
                claim.id, token=claim.token, seq=seqs[claim.id], ran_ms=1, events=[event]
            )
            seqs[claim.id] = advanced.seq

        async with asyncio.TaskGroup() as tasks:
            for _ in range(ROUNDS):
                for start in range(0, len(claims), AT_ONCE):
                    for claim in claims[start : start + AT_ONCE]:
                        tasks.create_task(token(claim))
                    await asyncio.sleep(PAUSE_S)  # the model's own rate
        return seqs

    async def finish(self, claims: list[Claim], seqs: dict[PredictionId, int]) -> None:
        async def end(claim: Claim) -> None:
            self.ended_at[claim.id] = time.monotonic()
            await self._scripts.finish(
                claim.id,
                queue=claim.record.queue,
                token=claim.token,
                status=Status.SUCCEEDED,
                ran_ms=1,
                seq=seqs.get(claim.id, 0),
            )

        for start in range(0, len(claims), AT_ONCE):
            await asyncio.gather(*(end(claim) for claim in claims[start : start + AT_ONCE]))


@pytest.fixture
async def live(server: RedisServer, redis: Redis) -> AsyncIterator[LiveApi]:
    raise_descriptor_limit()
    async with live_api(server.url, env={"DIRECTOR_LOG_LEVEL": "warning"}) as live:
        yield live


def spread(times_ms: list[float]) -> str:
    cuts = quantiles(times_ms, n=100)
    return f"p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms, slowest {max(times_ms):.0f} ms"


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:  # noqa: PTH123
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


async def test_a_thousand_of_each(live: LiveApi, token: str, redis: Any, scripts: Scripts, queue: QueueName) -> None:
    crowd = Crowd(live, token, scripts, queue)
    before_mb = resident_mb(live.process.pid)
    readers = [Reader(made) for made in await asyncio.gather(*(crowd.create() for _ in range(MANY)))]
    async with asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(reader.read())
            tasks.create_task(crowd.wait())
        load = await crowd.holds(MANY)
        held_mb = resident_mb(live.process.pid)
        claims = await crowd.claims()
        read = {reader.id for reader in readers}
        seqs = await crowd.produce([claim for claim in claims if claim.id in read])
        connections = [one["name"] for one in await redis.client_list() if one["name"].startswith("director-api")]
        produced_mb = resident_mb(live.process.pid)
        await crowd.finish(claims, seqs)
    await crowd.holds(0)
    took_ms = [ms for reader in readers for ms in reader.took_ms]
    print(
        f"\n{MANY} readers and {MANY} held responses: {len(connections)} connections to Redis, "
        f"{load['descriptors']} descriptors of {load['descriptors_limit']}, {before_mb:.0f} MB before, "
        f"{held_mb:.0f} MB held, {produced_mb:.0f} MB after {len(took_ms):,} tokens"
    )
    print(f"token written → read: {spread(took_ms)}\nended → held response answered: {spread(crowd.waits_ms)}")
    assert [(len(reader.took_ms), reader.is_done) for reader in readers] == [(ROUNDS, True)] * MANY
    assert len(crowd.waits_ms) == MANY
    assert len(connections) <= MOST_CONNECTIONS
    await redis.flushall()  # the fixture would look at each of their keys
