"""Play simulations on a manual clock: results of queueing theory hold, and fairness follows the policy."""

import heapq
import json
import random
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.cli.main import main
from director.core.clock import SystemClock
from director.core.ids import LANES, QueueName
from director.lab.simulate.play import FAIR, FIFO, REFUSED, PlayResult, Share, TriedPolicy, play
from director.lab.simulate.reading import read
from director.lab.simulate.report import Report, report
from director.lab.simulate.trace import Builder, MadeOptions, Trace, make_trace
from director.local.server import own_server
from director.operate.audit.feeder import Feeder, FileReceiver
from director.store.logs import AuditLog
from tests.support.live_director import Caller, live_director
from tests.support.servers import RedisServer
from tests.support.timed_server import timed_server

pytestmark = pytest.mark.tools


@pytest.fixture(scope="module")
async def scratch() -> AsyncIterator[Redis]:
    """Start a server that is used by nothing else."""
    async with own_server() as redis:
        yield redis


def of(*came: tuple[int, str, int]) -> Trace:
    """Make a trace of (arrival, account, run), in ms."""
    builder = Builder()
    for at, account, run in came:
        builder.add(at_ms=at, account=account, lane="normal", run_ms=run)
    return builder.build()


async def reported(redis: Redis, trace: Trace, tried: TriedPolicy, *, slots: int) -> Report:
    return report(trace, tried, await play(redis, trace, tried, slots=slots), slots=slots)


def starts(trace: Trace, played: PlayResult) -> str:
    return "".join(trace.accounts[trace.account[number]] for number in played.order)


def one_line(trace: Trace, *, slots: int) -> list[int]:
    """Return the starts in a single line, by Kiefer and Wolfowitz: at the arrival, or when the first slot is free."""
    free = [0] * slots
    started = []
    for at, run in zip(trace.at_ms, trace.run_ms, strict=True):
        begin = max(at, heapq.heappop(free))
        heapq.heappush(free, begin + run)
        started.append(begin)
    return started


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("load", [0.7, 1.3])
async def test_single_line_starts_match_the_calculation(scratch: Redis, slots: int, load: float) -> None:
    trace = make_trace(MadeOptions(shape="even", slots=slots, load=load, minutes=10 / slots))
    played = await play(scratch, trace, FIFO, slots=slots)
    assert list(played.started_ms) == one_line(trace, slots=slots)


@pytest.mark.heavy
async def test_waits_of_one_account_match_the_formula_for_constant_runs(scratch: Redis) -> None:
    load, run_s = 0.6, 1.0
    trace = make_trace(MadeOptions(shape="constant", slots=1, load=load, run_s=run_s, minutes=60, seed=3))
    found = await reported(scratch, trace, FAIR, slots=1)
    assert found.waits["all"].mean == pytest.approx(load * run_s / (2 * (1 - load)), rel=0.15)
    assert found.utilisation == pytest.approx(load, rel=0.05)


async def test_slot_is_never_idle_while_work_waits(scratch: Redis) -> None:
    trace = make_trace(MadeOptions(shape="lanes", slots=3, minutes=3))
    for tried in (FAIR, FIFO):
        played = await play(scratch, trace, tried, slots=3)
        assert len(played.order) == len(trace)
        assert idle_while_waiting(trace, played, slots=3) == 0


def idle_while_waiting(trace: Trace, played: PlayResult, *, slots: int) -> int:
    """Return for how many ms a slot was free while a prediction waited."""
    steps = sorted(
        (at, waits, runs)
        for number, start in enumerate(played.started_ms)
        for at, waits, runs in (
            (trace.at_ms[number], 1, 0),
            (start, -1, 1),
            (start + trace.run_ms[number], 0, -1),
        )
    )
    idle = waiting = running = last = 0
    for at, waits, runs in steps:
        idle += (at - last) * min(waiting, slots - running)
        waiting, running, last = waiting + waits, running + runs, at
    return idle


@pytest.mark.heavy
async def test_light_accounts_hardly_wait_beside_a_heavy_one_except_under_fifo(scratch: Redis) -> None:
    trace = make_trace(MadeOptions(shape="heavy-light", minutes=4, load=1.4))
    fair, fifo = [await reported(scratch, trace, tried, slots=4) for tried in (FAIR, FIFO)]
    assert fair.waits["lightest"].p90 < 3 < 20 < fifo.waits["lightest"].p90
    assert fair.waits["heaviest"].p90 > fifo.waits["heaviest"].p90
    assert fair.jain > 0.95 > 0.85 > fifo.jain


async def test_weights_shift_the_shares_as_configured(scratch: Redis) -> None:
    trace = of(*((0, account, 1000) for account in "ab" for _ in range(200)))
    weighted = TriedPolicy(name="weighted", accounts={"a": Share(weight=3)})
    for tried, share in ((FAIR, 0.5), (weighted, 0.75)):
        first = starts(trace, await play(scratch, trace, tried, slots=2))[:200]
        assert first.count("a") / len(first) == pytest.approx(share, abs=0.02)


async def test_account_stays_within_its_concurrency_limit(scratch: Redis) -> None:
    trace = of(*((0, "a", 1000) for _ in range(20)))
    found = await reported(scratch, trace, TriedPolicy(name="limited", accounts={"*": Share(max_running=2)}), slots=4)
    assert found.span_s == 10
    assert found.utilisation == 0.5


