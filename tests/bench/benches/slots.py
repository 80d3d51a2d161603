"""Measure how long a slot is idle between two runs while work waits, beside three queues."""

import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from statistics import median
from typing import Final

import anyio.to_thread

from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import Child, until
from tests.bench.results import OURS
from tests.bench.sides.ours import ours
from tests.bench.sides.peers import PEERS, NotInstalled, Peer, installed
from tests.bench.sides.servers import OwnRedis, own_redis
from tests.support.timed_server import Span, gaps_ms, timed_server, use_of

BESIDE: Final = ("bullmq", "taskiq", "celery")
SHAPES: Final = (
    (0.05, 1),
    (0.05, 8),
    (1.0, 1),
    (1.0, 8),
)  # how long a run takes in seconds, and how many slots there are
SECONDS: Final = 4.0
LEAST: Final = 3  # runs of a slot
LEAST_MS: Final = 0.01
LIMIT_S: Final = 60.0

Side = Callable[[OwnRedis, str, int, int], AbstractAsyncContextManager[Child]]
"""Files work on an empty server, and runs it: how much, at this address, with so many slots."""


async def slots(options: Options) -> Found:
    idle = {shape: Rounds(_idle(*shape), "ms", less_is_better=True) for shape in SHAPES}
    used = {shape: Rounds(f"part of the time in use, {_shown(*shape)}", "") for shape in SHAPES}
    sides, left_out = _sides(options)
    async with own_redis(options.durability) as server:
        for _ in range(options.rounds):
            for run_s, many in SHAPES:
                for name, side in list(sides.items()):
                    try:
                        spans = await _spans(side, server, run_s, many, options)
                    except (OSError, TimeoutError, subprocess.SubprocessError) as exc:
                        if name == OURS:
                            raise
                        left_out[name] = str(exc).strip().splitlines()[-1][:200]
                        del sides[name]
                        continue
                    idle_ms, part = median(gaps_ms(spans, slots=many)), use_of(spans, slots=many)
                    idle[run_s, many].add(name, max(LEAST_MS, idle_ms))
                    used[run_s, many].add(name, part)
                    options.say(f"  {name:8} {_shown(run_s, many):28} {idle_ms:6.2f} ms idle, {part:.3f} in use")
        return Found(
            what="waiting work, each run of which takes a fixed time; results kept",
            redis=await server.release(),
            durability=dict.fromkeys(sides, options.durability),
            figures=[each.measured() for each in (*idle.values(), *used.values())],
            left_out=left_out,
        )


async def _spans(side: Side, server: OwnRedis, run_s: float, many: int, options: Options) -> list[Span]:
    """Return the begin and the end of each run of a few seconds."""
    runs = many * max(LEAST, round(options.seconds(SECONDS) / run_s))
    await server.flush()
    async with timed_server(run_s) as timed, side(server, timed.url, runs, many) as process:

        async def is_over() -> bool:
            return len(timed.spans) >= runs

        await until("all ran", is_over, limit_s=LIMIT_S, every_s=0.1, alive=[process])
        return timed.spans[:runs]


def _sides(options: Options) -> tuple[dict[str, Side], dict[str, str]]:
    sides: dict[str, Side] = {OURS: _ours}
    left_out = {}
    for peer in [peer for peer in PEERS if peer.name in BESIDE] if options.with_peers else ():
        try:
            sides[peer.name] = _beside(installed(peer))
        except NotInstalled as exc:
            left_out[peer.name] = str(exc)
    return sides, left_out


@asynccontextmanager
async def _ours(server: OwnRedis, url: str, runs: int, many: int) -> AsyncIterator[Child]:
    async with ours(server) as installation:
        await installation.preload(runs)
        with installation.keeper(), installation.director(url, slots=many) as director:
            yield director


def _beside(peer: Peer) -> Side:
    @asynccontextmanager
    async def run(server: OwnRedis, url: str, runs: int, many: int) -> AsyncIterator[Child]:
        await anyio.to_thread.run_sync(peer.file, server, runs)
        with peer.worker(server, url, slots=many) as worker:
            yield worker

    return run


def _idle(run_s: float, many: int) -> str:
    return f"idle between two, p50, {_shown(run_s, many)}"


def _shown(run_s: float, many: int) -> str:
    return f"runs of {1000 * run_s:g} ms, {many} slot{'s' * (many > 1)}"


COLUMNS: Final = {_idle(*shape): f"idle, {_shown(*shape)}" for shape in SHAPES}  # of the page, by their figure
