"""contact measures for how long keepers have reached one run of the server without a break."""

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts

NOW = 1_800_000_000_000


async def hear(scripts: Scripts, at_s: float, run_id: str = "a") -> float:
    now_ms, lasted_s = await scripts.contact(run_id, silence_s=7.5, now_ms=NOW + int(at_s * 1000))
    assert now_ms == NOW + int(at_s * 1000)
    return lasted_s


@pytest.mark.parametrize(
    ("heard_at_s", "lasted_s"),
    [
        ((0, 5, 12.5, 20), [0, 5, 12.5, 20]),
        ((0, 7.501, 8.501), [0, 0, 1]),
        ((0, 5, -600, -599), [0, 5, 0, 1]),
        ((0, -3, -1), [0, 0, 2]),
    ],
    ids=["any keeper", "longer silence", "large clock step back", "small clock step back"],
)
async def test_contact_lasts_until_a_silence_or_a_large_clock_step_back(
    scripts: Scripts, redis: Redis, heard_at_s: tuple[float, ...], lasted_s: list[float]
) -> None:
    assert [await hear(scripts, at_s) for at_s in heard_at_s] == lasted_s
    assert 0 < await redis.pttl(keys.contact()) <= 31_000, "it ends after the last keeper"


async def test_another_run_of_the_server_restarts_contact(scripts: Scripts) -> None:
    await hear(scripts, 0)
    assert await hear(scripts, 5, "b") == 0
