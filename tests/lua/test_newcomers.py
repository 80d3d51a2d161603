"""An account that comes while others wait is served within a round, whatever runs were charged at their claims."""

import pytest
from msgspec import Struct

from director.broker import keys
from director.core.schema import Claim
from director.core.usage import Used
from tests.support.queue_driver import QueueDriver

SLOTS = 4
LONG = 40_000  # tokens of a prompt
FEW = ("a", "b", "y", "z")  # beside "many": two names before it and two behind it, as names decide between equals


class Traffic(Struct, frozen=True):
    """The runs of all accounts: seconds and reported tokens of each, and what a submit says of it."""

    run_s: float
    used: Used | None = None
    tokens: str = ""
    cost: float = 1


class Play:
    """One server: each end gives its slot to the next claim, which is sent first, as a director does."""

    def __init__(self, driver: QueueDriver, traffic: Traffic) -> None:
        self.driver = driver
        self.traffic = traffic
        self.running: list[Claim] = []

    async def submit(self, account: str, many: int) -> None:
        options = {"tokens": self.traffic.tokens, "cost": self.traffic.cost}
        await self.driver.submit_many(many, account=account, **options)

    async def submit_long(self, account: str, many: int) -> None:
        await self.driver.submit_many(many, account=account, tokens=f"{LONG} ")

    async def fill(self) -> None:
        self.running += await self.driver.claim(SLOTS)

    async def turn(self) -> str:
        """Let the oldest run end that is not of a long prompt. Return the account of the run that follows it."""
        ending = next(claim for claim in self.running if claim.record.account != "long")
        self.running.remove(ending)
        self.driver.pass_time(self.traffic.run_s / SLOTS)
        self.running.append(await self.driver.claim_one())
        used = self.traffic.used
        assert await self.driver.finish(
            ending, ran_ms=round(self.traffic.run_s * 1000), **({} if used is None else {"used": used})
        )
        return self.running[-1].record.account

    async def turns(self, many: int) -> list[str]:
        return [await self.turn() for _ in range(many)]


def tokens(run_s: float, expected: int, *, input_: int = 10, output: int = 5) -> Traffic:
    used = Used(runs=1, ms=round(run_s * 1000), input_tokens=input_, output_tokens=output)
    return Traffic(run_s, used, f"{expected} ")


@pytest.mark.parametrize("ended", [0, 2, 4, 12])  # runs before the newcomers come: the queue is cold, or knows its runs
@pytest.mark.parametrize(
    "traffic",
    [
        tokens(1.6, 28),
        tokens(1.6, 400),
        tokens(0.1, 10, input_=100, output=200),
        Traffic(0.01),
        Traffic(0.01, cost=50),
        Traffic(30.0),
    ],
    ids=["short chats", "few tokens of many bytes", "long chats", "embeddings", "a high cost", "videos"],
)
@pytest.mark.parametrize("each", [1, 3])
async def test_a_newcomer_gets_its_turn_within_a_round(
    driver: QueueDriver, traffic: Traffic, ended: int, each: int
) -> None:
    await driver.have_slots(SLOTS)
    play = Play(driver, traffic)
    await play.submit("many", 60)
    await play.fill()
    await play.turns(ended)
    for account in FEW:
        await play.submit(account, each)
    served = await play.turns(10 + each * len(FEW))
    firsts = {account: served.index(account) for account in FEW}
    print(served)
    assert max(firsts.values()) <= len(FEW), "a round is a turn of each of the five"


async def test_a_newcomer_leaves_turns_to_those_beside_long_prompts(driver: QueueDriver) -> None:
    await driver.have_slots(SLOTS)
    play = Play(driver, tokens(1.6, 10))
    await play.submit("short", 200)
    await play.submit_long("long", 20)
    await play.fill()
    assert "long" in await play.turns(100)
    await play.submit("new", 100)
    served = await play.turns(40)
    print(served)
    assert abs(served.count("new") - served.count("short")) <= 2 * SLOTS


async def test_charges_that_no_release_settles_go_by_themselves(driver: QueueDriver) -> None:
    play = Play(driver, Traffic(1))
    for account in ("a", "b"):
        await play.submit(account, SLOTS)
    await play.fill()
    assert 0 < await driver.redis.pttl(keys.charged(driver.queue, "normal")) <= 7 * 24 * 3600 * 1000
