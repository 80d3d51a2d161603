"""Play the depth bench small: it measures both queues and leaves them unchanged. The test judges no times."""

import pytest

from tests.bench.depth import DepthOptions, depth_figures

pytestmark = pytest.mark.heavy


@pytest.mark.anyio
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
