"""A claim with a warm key takes a prediction with that key first, within the account that has the turn."""

from collections import Counter

import pytest

from director.core.ids import PredictionId
from tests.support.queue_driver import QueueDriver

WARM, COLD = "a" * 16, "b" * 16


async def filled(driver: QueueDriver, *affinities: str, account: str = "acme") -> list[PredictionId]:
    """Submit predictions that wait for their turn behind one that is ready."""
    if (await driver.stats()).waiting == 0:
        await driver.submit(account="stranger")
    return [await driver.submit(account=account, affinity=key) for key in affinities]


async def warm_claim(driver: QueueDriver, warm: str = WARM) -> PredictionId:
    return (await driver.claim_one(warm=warm)).id


@pytest.mark.parametrize(
    ("affinities", "warm", "order"),
    [
        ([COLD, "", WARM, COLD, WARM], WARM, [2, 4, 0, 1, 3]),
        ([COLD, WARM, WARM, WARM], WARM, [1, 2, 3, 0]),
        ([COLD, *[WARM] * 5], WARM, [1, 2, 3, 4, 5, 0]),
        ([COLD, WARM, "", WARM], "", [0, 1, 2, 3]),
        ([*[COLD] * 8, WARM], WARM, [0, 8, 1, 2]),
    ],
    ids=["warm first", "oldest warm first", "others follow", "no warm key", "only the first eight are checked"],
)
async def test_the_oldest_prediction_with_the_warm_key_goes_first(
    driver: QueueDriver, affinities: list[str], warm: str, order: list[int]
) -> None:
    ids = await filled(driver, *affinities)
    await driver.claim_one()
    assert [await warm_claim(driver, warm=warm) for _ in order] == [ids[number] for number in order]


async def test_a_warm_key_never_takes_another_tenants_turn(driver: QueueDriver) -> None:
    await filled(driver, *[WARM] * 20, account="warm")
    await filled(driver, *[COLD] * 20, account="cold")
    await driver.claim_one()
    served = Counter([(await driver.claim_one(warm=WARM)).record.account for _ in range(20)])
    assert served == {"warm": 10, "cold": 10}


async def test_a_skipped_prediction_keeps_its_place_for_other_directors(driver: QueueDriver) -> None:
    first = await driver.submit(account="stranger", affinity=COLD)
    ids = await filled(driver, COLD, WARM, COLD, WARM)
    assert await warm_claim(driver) == first, "a ready entry goes before warm ones"
    assert await warm_claim(driver) == ids[1]
    assert await driver.backlog() == [ids[0], *ids[2:]]
    assert (await driver.claim_one(consumer="d2", warm=COLD)).id == ids[0]


async def test_a_released_prediction_is_warm_again(driver: QueueDriver) -> None:
    ids = await filled(driver, COLD, WARM, COLD)
    await driver.claim_one()
    claim = await driver.claim_one(warm=WARM)
    await driver.release(claim)
    assert await driver.backlog() == [ids[0], ids[1], ids[2]]
    assert await warm_claim(driver) == claim.id


async def test_warm_and_cold_starts_are_counted_only_with_a_key(driver: QueueDriver) -> None:
    await filled(driver, COLD, WARM, "", WARM)
    await driver.claim_one()
    await driver.claim(9, warm=WARM)
    tally = (await driver.stats()).tally
    assert (tally["warm"], tally["cold"]) == (2, 1)


async def test_a_warm_prediction_that_does_not_fit_ends_the_batch(driver: QueueDriver) -> None:
    await driver.submit(account="stranger")
    small, large = await driver.submit(affinity=COLD, cost=1), await driver.submit(affinity=WARM, cost=9)
    await driver.claim_one()
    claims = await driver.claim(9, warm=WARM, budget=5, alone=False)
    assert (claims, claims.why) == ([], "budget")
    assert [claim.id for claim in await driver.claim(9, warm=WARM, budget=10)] == [large, small]
