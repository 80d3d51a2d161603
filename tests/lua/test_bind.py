"""An idempotency key stands for one prediction, and for another one only by whoever knows which."""

import pytest

from director.core import keys
from director.core.ids import PredictionId
from director.core.scripts import Scripts
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver

pytestmark = pytest.mark.anyio

KEY = ("digest", "print")


async def bind(scripts: Scripts, new: PredictionId | None, *, instead_of: PredictionId | None = None) -> object:
    return await scripts.bind(new, account=ACCOUNT, model=MODEL, idempotency=KEY, instead_of=instead_of)


async def test_the_first_has_it_and_alone_may_hand_it_on_or_free_it(driver: QueueDriver) -> None:
    first, second, third = (driver.new_id() for _ in range(3))
    key = keys.idempotency(account=ACCOUNT, model=MODEL, digest=KEY[0])
    assert await bind(driver.scripts, first) is None
    assert await bind(driver.scripts, first) is None, "a lost reply makes it run twice"
    assert await bind(driver.scripts, second) == (first, "print")
    assert await bind(driver.scripts, second, instead_of=third) == (first, "print")
    assert await bind(driver.scripts, None, instead_of=second) == (first, "print")
    assert await bind(driver.scripts, second, instead_of=first) is None
    assert await bind(driver.scripts, second, instead_of=first) is None
    assert await bind(driver.scripts, None, instead_of=first) == (second, "print")
    assert await driver.redis.get(key) == f"{second} print".encode()
    assert 0 < await driver.redis.pttl(key) <= 86_400_000
    assert await bind(driver.scripts, None, instead_of=second) is None
    assert await driver.redis.get(key) is None
    assert await bind(driver.scripts, None, instead_of=second) is None


async def test_what_was_bound_is_then_accepted_under_the_same_key(driver: QueueDriver) -> None:
    bound = driver.new_id()
    await bind(driver.scripts, bound)
    assert await driver.submit(bound, idempotency=KEY) == bound
    assert await driver.submit(idempotency=KEY) == bound
