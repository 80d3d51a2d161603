"""`director account` and `director token`: what an operator sets takes effect and is shown."""

import io
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.cli.accounts import LIMITS
from director.core.account_limits import AccountLimits, Bucket
from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.usage import Used
from director.store.accounts import Accounts, Written
from director.store.changes import Changes
from tests.integration.cli.conftest import Operator
from tests.support.queue_driver import ACCOUNT, QueueDriver


@pytest.fixture
async def token(redis: Redis) -> str:
    return await Accounts(redis).create_token(ACCOUNT)


async def test_set_limits_hold_for_every_token_of_the_account(operator: Operator, redis: Redis, token: str) -> None:
    line = ("account", "set", ACCOUNT, "--rate", "2.5", "--burst", "5", "--max-running", "3", "--weight", "2")
    assert await operator.types(*line) == f"{ACCOUNT} rate=2.5 burst=5 max_running=3 weight=2\n"
    account = await Accounts(redis).authenticate(token)
    assert account.limits == AccountLimits(rate=2.5, burst=5, max_running=3, weight=2)
    assert account.limits.bucket("create") == Bucket("create", 2.5, 5)
    assert account.limits.bucket("read") is None
    assert account.limits_rev == 1
    await operator.types("account", "set", ACCOUNT, "--rate", "3")
    changed = await Accounts(redis).authenticate(token)
    assert changed.limits_rev == 2


def test_every_limit_can_be_set() -> None:
    assert set(LIMITS) == set(AccountLimits.__struct_fields__)


@pytest.mark.usefixtures("token")
async def test_none_and_default_differ(operator: Operator, redis: Redis) -> None:
    accounts = Accounts(redis, AccountLimits(rate=1.0, max_queued=9))
    await operator.types("account", "set", ACCOUNT, "--rate", "none", "--max-queued", "4")
    assert accounts.limits_of(await accounts.read_written(ACCOUNT)) == AccountLimits(rate=None, max_queued=4)
    await operator.types("account", "set", ACCOUNT, "--rate", "default", "--max-queued", "default")
    assert accounts.limits_of(await accounts.read_written(ACCOUNT)) == AccountLimits(rate=1.0, max_queued=9)


@pytest.mark.usefixtures("token")
async def test_invalid_limits_are_refused_and_change_nothing(operator: Operator, redis: Redis) -> None:
    await operator.types("account", "set", ACCOUNT, "--rate", "2")
    for line, says in [
        (["--rate", "fast"], "director: rate: a number from 0.00001 to 100000, none or default\n"),
        (["--burst", "0"], "director: burst: a whole number from 1 to 1000000, none or default\n"),
        (["--rate", "3", "--weight", "none"], "director: weight: a number from 0.001 to 1000 or default\n"),
        ([], "name a limit"),
    ]:
        assert says in await operator.is_told("account", "set", ACCOUNT, *line)
    assert "is no account name" in await operator.is_told("account", "set", "No Name", "--rate", "1")
    assert await Accounts(redis).read_written(ACCOUNT) == Written({"rate": "2"}, 1)
    assert await Accounts(redis).names() == [ACCOUNT]


@pytest.mark.usefixtures("token")
async def test_unset_limit_keeps_the_value_of_the_api(operator: Operator, driver: QueueDriver) -> None:
    for _ in range(5):
        await driver.submit(most_running=2)
    await operator.types("account", "set", ACCOUNT, "--weight", "2")
    assert await driver.counts(keys.limits(driver.queue)) == {ACCOUNT: "2 2 1"}
    await operator.types("account", "set", ACCOUNT, "--max-running", "1")
    await operator.types("account", "set", ACCOUNT, "--max-running", "default")
    assert await driver.counts(keys.limits(driver.queue)) == {ACCOUNT: "2 1 3"}, "until a create brings the default"
    assert len(await driver.claim_all()) == 1
    await driver.submit(most_running=2, weight=2, limits_rev=3)
    assert len(await driver.claim_all()) == 1


async def test_accounts_are_listed_with_their_limits(operator: Operator, redis: Redis) -> None:
    assert "no accounts yet" in await operator.types("account", "list")
    for name in ("umbrella", ACCOUNT):
        await Accounts(redis).create_token(name)
    await operator.types("account", "set", ACCOUNT, "--read-rate", "50")
    lines = (await operator.types("account", "list")).splitlines()
    assert [line.split() for line in lines] == [["account", "limits"], [ACCOUNT, "read_rate=50"], ["umbrella"]]
    assert json.loads(await operator.types("account", "list", "--json"))["results"] == [
        {"name": ACCOUNT, "limits": {"read_rate": "50"}},
        {"name": "umbrella", "limits": {}},
    ]


