"""Measure throughput with more directors, API processes, models and Cluster masters, and processor time of each part.

The machine has few cores, so a rate says what they carry together. The processor time of a part says what that part
alone would carry: `curves.py` makes the estimate beyond the cores of it.
"""

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Final

from director.lab.bench.load import ask
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import Child, until
from tests.bench.sides.others import ModelServer, model_server
from tests.bench.sides.ours import MODEL, SLOTS, Ours, ours
from tests.bench.sides.servers import own_cluster, own_redis

DIRECTORS: Final = (1, 2, 4, 8)
API_PROCESSES: Final = (1, 2, 4)
MODELS: Final = (1, 10, 100)
MASTERS: Final = (1, 2, 3)
RATE: Final = "predictions a second"
TRIPS: Final = "round trips of a prediction"
BUSIEST: Final = "share of the busiest master"
PARTS: Final = ("the API", "Redis", "the directors", "the model server", "the callers")
OF_ONE: Final = "processor time of "

WORKERS: Final = 2  # directors that serve several models, and those of a Cluster
MODELS_OF_CLUSTER: Final = 12
FILED: Final = 20_000
LONGEST_S: Final = 4.0
CONNECTIONS: Final = 32  # of each API process
SECONDS: Final = 3.0
WARM_S: Final = 0.5
MOST_ROUNDS: Final = 3
LOOK_S: Final = 0.1
LIMIT_S: Final = 90.0

Point = Mapping[str, float]
"""Figure → value: the rate, and the processor time of each part in µs of one prediction."""


async def scale(options: Options) -> Found:
    curves: dict[str, tuple[Sequence[int], Callable[[Options, int], Awaitable[Point]]]] = {
        "directors": (DIRECTORS, of_directors),
        "API processes": (API_PROCESSES, of_api_processes),
        "models": (MODELS, of_models),
        "masters": (MASTERS, of_masters),
    }
    found: dict[str, Rounds] = {}
    for _ in range(min(options.rounds, MOST_ROUNDS)):
        for curve, (counts, measure) in curves.items():
            for count in counts:
                point = await measure(options, count)
                for figure, value in point.items():
                    name = named(figure, curve)
                    rounds = Rounds(name, unit(figure), less_is_better=figure != RATE, is_judged=False)
                    found.setdefault(name, rounds).add(f"{count}", value)
                costs = ", ".join(f"{each.removeprefix(OF_ONE)} {point[each]:.0f}" for each in point if OF_ONE in each)
                options.say(f"  {count:3} {curve:14} {point[RATE]:7.0f}/s; µs: {costs}")
    async with own_redis(options.durability) as server:
        release = await server.release()
    return Found(
        what=f"waiting work with {SLOTS} slots for each director, and POST without a wait for each API process",
        redis=release,
        durability={"all": options.durability},
        figures=[each.measured() for each in found.values()],
    )


def named(figure: str, curve: str) -> str:
    return f"{figure}, by {curve}"


def unit(figure: str) -> str:
    return "µs" if figure.startswith(OF_ONE) else ""


async def of_directors(options: Options, count: int) -> Point:
    async with model_server() as model, own_redis(options.durability) as server, ours(server) as installation:
        with ExitStack() as stack:
            directors = [stack.enter_context(installation.director(model.url)) for _ in range(count)]
            return await _drained(options, installation, model, directors, slots=count * SLOTS)


async def of_models(options: Options, count: int) -> Point:
    """Run two directors. Each serves half of the models, or both serve the only one."""
    models = _models(count)
    async with model_server() as model, own_redis(options.durability) as server, ours(server, models) as installation:
        return await _pooled(options, installation, model)


async def of_masters(options: Options, count: int) -> Point:
    async with (
        model_server() as model,
        own_cluster(options.durability, masters=count) as cluster,
        ours(cluster, _models(MODELS_OF_CLUSTER)) as installation,
    ):
        before = await cluster.each_cpu_s()
        point = await _pooled(options, installation, model)
        took = [now - then for now, then in zip(await cluster.each_cpu_s(), before, strict=True)]
        return {**point, BUSIEST: max(took) / sum(took)}


