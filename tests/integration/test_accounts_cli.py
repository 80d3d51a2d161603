"""`director account` and `director token`: what an operator sets is what holds, and what he sees is how it is."""

import io
import json
from typing import Any

import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.cli.accounts import LIMITS
from director.cli.main import main
from director.core.account_limits import AccountLimits, Bucket
from director.core.accounts import Accounts
from director.core.errors import SettingsError
from director.core.scripts import Scripts
from tests.support.queue_driver import ACCOUNT, QueueDriver
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio


class Operator:
    """Types commands."""

    def __init__(self, server: RedisServer, capsys: Any) -> None:
        self.server = server
        self.capsys = capsys

    async def types(self, *line: str) -> str:
        assert await to_thread.run_sync(lambda: main([*line, "--redis", self.server.url])) == 0
        return str(self.capsys.readouterr().out)

    async def is_told(self, *line: str) -> str:
        assert await to_thread.run_sync(lambda: main([*line, "--redis", self.server.url])) == 1
        return str(self.capsys.readouterr().err)


@pytest.fixture
def operator(server: RedisServer, redis: Redis, capsys: Any) -> Operator:
    return Operator(server, capsys)


async def test_limits_that_are_set_are_those_of_every_token_of_the_account(operator: Operator, redis: Redis) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    line = ("account", "set", ACCOUNT, "--rate", "2.5", "--burst", "5", "--max-running", "3", "--weight", "2")
    assert await operator.types(*line) == f"{ACCOUNT} rate=2.5 burst=5 max_running=3 weight=2\n"
    account = await Accounts(redis).authenticate(token)
    assert account is not None
    assert account.limits == AccountLimits(rate=2.5, burst=5, max_running=3, weight=2)
    assert account.limits.bucket("create") == Bucket("create", 2.5, 5)
    assert account.limits.bucket("read") is None


def test_every_limit_can_be_set() -> None:
    assert set(LIMITS) == set(AccountLimits.__struct_fields__)


async def test_none_and_default_are_not_the_same(operator: Operator, redis: Redis) -> None:
    accounts = Accounts(redis, AccountLimits(rate=1.0, max_queued=9))
    await operator.types("account", "set", ACCOUNT, "--rate", "none", "--max-queued", "4")
    assert await accounts.limits(ACCOUNT) == AccountLimits(rate=None, max_queued=4)
    await operator.types("account", "set", ACCOUNT, "--rate", "default", "--max-queued", "default")
    assert await accounts.limits(ACCOUNT) == AccountLimits(rate=1.0, max_queued=9)


async def test_what_makes_no_sense_is_refused_and_changes_nothing(operator: Operator, redis: Redis) -> None:
    await operator.types("account", "set", ACCOUNT, "--rate", "2")
    for line, says in [
        (["--rate", "fast"], "rate: Expected"),
        (["--burst", "0"], "burst: Expected `int` >= 1"),
        (["--rate", "3", "--weight", "none"], "weight: Expected"),
        ([], "say which limit"),
    ]:
        assert says in await operator.is_told("account", "set", ACCOUNT, *line)
    assert "is no account name" in await operator.is_told("account", "set", "No Name", "--rate", "1")
    assert await Accounts(redis).limits_set(ACCOUNT) == {"rate": "2"}
    assert await Accounts(redis).names() == [ACCOUNT]


async def test_what_waits_already_goes_by_the_new_limit(operator: Operator, driver: QueueDriver) -> None:
    for _ in range(3):
        await driver.submit()
    await operator.types("account", "set", ACCOUNT, "--max-running", "1")
    assert len(await driver.claim_all()) == 1
    await operator.types("account", "set", ACCOUNT, "--max-running", "none")
    assert len(await driver.claim_all()) == 2


async def test_accounts_are_listed_with_what_was_set(operator: Operator, redis: Redis) -> None:
    assert "no accounts yet" in await operator.types("account", "list")
    await Accounts(redis).create_token("umbrella")
    await operator.types("account", "set", ACCOUNT, "--read-rate", "50")
    assert await operator.types("account", "list") == f"{ACCOUNT} read_rate=50\numbrella\n"
    assert json.loads(await operator.types("account", "list", "--json")) == [
        {"name": ACCOUNT, "limits": {"read_rate": "50"}},
        {"name": "umbrella", "limits": {}},
    ]


async def test_one_account_is_shown_with_what_was_denied_and_the_days_compute(
    operator: Operator, scripts: Scripts
) -> None:
    await operator.types("account", "set", ACCOUNT, "--rate", "0.01", "--burst", "1", "--compute-s-per-day", "60")
    for name in "abc":
        await scripts.reserve(ACCOUNT, Bucket("create", 0.01, 1), id=name)
    await scripts.reserve(ACCOUNT, 60, id="p", asked_s=12.5)
    shown = (await operator.types("account", "show", ACCOUNT)).splitlines()
    assert shown[0] == "rate               0.01       creates a second"
    assert "max_queued         default    predictions that wait in one queue" in shown
    assert shown[-2:] == ["denied bursts      1 of create", "compute today      0.0 s spent, 12.5 s reserved"]
    assert json.loads(await operator.types("account", "show", ACCOUNT, "--json"))["usage"] == {
        "bursts": {"create": 1},
        "spent_s": 0.0,
        "reserved_s": 12.5,
    }


async def test_an_account_that_there_is_not_is_said_to_be_none(operator: Operator) -> None:
    assert "there is no account nobody" in await operator.is_told("account", "show", "nobody")


async def test_a_token_is_revoked_without_standing_on_a_command_line(
    operator: Operator, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = (await operator.types("token", "create", "--account", ACCOUNT)).strip()
    assert await Accounts(redis).authenticate(token) is not None
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    assert (await operator.types("token", "revoke")).startswith("revoked")
    assert await Accounts(redis).authenticate(token) is None
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    assert "no token that speaks for anybody" in await operator.is_told("token", "revoke")


async def test_a_limit_that_somebody_wrote_by_hand_and_that_is_none_is_named(redis: Any) -> None:
    await Accounts(redis).set_limits(ACCOUNT, {"rate": "1"})
    await redis.hset(f"account:{ACCOUNT}", "rate", "soon")
    with pytest.raises(SettingsError, match="rate: Expected"):
        await Accounts(redis).limits(ACCOUNT)
