"""Test `director doctor` on real servers, with each condition that a server can be brought into."""

import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.broker.redis_client import client
from director.core.clock import SystemClock
from director.core.settings import CommonSettings
from director.operate.doctor import CHECKS, Finding, examine, look
from tests.support.authority import Authority
from tests.support.keyspace import dump
from tests.support.queue_driver import QueueDriver, driving
from tests.support.servers import RedisServer, redis_server
from tests.support.tls_front import tls_front


@pytest.fixture
async def operator(server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis(unix_socket_path=str(server.socket)) as operator:
        yield operator


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Start a separate server, since the tests misconfigure it. It is correct at first."""
    with redis_server(config={"maxmemory": "100mb"}) as started:
        yield started


@pytest.fixture
async def driver(server: RedisServer) -> AsyncIterator[QueueDriver]:
    """Return a queue on this server, by a clock of a minute ago."""
    async with driving(server.url) as driver:
        driver.now_ms = time.time_ns() // 1_000_000 - 60_000
        yield driver


async def examined(server: RedisServer, **settings: str) -> dict[str, Finding]:
    asked = CommonSettings(**{"redis_url": server.url, **settings})
    redis = client(asked.redis_url)
    try:
        seen = await look(redis, asked, SystemClock())
    finally:
        await redis.aclose()
    return {finding.check: finding for finding in examine(seen)}


def not_ok(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.verdict for name, finding in findings.items() if finding.verdict != "ok"}


def doctor(*line: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "director", "doctor", *line]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def set_to(**config: Any) -> Callable[[Any], Awaitable[object]]:
    async def change(redis: Any) -> None:
        for name, value in config.items():
            await redis.config_set(name.replace("_", "-"), value)

    return change


CONDITIONS: dict[str, tuple[Callable[[Any], Awaitable[object]], dict[str, str]]] = {
    "no log of writes": (set_to(appendonly="no"), {"durability": "fail"}),
    "a second may be lost": (set_to(appendfsync="everysec"), {"durability": "fail", "fsync": "warn"}),
    "nothing is synced": (set_to(appendfsync="no"), {"durability": "fail", "fsync": "fail"}),
    "no sync during a rewrite": (set_to(no_appendfsync_on_rewrite="yes"), {"fsync": "warn"}),
    "eviction": (set_to(maxmemory_policy="allkeys-lru"), {"eviction": "fail"}),
    "no limit of memory": (set_to(maxmemory="0"), {"memory": "warn"}),
    "memory is full": (set_to(maxmemory="1mb"), {"memory": "fail"}),
    "records become tables": (set_to(hash_max_listpack_value="64"), {"records": "warn"}),
    "too few replicas": (set_to(min_replicas_to_write="1"), {"replicas": "fail"}),
    "a replica": (lambda redis: redis.replicaof("127.0.0.1", 1), {"role": "fail"}),
}


@pytest.mark.parametrize(("change", "expected"), CONDITIONS.values(), ids=list(CONDITIONS))
async def test_each_problem_is_found_with_its_remedy(
    server: RedisServer, operator: Redis, change: Callable[[Any], Awaitable[object]], expected: dict[str, str]
) -> None:
    assert not_ok(await examined(server)) == {}
    await change(operator)
    findings = await examined(server)
    assert not_ok(findings) == expected
    assert all(findings[name].fix for name in expected)


async def test_lower_durability_is_accepted_where_it_is_configured(server: RedisServer, operator: Redis) -> None:
    await operator.config_set("appendonly", "no")
    findings = await examined(server, durability="memory")
    assert not_ok(findings) == {}
    assert findings["durability"].found == "memory, and memory is asked for"


async def test_replicas_make_the_level_replicated(server: RedisServer, operator: Redis) -> None:
    await operator.config_set("min-replicas-to-write", 1)
    assert (await examined(server, durability="replicated"))["durability"].verdict == "ok"


async def test_server_without_config_needs_its_level_in_the_settings(server: RedisServer, operator: Redis) -> None:
    await operator.execute_command("ACL SETUSER app on >secret ~* &* +@all -config")
    url = server.url.replace("unix://", "unix://app:secret@")
    found = await examined(server, redis_url=url)
    assert not_ok(found) == {"durability": "fail"}
    assert "DIRECTOR_ASSUME_DURABILITY" in found["durability"].fix
    assert not_ok(await examined(server, redis_url=url, assume_durability="always")) == {}


async def test_missing_director_is_reported_once_work_waits(server: RedisServer, driver: QueueDriver) -> None:
    assert not_ok(await examined(server)) == {}
    await driver.submit()
    finding = (await examined(server))["directors"]
    assert (finding.verdict, f"({driver.queue}): 1 waiting" in finding.found) == ("fail", True)
    driver.now_ms += 60_000
    await driver.extend()
    assert not_ok(await examined(server)) == {}


async def test_dead_letters_are_reported(server: RedisServer, driver: QueueDriver) -> None:
    await driver.die()
    finding = (await examined(server))["dead letters"]
    assert (finding.verdict, f"({driver.queue}): 1 prediction used up" in finding.found) == ("warn", True)
    assert "director dead show" in finding.fix


async def test_overdue_webhooks_are_reported(server: RedisServer, driver: QueueDriver) -> None:
    await driver.submit(webhook="https://example.com/hook", webhook_events="completed")
    await driver.finish(await driver.claim_one())
    assert not_ok(await examined(server)) == {"webhooks": "warn"}


async def test_wrong_clock_is_the_only_finding_on_its_machine(
    server: RedisServer, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.now_ms += 60_000
    await driver.submit(webhook="https://example.com/hook", webhook_events="completed")
    await driver.finish(await driver.claim_one(), grace_s=45)
    await driver.submit()
    await driver.extend()
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: time.time_ns() // 1_000_000 + 3_600_000)
    assert not_ok(await examined(server)) == {"clock": "warn"}


async def expired_lease(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.claim_one()


async def due_retry(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.release(await driver.claim_one(), spent=True, delay_s=5)


async def passed_deadline(driver: QueueDriver) -> None:
    await driver.submit(lifetime_ms=5_000)
    await driver.extend()


@pytest.mark.parametrize("neglect", [expired_lease, due_retry, passed_deadline])
async def test_neglected_work_of_the_keeper_is_reported(
    server: RedisServer, driver: QueueDriver, neglect: Callable[[QueueDriver], Awaitable[None]]
) -> None:
    await neglect(driver)
    finding = (await examined(server))["keeper"]
    assert finding.verdict == "fail"
    assert str(driver.queue) in finding.found
    assert "director keeper" in finding.fix


async def test_doctor_leaves_the_server_unchanged(server: RedisServer, driver: QueueDriver) -> None:
    await driver.submit()
    before = await dump(driver.redis)
    await examined(server)
    assert await dump(driver.redis) == before


async def test_command_prints_one_line_per_check_and_fails_with_one(server: RedisServer, operator: Redis) -> None:
    sound = await to_thread.run_sync(doctor, "--redis", server.url)
    assert (sound.returncode, sound.stderr) == (0, "")
    first, *lines = [line for line in sound.stdout.splitlines() if "→" not in line]
    assert re.search(r"Z  0 failures, [01] warnings?$", first)
    assert len(lines) == len(CHECKS)
    # a busy machine answers late, which is reported and is no fault of the server
    assert {line.split()[0] for line in lines if "latency" not in line} == {"ok"}
    await operator.config_set("maxmemory-policy", "allkeys-lru")
    broken = await to_thread.run_sync(doctor, "--redis", server.url)
    assert broken.returncode == 1
    assert broken.stdout.splitlines()[1].startswith("fail  eviction")
    assert "→ set `maxmemory-policy noeviction`" in broken.stdout
    told = await to_thread.run_sync(doctor, "--redis", server.url, "--json")
    report = json.loads(told.stdout)
    assert (told.returncode, report["ok"]) == (1, False)
    assert {"check": "eviction", "verdict": "fail"}.items() <= report["checks"][list(CHECKS).index("eviction")].items()


async def test_missing_server_is_one_failed_check(tmp_path: Path) -> None:
    ended = await to_thread.run_sync(doctor, "--redis", f"unix://{tmp_path}/unknown")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "\nfail  reachable  no answer from Redis at unix://" in ended.stdout
    assert "→ start the server" in ended.stdout


async def test_refused_password_is_reported_as_such(server: RedisServer, operator: Redis) -> None:
    await operator.config_set("requirepass", "another")
    ended = await to_thread.run_sync(doctor, "--redis", server.url)
    assert ended.returncode == 1
    assert "refuses the user or the password" in ended.stdout


async def test_certificate_that_expires_soon_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)  # its certificates are good for two days
    with redis_server(loopback=True) as plain:
        async with tls_front(authority.shown_by("localhost"), target_port=plain.port) as port:
            found = await examined(plain, redis_url=f"rediss://localhost:{port}?ssl_ca_certs={tmp_path}/ca.pem")
        assert found["certificate"].verdict == "warn"
        assert "Redis's certificate expires in 48" in found["certificate"].found
        assert (await examined(plain))["certificate"].verdict == "ok"
