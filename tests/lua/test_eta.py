"""Measure how good the promised waits are: the real scripts, in virtual time."""

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

import anyio
import pytest

from director.core.policy import shard
from director.core.schema import Outlook
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver, enqueue

PREDICTIONS = 700
SLOTS = 4
MEAN_S, SPREAD = 10.0, 0.5  # lognormal, as runs of one model on inputs of many sizes are
TENANTS = 8
BUCKETS_S = (0.1, 0.5, 1, 5, 15, 60, 300, math.inf)  # of the error, as claim.lua counts it
WRITTEN_MS = 2  # an end is written, and the next one claimed


def lognormal_s(dice: random.Random) -> float:
    return dice.lognormvariate(math.log(MEAN_S) - SPREAD**2 / 2, SPREAD)


def poisson(dice: random.Random, load: float) -> Iterator[float]:
    at = 0.0
    while True:
        at += dice.expovariate(load * SLOTS / MEAN_S)
        yield at


def bursts(dice: random.Random, load: float) -> Iterator[float]:
    """Send half of the load in bursts of ten to forty."""
    singles, at = poisson(dice, load / 2), 0.0
    following = next(singles)
    while True:
        many = dice.randint(10, 40)
        at += many * MEAN_S / (load / 2 * SLOTS)
        while following < at:
            yield following
            following = next(singles)
        yield from [at] * many


@dataclass
class Told:
    """The outlooks given at acceptance and the real waits, in seconds, in the order of the claims."""

    waits: list[tuple[float, float, float]] = field(default_factory=list)  # p50, p90, waited
    untold: int = 0

    @property
    def kept(self) -> int:
        return sum(waited <= p90 for _, p90, waited in self.waits)

    @property
    def in_range(self) -> int:
        """Count waits up to p90 that were not much shorter than p50: at most by the ratio of p90 to p50."""
        return sum(p50 * p50 / p90 <= waited <= p90 for p50, p90, waited in self.waits)

    @property
    def errors_s(self) -> list[float]:
        return [abs(waited - p50) for p50, _, waited in self.waits]

    @property
    def width(self) -> float:
        return median(p90 / waited for _, p90, waited in self.waits if waited)


@dataclass
class Play:
    """A queue in which the n-th claim runs for `run_s(n)`. A free slot claims at once."""

    driver: QueueDriver
    run_s: Callable[[int], float]
    slots: int = 1
    claims: int = 0

    async def told(self, arrivals: Sequence[float], account: Callable[[], str] = lambda: ACCOUNT) -> Told:
        """Enqueue predictions at these seconds from now, and run all of them."""
        told, driver, since_ms = Told(), self.driver, self.driver.now_ms
        hopes, running = dict[str, tuple[int, Outlook]](), list[tuple[int, int, object]]()
        await driver.have_slots(self.slots)
        reported, coming = driver.now_ms, [since_ms + int(at_s * 1000) for at_s in reversed(arrivals)]
        while coming or running:
            driver.now_ms = min([*coming[-1:], *(ends for ends, *_ in running[:1])])
            if driver.now_ms - reported > 5_000:
                reported = driver.now_ms
                await driver.have_slots(self.slots)
            if coming and (not running or coming[-1] < running[0][0]):
                many = sum(at == driver.now_ms for at in coming)
                del coming[-many:]
                async with anyio.create_task_group() as group:
                    for _ in range(many):
                        group.start_soon(self._accept, account(), hopes)
            else:
                _, _, claim = heapq.heappop(running)
                await driver.finish(claim, ran_ms=1)
            free = self.slots - len(running)
            for claim in await driver.claim(free, lease_s=36_000) if free else []:
                since, hope = hopes.pop(claim.id)
                if hope.p50_ms is None or hope.p90_ms is None:
                    told.untold += 1
                elif hope.p50_ms > 0:  # what starts at once is no estimate
                    told.waits.append((hope.p50_ms / 1000, hope.p90_ms / 1000, (driver.now_ms - since) / 1000))
                self.claims += 1
                ends = driver.now_ms + int(self.run_s(self.claims) * 1000) + WRITTEN_MS
                heapq.heappush(running, (ends, self.claims, claim))
        driver.pass_time(5)
        return told

    async def _accept(self, account: str, hopes: dict[str, tuple[int, Outlook]]) -> None:
        driver = self.driver
        accepted = await enqueue(
            driver.scripts,
            driver.new_id(),
            queue=driver.queue,
            account=account,
            model=MODEL,
            version=VERSION,
            shard=shard(account, streams=16, size=2),
            now_ms=driver.now_ms,
        )
        assert accepted.outlook is not None
        hopes[accepted.id] = driver.now_ms, accepted.outlook


