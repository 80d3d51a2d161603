"""A batch does what its items do one by one: same answers, same order of hand-outs, same keys and counters."""

import asyncio
import random
from collections.abc import Awaitable, Iterable
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.errors import IdempotencyMismatch, QueueRefused
from director.core.ids import PredictionId, queue_name
from director.core.policy import Policy
from director.core.schema import Claim
from tests.support.kinds import Started
from tests.support.queue_driver import MODEL, VERSION, QueueDriver

QUEUE: Final = queue_name(MODEL, VERSION)
TENANTS: Final = ("whale", "ant", "bee", "cat", "dog")
STEPS: Final = 14
# entry ids are of the server's clock; a token and a remembered claim name the call
NOT_COMPARED: Final = {b"mid", b"token", b"ended"}


class Player:
    """Play a random script of one queue, with the items of a step in one batch or one by one. `ids`: of all plays."""

    def __init__(self, driver: QueueDriver, seed: int, ids: list[PredictionId], *, in_batches: bool) -> None:
        self.driver = driver
        self.ids = ids
        self.dice = random.Random(seed)
        self.in_batches = in_batches
        self.claims: list[Claim] = []
        self.asked: list[PredictionId] = []
        self.answers: list[object] = []

    async def play(self) -> None:
        has_lanes, has_limits = self.dice.random() < 0.5, self.dice.random() < 0.5
        mode = self.dice.choice(("absorb", "absorb", "bounded", "reject"))
        await self.driver.bound(mode, 20 if mode == "bounded" else None)
        await self.driver.have_slots(self.dice.choice((1, 4, 40)))
        for _ in range(STEPS):
            step = self.dice.choice(("submit", "submit", "claim", "claim", "finish", "cancel", "pause"))
            if step == "submit":
                wishes = [self._wish(has_lanes, has_limits) for _ in range(self.dice.choice((1, 2, 7, 32, 40)))]
                self.answers += await self._all(self._submit(**wish) for wish in wishes)
            elif step == "claim":
                await self._claim(self.dice.choice((1, 3, 16)), warm=self.dice.choice(("", "", "0" * 16)))
            elif step == "finish":
                self.dice.shuffle(self.claims)
                count = self.dice.choice((1, 5, 32))
                ended, self.claims = self.claims[:count], self.claims[count:]
                self.answers += await self._all(map(self._finish, [*ended, *ended[:1]]))
            elif step == "cancel" and self.asked:
                await self.driver.cancel(self.dice.choice(self.asked), account=self.dice.choice(TENANTS))
            else:
                await self.driver.pause(paused=self.dice.random() < 0.5, account=self.dice.choice(TENANTS))
            self.driver.pass_time(self.dice.choice((0.0, 0.5, 3.0)))
        await self.drain()

    async def drain(self) -> None:
        for tenant in TENANTS:
            await self.driver.pause(paused=False, account=tenant)
        while self.claims or (await self.driver.stats()).waiting:
            await self._claim(5)
            self.answers += await self._all(map(self._finish, self.claims))
            self.claims.clear()

    async def _all(self, calls: Iterable[Awaitable[object]]) -> list[object]:
        if self.in_batches:
            return await asyncio.gather(*calls)
        return [await call for call in calls]

    def _wish(self, has_lanes: bool, has_limits: bool) -> dict[str, Any]:
        if len(self.asked) == len(self.ids):
            self.ids.append(self.driver.new_id())
        is_repeated = self.asked and self.dice.random() < 0.05
        prediction_id = self.asked[-1] if is_repeated else self.ids[len(self.asked)]
        self.asked.append(prediction_id)
        wish: dict[str, Any] = {
            "prediction_id": prediction_id,
            "account": self.dice.choice(TENANTS),
            "streams": self.dice.sample(range(16), 2),
            "cost": self.dice.choice((1, 1, 2, 7)),
            "lane": self.dice.choice(("normal", "high", "low")) if has_lanes else "normal",
            "affinity": self.dice.choice(("", "", "0" * 16)),
        }
        if has_limits:
            wish |= {
                "weight": self.dice.choice((1, 2)),
                "most_running": self.dice.choice((None, 3)),
                "most_queued": self.dice.choice((None, None, 12)),
                "lifetime_ms": self.dice.choice((None, 2_000, 60_000)),
                "start_by_ms": self.dice.choice((None, None, 9_000)),
            }
        if self.dice.random() < 0.1:
            wish["idempotency"] = (self.dice.choice("ab") * 32, self.dice.choice("cd") * 32)
        return wish

    async def _submit(self, **wish: Any) -> object:
        try:
            return await self.driver.submit(**wish)
        except QueueRefused as refused:
            return refused.code, refused.limit, refused.retry_after_s, refused.eta_s
        except IdempotencyMismatch:
            return "mismatch"

    async def _claim(self, count: int, *, warm: str = "") -> None:
        if self.in_batches:
            claims: list[Claim] = list(await self.driver.claim(count, warm=warm))
        else:
            claims = []
            while len(claims) < count and (one := await self.driver.claim(warm=warm)):
                claims += one
        self.answers.append([claim.id for claim in claims])
        self.claims += claims

    async def _finish(self, claim: Claim) -> object:
        return await self.driver.finish(claim, output=b"1", ran_ms=400)


