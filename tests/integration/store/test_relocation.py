"""Check `director account migrate --to-redis`: what callers had here works there, once, and no secret is printed."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import client
from director.core.clock import SystemClock
from director.store.accounts import SCOPES, Accounts, Suspension
from tests.support.servers import RedisServer, redis_server
from tests.support.typed import typed

LATER_MS = SystemClock().now_ms() + 3_600_000


@pytest.fixture(scope="module")
def far_server() -> Iterator[RedisServer]:
    with redis_server() as started:
        yield started


@pytest.fixture
async def far(far_server: RedisServer) -> AsyncIterator[Redis]:
    far = client(far_server.url)
    await far.flushall()
    yield far
    await far.aclose()


@pytest.fixture
def line(server: RedisServer, far_server: RedisServer) -> list[str]:
    return ["account", "migrate", "--json", "--redis", server.url, "--to-redis", far_server.url]


async def brought(capsys: pytest.CaptureFixture[str], line: list[str], *options: str) -> dict[str, int]:
    ended = await to_thread.run_sync(typed, capsys, *line, *options)
    assert ended.returncode == 0, ended.stderr
    assert "whsec_" not in ended.stdout + ended.stderr
    assert "dr_" not in ended.stdout + ended.stderr
    told = json.loads(ended.stdout)
    return {name: told[name] for name in ("accounts", "known", "tokens", "secrets")}


async def test_tokens_limits_and_secrets_work_at_the_other_server(
    redis: Redis, far: Redis, line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = Accounts(redis), Accounts(far)
    token = await here.create_token("amber", scopes=SCOPES, label="ci", expires_ms=LATER_MS)
    held = await here.create_token("basalt")
    await here.set_limits("amber", {"max_running": "3", "compute_s_total": "100"})
    await here.set_suspension("basalt", Suspension(policy="hold", reason="unpaid", since_ms=1))
    await redis.zadd(keys.suspensions(), {"basalt": 3})
    await redis.hset(keys.credit("amber"), "spent", "5000")  # type: ignore[misc]
    await redis.set(keys.secret("outputs"), b"secret")
    assert await brought(capsys, line, "--dry-run") == {"accounts": 2, "known": 0, "tokens": 2, "secrets": 1}
    assert await far.keys() == []
    assert await brought(capsys, line) == {"accounts": 2, "known": 0, "tokens": 2, "secrets": 1}
    assert await there.authenticate(token) == await here.authenticate(token)
    assert await there.authenticate(held) == await here.authenticate(held)
    assert await there.signing("amber") == await here.signing("amber")
    assert [one.label for one in await there.tokens.of("amber")] == ["ci"]
    assert (
        SystemClock().now_ms() + await far.pttl(keys.token((await there.tokens.of("amber"))[0].digest))
        > LATER_MS - 1_000
    )
    assert await far.zscore(keys.suspensions(), "basalt") == 3
    assert await far.hget(keys.credit("amber"), "spent") == b"5000"  # type: ignore[misc]
    assert await far.get(keys.secret("outputs")) == b"secret"
    assert await there.names() == ["amber", "basalt"]


async def test_repeated_run_brings_only_newer_tokens_and_undoes_nothing(
    redis: Redis, far: Redis, line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Accounts(redis), Accounts(far)
    monkeypatch.setattr("director.store.relocation.SKEW_MS", 0)
    revoked = await here.create_token("amber")
    await brought(capsys, line)
    await there.tokens.remove((await there.tokens.of("amber"))[0])
    await there.set_limits("amber", {"max_running": "9"})
    newer = await here.create_token("amber")
    assert await brought(capsys, line, "amber") == {"accounts": 0, "known": 1, "tokens": 1, "secrets": 0}
    assert await brought(capsys, line) == {"accounts": 0, "known": 1, "tokens": 0, "secrets": 0}
    assert await there.authenticate(revoked) is None
    assert (await there.read_written("amber")).limits == {"max_running": "9"}
    found = await there.authenticate(newer)
    assert found is not None
    assert found.name == "amber"


async def test_account_that_was_made_there_becomes_the_same(
    redis: Redis, far: Redis, line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    await Accounts(redis).create("amber")
    await Accounts(far).create("amber")
    await far.set(keys.secret("outputs"), b"theirs")
    await redis.set(keys.secret("outputs"), b"ours")
    assert await brought(capsys, line) == {"accounts": 1, "known": 0, "tokens": 0, "secrets": 0}
    assert await Accounts(far).signing("amber") == await Accounts(redis).signing("amber")
    assert await far.get(keys.secret("outputs")) == b"theirs", "addresses that were signed there go on"


async def test_unknown_account_is_named(line: list[str], far: Redis, capsys: pytest.CaptureFixture[str]) -> None:
    ended = await to_thread.run_sync(typed, capsys, *line, "missing")
    assert ended.returncode == 1
    assert "there is no account missing" in ended.stderr
