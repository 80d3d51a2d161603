"""Eight slots on two servers stay in use. A bare client beside it shows the machine's limit."""

import asyncio
import json
from pathlib import Path
from statistics import median

import pytest
from redis.asyncio import Redis

from tests.bench.figures import Figure, verdicts
from tests.integration.execution.conftest import caller as caller
from tests.support.cog import cog_server, write_model
from tests.support.eventually import eventually
from tests.support.live_director import Caller, director_process
from tests.support.servers import RedisServer
from tests.support.timed_server import Span, at_once, gaps_ms, timed_server, use_of

pytestmark = pytest.mark.heavy

RUN_S = 0.1
SERVERS, SLOTS = 2, 4
RUNS = 600
ROUNDS = 3
LINE_BYTES = 42
SCRIPTED_LEAST, COGLET_LEAST = 0.97, 0.94

TIMED = """
    import asyncio, os, time
    from cog import BasePredictor

    class Predictor(BasePredictor):
        async def predict(self, log: str) -> str:
            began = time.monotonic()
            await asyncio.sleep(0.1)  # a sample ten times a second
            with open(f"{log}-{os.getpid()}", "a") as file:
                file.write(f"{began:020.6f} {time.monotonic():020.6f}\\n")
            return "x"
"""


async def wanted(caller: Caller, log: str) -> None:
    for _ in range(RUNS):
        await caller.submit(log=log)


async def over(caller: Caller) -> None:
    async def left() -> int:
        return (await caller.scripts.stats(caller.queue)).live

    await eventually(left, "all ended", until=(0).__eq__, limit_s=60)


async def bare_use() -> float:
    async with timed_server(RUN_S) as timed:

        async def ask() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(timed.url.rpartition(":")[2]))
            for _ in range(RUNS // 4 // (SERVERS * SLOTS)):
                writer.write(b"PUT /predictions/x HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.decode().partition("content-length: ")[2]))
            writer.close()

        await asyncio.gather(*(ask() for _ in range(SERVERS * SLOTS)))
        return use_of(timed.spans, slots=SERVERS * SLOTS)


async def judge(name: str, rounds: list[list[list[Span]]], least: float | None) -> None:
    uses, gaps = [], []
    for servers in rounds:
        assert len(servers) == SERVERS
        assert sum(map(len, servers)) == RUNS
        assert max(at_once(spans) for spans in servers) <= SLOTS
        every = [span for spans in servers for span in spans]
        gaps.append(median(gaps_ms(every, slots=SERVERS * SLOTS)))
        uses.append(use_of(every, slots=SERVERS * SLOTS))
    found = ", ".join(f"{use:.3f} (gap {gap:.1f} ms)" for use, gap in zip(uses, gaps, strict=True))
    print(f"{name}: {SERVERS * SLOTS} slots of {SERVERS} servers in use {found}; a bare client {await bare_use():.3f}")
    if least is not None:
        figure = Figure(name=f"{name}, median", value=median(uses), bound=least, is_least=True)
        print(verdicts([figure]))
        assert figure.ok


async def test_slots_of_scripted_servers_are_hardly_ever_idle(
    caller: Caller, server: RedisServer, redis: Redis
) -> None:
    rounds = []
    for _ in range(ROUNDS):
        await wanted(caller, "")
        async with (
            timed_server(RUN_S) as one,
            timed_server(RUN_S) as two,
            director_process(server.url, one.url, two.url, concurrent_predictions=SLOTS),
        ):
            await eventually(lambda: len(one.spans + two.spans), "all ran", until=(RUNS).__eq__, limit_s=60)
            await over(caller)
        rounds.append([one.spans, two.spans])
    await judge("scripted", rounds, SCRIPTED_LEAST)


@pytest.mark.cog
@pytest.mark.parametrize("fast", [False, True], ids=["called back from", "fast"])
async def test_slots_of_coglet_are_hardly_ever_idle(
    caller: Caller, server: RedisServer, tmp_path: Path, fast: bool
) -> None:
    folder = write_model(tmp_path / "timed", TIMED)
    rounds = []

    def written(number: int) -> int:
        return sum(log.stat().st_size for log in tmp_path.glob(f"log{number}-*")) // LINE_BYTES

    async with cog_server(folder, slots=SLOTS) as one, cog_server(folder, slots=SLOTS) as two:
        for number in range(ROUNDS):

            def logged(number: int = number) -> list[list[Span]]:
                logs = sorted(tmp_path.glob(f"log{number}-*"))
                return [[_span(line) for line in log.read_text().splitlines()] for log in logs]

            await wanted(caller, str(tmp_path / f"log{number}"))
            config = json.dumps({"kind": "cog", "fast": fast})
            async with director_process(server.url, one, two, concurrent_predictions=SLOTS, runner_config=config):
                await eventually(lambda n=number: written(n), "all ran", until=(RUNS).__eq__, limit_s=60)
                await over(caller)
            rounds.append(logged())
    await judge("coglet, fast" if fast else "coglet", rounds, COGLET_LEAST if fast else None)


def _span(line: str) -> Span:
    began, ended = map(float, line.split())
    return began, ended
