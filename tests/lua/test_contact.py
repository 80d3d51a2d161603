"""contact measures for how long keepers have reached one run of the server without a break."""

from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts

NOW = 1_800_000_000_000


async def hear(scripts: Scripts, at_s: float, run_id: str = "a") -> float:
    now_ms, lasted_s = await scripts.contact(run_id, silence_s=7.5, now_ms=NOW + int(at_s * 1000))
    assert now_ms == NOW + int(at_s * 1000)
    return lasted_s


async def test_contact_lasts_while_any_keeper_hears_the_server(scripts: Scripts) -> None:
    assert [await hear(scripts, at_s) for at_s in (0, 5, 12.5, 20)] == [0, 5, 12.5, 20]


async def test_a_longer_silence_restarts_contact(scripts: Scripts) -> None:
    await hear(scripts, 0)
    assert await hear(scripts, 7.501) == 0
    assert await hear(scripts, 8.501) == 1


async def test_another_run_of_the_server_restarts_contact(scripts: Scripts) -> None:
    await hear(scripts, 0)
    assert await hear(scripts, 5, "b") == 0


async def test_no_contact_remains_after_the_last_keeper_leaves(scripts: Scripts, redis: Redis) -> None:
    await hear(scripts, 0)
    assert 0 < await redis.pttl(keys.contact()) <= 31_000


async def test_a_large_clock_step_back_restarts_contact(scripts: Scripts) -> None:
    await hear(scripts, 0)
    assert await hear(scripts, 5) == 5
    assert await hear(scripts, -600) == 0
    assert await hear(scripts, -599) == 1


async def test_a_small_clock_step_back_does_not_lengthen_contact(scripts: Scripts) -> None:
    await hear(scripts, 0)
    assert await hear(scripts, -3) == 0
    assert await hear(scripts, -1) == 2
