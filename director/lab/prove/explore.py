"""Explore a world breadth first, so that the first breach has the shortest history.

A layer is all states that are as many calls away from the first one. Workers, each with a Valkey of its own, try every
call on every state of a layer. A state is kept as the dumps of its keys until its calls were tried. Once a world has no
new state, each state is checked for a way to rest: by steps of directors, keepers and time alone.
"""

import time
import zlib
from array import array
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from typing import Final

import msgspec
from msgspec import Struct

from director.lab.prove.actions import FAIR, LOST, after, first, plan
from director.lab.prove.picture import Memory, Picture, digest
from director.lab.prove.rules import check_state, check_step
from director.lab.prove.server import Edit, Fault, Kept, Server
from director.lab.prove.worlds import World
from director.local.server import memory_server

AT_ONCE: Final = 40  # states of one task of a worker
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class Breach(Struct, frozen=True):
    what: str
    calls: tuple[str, ...]


class Explored(Struct, frozen=True, kw_only=True):
    """The outcome of a world. `is_whole`: it has no further state. `stuck`: states without a way to rest."""

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

    def expand(self, blob: bytes) -> list[Next]:
        kept, memory = unpack(zlib.decompress(blob), type=tuple[Kept, Memory])
        server, world = self.server, self.world
        [_, found] = server.ask([server.put(kept), server.look()])
        before = Picture(world, found)
        plans = list(plan(world, server.scripts, memory, before))
        commands, asked = [], []
        for each in plans:
            if each.call is None:
                continue
            waiting = each.call.send(None)
            packed = server.pack(waiting)
            asked.append(waiting)
            commands += [server.put(kept), packed, server.look()]
            if world.twice:
                commands += [packed, server.look()]
        replies = iter(server.ask(commands)) if commands else iter(())
        names = iter(asked)
        result: list[Next] = []
        for each in plans:
            if each.call is None:
                result.append(self._next(each.text, before, after(world, each.text, memory, None), []))
                continue
            _, raw, found = next(replies), next(replies), next(replies)
            picture = Picture(world, found)
            wrong: list[str] = []
            if world.twice:
                _, again = next(replies), next(replies)
                if self._differs(picture, Picture(world, again)):
                    wrong.append("the same call again changed something")
            try:
                reply = server.answer(each.call, next(names).name, raw)
            except Fault as fault:
                result.append(Next(each.text, b"", b"", False, [str(fault)]))
                continue
            wrong += check_step(world, each.text, before, picture, memory, reply)
            result.append(self._next(each.text, picture, after(world, each.text, memory, reply), wrong))
            if each.may_lose and memory.losses:
                text = each.text + LOST
                result.append(self._next(text, picture, after(world, text, memory, reply), []))
        return result

    def _differs(self, picture: Picture, again: Picture) -> bool:
        return {key: dump for key, dump, _ in picture.kept} != {key: dump for key, dump, _ in again.kept}

    def _next(self, text: str, picture: Picture, memory: Memory, wrong: list[str]) -> Next:
        key = digest(self.world, picture, memory)
        if key in self.known and not wrong:
            return Next(text, key, b"", is_at_rest(picture, memory), [])
        self.known.add(key)
        wrong = [*wrong, *check_state(self.world, picture, memory)]
        blob = zlib.compress(pack((picture.kept, memory)), 1)
        return Next(text, key, blob, is_at_rest(picture, memory), wrong)


def is_at_rest(picture: Picture, memory: Memory) -> bool:
    return all(picture.is_over(number) for number in memory.born) and not picture.owed


_worker: Worker | None = None


def _start(world: World, edits: Sequence[Edit], urls: "SimpleQueue[str]") -> None:
    global _worker
    _worker = Worker(world, Server(urls.get(), edits))


def _expand(blobs: list[tuple[int, bytes]]) -> list[tuple[int, list[Next]]]:
    if _worker is None:
        raise RuntimeError("the worker has not begun")
    return [(place, _worker.expand(blob)) for place, blob in blobs]


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
            if LOST not in each.text and each.text.split()[0] in FAIR:
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
    name: str, world: World, *, workers: int = 1, seconds: float | None = None, edits: Sequence[Edit] = ()
) -> Explored:
    """Explore until there is no new state, or a breach, or the world's depth, or the seconds are over."""
    began = time.monotonic()
    graph, depth, breach = Graph(), 0, None
    is_cut = False
    with _start_workers(world, workers, edits) as (root, pool):
        graph.add(-1, root)
        layer = [(0, root.blob)]
        while layer and breach is None and not is_cut:
            if world.depth is not None and depth == world.depth:
                is_cut = True
                break
            depth += 1
            following: list[tuple[int, bytes]] = []
            for place, found in _tasks(pool, layer, workers):
                for each in found:
                    if each.wrong:
                        breach = breach or Breach(each.wrong[0], (*graph.calls_to(place), each.text))
                        continue
                    if graph.add(place, each):
                        following.append((len(graph.parents) - 1, each.blob))
                if seconds is not None and time.monotonic() - began > seconds:
                    is_cut = True
            layer = following
        pool.shutdown(cancel_futures=True)
    if breach is None and not is_cut and (stuck := graph.first_stuck()) is not None:
        breach = Breach("it cannot come to rest any more", graph.calls_to(stuck))
    return Explored(
        world=name,
        states=len(graph.parents),
        transitions=graph.transitions,
        depth=depth,
        seconds=time.monotonic() - began,
        is_whole=not is_cut and breach is None,
        breach=breach,
    )


def replay(world: World, calls: Sequence[str], edits: Sequence[Edit] = ()) -> list[str]:
    """Make these calls one after the other. Return what is wrong after one of them, and then make no more."""
    with memory_server() as url, closing(Server(url, edits)) as server:
        worker = Worker(world, server)
        state = worker.begin()
        for text in calls:
            worker.known.clear()
            found = {each.text: each for each in worker.expand(state.blob)}
            if text not in found:
                raise ValueError(f"{text!r} cannot come next. It may be: {', '.join(found)}.")
            state = found[text]
            if state.wrong:
                return state.wrong
    return []


@contextmanager
def _start_workers(
    world: World, workers: int, edits: Sequence[Edit]
) -> Generator[tuple[Next, ProcessPoolExecutor], None, None]:
    """Start the servers and their workers. Yield the first state and the workers."""
    context = get_context("spawn")
    urls: SimpleQueue[str] = context.SimpleQueue()
    with ExitStack() as opened:
        for _ in range(workers):
            urls.put(url := opened.enter_context(memory_server()))
        with closing(Server(url, edits)) as server:
            root = Worker(world, server).begin()
        yield root, opened.enter_context(ProcessPoolExecutor(workers, context, _start, (world, tuple(edits), urls)))


def _tasks(pool: ProcessPoolExecutor, layer: list[tuple[int, bytes]], workers: int) -> Iterator[tuple[int, list[Next]]]:
    size = max(1, min(AT_ONCE, -(-len(layer) // workers)))
    for done in pool.map(_expand, _parts(layer, size)):
        yield from done


def _parts(layer: list[tuple[int, bytes]], size: int) -> Iterator[list[tuple[int, bytes]]]:
    for start in range(0, len(layer), size):
        yield layer[start : start + size]
