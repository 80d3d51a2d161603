"""Ten models of which three fit, twenty accounts: Director for real beside the same trace simulated, and simpler rules.

TEN_MODELS_S is how long traffic comes. The accounts of a queue take turns, while the simulation lets the first be next.
So they are compared as if each claim had brought the first of its queue: which one it brings is no matter of swaps.
"""

import os
import random
import statistics
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import anyio
import pytest
from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.devices import Device, Model
from director.core.ids import PredictionId
from director.core.schema import Record
from director.execution.tracker import CLAIMED_AHEAD
from director.simulate.swaps import RULES, Play, Timed
from director.simulate.trace import Builder, Trace
from director.store.catalog import Catalog
from director.store.directors import Directors
from tests.integration.devices.test_swaps import GIB, callers, pool_file
from tests.support.eventually import eventually
from tests.support.fake_device import fake_devices
from tests.support.live_director import Caller, pool_process
from tests.support.servers import RedisServer

pytestmark = pytest.mark.heavy

LASTS_S: Final = float(os.environ.get("TEN_MODELS_S", "60"))
MODELS: Final = [f"acme/m{number}" for number in range(10)]
ACCOUNTS: Final = [f"tenant-{number}" for number in range(20)]
LOAD_S: Final = 1.0
MIN_LOADED_S: Final = 2.0
MAX_WAIT_S: Final = 15.0
RUN_S: Final = (0.1, 0.5)
RATE: Final = 3.0  # a second: with the swaps a little less than three models can run
AGREES: Final = 0.15


class Outcome(Struct, frozen=True, kw_only=True):
    """`waits_s`: of each prediction, until it was claimed. `swap_s`: spent on loads and rests, by all models."""

    rule: str
    waits_s: Sequence[float]
    ended_s: float
    loads: int
    swap_s: float

    @property
    def throughput(self) -> float:
        return len(self.waits_s) / self.ended_s

    def quantile_s(self, part: float) -> float:
        return sorted(self.waits_s)[min(len(self.waits_s) - 1, int(part * len(self.waits_s)))]

    @property
    def row(self) -> str:
        figures = (self.throughput, self.quantile_s(0.5), self.quantile_s(0.95), self.loads, self.swap_s)
        return f"| {self.rule} | " + " | ".join(f"{figure:.4g}" for figure in figures) + " |"


def in_order(real: Outcome, records: Sequence[tuple[int, int]], trace: Trace) -> Outcome:
    """Return the waits if each claim of a model had brought the prediction that came first."""
    waits_s: list[float] = []
    for model in range(len(trace.models)):
        mine = [times for number, times in enumerate(records) if trace.model[number] == model]
        created, claimed = (sorted(column) for column in zip(*mine, strict=True))
        waits_s += [(claim - came) / 1000 for came, claim in zip(created, claimed, strict=True)]
    return replace(real, rule="director, for real, in order", waits_s=waits_s)


HEAD: Final = "| rule | per s | p50 wait s | p95 wait s | loads | s of swaps |\n|---|--:|--:|--:|--:|--:|"


def made(seed: int = 7) -> Trace:
    """Make the traffic: a few models get most of it, and every account asks for several."""
    dice, builder = random.Random(seed), Builder()
    shares = list(accumulate(1 / (number + 1) for number in range(len(MODELS))))
    at_s = 0.0
    for name in MODELS:  # each is in the trace
        builder.add(at_ms=0, account=dice.choice(ACCOUNTS), lane="normal", run_ms=100, model=name)
    while (at_s := at_s + dice.expovariate(RATE)) < LASTS_S:
        [name] = dice.choices(MODELS, cum_weights=shares)
        run_ms = round(1000 * dice.uniform(*RUN_S))
        builder.add(at_ms=round(1000 * at_s), account=dice.choice(ACCOUNTS), lane="normal", run_ms=run_ms, model=name)
    return builder.build()


