"""Test that the simulator starts predictions from a real director's audit log in that director's order."""

import json
import random
from array import array
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from director.audit.feeder import Feeder, FileSink
from director.audit.log import AuditLog
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import LANES, QueueName
from director.local.server import own_server
from director.simulate.play import FAIR, play
from director.simulate.reading import read
from tests.support.live_director import Caller, live_director
from tests.support.servers import RedisServer
from tests.support.timed_server import timed_server

pytestmark = pytest.mark.anyio

PREDICTIONS = 60
ACCOUNTS = ("a", "a", "a", "b", "c", "d")  # one account sends half of them


async def logged(redis: Redis, path: Path) -> list[dict[str, str]]:
    async with aclosing(FileSink(path)) as sink:
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
