"""Test what keepers and API processes say of themselves."""

from msgspec.structs import replace
from redis.asyncio import Redis

from director import __version__
from director.broker import keys
from director.core.clock import SystemClock
from director.store.processes import ALIVE_S, KEPT_S, Presence, Process, Processes


class WrongClock(SystemClock):
    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def server_ms(redis: Redis) -> int:
    seconds, _ = await redis.time()
    return int(seconds) * 1000


async def test_each_process_is_there_once_with_its_release_and_clock(redis: Redis) -> None:
    clock = WrongClock()
    keeper = await Presence(redis, SystemClock(), "keeper").run_once()
    presence = Presence(redis, clock, "api")
    right = await presence.run_once()
    assert (right.version, right.ahead_s) == (__version__, 0)
    clock.ahead_ms = 60_000
    wrong = await presence.run_once()
    assert wrong == replace(right, ahead_s=60)
    assert await Processes(redis).alive(await server_ms(redis)) == [wrong, keeper]


async def test_silent_process_is_left_out_and_later_forgotten(redis: Redis) -> None:
    gone = await Presence(redis, SystemClock(), "keeper").run_once()
    now_ms = await server_ms(redis)
    assert await Processes(redis).alive(now_ms + int(ALIVE_S * 1000) + 2_000) == []
    [(member, at_ms)] = await redis.zrange(keys.processes(), 0, -1, withscores=True)
    await redis.zadd(keys.processes(), {member: at_ms - KEPT_S * 1000 - 2_000})
    there = await Presence(redis, SystemClock(), "keeper").run_once()
    assert await Processes(redis).alive(0) == [there]
    assert there.name != gone.name
    assert 0 < await redis.pttl(keys.processes()) <= KEPT_S * 1000


async def test_signs_from_before_the_clock_went_back_are_forgotten(redis: Redis) -> None:
    clock = WrongClock()
    presence, gone = Presence(redis, clock, "api"), Presence(redis, clock, "keeper")
    clock.ahead_ms = -3_600_000  # as Redis's clock is an hour ahead
    for one in (presence, gone):
        await one.run_once()
    signs = await redis.zrange(keys.processes(), 0, -1, withscores=True)
    await redis.zadd(keys.processes(), {member: at_ms + 3_600_000 for member, at_ms in signs})
    clock.ahead_ms = 0
    right = await presence.run_once()
    assert right.ahead_s == 0
    assert await Processes(redis).alive(await server_ms(redis)) == [right]


async def test_unknown_field_of_a_later_release_is_passed_over(redis: Redis) -> None:
    member = b'{"name":"k","role":"keeper","version":"9","since_ms":1,"ahead_s":0,"mood":"good"}'
    await redis.zadd(keys.processes(), {member: 5})
    await redis.expire(keys.processes(), 60)
    assert await Processes(redis).alive(5) == [Process(name="k", role="keeper", version="9", since_ms=1, ahead_s=0)]