@pytest.mark.heavy
@pytest.mark.parametrize("trace", [poisson, bursts], ids=lambda trace: trace.__name__)
async def test_nine_of_ten_start_within_a_p90_that_is_not_padded(
    driver: QueueDriver, trace: Callable[[random.Random, float], Iterator[float]]
) -> None:
    dice = random.Random(7)
    play = Play(driver, lambda _: lognormal_s(dice), slots=SLOTS)
    # some send more than others
    told = await play.told(
        list(islice(trace(dice, 0.9), PREDICTIONS)), lambda: f"tenant-{min(int(dice.expovariate(0.5)), TENANTS - 1)}"
    )
    many, kept = len(told.waits), told.kept / len(told.waits)
    late = sum(waited > p50 for p50, _, waited in told.waits) / many
    typical_s = median(waited for _, _, waited in told.waits)
    print(
        f"{trace.__name__}: {many} of {PREDICTIONS} had to wait, {typical_s:.1f} s in the middle; "
        f"p90 covers {kept:.1%}, p50 {1 - late:.1%}, median error {median(told.errors_s):.1f} s, "
        f"p90 is {told.width:.2f} times the wait in the middle"
    )
    assert many > 500
    assert 0.84 <= kept <= 0.99
    assert told.width <= 2.3, "eight accounts, so the wait of one varies"
    assert 0.4 <= late <= 0.6
    assert median(told.errors_s) < typical_s

    tally = (await driver.stats()).tally
    assert (tally["eta_kept"], tally["eta_missed"]) == (told.kept, many - told.kept)
    counted = {name: value for name, value in tally.items() if name.startswith("eta_error:")}
    assert sum(counted.values()) == many
    lower = 0.0
    for upper in BUCKETS_S:
        assert counted.get(f"eta_error:{upper:g}", 0) == sum(lower < error <= upper for error in told.errors_s) + sum(
            error == 0 for error in told.errors_s if lower == 0
        )
        lower = upper
    assert told.untold <= SLOTS * 2, "only while no run has ended"


@pytest.mark.parametrize(("many", "run_s"), [(130, 0.3), pytest.param(40, 0.1, marks=pytest.mark.heavy)])
async def test_equal_batches_are_told_the_same_again(driver: QueueDriver, many: int, run_s: float) -> None:
    dice = random.Random(7)
    play = Play(driver, lambda _: run_s + dice.uniform(0, 0.003))
    await play.told([0])
    for _ in range(3):
        p50, p90, waited = (await play.told([0] * many)).waits[-1]
        print(f"the last of {many} was told {p50:.1f} s and nine of ten {p90:.1f} s, and waited {waited:.1f} s")
        assert abs(p50 - waited) <= 0.1 * waited
        assert waited <= p90


@pytest.mark.parametrize("slots", [1, pytest.param(4, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("is_batch", [True, pytest.param(False, marks=pytest.mark.heavy)], ids=["batch", "steady"])
async def test_ranges_are_right_after_ten_runs_at_a_new_speed(
    driver: QueueDriver, slots: int, *, is_batch: bool
) -> None:
    dice = random.Random(7)
    speed_s = [1.0]
    play = Play(driver, lambda _: speed_s[0] * dice.lognormvariate(0, 0.1), slots=slots)
    await play.told([0] * 60)
    speed_s[0] = 60.0
    await play.told([70.0 * n for n in range(10)])
    told = await play.told([0 if is_batch else 0.9 * 60 / slots * n for n in range(40)])
    print(f"{told.in_range} of {len(told.waits)} were in the range, and {told.kept} in time; width {told.width:.2f}")
    assert len(told.waits) > 30
    assert told.kept >= 0.8 * len(told.waits)
    assert told.in_range >= 0.8 * len(told.waits)
    assert told.width <= 2
