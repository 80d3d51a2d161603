"""Play the benches of fairness and depth small: the queue passes, and an unfair queue does not."""

from typing import Any

import pytest
from msgspec.structs import replace

from director.broker.replies import Accepted, Claims
from director.broker.scripts import Scripts
from director.core.schema import NewPrediction
from tests.bench.depth import DepthOptions, depth_figures
from tests.bench.fairness import FairnessOptions, fairness_figures

pytestmark = pytest.mark.heavy

OVER_ALL = "worst wait of a light"


class OneLine(Scripts):
    """Files every prediction under the same account."""

    async def enqueue(self, prediction: NewPrediction, **given: Any) -> Accepted:
        return await super().enqueue(replace(prediction, account="everybody"), **given)


class NoClaims(Scripts):
    """Never hands anything out."""

    async def claim(self, *_: Any, **__: Any) -> Claims:
        return Claims()


async def judged(scripts: type[Scripts] = Scripts, *, salts: int = 1) -> dict[str, bool]:
    """Return the name of each figure and whether it keeps its bound."""
    options = FairnessOptions(salts=salts, batch=500)
    return {figure.name: figure.ok for figure in await fairness_figures(options, lambda _: None, scripts)}


async def test_queue_is_fair_even_to_a_light_without_its_own_stream() -> None:
    found = await judged(salts=2)
    assert all(found.values()), found
    for name in (OVER_ALL, "… of one with no stream", "salts with such", "Jain's", "error of a share", "oldest low"):
        assert any(judged_name.startswith(name) for judged_name in found), name


async def test_one_line_for_all_fails_on_waits_and_weights() -> None:
    failed = [name for name, ok in (await judged(OneLine)).items() if not ok]
    assert any(name.startswith(OVER_ALL) for name in failed)
    assert any(name.startswith("error of a share") for name in failed)


async def test_queue_that_hands_nothing_out_passes_nowhere() -> None:
    assert [name for name, ok in (await judged(NoClaims)).items() if ok] == ["salts with such a light"]


async def test_depth_bench_leaves_both_queues_as_full_as_before() -> None:
    lines: list[str] = []

    def say(text: str) -> None:
        lines.extend(text.splitlines())

    figures = await depth_figures(DepthOptions(waiting=3_000, tenants=10, rounds=20), say)
    assert "then 3,000 waited in the full queue and 0 in the empty one" in lines
    assert {line.split()[0] for line in lines if line.lstrip().startswith(("enqueue", "claim", "finish"))} == {
        "enqueue",
        "claim",
        "finish",
    }
    [memory] = [figure for figure in figures if figure.name.startswith("memory of a waiting prediction")]
    assert memory.ok
