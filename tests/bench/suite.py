"""Run some of the benches in order. A bench that breaks off is reported and left out."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import anyio

from tests.bench.benches.accept import accept
from tests.bench.benches.batches import batches
from tests.bench.benches.crowds import crowds
from tests.bench.benches.drain import drain
from tests.bench.benches.e2e import e2e
from tests.bench.benches.first_token import first_token
from tests.bench.benches.gateway import gateway
from tests.bench.benches.heartbeats import heartbeats
from tests.bench.benches.idle import idle
from tests.bench.benches.latency import latency
from tests.bench.benches.limits import limits
from tests.bench.benches.memory import memory
from tests.bench.benches.options import Found, Options
from tests.bench.benches.queue import depth, fairness, million
from tests.bench.benches.queues import queues
from tests.bench.benches.recovery import recovery
from tests.bench.benches.scale import scale
from tests.bench.benches.slots import slots
from tests.bench.benches.streaming import streaming
from tests.bench.machine import commit, load, machine, now
from tests.bench.results import Load, Result, append
from tests.bench.tables import measured

BENCHES: Final[Mapping[str, Callable[[Options], Awaitable[Found]]]] = MappingProxyType(
    {
        "latency": latency,
        "drain": drain,
        "e2e": e2e,
        "accept": accept,
        "batches": batches,
        "streaming": streaming,
        "first_token": first_token,
        "gateway": gateway,
        "slots": slots,
        "memory": memory,
        "recovery": recovery,
        "depth": depth,
        "fairness": fairness,
        "idle": idle,
        "limits": limits,
        "scale": scale,
        "crowds": crowds,
        "queues": queues,
        "heartbeats": heartbeats,
        "million": million,
    }
)

# those that take minutes each: they run if they are named
AT_SCALE: Final = ("scale", "crowds", "queues", "heartbeats", "million")

# those that find ratios to something that was measured in the same rounds
PAIRED: Final = ("latency", "drain", "e2e", "accept", "streaming", "memory")


def run(names: Sequence[str], options: Options, keep: Path) -> dict[str, Result]:
    found: dict[str, Result] = {}
    for name in names:
        options.say(f"{name} …")
        try:
            before, began = load(), time.monotonic()
            result = told_of(name, anyio.run(BENCHES[name], options), load_before=before, began=began)
        except Exception as exc:  # noqa: BLE001 - whatever broke one bench is no reason to lose the others
            options.say(f"{name} BROKE OFF: {exc!r}")
            continue
        append(keep, [result])
        found[name] = result
        options.say(measured(result) + "\n")
    return found


def told_of(name: str, found: Found, *, load_before: Load, began: float) -> Result:
    return Result(
        bench=name,
        what=found.what,
        at=now(),
        commit=commit(),
        machine=machine(found.redis),
        load=(load_before, load()),
        took_s=round(time.monotonic() - began, 1),
        durability=found.durability,
        figures=found.figures,
        left_out=found.left_out,
        seen=found.seen,
        restarts=found.restarts,
    )
