"""`director usage` and `director model price`: what accounts used, as a table and as a CSV, and what it costs."""

import csv
import io
import json

from director.cli.usage import as_csv
from director.core.usage import Used
from tests.integration.cli.conftest import Operator
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver

RUN = Used(runs=1, ms=2_500, input_tokens=1_000_000, cached_tokens=0, output_tokens=2_000)
MONTH = "2027-01"  # of the driver's clock


async def run(driver: QueueDriver, **options: str) -> None:
    await driver.finish(await driver.claimed(**options), used=RUN)


async def test_usage_of_a_month_is_a_csv_that_a_spreadsheet_opens(operator: Operator, driver: QueueDriver) -> None:
    await run(driver)
    await run(driver, account="other")
    await run(driver, account="other")
    text = await operator.types("usage", "--by", "account,model", "--month", MONTH, "--csv")
    assert list(csv.reader(io.StringIO(text, newline=""))) == [
        ["account", "model", "runs", "seconds", "input_tokens", "cached_tokens", "output_tokens", "file_bytes", "cost"],
        [ACCOUNT, MODEL, "1", "2.5", "1000000", "0", "2000", "0", ""],
        ["other", MODEL, "2", "5.0", "2000000", "0", "4000", "0", ""],
    ]
    assert text.count("\r\n") == 3


def test_no_cell_of_a_csv_is_a_formula() -> None:
    evil = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", 'say "hi", you', "two\nlines", "plain", -1]
    [_, row] = csv.reader(io.StringIO(as_csv(["a"] * len(evil), [evil]), newline=""))
    assert row == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "'\r=1", 'say "hi", you', "two\nlines", "plain", "-1"]


async def test_a_price_turns_usage_into_money_afterwards(operator: Operator, driver: QueueDriver) -> None:
    await run(driver)
    assert await operator.types("model", "price", MODEL) == f"{MODEL} has no price\n"
    await operator.types("model", "price", MODEL, "--input", "0.5", "--output", "9")
    await operator.types("model", "price", MODEL, "--output", "10")
    assert json.loads(await operator.types("model", "price", MODEL, "--json"))["price"] == {
        "input": 0.5,
        "output": 10.0,
    }
    [row] = json.loads(await operator.types("usage", "--month", MONTH, "--json"))["results"]
    assert (row["account"], row["cost"]) == (ACCOUNT, 0.52)
    await operator.types("model", "price", MODEL, "--none")
    [row] = json.loads(await operator.types("usage", "--month", MONTH, "--json", "--by", "model"))["results"]
    assert row["cost"] is None


async def test_what_cannot_be_is_refused(operator: Operator, driver: QueueDriver) -> None:
    for line, says in [
        (("usage", "--by", "color"), "--by takes account, model, day, token"),
        (("usage", "--month", "2027-13"), "is no month"),
        (("usage", "--account", "stranger"), "there is no account stranger"),
        (("model", "price", MODEL, "--input", "-1"), "input is a number from 0"),
        (("model", "price", MODEL, "--input", "nan"), "input is a number from 0"),
        (("model", "price", "acme/unknown", "--run", "1"), "acme/unknown"),
        (("model", "price", MODEL, "--run", "1", "--none"), "give prices, or --none"),
    ]:
        assert says in await operator.is_told(*line)
    assert await operator.types("usage", "--month", MONTH) == "nothing ran from 2027-01-01 to 2027-01-31\n"
