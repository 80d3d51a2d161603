"""Where the server reports tokens, turns go by tokens: output counts twice, as in VTC (Sheng et al., OSDI 2024)."""

import itertools
from typing import Final

import pytest
from msgspec import Struct

from director.broker import keys
from director.core.schema import Claim
from director.core.usage import Used, estimate_tokens
from tests.support.queue_driver import QueueDriver

SLOTS: Final = 16
LONG, SHORT, OUTPUT = 40_000, 400, 200  # tokens: prompts that differ by a factor of 100
PROMPTS: Final = {"long": LONG, "short": SHORT}
ENDS: Final = 1_500


def weighed(used: Used) -> int:
    return used.input_tokens + 2 * used.output_tokens


class Shares(Struct):
    """Weighed tokens that each account was served, and the most by which they ever differed."""

    long: int
    short: int
    apart: int
    runs: dict[str, int]


async def served(driver: QueueDriver, *, reports: bool, estimated: float = 1.0) -> Shares:
    """Serve two accounts with deep backlogs on a server of 16 slots. A run takes a second, whatever its prompt is: a
    server that batches is as busy with either. `estimated`: the tokens that the API expects, compared with the true.
    """
    await driver.have_slots(SLOTS)
    ends: dict[str, int] = dict.fromkeys(PROMPTS, 0)
    totals: dict[str, int] = dict.fromkeys(PROMPTS, 0)
    numbers, waiting, apart = itertools.count(), dict.fromkeys(PROMPTS, 0), 0
    running: list[Claim] = []
    await learn(driver, reports=reports)
    for end in range(ENDS):
        for account, prompt in PROMPTS.items():
            while waiting[account] < 3 * SLOTS:
                tokens = f"{int(prompt * estimated)} "
                await driver.submit(account=account, tokens=tokens, affinity=f"{next(numbers)}")
                waiting[account] += 1
        claims = await driver.claim(SLOTS - len(running))
        for claim in claims:
            waiting[claim.record.account] -= 1
        running += claims
        claim = running.pop(0)
        account = claim.record.account
        driver.pass_time(1 / SLOTS)
        used = Used(runs=1, ms=1_000, input_tokens=PROMPTS[account], output_tokens=OUTPUT)
        assert await driver.finish(claim, ran_ms=1_000, used=used if reports else Used(runs=1, ms=1_000))
        ends[account] += 1
        totals[account] += weighed(used)
        if end == SLOTS:  # what went into free slots before both waited had no turn
            ends, totals = dict.fromkeys(PROMPTS, 0), dict.fromkeys(PROMPTS, 0)
        if end >= SLOTS:
            apart = max(apart, abs(totals["long"] - totals["short"]))
    return Shares(long=totals["long"], short=totals["short"], apart=apart, runs=ends)


async def learn(driver: QueueDriver, *, reports: bool) -> None:
    """Let the queue see a run of a server that reports tokens, or of one that does not."""
    claim = await driver.claimed(account="first")
    used = Used(runs=1, ms=1_000, input_tokens=10, output_tokens=OUTPUT)
    driver.pass_time(1)
    await driver.finish(claim, ran_ms=1_000, used=used if reports else Used(runs=1, ms=1_000))


@pytest.mark.parametrize("estimated", [1.0, 0.25, 4.0])
async def test_tokens_of_two_accounts_differ_by_at_most_what_the_slots_hold(
    driver: QueueDriver, estimated: float
) -> None:
    shares = await served(driver, reports=True, estimated=estimated)
    holds = SLOTS * (LONG + 2 * OUTPUT)
    print(f"{shares}: {shares.apart / holds:.2f} of {holds:,}, {shares.short / shares.long:.3f} of equal")
    assert shares.apart <= holds
    assert shares.runs["short"] > 20 * shares.runs["long"]


async def test_seconds_decide_where_no_tokens_are_reported(driver: QueueDriver) -> None:
    shares = await served(driver, reports=False)
    print(shares)
    assert abs(shares.runs["long"] - shares.runs["short"]) <= SLOTS
    assert shares.long > 20 * shares.short, "by tokens it is unfair"


@pytest.mark.parametrize(("output", "charged"), [(3, 14), (900, 18)])
async def test_a_run_without_an_end_is_charged_at_least_what_was_expected(
    driver: QueueDriver, output: int, charged: float
) -> None:
    await driver.have_slots(1)
    await learn(driver, reports=True)
    for account in ("stranger", "a", "b"):
        await driver.submit_many(4, account=account, tokens="1000 ")
    while (first := await driver.claim_one()).record.account != "a":
        pass
    assert await driver.field(first.id, "charged") == "14", "(1000 + 2 × 200) × 10 ms"
    await driver.begin(first)
    before = await driver.redis.zscore(keys.vtime(driver.queue, "normal"), "a")
    await driver.release(first, spent=True, used=Used(runs=1, ms=10, output_tokens=output))
    after = await driver.redis.zscore(keys.vtime(driver.queue, "normal"), "a")
    assert after - before == charged - 14


def test_an_input_says_what_is_expected_of_it() -> None:
    assert estimate_tokens(b'{"prompt":"' + b"x" * 400 + b'","max_tokens":7}') == "107 7"
    assert estimate_tokens(b'{"max_new_tokens":9,"max_tokens":null}') == "9 9"
    assert estimate_tokens(b'{"max_tokens":"many"}') == "5 "
    assert estimate_tokens(b'{"image":"data:image/png;base64,' + b"x" * 4_000 + b'","prompt":"what?"}') == "6 "
    assert estimate_tokens(b"[1]") == "0 "
    assert estimate_tokens(b'{"max_tokens":7,"a":"data:,' + b"x" * 400_000 + b'","b":"' + b"x" * 8 + b'"}') == "9 "
