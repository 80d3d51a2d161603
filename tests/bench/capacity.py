"""Estimate what Redis nodes carry, by arithmetic on figures that the benches measured."""

from collections.abc import Mapping
from math import ceil
from typing import Final

from msgspec import Struct

from tests.bench.results import Result

BUSY: Final = 0.7  # of one core: beyond that, what waits for Redis waits noticeably
IDLE_PART: Final = 0.1  # of Redis's time that directors may take by being there
FULL: Final = 0.75  # of memory: the rest is for connections, buffers and a rewrite of the log
HOUR_S: Final = 3_600.0
WEEK_S: Final = 7 * 86_400.0
MICRO: Final = 1e6
GB: Final = 1 << 30


class Inputs(Struct, frozen=True, kw_only=True):
    """Costs of one prediction. Times are of one core."""

    redis_us: float
    api_us: float
    director_us: float
    waiting_bytes: float
    ended_bytes: float
    record_bytes: float
    idle_director_us: float  # of Redis, a second

    def __post_init__(self) -> None:
        if min(getattr(self, name) for name in self.__struct_fields__) <= 0:
            raise ValueError("an input that was not measured is no input")


# which figure of which bench each one is
INPUTS: Final[Mapping[str, tuple[str, str]]] = {
    "redis_us": ("e2e", "processor time of Redis, 64 connections"),
    "api_us": ("e2e", "processor time of the API, 64 connections"),
    "director_us": ("drain", "processor time of who runs them"),
    "waiting_bytes": ("memory", "bytes of a waiting prediction beside input and log"),
    "ended_bytes": ("memory", "bytes of an ended prediction"),
    "record_bytes": ("memory", "bytes of an ended prediction whose data is removed"),
    "idle_director_us": ("idle", "Redis's time of an idle director, a second"),
}


class Plan(Struct, frozen=True, kw_only=True):
    """`nodes`: Redis servers that share the models; a model is on one of them."""

    memory_gb: float = 16.0
    input_bytes: float = 1_000.0
    run_s: float = 2.0
    slots: int = 4
    data_s: float = HOUR_S
    record_s: float = WEEK_S
    nodes: int = 1


class Capacity(Struct, frozen=True, kw_only=True):
    """`per_s`: by Redis's time; `kept_per_s`: by its memory, as an average over the life of records."""

    per_s: float
    kept_per_s: float
    waiting: float
    directors: float
    api_processes: float
    slots_busy: float
    director_processes: float


def inputs_of(results: Mapping[str, Result]) -> Inputs:
    """Return the medians of the measurements. Raises ValueError if one is missing."""
    found = {}
    for name, (bench, figure) in INPUTS.items():
        measured = results[bench].figure(figure) if bench in results else None
        if measured is None:
            raise ValueError(f"{figure} was not measured: run the bench {bench}")
        found[name] = measured.median()
    return Inputs(**found)


def capacity(inputs: Inputs, plan: Plan) -> Capacity:
    memory = FULL * plan.memory_gb * GB * plan.nodes
    per_s = BUSY * MICRO / inputs.redis_us * plan.nodes
    data_bytes = inputs.ended_bytes - inputs.record_bytes + 2 * plan.input_bytes  # an output as large as the input
    kept_bytes = plan.data_s * max(0.0, data_bytes) + plan.record_s * inputs.record_bytes
    kept_per_s = memory / kept_bytes
    lasting = min(per_s, kept_per_s)
    return Capacity(
        per_s=per_s,
        kept_per_s=kept_per_s,
        waiting=memory / (inputs.waiting_bytes + plan.input_bytes),
        directors=IDLE_PART * MICRO / inputs.idle_director_us * plan.nodes,
        api_processes=lasting * inputs.api_us / MICRO / BUSY,
        slots_busy=lasting * plan.run_s,
        director_processes=lasting * max(inputs.director_us / MICRO / BUSY, plan.run_s / plan.slots),
    )


PLANS: Final[Mapping[str, Plan]] = {
    "one node of 16 GB": Plan(),
    "the same, records for a day": Plan(record_s=86_400.0),
    "one node of 64 GB, records for a day": Plan(memory_gb=64.0, record_s=86_400.0),
    "4 nodes of 64 GB, records for a day": Plan(memory_gb=64.0, record_s=86_400.0, nodes=4),
}


def table(inputs: Inputs) -> str:
    lines = ["| input | | measured by |", "|---|---|---|"]
    for name, (bench, figure) in INPUTS.items():
        unit = "bytes" if name.endswith("bytes") else "µs"
        lines.append(f"| {figure} | {getattr(inputs, name):,.0f} {unit} | `{bench}` |")
    lines += ["", "| | predictions a second | room for |", "|---|---|---|"]
    for name, plan in PLANS.items():
        can = capacity(inputs, plan)
        processes = f"{ceil(can.api_processes)} API and {ceil(can.director_processes):,} director processes"
        rates = f"{can.kept_per_s:,.0f} for ever, by its memory, with {processes}; {can.per_s:,.0f} by Redis's time"
        lines.append(f"| {name} | {rates} | {can.waiting:,.0f} that wait; {can.directors:,.0f} directors |")
    return "\n".join(lines)
