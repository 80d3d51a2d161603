"""Run at half of the saturated rate and restart each part in turn: memory, descriptors and keys must stay flat."""

import asyncio
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any, Final

import anyio.to_thread
from msgspec import Struct

from director.lab.bench.load import ask, run_load
from director.local.launcher.processes import free_port
from tests.bench.benches.options import Found, Rounds
from tests.bench.picture import Line, Panel, drawn
from tests.bench.processes import Child
from tests.bench.results import OURS, Result, Seen
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import Ours, ours
from tests.bench.sides.servers import Durability, OwnRedis, own_redis
from tests.bench.slopes import Growth, growth

CONNECTIONS: Final = 64
SATURATE_S: Final = 10.0
SLICE_S: Final = 30.0  # after which its callers hang up and others come
AGAIN_S: Final = 0.5  # until callers come back whose connections the API cut off
WARM_TTLS: Final = 3.0
MOST_TTL_S: Final = 60.0
LEAST_TTL_S: Final = 4.0
LOOKS: Final = 120
RESTART_S: Final = 120.0  # five parts: each is restarted every ten minutes
LEAST_RESTARTS: Final = 6
MB: Final = 1 << 20
REDIS: Final = "redis"

# what grows by less than this over all the time is not said to grow
FLOORS: Final = {"MB": 2.0, "": 3.0, "keys": 50.0}


class SoakOptions(Struct, frozen=True, kw_only=True):
    """`part`: of the rate at which it is saturated. In memory, Redis is not restarted: it would come back empty."""

    say: Callable[[str], None]
    minutes: float = 30.0
    part: float = 0.5
    durability: Durability = "always"

    @property
    def ttl_s(self) -> float:
        return min(MOST_TTL_S, max(LEAST_TTL_S, self.minutes * 6))


class Part:
    """A process that starts again on the same port."""

    def __init__(self, name: str, begin: Callable[[], AbstractAsyncContextManager[Child]]) -> None:
        self.name = name
        self._begin = begin
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        self.child = await self._stack.enter_async_context(self._begin())

    async def restart(self) -> None:
        await anyio.to_thread.run_sync(self.child.stop)
        await self.end()
        await self.start()

    async def end(self) -> None:
        await self._stack.aclose()


class Watch:
    def __init__(self, server: OwnRedis, parts: Sequence[Part]) -> None:
        self._server = server
        self._parts = parts
        self._began = time.monotonic()
        self._seen: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._at: list[float] = []
        self.restarts_begun = [(self._began, "the start")]
        self.restarts: dict[str, list[float]] = {part.name: [] for part in parts}
        self.restarts[REDIS] = []

    @property
    def now_s(self) -> float:
        return round(time.monotonic() - self._began, 1)

    def note_restart(self, part: str) -> None:
        self.restarts_begun.append((time.monotonic(), f"a restart of {part}"))

    async def look(self) -> None:
        self._at.append(self.now_s)
        for part in self._parts:
            self._seen[f"{part.name}, memory", "MB"].append(part.child.resident_bytes() / MB)
            self._seen[f"{part.name}, descriptors", ""].append(part.child.descriptors())
        self._seen[f"{REDIS}, memory", "MB"].append(await self._server.used_bytes() / MB)
        self._seen[f"{REDIS}, keys", "keys"].append(await self._server.redis.dbsize())

    def growths(self, *, warm_s: float) -> list[Growth]:
        """Return the growth of each. Keys outlive a restart of Redis. Its memory begins a new life."""
        return [
            growth(
                name,
                unit,
                self._at,
                values,
                floor=FLOORS[unit],
                begins=[0.0, *([] if unit == "keys" else self.restarts[name.partition(",")[0]])],
                warm_s=warm_s,
            )
            for (name, unit), values in self._seen.items()
        ]

    def seen(self) -> list[Seen]:
        return [
            Seen(name, unit, self._at, [round(value, 2) for value in values])
            for (name, unit), values in self._seen.items()
        ]


class Answers(Struct):
    """`others`: see `Answered`. `cut_off`: times at which the API was away, so that callers lost their connections. Up
    to SLICE_S of answers before that are not counted, good or bad. `said`: the last of `others`.
    """

    good: int = 0
    others: dict[str, list[float]] = {}
    cut_off: int = 0
    said: str = ""

    @property
    def refused(self) -> int:
        return sum(map(len, self.others.values()))


def by_restart(others: Mapping[str, Sequence[float]], begun: Sequence[tuple[float, str]]) -> dict[str, list[float]]:
    """Sort answers by their kind and by the last restart that began before them, as `503 after a restart of redis`.
    Each time becomes seconds since then. `begun`: time and name, in order of time.
    """
    starts = [at for at, _ in begun]
    found: defaultdict[str, list[float]] = defaultdict(list)
    for kind, times in others.items():
        for at in times:
            start, name = begun[max(0, bisect(starts, at) - 1)]
            found[f"{kind} after {name}"].append(at - start)
    return dict(found)


