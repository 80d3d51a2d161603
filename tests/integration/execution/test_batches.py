"""Test how many predictions a director claims at once and in which order: by the batch cost and by warm keys."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from director.broker.scripts import Scripts
from director.core.ids import PredictionId, QueueName
from director.execution.consumer import MOST_SKIPS
from tests.support.cog import cog_server
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live

pytestmark = pytest.mark.cog

ONE, OTHER = "a" * 16, "b" * 16


async def claimed_in_order(caller: Caller, *asked: PredictionId) -> list[PredictionId]:
    at = {}
    for each in asked:
        await caller.ended(each)
        at[each] = (await caller.record(each)).claimed or 0
    return sorted(asked, key=lambda each: at[each])


async def test_warm_predictions_go_first_but_not_forever(caller: Caller, live: Live) -> None:
    keys = [ONE, OTHER, *[ONE] * (MOST_SKIPS + 2)]
    asked = [await caller.submit(n=0, affinity=key) for key in keys]
    async with live.director() as director:
        order = await claimed_in_order(caller, *asked)
    assert order.index(asked[1]) == 1 + MOST_SKIPS
    changes = 2  # to the other key and back; the very first prediction met no warm server
    tally = (await caller.scripts.stats(caller.queue)).tally
    assert tally["warm"] + tally["cold"] == len(keys)
    assert tally["cold"] == 1 + changes
    assert director.figures["warm_hit_ratio"] == f"{(len(keys) - 1 - changes) / len(keys):.3f}"


async def test_predictions_without_a_key_keep_their_order(caller: Caller, live: Live, cog_url: str) -> None:
    asked = [await caller.submit(n=0) for _ in range(5)]
    async with live.director():
        assert await claimed_in_order(caller, *asked) == asked
    assert not {"warm", "cold"} & set((await caller.scripts.stats(caller.queue)).tally)


async def test_cost_at_once_exceeds_the_batch_only_for_a_single_prediction(
    caller: Caller, live: Live, cog_url: str, second_cog_url: str, tmp_path: Path
) -> None:
    gates = [Gate(tmp_path / str(number)) for number in range(5)]
    costs = (1, 2, 2, 9, 1)
    asked = [await caller.submit(n=0, gate=str(gate), cost=cost) for gate, cost in zip(gates, costs, strict=True)]

    async def run_now(*numbers: int) -> None:
        """Check that only these run: the next one does not fit beside them."""
        for number in numbers:
            await caller.shows(asked[number], status="processing")
        running = {each for each in asked if (await caller.record(each)).token}
        assert running == {asked[number] for number in numbers}

    async def ends(number: int) -> None:
        gates[number].open()
        await caller.ended(asked[number])

    async with live.director(cog_url, second_cog_url, batch_cost=3):
        await run_now(0, 1)
        await ends(0)
        await run_now(1)
        await ends(1)
        await run_now(2)
        await ends(2)
        await run_now(3)
        await ends(3)
        await run_now(4)
        await ends(4)
    runs = [await caller.record(each) for each in asked]
    for run in runs:
        beside = [other for other in runs if (other.claimed or 0) <= (run.claimed or 0) < (other.completed or 0)]
        assert len(beside) == 1 or sum(other.cost for other in beside) <= 3
    tally = (await caller.scripts.stats(caller.queue)).tally
    assert tally["batch_oversize"] == 1
    await caller.nothing_is_left()


async def test_slots_beyond_the_batch_are_not_used(
    caller: Caller, live: Live, cog_url: str, second_cog_url: str, gate: Gate
) -> None:
    asked = [await caller.submit(n=0, gate=str(gate)) for _ in range(3)]
    async with live.director(cog_url, second_cog_url, batch_size=1) as director:
        await caller.shows(asked[0], status="processing")
        assert director.servers.permits.busy == 1
        assert [bool((await caller.record(each)).token) for each in asked] == [True, False, False]
        gate.open()
        for each in asked:
            await caller.ended(each)


def counted_claims(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, list[int]]:
    """Record from now on how many predictions each call returns, by director."""
    calls: defaultdict[str, list[int]] = defaultdict(list)
    claim = Scripts.claim

    async def counting(self: Scripts, queue: QueueName, *, consumer: str, **options: Any) -> Any:
        claims = await claim(self, queue, consumer=consumer, **options)
        calls[consumer].append(len(claims))
        return claims

    monkeypatch.setattr(Scripts, "claim", counting)
    return calls


@pytest.mark.parametrize("cost", [2, 3], ids=["nearly full", "full"])
async def test_idle_director_starts_at_once_what_a_full_director_cannot(
    caller: Caller,
    live: Live,
    cog_url: str,
    second_cog_url: str,
    folder: Path,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    cost: float,
) -> None:
    for name in ("broker.news.LEAST_S", "broker.news.LONGEST_S", "execution.main.LONGEST_S"):
        monkeypatch.setattr(f"director.{name}", 60.0)  # a poll would be too late for this test
    async with (
        cog_server(folder) as third_cog_url,
        live.director(cog_url, second_cog_url, batch_cost=3) as busy,
    ):
        await eventually(lambda: sum(server.can_run for server in busy.servers.all) == 2, "both servers are ready")
        first = await caller.submit(n=1, gate=str(gate), cost=cost)
        await caller.shows(first, output=["a0"])
        asked = counted_claims(monkeypatch)
        async with live.director(third_cog_url, batch_cost=3) as idle:
            await eventually(lambda: asked[idle.name], "it waits at the bell, behind the busy one")
            second = await caller.submit(n=1, cost=2)
            await caller.ended(second)
            assert (await caller.record(second)).holder == idle.name
            assert asked[busy.name] in ([], [0]), "who has no room does not ask again and again"
            gate.open()
            await caller.ended(first)