def simulated(rule: str, trace: Trace, *, load_s: float, rest_s: float) -> Outcome:
    devices = [Device("gpu0", 3 * GIB)]
    models = []
    for name in MODELS:
        model = Model(
            name=name,
            places=({"gpu0": GIB},),
            min_loaded_s=MIN_LOADED_S,
            max_wait_s=MAX_WAIT_S,
            run_limit_s=20.0,
        )
        models.append(Timed(model=model, load_s=load_s, rest_s=rest_s))
    found = Play(rule, devices, models, trace).run()
    waits_s = [started - at_ms / 1000 for started, at_ms in zip(found.started_s, trace.at_ms, strict=True)]
    return Outcome(
        rule=f"{rule}, simulated",
        waits_s=waits_s,
        ended_s=found.ended_s,
        loads=found.loads,
        swap_s=found.loading_s + found.leaving_s,
    )


async def submitted(trace: Trace, known: dict[str, Caller], ids: list[PredictionId]) -> None:
    began = time.monotonic()
    for number, at_ms in enumerate(trace.at_ms):
        await anyio.sleep(max(0.0, began + at_ms / 1000 - time.monotonic()))
        caller = known[trace.models[trace.model[number]]]
        mine = Caller(
            caller.redis,
            caller.scripts,
            model=caller.model,
            version=caller.version,
            account=trace.accounts[trace.account[number]],
        )
        ids.append(await mine.submit(seconds=trace.run_ms[number] / 1000))


async def test_ten_models_of_which_three_fit(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, tmp_path: Path
) -> None:
    trace, ids = made(), list[PredictionId]()
    terms = {"load_s": LOAD_S, "min_loaded_s": MIN_LOADED_S, "max_wait_s": MAX_WAIT_S, "habits": {"load_s": LOAD_S}}
    with fake_devices(gpu0=3 * GIB) as devices:
        pool = pool_file(tmp_path, devices, {name: dict(terms) for name in MODELS})
        async with pool_process(server.url, pool, devices_dir=tmp_path / "devices", drain_s=5) as director:
            known = await callers(redis, scripts, catalog, MODELS)
            await anyio.sleep(MIN_LOADED_S)
            began, since = time.monotonic(), len(devices.loads)
            said = len(director.said("a model is loaded")), len(director.said("a model is at rest"))
            await submitted(trace, known, ids)
            records = [await _ended(known, trace, number, one) for number, one in enumerate(ids)]
            ended_s = time.monotonic() - began
            loads_s = [line["took_s"] for line in director.said("a model is loaded")[said[0] :]]
            rests_s = [line["took_s"] for line in director.said("a model is at rest")[said[1] :]]
            queues = [caller.queue for caller in known.values()]
            shelves = [beat.about.shelf for one in await Directors(redis).of(queues) for beat in one.beats]
            for caller in known.values():
                await caller.nothing_is_left()
            given_back = [line["code"] for line in director.said("claim given back")]
            director.send(15)
            assert await director.exit_code() == 0
        assert devices.cut == []
        assert devices.peak["gpu0"] == 3 * GIB
    assert [record for record in records if record.attempt != 1] == []
    assert set(given_back) <= {CLAIMED_AHEAD}, "for a slot that was not free as soon as expected"
    real = Outcome(
        rule="director, for real",
        waits_s=[((record.claimed or 0) - record.created) / 1000 for record in records],
        ended_s=ended_s,
        loads=len(devices.loads) - since,
        swap_s=sum(loads_s) + sum(rests_s),
    )
    load_s, rest_s = statistics.median(loads_s), statistics.median(rests_s)
    play = {rule: simulated(rule, trace, load_s=load_s, rest_s=rest_s) for rule in RULES}
    print(f"\n{len(ids)} predictions, load {load_s:.2f} s, rest {rest_s:.2f} s\n{HEAD}")
    print("\n".join(one.row for one in [real, *play.values()]))
    assert len(shelves) == len(MODELS)
    mine, real = play["director"], in_order(real, [(record.created, record.claimed or 0) for record in records], trace)
    print(real.row)
    assert real.throughput == pytest.approx(mine.throughput, rel=AGREES)
    assert real.quantile_s(0.95) == pytest.approx(mine.quantile_s(0.95), rel=AGREES)
    assert real.loads == pytest.approx(mine.loads, rel=AGREES)


async def _ended(known: dict[str, Caller], trace: Trace, number: int, one: PredictionId) -> Record:
    caller = known[trace.models[trace.model[number]]]
    await eventually(lambda: caller.status(one), f"{one} ended", until="succeeded".__eq__, limit_s=120)
    return await caller.record(one)
