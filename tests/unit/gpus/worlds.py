"""Random devices, models and traffic, and a play of them that checks each decision as it is carried out."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct

from director.core.devices import Device, Model, Place
from director.lab.simulate.swaps import Play, Standing, Timed
from director.lab.simulate.trace import Builder, Trace

NAMES = "ABCDEF"
seconds = st.integers(0, 20).map(float)


class World(Struct, frozen=True):
    devices: Sequence[Device]
    models: Sequence[Timed]
    trace: Trace


def fits_beside_kept(models: Sequence[Timed], memory: dict[str, int]) -> bool:
    """The pool file refuses what is not so."""
    for one in models:
        room = Counter(memory)
        for other in models:
            if other.model.keep and other is not one:
                room.subtract(other.model.places[0])
        if not any(all(need <= room[name] for name, need in place.items()) for place in one.model.places):
            return False
    return True


@st.composite
def places(draw: st.DrawFn, memory: dict[str, int]) -> tuple[Place, ...]:
    kind = draw(st.sampled_from(["one", "one", "any", "all", "none"]))
    if kind == "none":
        return ({},)
    if kind == "all":
        return ({name: draw(st.integers(1, most)) for name, most in memory.items()},)
    if kind == "any":
        need = draw(st.integers(1, min(memory.values())))
        return tuple({name: need} for name in memory)
    name = draw(st.sampled_from(sorted(memory)))
    return ({name: draw(st.integers(1, memory[name]))},)


@st.composite
def timed(draw: st.DrawFn, name: str, memory: dict[str, int]) -> Timed:
    where = draw(places(memory))
    return Timed(
        model=Model(
            name=name,
            places=where,
            keep=len(where) == 1 and draw(st.integers(0, 7)) == 0,
            weight=draw(st.sampled_from([0.1, 1.0, 10.0])),
            min_loaded_s=draw(st.none() | seconds),
            max_wait_s=draw(st.integers(0, 60).map(float)),
            run_limit_s=20.0,
            slots=draw(st.integers(1, 3)),
        ),
        load_s=draw(seconds),
        rest_s=draw(st.integers(0, 5).map(float)),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    memory = {f"gpu{number}": draw(st.integers(1, 4)) for number in range(draw(st.integers(1, 2)))}
    names = NAMES[: draw(st.integers(2, len(NAMES)))]
    models = [draw(timed(name, memory)) for name in names]
    while not fits_beside_kept(models, memory):
        models.remove(next(one for one in models if one.model.keep))
    builder = Builder()
    arrival = st.tuples(st.integers(0, 300), st.integers(0, 20), st.sampled_from("xyz"), st.sampled_from(models))
    for at_s, run_s, account, one in draw(st.lists(arrival, min_size=1, max_size=40)):
        lane = draw(st.sampled_from(["high", "normal", "low"]))
        name = one.model.name
        builder.add(at_ms=at_s * 1000, run_ms=run_s * 1000, account=account, lane=lane, model=name)
    return World([Device(name, size) for name, size in memory.items()], models, builder.build())


def overtaken_when_urgent() -> World:
    """E is next by the device time of its account, until C and F are urgent 1 s before it is."""

    def one(name: str, weight: float, max_wait_s: float, *, stay_s: float | None = None, **times: float) -> Timed:
        model = Model(
            name=name,
            places=({"gpu0": 1},),
            weight=weight,
            min_loaded_s=stay_s,
            max_wait_s=max_wait_s,
            run_limit_s=20.0,
        )
        return Timed(model=model, **{"load_s": 0.0, "rest_s": 0.0} | times)

    models = [
        one("B", 1.0, 2.0),
        one("C", 0.1, 19.0, load_s=9.0, rest_s=4.0, stay_s=2.0),
        one("D", 10.0, 2.0, rest_s=4.0),
        one("E", 0.1, 20.0),
        one("F", 0.1, 19.0, load_s=9.0),
    ]
    builder = Builder()
    for name, run_ms in [("B", 3000), ("D", 0), ("D", 0), ("C", 0), ("E", 0), ("F", 9000), ("F", 7000)]:
        builder.add(at_ms=0, run_ms=run_ms, account="y" if name == "E" else "x", lane="high", model=name)
    return World([Device("gpu0", 1)], models, builder.build())


def stays_s(model: Model, *, load_s: float, waits: bool) -> float:
    """Return how long the model stays loaded at least. `waits`: whether anything waits for it."""
    if model.min_loaded_s is not None:
        return model.min_loaded_s
    return load_s if waits else 0.0


class CheckedPlay(Play):
    """Fails on a decision that a host could not carry out, or that breaks a promise."""

    def __init__(self, world: World) -> None:
        super().__init__("director", world.devices, world.models, world.trace)

    def _load(self, one: Standing, place: Place) -> None:
        assert one.state == "absent"
        assert place in one.timed.model.places
        for device in self.devices:
            others = [other for other in self.standings.values() if device.name in other.place]
            taken = sum(other.place[device.name] for other in others)
            assert taken + place.get(device.name, 0) <= device.memory, "more memory than there is"
            assert device.name not in place or all(other.state != "loading" for other in others), "two loads at once"
        super()._load(one, place)

    def _rest(self, one: Standing) -> None:
        model = one.timed.model
        assert one.state == "loaded"
        assert not model.keep
        least_s = stays_s(model, load_s=one.timed.load_s, waits=bool(one.waiting))
        assert self.now_s - one.since_s >= least_s, "less than its least loaded time"
        super()._rest(one)


def never_started(started_s: Sequence[Any]) -> list[int]:
    return [number for number, at_s in enumerate(started_s) if math.isnan(at_s)]