@pytest.mark.usefixtures("token")
async def test_account_is_shown_with_refusals_and_compute_of_today(operator: Operator, scripts: Scripts) -> None:
    await operator.types("account", "set", ACCOUNT, "--rate", "0.01", "--burst", "1", "--compute-s-per-day", "60")
    for name in "abc":
        await scripts.reserve(ACCOUNT, Bucket("create", 0.01, 1), id=name)
    await scripts.reserve(ACCOUNT, 60, in_all=100, id="p", asked_s=12.5)
    shown = (await operator.types("account", "show", ACCOUNT)).splitlines()
    assert shown[0] == "rate               0.01       predictions created a second"
    assert any(line.startswith("default limits     read_rate, ") for line in shown)
    assert shown[-6:] == [
        "denied bursts      1 of create",
        "files              0 bytes",
        "data in Redis      0 bytes",
        "used today         0 runs, 0.0 s, 0 input tokens, 0 output tokens",
        "compute today      0.0 s spent, 12.5 s reserved",
        "compute in all     0.0 s spent, 12.5 s reserved",
    ]
    assert json.loads(await operator.types("account", "show", ACCOUNT, "--json"))["usage"] == {
        "bursts": {"create": 1},
        "spent_s": 0.0,
        "reserved_s": 12.5,
        "total_spent_s": 0.0,
        "total_reserved_s": 12.5,
        "stored_bytes": 0,
        "data_bytes": 0,
    }


@pytest.mark.usefixtures("token")
async def test_use_is_shown_without_any_limit(operator: Operator, driver: QueueDriver) -> None:
    driver.now_ms = SystemClock().now_ms()
    used = Used(runs=1, ms=12_500, input_tokens=1_000, output_tokens=40)
    await driver.finish(await driver.claimed(), used=used)
    shown = await operator.types("account", "show", ACCOUNT)
    assert shown.endswith("used today         1 run, 12.5 s, 1,000 input tokens, 40 output tokens\n")


async def test_unknown_account_is_reported(operator: Operator, redis: Redis) -> None:
    for line in (["show", "unknown"], ["set", "unknown", "--rate", "1"]):
        assert "there is no account unknown" in await operator.is_told("account", *line)
    assert await Accounts(redis).names() == []


