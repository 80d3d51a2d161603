"""Explore a world breadth first, so that the first breach has the shortest history.

A layer is all states that are as many calls away from the first one. Workers, each with a Valkey of its own, try every
call on every state of a layer. A state is kept as the dumps of its keys until its calls were tried. Once a world has no
new state, each state is checked for a way to rest: by steps of directors, keepers and time alone.
"""

import time
import zlib
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from director.lab.prove.actions import LOST, Plan, after, first, plan
from director.lab.prove.picture import Memory, Picture, digest
from director.lab.prove.rules import check_state, check_step
from director.lab.prove.server import Asked, Edit, Fault, Server
from director.lab.prove.worlds import World
from director.local.server import memory_server

AT_ONCE: Final = 16  # states of one task of a worker
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class Breach(Struct, frozen=True):
    what: str
    calls: tuple[str, ...]


class Explored(Struct, frozen=True, kw_only=True):
    """The outcome of a world. `depth`: of the layers that were tried whole. `is_whole`: it has no further state."""

    world: str
    states: int
    transitions: int
    depth: int
    seconds: float
    is_whole: bool
    breach: Breach | None = None


class Next(Struct, array_like=True):
    """A state that a call leads to. `blob` is empty if this worker met it before."""

    text: str
    key: bytes
    blob: bytes
    is_rest: bool
    wrong: list[str]
    is_fair: bool = False


class Tried(NamedTuple):
    """A state, the calls that may come next, and the commands that carry them out."""

    before: Picture
    memory: Memory
    plans: list[Plan]
    asked: Iterator[Asked]
    commands: list[bytes]


class Worker:
    """Tries all calls on states, on a server of its own."""

    def __init__(self, world: World, server: Server) -> None:
        self.world = world
        self.server = server
        self.known: set[bytes] = set()

    def begin(self) -> Next:
        calls, memory = first(self.world, self.server.scripts)
        self.server.ask([self.server.put([])])
        for call in calls:
            self.server.do(call)
        [found] = self.server.ask([self.server.look()])
        return self._next("", Picture(self.world, found), memory, [])

    def expand(self, blobs: Sequence[bytes]) -> Iterator[list[Next]]:
        """Yield for each state what all calls lead to. One write carries the calls of all of them."""
        tries = [self._prepare(*unpack(zlib.decompress(blob), type=tuple[list[Any], Memory])) for blob in blobs]
        commands = [command for each in tries for command in each.commands]
        replies = iter(self.server.ask(commands) if commands else ())
        for each in tries:
            yield [found for made in each.plans for found in self._judge(each, made, replies)]

    def _prepare(self, found: list[Any], memory: Memory) -> "Tried":
        before, commands, asked = Picture(self.world, found), [], []
        plans = list(plan(self.world, self.server.scripts, memory, before))
        put = self.server.put(found)
        for each in plans:
            if each.call is not None:
                asked.append(each.call.send(None))
                packed, look = self.server.pack(asked[-1]), self.server.look()
                commands += [put, self.server.forget(each.gone), packed, look]
                commands += [packed, look] if self.world.twice else []
        return Tried(before, memory, plans, iter(asked), commands)

    def _judge(self, tried: "Tried", made: Plan, replies: Iterator[Any]) -> Iterator[Next]:
        before, memory = tried.before, tried.memory
        if made.call is None:
            yield self._next(made.text, before, after(made.text, memory, before, None), [], is_fair=made.is_fair)
            return
        _, _, raw, found = (next(replies) for _ in range(4))
        picture = Picture(self.world, found)
        again = [next(replies) for _ in range(2)][1] if self.world.twice else None
        try:
            reply = self.server.answer(made.call, next(tried.asked).name, raw)
        except Fault as fault:
            yield Next(made.text, b"", b"", False, [str(fault)])
            return
        wrong = list(check_step(self.world, made.text, before, picture, memory, reply))
        if again is not None and picture.raw != Picture(self.world, again).raw:
            wrong.append("the same call again changed something")
        yield self._next(made.text, picture, after(made.text, memory, picture, reply), wrong, is_fair=made.is_fair)
        if made.may_lose and memory.losses:
            text = made.text + LOST
            yield self._next(text, picture, after(text, memory, picture, reply), [])

    def _next(self, text: str, picture: Picture, memory: Memory, wrong: list[str], *, is_fair: bool = False) -> Next:
        key = digest(self.world, picture, memory)
        blob, is_rest = b"", is_at_rest(picture, memory)
        if key not in self.known or wrong:
            self.known.add(key)
            wrong = [*wrong, *check_state(self.world, picture, memory)]
            blob = zlib.compress(pack((picture.found, memory)), 1)
        return Next(text, key, blob, is_rest, wrong, is_fair)


def is_at_rest(picture: Picture, memory: Memory) -> bool:
    return all(picture.is_over(number) for number in memory.born) and not picture.owed


Layer = list[tuple[int, bytes]]
"""States by their number, each as its dumps and memories."""
Expand = Callable[[Layer], Iterator[tuple[int, list[Next]]]]
_worker: Worker | None = None  # of a process of the pool


def _start(world: World, edits: Sequence[Edit], urls: "SimpleQueue[str]") -> None:
    global _worker
    _worker = Worker(world, Server(urls.get(), edits))


