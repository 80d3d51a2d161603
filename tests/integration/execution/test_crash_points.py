"""Test a process that dies or freezes between two effects: each such window has one exact outcome."""

import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import anyio
import httpx
import pytest
from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.core.ids import partition_of
from director.runtime.crash import API_POINTS, DIRECTOR_POINTS, KILLED, Point
from director.store.accounts import Accounts
from tests.support.api import live_api
from tests.support.eventually import eventually
from tests.support.live_director import Caller, DirectorProcess, Gate, Live, Tally, director_process
from tests.support.queue_driver import MODEL
from tests.support.servers import RedisServer
from tests.support.sink import Sink, sink

pytestmark = [pytest.mark.cog, pytest.mark.faults]

How = Literal["kill", "stop"]

LEASE_S: Final = 1.0


class Expected(Struct, frozen=True, kw_only=True):
    """The cost of a window. `runs`: runs that the model began; `attempt`: the attempt that ended it; `told`: webhooks.

    `taken_back`: the event of the recovery. `told_awake`: all webhooks, with those of a frozen director that wakes up;
    `awake_runs`: runs that it may begin before its heartbeat reports that the claim is lost.
    """

    runs: int
    attempt: int
    told: int = 1
    told_awake: int = 1
    awake_runs: int = 0
    taken_back: str = "retried"


EXPECTED: Final[dict[Point, Expected]] = {
    "after_claim": Expected(runs=1, attempt=2, awake_runs=1),
    "before_put": Expected(runs=1, attempt=2, awake_runs=1),
    "after_put": Expected(runs=2, attempt=2),
    "before_advance": Expected(runs=2, attempt=2),
    "after_advance": Expected(runs=2, attempt=2),
    "before_finish": Expected(runs=2, attempt=2),
    "before_release": Expected(runs=2, attempt=2),
    "after_release": Expected(runs=2, attempt=1, taken_back="released"),
    "after_finish": Expected(runs=1, attempt=1, taken_back="", told_awake=2),
    "before_webhook": Expected(runs=1, attempt=1, taken_back="", told_awake=2),
    "after_webhook": Expected(runs=1, attempt=1, taken_back="", told=2, told_awake=2),
}
# the director dies during the run
HELD: Final = ("after_put", "before_advance", "after_advance", "before_release", "after_release")
DRAINED: Final = ("before_release", "after_release")
TOLD: Final = ("after_finish", "before_webhook", "after_webhook")


def matrix() -> list[Any]:
    """Return every point with both ways to stop. Only the heavy run has the slower half."""
    ways: tuple[How, ...] = ("kill", "stop")
    marks = {"kill": (), "stop": (pytest.mark.heavy,)}
    return [
        pytest.param(point, how, marks=marks[how], id=f"{point}-{how}") for how in ways for point in DIRECTOR_POINTS
    ]


def test_every_crash_point_has_its_outcome() -> None:
    assert set(EXPECTED) == set(DIRECTOR_POINTS)
    assert API_POINTS == ("after_enqueue",)


