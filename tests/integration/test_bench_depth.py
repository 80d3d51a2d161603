"""`director bench depth`, small: it measures both queues and leaves them as they were. No time is judged here."""

import pytest

from director.bench.depth import DepthOptions, depth

pytestmark = pytest.mark.heavy


@pytest.mark.anyio
async def test_it_fills_one_queue_and_leaves_it_as_full_and_the_other_as_empty_as_they_were() -> None:
    lines: list[str] = []

    def say(text: str) -> None:
        lines.extend(text.splitlines())

    await depth(DepthOptions(waiting=3_000, tenants=10, rounds=20), say)
    assert "then 3,000 waited in the full queue and 0 in the empty one" in lines
    assert {line.split()[0] for line in lines if line.lstrip().startswith(("enqueue", "claim", "finish"))} == {
        "enqueue",
        "claim",
        "finish",
    }
    [memory] = [line for line in lines if "memory of a waiting prediction" in line]
    assert memory.startswith("PASS")
