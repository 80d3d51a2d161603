"""An idempotency key stands for one prediction. Only its binder can pass it on."""

import pytest

from director.broker import keys
from director.broker.scripts import IDEMPOTENCY_TTL_MS, Scripts
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, new_prediction_id
from tests.support.queue_driver import ACCOUNT, MODEL, START_MS, QueueDriver

KEY = ("digest", "print")


async def bind(scripts: Scripts, new: PredictionId | None, *, instead_of: PredictionId | None = None) -> object:
    held = await scripts.bind(new, account=ACCOUNT, model=MODEL, idempotency=KEY, instead_of=instead_of)
    return held and held[:2]


async def test_only_the_first_binder_can_pass_on_or_free_the_key(driver: QueueDriver) -> None:
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


async def test_a_bound_prediction_is_accepted_under_the_same_key(driver: QueueDriver) -> None:
    bound = driver.new_id()
    await bind(driver.scripts, bound)
    assert await driver.submit(bound, idempotency=KEY) == bound
    assert await driver.submit(idempotency=KEY) == bound


async def test_key_age_follows_the_servers_clock(driver: QueueDriver) -> None:
    first = new_prediction_id(model=MODEL, now_ms=0)
    key = keys.idempotency(account=ACCOUNT, model=MODEL, digest=KEY[0])
    await bind(driver.scripts, first)
    await driver.redis.pexpire(key, IDEMPOTENCY_TTL_MS - 5_000)
    held = await driver.scripts.bind(driver.new_id(), account=ACCOUNT, model=MODEL, idempotency=KEY, instead_of=None)
    assert 5_000 <= held.age_ms < 60_000


async def test_a_prediction_that_lost_its_key_is_refused(driver: QueueDriver) -> None:
    late, later, last = (new_prediction_id(model=MODEL, now_ms=START_MS + each) for each in range(3))
    await bind(driver.scripts, late)
    assert await bind(driver.scripts, later, instead_of=late) is None
    with pytest.raises(BackendUnavailable) as refused:
        await driver.submit(late, idempotency=KEY, bound=True)
    assert not refused.value.is_untouched, "it is not to be tried elsewhere"
    assert await driver.members(keys.live(driver.queue)) == {}
    assert await driver.submit(last, idempotency=KEY, bound=True) == last, "the one between was never there"
