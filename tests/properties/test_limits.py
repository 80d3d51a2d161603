"""No limit of an account admits more than it says, whatever is requested, returned and repeated, and when.

Each step is a typed call to a real server at a time that the test sets. The answer must equal the model's exactly.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.account_limits import Bucket
from director.core.ids import PredictionId, new_prediction_id
from director.store.accounts import Accounts
from tests.properties.limits_model import DAY_MS, ModelBucket, ModelCompute, ModelCredit, most_over
from tests.support.keyspace import leaks
from tests.support.kinds import Started, whole

MIDNIGHT_MS = 20_000 * DAY_MS
NAMES = st.integers(0, 40).map("n{}".format)
PAUSES_MS = st.sampled_from([0, 0, 0, 1, 7, 40, 333, 999, 1000, 1001, 5_000, 31_000])
BUCKETS = st.builds(
    Bucket, name=st.just("create"), rate=st.sampled_from([0.25, 0.5, 1.0, 3.0, 10.0, 40.0]), burst=st.integers(1, 6)
)
Step = tuple[str, str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["ask", "ask", "give back"]), NAMES, PAUSES_MS), max_size=60)
ComputeStep = tuple[str, str, int, int]
COMPUTE_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "spend"]),
        NAMES,
        st.sampled_from([0, 1, 500, 2_000, 9_999]),
        st.sampled_from([0, 0, 1, 1_000, DAY_MS // 3]),
    ),
    max_size=60,
)
bounded = settings(max_examples=80, deadline=None, database=None)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@asynccontextmanager
async def emptied(server: Started) -> AsyncIterator[tuple[Scripts, Accounts]]:
    admin, redis = whole(server.admin_url), client(server.url)
    gatherer = Gatherer(redis)
    try:
        await admin.flushall()
        yield Scripts(gatherer), Accounts(redis)
        assert await leaks(admin) == []
    finally:
        await gatherer.aclose()
        await redis.aclose()
        await admin.aclose()


@bounded
@example(  # returned after the bucket was full again: the token that came meanwhile must not count twice
    bucket=Bucket("create", 1.0, 1),
    steps=[("ask", "a", 0), ("ask", "b", 1000), ("give back", "a", 0), ("ask", "c", 0)],
)
@given(bucket=BUCKETS, steps=STEPS)
def test_a_bucket_answers_as_its_model_and_never_exceeds_its_limit(
    server: Started, runner: asyncio.Runner, bucket: Bucket, steps: list[Step]
) -> None:
    async def walk() -> None:
        model, now_ms = ModelBucket(bucket, at_ms=MIDNIGHT_MS), MIDNIGHT_MS
        let_through: list[tuple[str, int]] = []
        async with emptied(server) as (scripts, accounts):
            for what, name, pause_ms in steps:
                now_ms += pause_ms
                if what == "ask":
                    is_repeated = name in model.taken
                    allowance = await scripts.reserve("acme", bucket, id=name, now_ms=now_ms)
                    assert allowance.allowed == model.reserve(name, now_ms)
                    assert allowance.remaining == model.remaining(now_ms)
                    if allowance.allowed and not is_repeated:
                        let_through.append((name, now_ms))
                else:
                    since = model.taken.get(name)
                    returned, _ = await scripts.spend("acme", token=(bucket, name), now_ms=now_ms)
                    assert returned == model.give_back(name, now_ms)
                    if since is not None:
                        let_through.remove((name, since))
            assert (await accounts.usage("acme", day=0)).bursts.get("create", 0) == model.bursts
        assert most_over([moment for _, moment in let_through], bucket) <= 0

    runner.run(walk())


@bounded
@given(
    of_day=st.none() | st.integers(1, 20),
    limits=st.just([]) | st.lists(st.integers(1, 40), min_size=1, max_size=3),
    steps=COMPUTE_STEPS,
)
def test_compute_of_a_day_and_credit_are_never_reserved_beyond_their_limits(
    server: Started, runner: asyncio.Runner, of_day: int | None, limits: list[int], steps: list[ComputeStep]
) -> None:
    async def walk() -> None:
        today, in_all = ModelCompute(of_day and of_day * 1000), ModelCredit()
        now_ms, ids = MIDNIGHT_MS, dict[tuple[str, int], PredictionId]()
        async with emptied(server) as (scripts, accounts):
            for number, (what, letter, amount_ms, pause_ms) in enumerate(steps):
                now_ms += pause_ms
                made = (
                    letter,
                    now_ms // DAY_MS if what == "ask" else max((d for n, d in ids if n == letter), default=0),
                )
                name = ids.setdefault(made, new_prediction_id(model="acme/painter", now_ms=now_ms))
                most_s = limits[number * len(limits) // len(steps)] if limits else None
                in_all.most_ms = most_s and most_s * 1000
                if what == "ask":
                    of_today_ms, used_ms = today.used(now_ms // DAY_MS), in_all.used_ms
                    allowance = await scripts.reserve(
                        "acme", of_day, in_all=most_s, id=name, asked_s=amount_ms / 1000, now_ms=now_ms
                    )
                    if not in_all.has_room(name, amount_ms):
                        assert (allowance.allowed, allowance.limit, allowance.retry_after_ms) == (False, "credit", 0)
                    elif not today.reserve(name, amount_ms, now_ms):
                        assert (allowance.allowed, allowance.limit) == (False, "compute")
                    else:
                        assert allowance.allowed
                        in_all.reserve(name, amount_ms)
                    if of_day and not limits:
                        assert allowance.reset_ms == DAY_MS - now_ms % DAY_MS
                    assert in_all.used_ms <= max(used_ms, in_all.most_ms or 0)
                    assert today.used(now_ms // DAY_MS) <= max(of_today_ms, (of_day or 10**6) * 1000)
                else:
                    for _ in range(2):  # a reply may be lost: the second call changes nothing
                        _, corrected = await scripts.spend(
                            "acme", prediction_id=name, spent_s=amount_ms / 1000, now_ms=now_ms
                        )
                        was_held = [today.spend(name, amount_ms, now_ms), in_all.spend(name, amount_ms)]
                        assert corrected == any(was_held)
            usage = await accounts.usage("acme", day=now_ms // DAY_MS)
            assert round((usage.spent_s + usage.reserved_s) * 1000) == today.used(now_ms // DAY_MS)
            assert round(usage.total_spent_s * 1000) == in_all.spent_ms
            assert round(usage.total_reserved_s * 1000) == in_all.used_ms - in_all.spent_ms

    runner.run(walk())


CALLERS, EACH = 32, 8


Ask = Callable[[Scripts, str], Awaitable[bool]]


async def at_once(server: Started, ask: Ask) -> list[bool]:
    """Return the answers to 32 concurrent callers, each on a connection of its own."""
    told: list[bool] = []

    async def caller(number: int) -> None:
        redis = client(server.url, connections=1)
        gatherer = Gatherer(redis)
        scripts = Scripts(gatherer)
        try:
            told.extend([await ask(scripts, f"{number}-{turn}") for turn in range(EACH)])
        finally:
            await gatherer.aclose()
            await redis.aclose()

    async with emptied(server), asyncio.TaskGroup() as tasks:
        for number in range(CALLERS):
            tasks.create_task(caller(number))
    return told


async def reserve_token(scripts: Scripts, name: str) -> bool:
    bucket = Bucket("create", rate=10.0, burst=100)
    [first, again] = await asyncio.gather(  # a call whose reply was lost is sent again
        *(scripts.reserve("acme", bucket, id=name, now_ms=MIDNIGHT_MS) for _ in range(2))
    )
    assert first.allowed == again.allowed
    return first.allowed


async def reserve_compute(scripts: Scripts, name: str) -> bool:
    return (await scripts.reserve("acme", 300, id=name, asked_s=3, now_ms=MIDNIGHT_MS)).allowed


async def reserve_credit(scripts: Scripts, name: str) -> bool:
    now_ms = MIDNIGHT_MS + int(name.partition("-")[2]) * DAY_MS  # each turn is another day
    return (await scripts.reserve("acme", None, in_all=300, id=name, asked_s=3, now_ms=now_ms)).allowed


@pytest.mark.parametrize("ask", [reserve_token, reserve_compute, reserve_credit])
def test_32_concurrent_callers_reserve_exactly_the_limit(server: Started, runner: asyncio.Runner, ask: Ask) -> None:
    assert Counter(runner.run(at_once(server, ask))) == {True: 100, False: CALLERS * EACH - 100}


def test_concurrently_returned_tokens_can_be_taken_again_and_no_more(server: Started, runner: asyncio.Runner) -> None:
    bucket = Bucket("create", rate=10.0, burst=100)

    async def ask(scripts: Scripts, name: str) -> bool:
        """Every other one that is let through is refused further in."""
        if not (await scripts.reserve("acme", bucket, id=name, now_ms=MIDNIGHT_MS)).allowed:
            return False
        if int(name.partition("-")[2]) % 2:
            return True
        for _ in range(2):
            await scripts.spend("acme", token=(bucket, name), now_ms=MIDNIGHT_MS)
        return False

    kept = Counter(runner.run(at_once(server, ask)))[True]
    assert 0 < kept <= 100
