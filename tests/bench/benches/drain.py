"""Measure how fast one director runs waiting work, beside the prototype and every peer, on the same HTTP job."""

import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Final

import anyio.to_thread
from msgspec import Struct

from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import Child, until
from tests.bench.results import OURS
from tests.bench.sides.others import ModelServer, model_server, prototype
from tests.bench.sides.ours import SLOTS, ours
from tests.bench.sides.peers import PEERS, NotInstalled, Peer, installed
from tests.bench.sides.servers import OwnRedis, own_redis

PROTOTYPE: Final = "prototype"
MANY: Final = 6_000
LONGEST_S: Final = 4.0  # from the first run on: a slow side is measured on what it has done by then
START_S: Final = 60.0
LEAST_RUNS: Final = 20
LOOK_S: Final = 0.1  # more often, who looks would be measured


class Side(Struct, frozen=True, kw_only=True):
    """File work on an empty server, then yield a process that runs it."""

    name: str
    many: int
    filed: Callable[[int], AbstractAsyncContextManager["Ready"]]


class Ready(Struct, frozen=True, kw_only=True):
    """`check` raises if a run has not ended."""

    each_bytes: float
    begin: Callable[[], AbstractContextManager[Child]]
    check: Callable[[int], Awaitable[None]]


async def drain(options: Options) -> Found:
    pace_of, bytes_of = Rounds("runs a second", ""), Rounds("bytes of one that waits", "bytes", less_is_better=True)
    cpu_of = Rounds("processor time of who runs them", "µs", less_is_better=True)
    redis_of = Rounds("processor time of Redis", "µs", less_is_better=True)
    model_of = Rounds("processor time of the model server", "µs", less_is_better=True, is_judged=False)
    peers, left_out = _peers(options)
    async with model_server() as model, own_redis(options.durability) as server:
        sides = [_prototype(server, model), _ours(server, model), *(_peer(peer, server, model) for peer in peers)]
        for _ in range(options.rounds):
            for side in [side for side in sides if side.name not in left_out]:
                try:
                    drained = await _drained(side, options, model, server)
                except (OSError, ValueError, subprocess.SubprocessError) as exc:
                    if side.name == OURS:
                        raise
                    left_out[side.name] = str(exc).strip().splitlines()[-1][:200]
                    continue
                options.say(f"  {side.name:12} {drained.per_s:8.0f} runs/s, {drained.cpu_us:5.0f} µs each")
                pace_of.add(side.name, drained.per_s)
                bytes_of.add(side.name, drained.each_bytes)
                cpu_of.add(side.name, drained.cpu_us)
                redis_of.add(side.name, drained.redis_us)
                model_of.add(side.name, drained.model_us)
        return Found(
            what=f"waiting work with one HTTP call each, {SLOTS} slots, one process that runs it, results kept",
            redis=await server.release(),
            durability={side.name: options.durability for side in sides},
            figures=[each.measured() for each in (pace_of, cpu_of, redis_of, model_of, bytes_of)],
            left_out=left_out,
        )


def pace(times: Sequence[float]) -> float:
    """Return the runs a second between the first and the last tenth. Raises ValueError for too few times."""
    if len(times) < LEAST_RUNS:
        raise ValueError(f"{len(times)} runs are too few")
    ranked = sorted(times)
    first, last = len(ranked) // 10, len(ranked) * 9 // 10
    return (last - first) / (ranked[last] - ranked[first])


class Drained(Struct, frozen=True, kw_only=True):
    per_s: float
    cpu_us: float
    redis_us: float
    model_us: float
    each_bytes: float


async def _drained(side: Side, options: Options, model: ModelServer, server: OwnRedis) -> Drained:
    many = options.many(side.many)
    async with side.filed(many) as ready:
        await model.times()
        with ready.begin() as process:

            async def has(runs: int) -> bool:
                return await model.count() >= runs or time.monotonic() > give_up

            give_up = float("inf")
            await until(f"{side.name} runs", lambda: has(many // 10), limit_s=START_S, every_s=LOOK_S, alive=[process])
            before = (await model.count(), process.cpu_s(), await server.cpu_s(), model.process.cpu_s())
            give_up = time.monotonic() + options.seconds(LONGEST_S)
            most = many * 9 // 10
            await until(f"{side.name} ran", lambda: has(most), limit_s=START_S, every_s=LOOK_S, alive=[process])
            after = (await model.count(), process.cpu_s(), await server.cpu_s(), model.process.cpu_s())
            give_up = min(give_up, time.monotonic() + 1)
            await until(f"{side.name} ran", lambda: has(many), limit_s=START_S, every_s=LOOK_S, alive=[process])
            times = await model.times()
            await ready.check(len(times))
    runs = max(1, after[0] - before[0])
    cpu_us, redis_us, model_us = (1e6 * (now - then) / runs for now, then in zip(after[1:], before[1:], strict=True))
    return Drained(
        per_s=pace(times),
        cpu_us=cpu_us,
        redis_us=redis_us,
        model_us=model_us,
        each_bytes=ready.each_bytes,
    )


def _ours(server: OwnRedis, model: ModelServer) -> Side:
    @asynccontextmanager
    async def filed(many: int) -> AsyncIterator[Ready]:
        await server.flush()
        async with ours(server) as installation:
            before = await server.used_bytes()
            await installation.preload(many)
            each = (await server.used_bytes() - before) / many

            @contextmanager
            def begin() -> Iterator[Child]:
                with installation.keeper(), installation.director(model.url) as director:
                    yield director

            async def check(ran: int) -> None:
                async def ended() -> bool:
                    return many - await installation.live() >= ran

                await until("all that ran has ended", ended, limit_s=START_S)

            yield Ready(each_bytes=each, begin=begin, check=check)

    return Side(name=OURS, many=MANY, filed=filed)


def _prototype(server: OwnRedis, model: ModelServer) -> Side:
    @asynccontextmanager
    async def filed(many: int) -> AsyncIterator[Ready]:
        bare = await prototype(server)
        before = await server.used_bytes()
        await bare.preload(many)
        each = (await server.used_bytes() - before) / many
        yield Ready(each_bytes=each, begin=lambda: bare.director(model.url), check=_unchecked)

    return Side(name=PROTOTYPE, many=MANY, filed=filed)


def _peer(peer: Peer, server: OwnRedis, model: ModelServer) -> Side:
    @asynccontextmanager
    async def filed(many: int) -> AsyncIterator[Ready]:
        await server.flush()
        before = await server.used_bytes()
        await anyio.to_thread.run_sync(peer.file, server, many)
        each = (await server.used_bytes() - before) / many
        yield Ready(each_bytes=each, begin=lambda: peer.worker(server, model.url), check=_unchecked)

    return Side(name=peer.name, many=peer.jobs, filed=filed)


async def _unchecked(_ran: int) -> None:
    """Check nothing: the peers keep their own results."""


def _peers(options: Options) -> tuple[list[Peer], dict[str, str]]:
    there, left_out = [], {}
    for peer in PEERS if options.with_peers else ():
        try:
            there.append(installed(peer))
        except NotInstalled as exc:
            left_out[peer.name] = f"could not be installed: {exc}"
    return there, left_out