async def soak(options: SoakOptions) -> tuple[Found, bool]:
    env: dict[str, Any] = {"DATA_TTL_S": options.ttl_s / 2, "RECORD_TTL_S": options.ttl_s}
    model_port, api_port = free_port(), free_port()
    async with own_redis(options.durability) as server, ours(server) as installation, AsyncExitStack() as stack:
        model_url, url = (f"http://127.0.0.1:{port}" for port in (model_port, api_port))
        parts = [
            Part("model server", lambda: _process_of(model_server(model_port))),
            Part("director", lambda: _started(installation.director(model_url, **env))),
            Part("keeper", lambda: _started(installation.keeper())),
            Part("api", lambda: _of_api(installation.api(port=api_port, LISTING_TTL_S=2 * options.ttl_s))),
        ]
        for part in parts:
            stack.push_async_callback(part.end)
            await part.start()
        watch = Watch(server, parts)
        per_s, answers = await _soaked(options, installation, url, watch, parts)
        await installation.over(*(part.child for part in parts))
        growths = watch.growths(warm_s=min(WARM_TTLS * options.ttl_s, options.minutes * 60 / 12))
        for each in growths:
            options.say(f"  {each}")
        others = by_restart(answers.others, watch.restarts_begun)
        for what, times_s in others.items():
            options.say(f"  {len(times_s)} × {what}, {min(times_s):.1f} to {max(times_s):.1f} s after it")
        if answers.refused:
            options.say(f"  the last of {answers.refused} other answers: {answers.said}")
        grows = [each.name for each in growths if not each.is_flat]
        verdict = f"GROWS: {', '.join(grows)}" if grows else "all flat"
        restarts = {name: at_s for name, at_s in watch.restarts.items() if at_s}
        counted = ", ".join(f"{name} × {len(at_s)}" for name, at_s in restarts.items())
        found = Found(
            what=f"{options.minutes:g} minutes at {per_s:.0f}/s, {options.part:g} of what it can do,"
            f" with restarts ({counted}): {verdict}",
            redis=await server.release(),
            durability={OURS: options.durability},
            figures=[
                Rounds.one("answered with their output", "", answers.good),
                Rounds.one("answered otherwise", "", answers.refused),
                *(Rounds.one(f"answered {what}", "", len(times_s)) for what, times_s in others.items()),
                Rounds.one("callers cut off by a restart", "", answers.cut_off),
                *(Rounds.one(f"growth of {each.name}", f"{each.unit} an hour", each.per_hour) for each in growths),
                *(Rounds.one(f"mean of {each.name}", each.unit, each.mean) for each in growths),
            ],
            seen=watch.seen(),
            restarts=restarts,
        )
        return found, not grows


@asynccontextmanager
async def _started(process: AbstractContextManager[Child]) -> AsyncIterator[Child]:
    with process as started:
        yield started


@asynccontextmanager
async def _of_api(api: AbstractAsyncContextManager[tuple[str, Child]]) -> AsyncIterator[Child]:
    async with api as (_, started):
        yield started


@asynccontextmanager
async def _process_of(model: AbstractAsyncContextManager[Any]) -> AsyncIterator[Child]:
    async with model as started:
        yield started.process


async def _soaked(
    options: SoakOptions, installation: Ours, url: str, watch: Watch, parts: Sequence[Part]
) -> tuple[float, Answers]:
    seconds = options.minutes * 60
    saturated = await ask(installation.asks(url, connections=CONNECTIONS, seconds=min(SATURATE_S, seconds / 6)))
    per_s = options.part * saturated.per_s
    options.say(
        f"  {saturated.per_s:.0f}/s with {CONNECTIONS} connections; now {per_s:.0f}/s for {options.minutes:g} min"
    )
    restart: dict[str, Callable[[], Awaitable[None]]] = {part.name: part.restart for part in parts}
    if options.durability != "memory":
        restart[REDIS] = installation.server.restart
    turns, pause_s = cycle(restart.items()), min(RESTART_S, seconds / LEAST_RESTARTS)
    began = time.monotonic()
    due = began + pause_s
    load = asyncio.create_task(_load(installation, url, per_s, began + seconds))
    try:
        while not load.done():
            await watch.look()
            if time.monotonic() >= due:
                name, again = next(turns)
                watch.note_restart(name)
                await again()
                watch.restarts[name].append(watch.now_s)
                options.say(f"  {watch.now_s:6.0f} s: restarted {name}")
                due += pause_s
            await asyncio.wait([load], timeout=seconds / LOOKS)
        return per_s, load.result()
    finally:
        load.cancel()


async def _load(installation: Ours, url: str, per_s: float, until: float) -> Answers:
    answers = Answers()
    while (left := until - time.monotonic()) > 1:
        load = installation.asks(url, connections=CONNECTIONS, seconds=min(SLICE_S, left), rate=per_s)
        try:
            answered = await run_load(load)
        except ChildProcessError:
            answers.cut_off += 1
            await asyncio.sleep(AGAIN_S)  # as a client does that was cut off
        else:
            answers.good += answered.total
            for kind, times in answered.others.items():
                answers.others.setdefault(kind, []).extend(times)
            answers.said = answered.said or answers.said
    return answers


def soak_picture(result: Result) -> str:
    marks = sorted(at_s / 60 for each in result.restarts.values() for at_s in each)
    wanted: dict[str, Callable[[Seen], bool]] = {
        "Memory of each process, MB": lambda seen: seen.unit == "MB" and not seen.name.startswith(REDIS),
        "Redis's memory, MB": lambda seen: seen.unit == "MB" and seen.name.startswith(REDIS),
        "Open descriptors": lambda seen: not seen.unit,
        "Keys in Redis": lambda seen: seen.unit == "keys",
    }
    panels = [
        Panel(
            title=title,
            x="minutes; a grey line is a restart",
            lines=[
                Line(
                    seen.name.partition(",")[0],
                    [(at / 60, value) for at, value in zip(seen.at_s, seen.values, strict=True)],
                )
                for seen in result.seen
                if is_shown(seen)
            ],
            marks=marks,
        )
        for title, is_shown in wanted.items()
    ]
    return drawn(panels)
