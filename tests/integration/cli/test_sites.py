"""Test commands of an API with several sites: what they add up, and what they say while a site is away."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from director.core.clock import SystemClock
from director.core.ids import new_prediction_id
from director.core.policy import Policy
from director.core.usage import Price, Used
from director.store.accounts import ROLES
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.ledger import Ledger
from tests.integration.cli.conftest import Operator
from tests.support.api import live_api
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver, enqueue
from tests.support.sites import Place, sites_file, two_places

RUN: Final = Used(runs=1, ms=2_000, input_tokens=1_000, output_tokens=10)
FAR: Final = "acme/far"  # a model of the other site only


@pytest.fixture
async def places(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Place]]:
    async with two_places(monkeypatch) as found:
        for each in found.values():
            each.driver.now_ms = SystemClock().now_ms()
            await each.driver.finish(await each.driver.claimed(), used=RUN)
        yield found


@pytest.fixture
async def url(places: dict[str, Place], tmp_path: Path) -> AsyncIterator[str]:
    path = sites_file(tmp_path, list(places))
    async with live_api(places["eu"].server.url, env={"DIRECTOR_SITES": str(path)}) as api:
        yield api.url


async def see(places: dict[str, Place], url: str, capsys: pytest.CaptureFixture[str], scope: str) -> Operator:
    scopes = ROLES["viewer"] if scope == "view" else ("read",)
    token = await places["eu"].accounts.create_token(ACCOUNT, scopes=scopes)
    return Operator(capsys, "--url", url, "--token", token)


@pytest.mark.parametrize("scope", ["view", "read"])
async def test_usage_adds_up_all_sites_and_names_one_that_is_away(
    places: dict[str, Place], url: str, capsys: pytest.CaptureFixture[str], scope: str
) -> None:
    operator = await see(places, url, capsys, scope)
    whole = await operator.tries("usage", "--by", "model", "--json")
    assert [row["runs"] for row in json.loads(whole.stdout)["results"]] == [2]
    assert "us" not in whole.stderr
    places["us"].server.kill()
    part = await operator.tries("usage", "--by", "model", "--json")
    assert [row["runs"] for row in json.loads(part.stdout)["results"]] == [1]
    assert "not all is shown: no answer from the site us" in part.stderr
    listed = await operator.tries("ps", "--all")
    assert "not all is shown: no answer from the site us" in listed.stderr


async def test_account_show_counts_the_runs_of_all_sites(
    places: dict[str, Place], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = await see(places, url, capsys, "view")
    assert "used today         2 runs, 4.0 s" in await operator.types("account", "show", ACCOUNT)
    places["us"].server.kill()
    shown = await operator.types("account", "show", ACCOUNT)
    assert "used today         1 run, 2.0 s" in shown
    assert "not counted        what ran at the site us, which does not answer" in shown


async def test_price_of_a_model_of_another_site_counts(
    places: dict[str, Place], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    us = places["us"].driver
    catalog = Catalog(us.redis, us.scripts, SystemClock())
    queue = await catalog.register(FAR, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    far = QueueDriver(us.redis, us.scripts, queue)
    far.now_ms = SystemClock().now_ms()
    made = new_prediction_id(model=FAR, now_ms=far.now_ms)
    given = {"queue": queue, "account": ACCOUNT, "model": FAR, "version": VERSION}
    await enqueue(us.scripts, made, shard=[0, 1], now_ms=far.now_ms, **given)
    await far.finish(await far.claim_one(), used=RUN)
    await Ledger(us.redis, us.scripts, catalog).set_price(FAR, Price(run=3.0))
    operator = await see(places, url, capsys, "view")
    rows = json.loads(await operator.types("usage", "--by", "model", "--json"))["results"]
    assert {row["model"]: row["cost"] for row in rows} == {MODEL: None, FAR: 3.0}


async def test_usage_of_an_unknown_account_is_refused(
    places: dict[str, Place], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = await see(places, url, capsys, "view")
    assert "There is no account stranger" in await operator.is_told("usage", "--account", "stranger")