async def of_api_processes(options: Options, count: int) -> Point:
    async with (
        own_redis(options.durability) as server,
        ours(server) as installation,
        _apis(installation, count) as processes,
    ):
        how = {"connections": CONNECTIONS, "headers": installation.headers, "wanted": '"starting"'}
        urls, apis, seconds = list(processes), list(processes.values()), options.seconds(SECONDS)
        await asyncio.gather(*(ask(installation.asks(url, seconds=WARM_S, **how)) for url in urls))
        before, reads = (_cpu_s(apis), await server.cpu_s(), _children_s()), await server.reads()
        answered = await asyncio.gather(*(ask(installation.asks(url, seconds=seconds, **how)) for url in urls))
        after, reads = (_cpu_s(apis), await server.cpu_s(), _children_s()), await server.reads() - reads
    total = sum(each.total for each in answered)
    parts = ("the API", "Redis", "the callers")
    return {
        RATE: sum(each.per_s for each in answered),
        TRIPS: reads / total,
        **{f"{OF_ONE}{part}": 1e6 * (now - then) / total for part, now, then in zip(parts, after, before, strict=True)},
    }


@asynccontextmanager
async def _apis(installation: Ours, count: int) -> AsyncIterator[dict[str, Child]]:
    async with AsyncExitStack() as stack:
        yield dict([await stack.enter_async_context(installation.api()) for _ in range(count)])


async def _pooled(options: Options, installation: Ours, model: ModelServer) -> Point:
    models = installation.models
    slots = max(1, SLOTS * WORKERS // len(models)) if len(models) > 1 else SLOTS
    shares = [models[number::WORKERS] for number in range(WORKERS)] if len(models) > 1 else [models] * WORKERS
    with ExitStack() as stack:
        directors = [stack.enter_context(installation.pool(share, model.url, slots=slots)) for share in shares]
        wanted = slots if len(models) > 1 else slots * WORKERS
        return await _drained(options, installation, model, directors, slots=wanted)


async def _drained(
    options: Options, installation: Ours, model: ModelServer, directors: Sequence[Child], *, slots: int
) -> Point:
    """Let the directors run what waits. It was filed while the queues were paused, so all of them begin at once."""
    server, many = installation.server, options.many(FILED)

    async def all_beat() -> bool:
        return await installation.slots() >= slots

    async def has(runs: int) -> bool:
        return await model.count() >= runs or time.monotonic() > give_up

    async def used() -> tuple[float, ...]:
        cpu_s = (await server.cpu_s(), _cpu_s(directors), model.process.cpu_s())
        return (await model.count(), time.monotonic(), await server.reads(), *cpu_s)

    await installation.pause(paused=True)
    await installation.preload(many)
    with installation.keeper():
        await until("all directors are there", all_beat, limit_s=LIMIT_S, every_s=LOOK_S, alive=directors)
        await model.times()
        give_up = time.monotonic() + LIMIT_S
        await installation.pause(paused=False)
        await until("the first runs", lambda: has(many // 10), limit_s=LIMIT_S, every_s=LOOK_S, alive=directors)
        before = await used()
        give_up = time.monotonic() + options.seconds(LONGEST_S)
        await until("most runs", lambda: has(many * 9 // 10), limit_s=LIMIT_S, every_s=LOOK_S, alive=directors)
        after = await used()
    runs, took_s, trips, *cpu_s = (now - then for now, then in zip(after, before, strict=True))
    parts = ("Redis", "the directors", "the model server")
    return {
        RATE: runs / took_s,
        TRIPS: trips / runs,
        **{f"{OF_ONE}{part}": 1e6 * each / runs for part, each in zip(parts, cpu_s, strict=True)},
    }


def _models(count: int) -> Sequence[str]:
    return [MODEL, *(f"bench/model-{number}" for number in range(1, count))]


def _cpu_s(processes: Sequence[Child]) -> float:
    return sum(process.cpu_s() for process in processes)


def _children_s() -> float:
    """Return the processor time of children that have ended: here those of the load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