@pytest.mark.parametrize(("point", "how"), matrix())
async def test_director_that_dies_at_a_crash_point_leaves_the_expected_outcome(
    caller: Caller, live: Live, cog_url: str, second_cog_url: str, gate: Gate, tally: Tally, point: Point, how: How
) -> None:
    expected = EXPECTED[point]
    async with (
        sink() as receiver,
        live.keeper(lease_s=LEASE_S),
        to_die(live.url, cog_url, point, how) as first,
    ):
        given = {"gate": str(gate)} if point in HELD else {}
        asked = await caller.submit(n=2, count=str(tally), webhook=receiver.url, webhook_events="completed", **given)
        if point in DRAINED:
            await caller.shows(asked, status="processing", output=["a0", "a1"])
            first.send(signal.SIGTERM)
        await dead(first, how)
        gate.open()
        async with live.director(second_cog_url, lease_s=LEASE_S, webhook_allow="loopback"):
            ended = await caller.ended(asked)
            if point in TOLD:
                await the_grace_is_over(caller, asked)
                await receiver.arrived(expected.told)
                await nothing_is_owed(caller.redis, asked)
            else:
                await receiver.arrived(expected.told)
            if how == "stop":
                first.send(signal.SIGCONT)
                await awake(first, receiver, point, expected)
    assert (ended["status"], ended["output"]) == ("succeeded", ["a0", "a1"])
    assert ended == await caller.ended(asked), "nothing changed after the end"
    told = [kind for kind in await caller.kinds(asked) if kind not in ("started", "output", "logs", "metric")]
    assert told == ["created", *([expected.taken_back] if expected.taken_back else []), "completed"]
    assert expected.runs <= tally.runs <= expected.runs + (expected.awake_runs if how == "stop" else 0)
    assert (await caller.record(asked)).attempt == expected.attempt
    assert [each.headers["webhook-id"] for each in receiver.received] == [f"msg_{asked}_completed"] * (
        expected.told_awake if how == "stop" else expected.told
    )
    await nothing_is_owed(caller.redis, asked)
    await caller.nothing_is_left()


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_api_that_dies_between_commit_and_answer_accepted_exactly_once(
    caller: Caller, server: RedisServer, redis: Redis, how: How
) -> None:
    token = await Accounts(redis).create_token("another")
    headers = {"authorization": f"Bearer {token}", "idempotency-key": "asked-once"}

    async def submit(url: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            return await client.post(f"{url}/v1/models/{MODEL}/predictions", headers=headers, json={"input": {}})

    answers: list[httpx.Response] = []

    async def submit_to_the_dying(url: str) -> None:
        try:
            answers.append(await submit(url))
        except httpx.TransportError:
            assert how == "kill"

    dying = live_api(server.url, env={"DIRECTOR_CRASH_AT": "after_enqueue", "DIRECTOR_CRASH_HOW": how})
    async with dying as first, live_api(server.url) as second, anyio.create_task_group() as tasks:
        tasks.start_soon(submit_to_the_dying, first.url)
        if how == "kill":
            assert await first.process.wait() == KILLED
        else:
            await eventually(lambda: is_frozen(first.process.pid), "it freezes")
        again = await submit(second.url)
        if how == "stop":
            first.process.send_signal(signal.SIGCONT)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert [each.json()["id"] for each in answers] == [again.json()["id"]] * (how == "stop")
    assert [name.decode() for name in await redis.zrange(keys.live(caller.queue), 0, -1)] == [again.json()["id"]]
    assert (await caller.scripts.stats(caller.queue)).waiting == 1
    assert [name.decode() for name in await redis.zrange(keys.listing("another"), 0, -1)] == [again.json()["id"]]


@asynccontextmanager
async def to_die(redis_url: str, server: str, point: Point, how: How) -> AsyncGenerator[DirectorProcess]:
    given = {"crash_at": point, "crash_how": how, "lease_s": LEASE_S, "drain_s": 0.05, "webhook_allow": "loopback"}
    async with director_process(redis_url, server, **given) as process:
        yield process


async def dead(director: DirectorProcess, how: How) -> None:
    if how == "kill":
        assert await director.exit_code() == KILLED
    else:
        await eventually(lambda: is_frozen(director.process.pid), "it freezes")


async def awake(director: DirectorProcess, receiver: Sink, point: Point, expected: Expected) -> None:
    if point in TOLD:
        await receiver.arrived(expected.told_awake)
    elif point in DRAINED:
        assert await director.exit_code() == 0
    else:
        await director.says("claim lost")
    if point not in TOLD:
        assert not director.said("inference")


def is_frozen(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.startswith("T")


async def the_grace_is_over(caller: Caller, prediction_id: Any) -> None:
    """End the time in which the director itself may notify of the end, which is longer than a test may take."""
    owed = keys.owed(partition_of(prediction_id))
    assert await caller.redis.zadd(owed, {prediction_id: 0}, xx=True, ch=True) == 1


async def nothing_is_owed(redis: Any, prediction_id: Any) -> None:
    owed = keys.owed(partition_of(prediction_id))
    await eventually(lambda: redis.zscore(owed, prediction_id), "it is noted", until=lambda score: score is None)