async def everything(redis: Any) -> dict[str, Any]:
    """Return all keys by value, without what names a moment of the server's own clock or a call."""
    found: dict[str, Any] = {}
    for name in await redis.keys("*"):
        kind = (await redis.type(name)).decode()
        key = name.decode()
        if key.endswith(":last"):
            continue
        lasts: object = await redis.pttl(name) > 0
        value: Any
        if kind == "hash":
            value = {
                field: _number(text)
                for field, text in (await redis.hgetall(name)).items()
                if field not in NOT_COMPARED and not (field.startswith(b"ready:") and _number(text) == 0)
            }
        elif kind == "zset":
            value = {member: _number(score) for member, score in await redis.zrange(name, 0, -1, withscores=True)}
        elif kind == "stream":
            value = [sorted(fields.items()) for _, fields in await redis.xrange(name)]
            value = sorted(value) if ":log" in key else value
        elif kind == "list":
            value = await redis.lrange(name, 0, -1)
        else:
            value = await redis.get(name)
        found[key] = (lasts, value)
    return found


def _number(text: object) -> object:
    """Return a sum of seconds as a number that is compared up to its rounding; other values as they are."""
    try:
        number = float(text)  # type: ignore[arg-type]
    except ValueError:
        return text
    return number if number.is_integer() else pytest.approx(number, rel=1e-9, abs=1e-9)


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[object]:
    found: list[object] = []
    for name in sorted(one.keys() | other.keys()):
        ours, theirs = one.get(name), other.get(name)
        if ours != theirs and ours and theirs and isinstance(ours[1], dict) and isinstance(theirs[1], dict):
            fields = ours[1].keys() | theirs[1].keys()
            found += [(name, f, ours[1].get(f), theirs[1].get(f)) for f in fields if ours[1].get(f) != theirs[1].get(f)]
        elif ours != theirs:
            found.append((name, ours, theirs))
    return found


@pytest.mark.parametrize("seed", range(60))
async def test_batch_equals_its_items_one_by_one(server: Started, redis: Redis, seed: int) -> None:
    told: list[list[object]] = []
    kept: list[dict[str, Any]] = []
    ids: list[PredictionId] = []
    for in_batches in (False, True):
        await redis.flushall()
        gatherer = Gatherer(client(server.url))
        driver = QueueDriver(redis, Scripts(gatherer), QUEUE)
        await driver.scripts.register(QUEUE, version=VERSION, policy=Policy())
        player = Player(driver, seed, ids, in_batches=in_batches)
        await player.play()
        told.append(player.answers)
        kept.append(await everything(redis))
        await gatherer.aclose()
        await gatherer.redis.aclose()
    assert told[1] == told[0]
    assert differences(*kept) == []