@pytest.mark.parametrize(
    ("tried", "code", "accepted"),
    [
        (TriedPolicy(mode="bounded", max_queued=5), "queue_full", 5 + 1),
        (TriedPolicy(mode="reject"), "no_capacity", 2),
        (TriedPolicy(accounts={"*": Share(max_queued=3)}), "too_many_queued", 3 + 1),
    ],
)
async def test_excess_work_is_refused_and_counted(scratch: Redis, tried: TriedPolicy, code: str, accepted: int) -> None:
    # the first has begun when the others arrive
    trace = of((0, "a", 60_000), *((30_000 + n, "a", 60_000) for n in range(10)))
    played = await play(scratch, trace, tried, slots=1 if code != "no_capacity" else 2)
    assert played.refused == {code: 11 - accepted}
    assert list(played.started_ms).count(REFUSED) == 11 - accepted
    assert all(played.started_ms[number] >= 0 for number in range(accepted))


async def test_simultaneous_batch_of_thousands_is_played_to_its_end(scratch: Redis) -> None:
    trace = of(*((0, "a", 10) for _ in range(1500)))
    played = await play(scratch, trace, FIFO, slots=100)
    assert list(played.order) == sorted(played.order)
    assert max(played.started_ms) == 140


async def test_simulation_removes_everything_from_the_server(scratch: Redis) -> None:
    trace = make_trace(MadeOptions(shape="even", minutes=2))
    await play(scratch, trace, FAIR, slots=8)
    of_predictions = [key async for key in scratch.scan_iter() if b":q:" not in key and b":log" not in key]
    assert [key for key in of_predictions if await scratch.pttl(key) == -1] == []


LINE = ("simulate", "--made", "lanes", "--minutes", "0.5", "--slots", "2,3", "--policy", "fair", "--policy", "fifo")


def test_same_command_prints_the_same_bytes(capsys: Any) -> None:
    printed = []
    for seed in ("1", "1", "2"):
        assert main([*LINE, "--json", "--seed", seed]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]
    body = json.loads(printed[0])
    assert [(each["policy"], each["slots"]) for each in body["plays"]] == [
        ("fair", 2),
        ("fair", 3),
        ("fifo", 2),
        ("fifo", 3),
    ]


def test_file_is_compared_side_by_side_and_drawn(tmp_path: Path, capsys: Any) -> None:
    dice = random.Random(1)
    lines = [{"at_s": n / 4, "account": dice.choice("ab"), "run_s": 1.0} for n in range(80)]
    trace, policy, picture = tmp_path / "trace.jsonl", tmp_path / "soon.toml", tmp_path / "waits.svg"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    policy.write_text("objectives.normal = { share = 0.95, within_s = 1 }\n")
    line = ["simulate", str(trace), "--slots", "2,8", "--policy", str(policy), "--plot", str(picture)]
    assert main(line) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[2].split() == ["soon", "×", "2", "soon", "×", "8"]
    assert "100.0 ≥ 95" in shown.out
    assert "< 95" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 100
    assert shown.err.splitlines() == ["» soon × 2", "» soon × 8"]
    assert picture.read_text().startswith("<?xml")


PREDICTIONS = 60
ACCOUNTS = ("a", "a", "a", "b", "c", "d")  # one account sends half of them


async def logged(redis: Redis, path: Path) -> list[dict[str, str]]:
    async with aclosing(FileReceiver(path)) as sink:
        await Feeder(AuditLog(redis), sink, SystemClock()).catch_up()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def nothing_after_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the time after each run, which a log does not show and by which turns would differ."""
    finish = Scripts.finish

    async def at_once(self: Scripts, *args: Any, over_ms: int = 0, **given: Any) -> bool:
        return await finish(self, *args, **given)

    monkeypatch.setattr(Scripts, "finish", at_once)


@pytest.mark.usefixtures("nothing_after_runs")
@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.heavy), pytest.param(2, marks=pytest.mark.heavy)]
)
async def test_replay_starts_predictions_in_a_real_directors_order(
    seed: int, redis: Redis, scripts: Scripts, queue: QueueName, server: RedisServer, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    callers = {name: Caller(redis, scripts, account=name) for name in ACCOUNTS}
    ids = [await callers[dice.choice(ACCOUNTS)].submit(lane=dice.choice(LANES)) for _ in range(PREDICTIONS)]
    # limited to one at a time, it claims nothing without a free slot
    async with timed_server(0.002) as timed, live_director(server.url, timed.url, batch_size=1):
        for prediction_id in ids:
            await callers["a"].ended(prediction_id)
    steps = await logged(redis, tmp_path / "audit.jsonl")
    trace = read(tmp_path / "audit.jsonl", queue=queue)
    trace.at_ms = array("q", [0] * len(trace))  # all of them waited when the director started
    async with own_server() as scratch:
        played = await play(scratch, trace, FAIR, slots=1)
    assert [ids[number] for number in played.order] == [step["id"] for step in steps if step["kind"] == "claimed"]
    assert sorted(played.order) == list(range(PREDICTIONS)) != list(played.order)
