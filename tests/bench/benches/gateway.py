"""Measure `POST /openai/v1/chat/completions` as onthebench.ai measures gateways, beside three of them.

What a side adds at one connection, the calls a second at bounds of the p99, what it adds to streams of 64 tokens with
one each 20 ms, and how many of these it carries without a stall. All parts share the cores of this machine.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from math import inf
from typing import Final, TypeVar

from msgspec import Struct

from director.core.figures import percentile
from director.lab.bench.load import Answered, ask, run_load
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import Child
from tests.bench.results import OURS, Measured
from tests.bench.sides.gateways import GATEWAYS, Side, running, settings
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import MODEL, OPENAI, ours
from tests.bench.sides.peers import NotInstalled
from tests.bench.sides.servers import own_redis
from tests.bench.sides.streams import Heard, hear

T = TypeVar("T")
DIRECT: Final = "direct"
TOKENS, PAUSE_S = 64, 0.02
PROMPT: Final = f"{TOKENS} {PAUSE_S}"
STREAM_S: Final = TOKENS * PAUSE_S
STALL_MS: Final = 10 * 1000 * PAUSE_S
LIMIT_S: Final = 10.0
SECONDS: Final = 1.5  # of a load
IN_TURN: Final = 2  # streams of a round, one at a time
PACED: Final = 16  # streams at once, whose processor time is measured
RUNGS: Final = (1, 4, 16, 64)  # connections
BOUNDS_MS: Final = (5, 10, 50, 100, inf)
STREAMS: Final = (1, 8, 32, 128, 256, 512)
WINDOWS: Final = 3
LEAST_MS: Final = 0.05  # what noise makes of less is no ratio
ADDED_P50: Final = "added p50, one connection"
ADDED_P99: Final = "added p99, one connection"
FIRST: Final = "added to the first token, one stream"
GAP_P99: Final = "added between two tokens, p99 of one stream"
PER_S: Final = "calls a second"
TOKEN_US: Final = f"processor time of a token, {PACED} streams"
CARRIED: Final = "streams without a stall"
# of the page, by their figure
COLUMNS: Final = {
    ADDED_P50: "added to a call, p50",
    ADDED_P99: "added to a call, p99",
    PER_S: PER_S,
    FIRST: "added to the first token of a lone stream",
    GAP_P99: "added between two tokens, p99",
    TOKEN_US: "processor time of a token",
    CARRIED: CARRIED,
}


class Gateway(Struct, frozen=True, kw_only=True):
    """`cpu_s`: the processor time of all its parts so far."""

    side: Side
    cpu_s: Callable[[], Awaitable[float]]

    @property
    def name(self) -> str:
        return self.side.name


class Sides:
    """Measures each gateway in turn. A peer that fails is left out from then on."""

    def __init__(self, gateways: list[Gateway], left_out: dict[str, str]) -> None:
        self._gateways = gateways
        self._left_out = left_out

    async def each(self, measure: Callable[[Gateway], Awaitable[T]]) -> dict[str, T]:
        found = {}
        for each in list(self._gateways):
            try:
                found[each.name] = await measure(each)
            except ChildProcessError as exc:
                if each.name in (DIRECT, OURS):
                    raise
                self._left_out[each.name] = str(exc)
                self._gateways.remove(each)
        return found


class Tally:
    def __init__(self) -> None:
        self.added_p50 = Rounds(ADDED_P50, "ms", less_is_better=True)
        self.added_p99 = Rounds(ADDED_P99, "ms", less_is_better=True)
        self.within: dict[float, Rounds] = {
            bound: Rounds(f"{PER_S}, p99 within {bound:g} ms", "") for bound in BOUNDS_MS[:-1]
        }
        self.within[inf] = Rounds(PER_S, "")
        self.call_us = Rounds(f"processor time of a call, {RUNGS[-1]} connections", "µs", less_is_better=True)
        self.first_ms = Rounds(FIRST, "ms", less_is_better=True)
        self.gap_ms = Rounds(GAP_P99, "ms", less_is_better=True)
        self.token_us = Rounds(TOKEN_US, "µs", less_is_better=True)
        self.carried = Rounds(CARRIED, "")

    def measured(self) -> list[Measured]:
        rounds = [self.added_p50, self.added_p99, *self.within.values(), self.call_us]
        rounds += [self.first_ms, self.gap_ms, self.token_us, self.carried]
        return [each.measured() for each in rounds]


async def gateway(options: Options) -> Found:
    tally, left_out = Tally(), dict[str, str]()
    async with (
        model_server() as model,
        own_redis(options.durability) as server,
        ours(server, kind="openai") as installation,
        installation.api(OPENAI="true") as (url, api),
        AsyncExitStack() as stack,
    ):
        stack.enter_context(installation.keeper())
        director = stack.enter_context(installation.director(model.url, slots=max(STREAMS), runner=OPENAI))

        async def own_cpu_s() -> float:
            return api.cpu_s() + director.cpu_s() + await server.cpu_s()

        direct = Side(name=DIRECT, url=f"{model.url}/v1")
        own = Side(name=OURS, url=f"{url}/openai/v1", token=installation.token, model=MODEL)
        all_of = [Gateway(side=direct, cpu_s=_none), Gateway(side=own, cpu_s=own_cpu_s)]
        peers = GATEWAYS if options.with_peers else ()
        for peer in peers:
            try:
                side, process = await stack.enter_async_context(running(peer, model.url))
            except (NotInstalled, ChildProcessError, TimeoutError) as exc:
                left_out[peer.name] = str(exc)
            else:
                all_of.append(Gateway(side=side, cpu_s=_of(process)))
        for each in all_of:
            await ask(each.side.ask(connections=4, seconds=options.seconds(SECONDS)))
        versions = [settings(peer) for peer in peers if peer.name not in left_out]
        sides = Sides(all_of, left_out)
        for _ in range(options.rounds):
            await _call_in_turn(sides, options, tally)
            await _call_at_once(all_of, options, tally)
            await _stream_in_turn(sides, options, tally)
            await _stream_paced(sides, tally)
        await _stream_at_once(all_of, options, tally)
        return Found(
            what=f"calls of OpenAI's API, answered at once or as {TOKENS} tokens, one each {1000 * PAUSE_S:g} ms;"
            f" {', '.join(['one API process and one director', *versions])}",
            redis=await server.release(),
            durability={OURS: options.durability},
            figures=tally.measured(),
            left_out=left_out,
        )


async def _none() -> float:
    return 0.0


def _of(process: Child) -> Callable[[], Awaitable[float]]:
    async def cpu_s() -> float:
        return process.cpu_s()

    return cpu_s


async def _call_in_turn(sides: Sides, options: Options, tally: Tally) -> None:
    found = await sides.each(lambda each: ask(each.side.ask(connections=1, seconds=options.seconds(SECONDS))))
    for name in found.keys() - {DIRECT}:
        tally.added_p50.add(name, max(LEAST_MS, found[name].p50_ms - found[DIRECT].p50_ms))
        tally.added_p99.add(name, max(LEAST_MS, found[name].p99_ms - found[DIRECT].p99_ms))


async def _call_at_once(all_of: list[Gateway], options: Options, tally: Tally) -> None:
    """Find the most calls a second of which 99 of 100 stay within each bound, and none fails."""
    seconds = options.seconds(SECONDS / 2)
    for each in all_of:
        rungs = []
        for many in RUNGS:
            before = await each.cpu_s()
            rungs.append(answered := await run_load(each.side.ask(connections=many, seconds=seconds)))
            used_s = await each.cpu_s() - before
        if used_s and answered.total:
            tally.call_us.add(each.name, 1e6 * used_s / answered.total)
        for bound, rounds in tally.within.items():
            rounds.add(each.name, most := most_within(rungs, bound))
        options.say(f"  {each.name:12} {most:6.0f} calls/s")


async def _stream_in_turn(sides: Sides, options: Options, tally: Tally) -> None:
    moments = [number * (STREAM_S + 0.1) for number in range(max(1, round(IN_TURN * options.part)))]
    found = await sides.each(lambda each: _hear_all(each, moments, connections=1))
    first_ms = {name: percentile([one.first_ms for one in heard], 0.5) for name, heard in found.items()}
    gap_ms = {name: percentile([gap for one in heard for gap in one.gaps_ms], 0.99) for name, heard in found.items()}
    for name in found.keys() - {DIRECT}:
        tally.first_ms.add(name, max(LEAST_MS, first_ms[name] - first_ms[DIRECT]))
        tally.gap_ms.add(name, max(LEAST_MS, gap_ms[name] - gap_ms[DIRECT]))


async def _stream_paced(sides: Sides, tally: Tally) -> None:
    async def each_us(each: Gateway) -> float:
        before = await each.cpu_s()
        heard = await _hear_all(each, spread(PACED), connections=PACED)
        return 1e6 * (await each.cpu_s() - before) / sum(len(one.gaps_ms) + 1 for one in heard)

    found = await sides.each(each_us)
    for name in found.keys() - {DIRECT}:
        tally.token_us.add(name, found[name])


async def _stream_at_once(all_of: list[Gateway], options: Options, tally: Tally) -> None:
    """Find the most streams that each side carries in all windows: each token comes, none ten pauses after another."""
    climbing, carried = list(all_of), dict[str, int]()
    for many in [many for many in STREAMS if many <= max(STREAMS) * options.part]:
        for _ in range(WINDOWS):
            for each in list(climbing):
                heard = await hear(each.side.plan(PROMPT, spread(many), connections=many, limit_s=LIMIT_S))
                if not all(map(is_whole, heard)):
                    climbing.remove(each)
        carried |= {each.name: many for each in climbing}
        options.say(f"  {many} streams without a stall: {', '.join(each.name for each in climbing)}")
    for each in all_of:
        tally.carried.add(each.name, carried.get(each.name, 0))


async def _hear_all(each: Gateway, moments: list[float], *, connections: int) -> list[Heard]:
    """Raises ChildProcessError if a stream did not end well."""
    heard = await hear(each.side.plan(PROMPT, moments, connections=connections, limit_s=LIMIT_S))
    if faults := [one.fault for one in heard if one.fault]:
        raise ChildProcessError(f"{len(faults)} of {len(heard)} streams failed: {faults[0]}")
    return heard


def most_within(rungs: list[Answered], bound_ms: float) -> float:
    """Return the most calls a second of a load in which none failed and 99 of 100 took at most this long."""
    return max((rung.per_s for rung in rungs if not rung.refused and rung.p99_ms <= bound_ms), default=0.0)


def spread(many: int) -> list[float]:
    """Return when each stream begins: within half of the time that one takes, so that all are read at once."""
    return [STREAM_S / 2 * number / many for number in range(many)]


def is_whole(heard: Heard) -> bool:
    return not heard.fault and len(heard.gaps_ms) == TOKENS - 1 and max(heard.gaps_ms) <= STALL_MS