def _expand(layer: Layer, worker: Worker | None = None) -> list[tuple[int, list[Next]]]:
    worker = worker or _worker
    if worker is None:
        raise RuntimeError("the worker has not begun")
    found = worker.expand([blob for _, blob in layer])
    return [(place, each) for (place, _), each in zip(layer, found, strict=True)]


@contextmanager
def _start_workers(world: World, workers: int, edits: Sequence[Edit]) -> Generator[tuple[Next, Expand], None, None]:
    """Yield the first state, and a function that expands a layer. One worker needs no process of its own."""
    context = get_context("spawn")
    urls: SimpleQueue[str] = context.SimpleQueue()
    with ExitStack() as opened:
        for _ in range(workers):
            urls.put(url := opened.enter_context(memory_server()))
        worker = Worker(world, opened.enter_context(closing(Server(url, edits))))
        root = worker.begin()
        each_part: Callable[[Iterator[Layer]], Iterator[list[tuple[int, list[Next]]]]]
        if workers == 1:
            each_part = partial(map, partial(_expand, worker=worker))
        else:
            pool = ProcessPoolExecutor(workers, context, _start, (world, tuple(edits), urls))
            opened.callback(pool.shutdown, cancel_futures=True)
            each_part = partial(pool.map, _expand)

        def expand(layer: Layer) -> Iterator[tuple[int, list[Next]]]:
            size = max(1, min(AT_ONCE, -(-len(layer) // workers)))
            parts = (layer[start : start + size] for start in range(0, len(layer), size))
            return chain.from_iterable(each_part(parts))

        yield root, expand


class Graph:
    """All states by their number: which call led to it first, and which fair steps lead where."""

    def __init__(self) -> None:
        self.places: dict[bytes, int] = {}
        self.parents, self.texts = array("l"), array("l")
        self.names: dict[str, int] = {}
        self.resting = bytearray()
        self.fair_from, self.fair_to = array("l"), array("l")
        self.transitions = 0

    def add(self, parent: int, each: Next) -> bool:
        """Note a step. Return True if its state is new."""
        place = self.places.get(each.key)
        is_new = place is None
        if place is None:
            place = self.places[each.key] = len(self.parents)
            self.parents.append(parent)
            self.texts.append(self.names.setdefault(each.text, len(self.names)))
            self.resting.append(each.is_rest)
        if parent >= 0:
            self.transitions += 1
            if each.is_fair:
                self.fair_from.append(parent)
                self.fair_to.append(place)
        return is_new

    def calls_to(self, place: int) -> tuple[str, ...]:
        names, calls = list(self.names), []
        while place > 0:
            calls.append(names[self.texts[place]])
            place = self.parents[place]
        return tuple(reversed(calls))

    def first_stuck(self) -> int | None:
        """Return the first state from which fair steps never lead to rest, or None."""
        count = len(self.parents)
        back: list[list[int]] = [[] for _ in range(count)]
        for source, target in zip(self.fair_from, self.fair_to, strict=True):
            back[target].append(source)
        seen = bytearray(self.resting)
        open_ones = [place for place in range(count) if seen[place]]
        while open_ones:
            for source in back[open_ones.pop()]:
                if not seen[source]:
                    seen[source] = 1
                    open_ones.append(source)
        stuck = seen.find(0)
        return None if stuck < 0 else stuck


def explore(
    name: str,
    world: World,
    *,
    workers: int = 1,
    seconds: float | None = None,
    edits: Sequence[Edit] = (),
    show: Callable[[str], None] = lambda _: None,
) -> Explored:
    """Explore until there is no new state, or a breach, or the world's depth, or the seconds are over. `show` gets a
    line for each layer.
    """
    began = time.monotonic()
    graph, depth, breach = Graph(), 0, None
    with _start_workers(world, workers, edits) as (root, expand):
        graph.add(-1, root)
        layer = [(0, root.blob)]
        is_cut = False
        while layer and not is_cut:
            show(f"» {name}: depth {depth}, {len(graph.parents):,} states, {graph.transitions:,} transitions")
            following: Layer = []
            for place, found in expand(layer):
                breach = next((Breach(e.wrong[0], (*graph.calls_to(place), e.text)) for e in found if e.wrong), None)
                for each in found if breach is None else ():
                    if graph.add(place, each):
                        following.append((len(graph.parents) - 1, each.blob))
                is_cut = breach is not None or (seconds is not None and time.monotonic() - began > seconds)
                if is_cut:
                    break
            else:
                depth += 1
                is_cut = depth == world.depth and bool(following)
            layer = following
    if not is_cut and (stuck := graph.first_stuck()) is not None:
        breach = Breach("it cannot come to rest any more", graph.calls_to(stuck))
    return Explored(
        world=name,
        states=len(graph.parents),
        transitions=graph.transitions,
        depth=depth,
        seconds=time.monotonic() - began,
        is_whole=not is_cut,
        breach=breach,
    )


def replay(world: World, calls: Sequence[str], edits: Sequence[Edit] = ()) -> list[str]:
    """Make these calls one after the other. Return what is wrong after one of them, and then make no more."""
    with memory_server() as url, closing(Server(url, edits)) as server:
        worker = Worker(world, server)
        state = worker.begin()
        for text in calls:
            worker.known.clear()
            found = {each.text: each for each in next(worker.expand([state.blob]))}
            if text not in found:
                raise ValueError(f"{text!r} cannot come next. It may be: {', '.join(found)}.")
            state = found[text]
            if state.wrong:
                return state.wrong
    return []