async def test_token_is_revoked_from_standard_input(
    operator: Operator, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = (await operator.types("token", "create", "--account", ACCOUNT)).strip()
    assert await Accounts(redis).authenticate(token) is not None
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    assert (await operator.types("token", "revoke")).startswith("revoked")
    assert await Accounts(redis).authenticate(token) is None
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    assert "no known token" in await operator.is_told("token", "revoke")


async def test_token_is_listed_and_revoked_by_public_names(operator: Operator, redis: Redis) -> None:
    made = {}
    for label in ("ci", "laptop", "phone"):
        line = ("token", "create", "--account", ACCOUNT, "--label", label, "--json")
        made[label] = json.loads(await operator.types(*line))
    listed = json.loads(await operator.types("token", "list", "--account", ACCOUNT, "--json"))["results"]
    assert [{**one, "token": made[one["label"]]["token"]} for one in listed] == list(made.values())
    shown = await operator.types("token", "list")
    assert not [one for one in made.values() if one["token"] in shown]
    for name in ("ci", made["laptop"]["last4"], made["phone"]["id"][:8]):
        await operator.types("token", "revoke", name, "--account", ACCOUNT)
    assert [await Accounts(redis).authenticate(one["token"]) for one in made.values()] == [None] * 3
    assert "no tokens yet" in await operator.types("token", "list")
    assert "has no such token" in await operator.is_told("token", "revoke", "ci", "--account", ACCOUNT)


async def test_ambiguous_token_name_revokes_nothing(operator: Operator, redis: Redis) -> None:
    for _ in range(2):
        await operator.types("token", "create", "--account", ACCOUNT, "--label", "ci")
    said = await operator.is_told("token", "revoke", "ci", "--account", ACCOUNT)
    assert f"2 tokens of {ACCOUNT} have this name" in said
    assert "the account of the token is missing" in await operator.is_told("token", "revoke", "ci")
    assert len(await Accounts(redis).tokens.of(ACCOUNT)) == 2


async def test_token_gets_other_rights_and_another_end(operator: Operator, redis: Redis) -> None:
    line = ("token", "create", "--account", ACCOUNT, "--label", "ci", "--scopes", "read,run,admin")
    token = (await operator.types(*line)).strip()
    change = ("token", "set", "ci", "--account", ACCOUNT)
    shown = json.loads(await operator.types(*change, "--scopes", "read,view", "--lanes", "low", "--json"))
    assert (shown["scopes"], shown["lanes"], shown["expires_at"]) == (["read", "view"], ["low"], None)
    account = await Accounts(redis).authenticate(token)
    assert account is not None
    assert (account.scopes, account.lanes) == (("read", "view"), ("low",))
    until = json.loads(await operator.types(*change, "--expires-hours", "1", "--json"))["expires_at"]
    assert until is not None
    assert (await Accounts(redis).authenticate(token)).expires_ms is not None  # type: ignore[union-attr]
    assert "never" in await operator.types(*change, "--expires-hours", "0", "--label", "build")
    for wrong in (["set", "build"], ["set", "ci", "--scopes", "read"], ["set", "build", "--scopes", "god"]):
        assert await operator.is_told("token", *wrong, "--account", ACCOUNT)
    changes = await Changes(redis, Scripts(Gatherer(redis)), SystemClock()).after("0-0", count=100)
    found = [json.loads(bytes(one.detail))["to"] for one in changes if one.kind == "token_changed"]
    assert found[0] == {"scopes": ["read", "view"], "lanes": ["low"]}
    assert len(found) == 3


@pytest.mark.parametrize("what", ["account", "token"])
async def test_list_ends_after_n_rows_and_says_how_to_go_on(operator: Operator, redis: Redis, what: str) -> None:
    for name in ("a", "b", "c"):
        await Accounts(redis).create_token(name)
    shown = await operator.types(what, "list", "-n", "2")
    assert [line.split()[0] for line in shown.splitlines()] == ["account", "a", "b", "there"]
    assert shown.splitlines()[-1] == "there are more: --cursor b"
    page = json.loads(await operator.types(what, "list", "-n", "2", "--cursor", "b", "--json"))
    assert ([one.get("name") or one["account"] for one in page["results"]], page["next"]) == (["c"], None)


async def test_token_can_expire(operator: Operator, redis: Any) -> None:
    token = (await operator.types("token", "create", "--account", ACCOUNT, "--expires-hours", "1")).strip()
    account = await Accounts(redis).authenticate(token)
    assert account.expires_ms is not None
    [known] = await Accounts(redis).tokens.of(ACCOUNT)
    assert 0 < await redis.pttl(f"token:{known.digest}") <= 3_600_000
    said = await operator.is_told("token", "create", "--account", ACCOUNT, "--expires-hours", "0")
    assert "expires in the future" in said


async def test_account_is_created_without_a_token(operator: Operator, redis: Redis) -> None:
    await operator.types("account", "create", ACCOUNT, "--type", "user")
    assert (await Accounts(redis).read_written(ACCOUNT)).type == "user"
    assert await Accounts(redis).tokens.of(ACCOUNT) == []
    said = await operator.is_told("account", "create", ACCOUNT)
    assert f"there is an account {ACCOUNT} already" in said
    assert (await Accounts(redis).read_written(ACCOUNT)).type == "user"


async def test_change_is_logged_with_the_operator_and_no_secret(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    _, out, err = await operator.tries("token", "create", "--account", ACCOUNT, "--label", "ci")
    [written] = [json.loads(text) for text in err.splitlines()]
    assert (written["change"], written["by"], written["account"]) == ("token_created", "cli:ada", ACCOUNT)
    assert written["detail"]["label"] == "ci"
    assert out.strip() not in err


async def test_invalid_limit_written_by_hand_is_named(redis: Any, token: str) -> None:
    await redis.hset(f"account:{ACCOUNT}", "rate", "soon")
    with pytest.raises(SettingsError, match="rate: a number from"):
        Accounts(redis).limits_of(await Accounts(redis).read_written(ACCOUNT))


async def test_rotation_shows_no_secret(operator: Operator, redis: Redis) -> None:
    accounts = Accounts(redis)
    await accounts.create_token(ACCOUNT)
    [old] = await accounts.webhook_secrets(ACCOUNT)
    said = await operator.types("account", "rotate-secret", ACCOUNT)
    new, former = await accounts.webhook_secrets(ACCOUNT)
    assert former == old
    assert said.startswith(f"{ACCOUNT} has a new secret, and the former one also signs until 20")
    assert old not in said
    assert new not in said


async def test_former_secret_can_stop_signing_at_once(operator: Operator, redis: Redis) -> None:
    accounts = Accounts(redis)
    await accounts.create_token(ACCOUNT)
    [old] = await accounts.webhook_secrets(ACCOUNT)
    answer = json.loads(await operator.types("account", "rotate-secret", ACCOUNT, "--keep-hours", "0", "--json"))
    assert answer == {"name": ACCOUNT, "former_signs_until": None}
    [new] = await accounts.webhook_secrets(ACCOUNT)
    assert new != old


async def test_refused_rotation_says_why(operator: Operator, redis: Redis) -> None:
    assert "there is no account unknown" in await operator.is_told("account", "rotate-secret", "unknown")
    await Accounts(redis).create_token(ACCOUNT)
    for _ in range(4):
        await operator.types("account", "rotate-secret", ACCOUNT)
    assert "too many secrets that still sign" in await operator.is_told("account", "rotate-secret", ACCOUNT)
