"""Test `director predictions`: an operator lists, cancels and retries predictions of all accounts through the API."""

import json
import time
from collections.abc import AsyncIterator

import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.core.ids import QueueName, lowest_id_at
from director.core.states import Status
from director.store.accounts import SCOPES, Accounts
from tests.support.api import LiveApi, live_api
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer
from tests.support.typed import Typed, typed


class Operator:
    def __init__(self, capsys: pytest.CaptureFixture[str], *service: str) -> None:
        self._capsys = capsys
        self._service = service

    async def types(self, *line: str) -> Typed:
        return await to_thread.run_sync(typed, self._capsys, "predictions", *line, *self._service)

    async def sees(self, *line: str) -> str:
        ended = await self.types(*line)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout


@pytest.fixture(scope="module")
async def api(server: RedisServer) -> AsyncIterator[LiveApi]:
    async with live_api(server.url) as api:
        yield api


@pytest.fixture
async def operator(api: LiveApi, redis: Redis, queue: QueueName, capsys: pytest.CaptureFixture[str]) -> Operator:
    token = await Accounts(redis).create_token("ops", scopes=SCOPES)
    return Operator(capsys, "--url", api.url, "--token", token)


async def listed(driver: QueueDriver, account: str) -> str:
    """Return a prediction that is on its account's list, as the API files it."""
    driver.pass_time(0.001)
    name = driver.new_id()
    await Accounts(driver.redis).create(account)
    await driver.scripts.enlist(name, account=account, oldest=lowest_id_at(0))
    return await driver.submit(name, account=account)


async def test_operator_acts_on_predictions_of_all_accounts(operator: Operator, driver: QueueDriver) -> None:
    driver.now_ms = time.time_ns() // 1_000_000
    ids = [await listed(driver, name) for name in ("amber", "basalt", "amber")]
    lines = (await operator.sees("list", "--account", "amber")).splitlines()
    assert [line.split()[1:4] for line in lines[1:]] == [[ids[2], MODEL, "amber"], [ids[0], MODEL, "amber"]]
    assert json.loads(await operator.sees("list", "-n", "1", "--json"))["results"][0]["id"] == ids[2]
    assert await operator.sees("cancel", "--account", "basalt") == "1 prediction canceled\n"
    claim = await driver.claim_one()
    await driver.finish(claim, Status.FAILED, error="No.", code="model_failed")
    assert await operator.sees("list", "--older-than", "1h") == "no predictions\n"
    new = json.loads(await operator.sees("retry", "--code", "model_failed", "--newer-than", "1h", "--json"))
    assert [one["id"] for one in new["retried"]] == [claim.id]
    again = await operator.types("cancel", claim.id)
    assert (again.returncode, again.stdout) == (1, f"0 predictions canceled\n{claim.id} has ended already\n")


@pytest.mark.parametrize("line", [(), ("--all", "--account", "amber"), ("abc", "--all")])
async def test_act_needs_ids_or_a_filter_or_all(operator: Operator, line: tuple[str, ...]) -> None:
    ended = await operator.types("cancel", *line)
    assert ended.returncode == 1
    assert "name some: `director predictions cancel ID …`, or give a filter, or --all." in ended.stderr


async def test_wrong_age_is_refused(operator: Operator) -> None:
    ended = await operator.types("list", "--older-than", "soon")
    assert ended.returncode == 2
    assert "such as 90s or 2h" in ended.stderr
    assert VERSION not in ended.stderr
