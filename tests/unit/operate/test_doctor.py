from typing import Any

import pytest
from msgspec.structs import replace

from director.core.ids import QueueName
from director.core.settings import CommonSettings
from director.operate.doctor import CHECKS, Look, examine, has_failed, open_holes
from director.operate.findings import MOST, Finding
from director.operate.kinds import Code

SOUND = Look(
    address="redis://h:1/0",
    settings=CommonSettings(redis_url="redis://:secret@h:1/0"),
    info={
        "valkey_version": "9.1.2",
        "redis_version": "7.2.4",
        "role": "master",
        "maxmemory": 1 << 30,
        "used_memory": 1 << 20,
        "total_system_memory": 1 << 34,
        "maxmemory_policy": "noeviction",
        "connected_slaves": 0,
    },
    config={"appendonly": "yes", "appendfsync": "always", "bind": "* -::*", "port": "6379", "protected-mode": "no"},
    refused=[],
    cluster={},
    time_ms=[0.1] * 50,
    script_ms=[0.2] * 20,
    skew_s=0.0,
    queues=0,
    findings=[],
)


def verdict(check: str, look: Look) -> str:
    return CHECKS[check](look)[0]


def test_sound_server_needs_no_repair() -> None:
    findings = examine(SOUND)
    assert [finding.check for finding in findings] == list(CHECKS)
    assert {finding.verdict for finding in findings} == {"ok"}
    assert not has_failed(findings)
    assert "secret" not in str(findings)


@pytest.mark.parametrize(
    ("kind", "version", "fixes"),
    [
        ("redis", "7.0.3", {"CVE-2025-49844": "7.2.11", "CVE-2022-31144": "7.0.4"}),
        ("redis", "7.0.15", {"CVE-2025-49844": "7.2.11"}),
        ("redis", "7.2.10", {"CVE-2025-49844": "7.2.11"}),
        ("redis", "7.2.11", {}),
        ("redis", "7.4.6", {}),
        ("redis", "8.0.3", {"CVE-2025-49844": "8.0.4"}),
        ("redis", "8.2.1", {"CVE-2025-49844": "8.2.2", "CVE-2025-62507": "8.2.3"}),
        ("redis", "8.2.2", {"CVE-2025-62507": "8.2.3"}),
        ("redis", "8.4.0", {}),
        ("valkey", "7.2.11", {"CVE-2025-67733": "7.2.12"}),
        ("valkey", "8.1.3", {"CVE-2025-49844": "8.1.4", "CVE-2025-67733": "8.1.6"}),
        ("valkey", "9.0.1", {"CVE-2025-67733": "9.0.2"}),
        ("valkey", "9.0.2", {}),
        ("valkey", "9.1", {}),
    ],
)
def test_vulnerabilities_are_named_with_the_fixing_release(kind: str, version: str, fixes: dict[str, str]) -> None:
    assert {floor.cve: fix for floor, fix in open_holes(kind, version)} == fixes


def test_newest_fix_is_recommended() -> None:
    word, found, fix = CHECKS["security"](replace(SOUND, info={**SOUND.info, "valkey_version": "8.1.3"}))
    assert word == "warn"
    assert "CVE-2025-49844" in found
    assert "8.1.6" in fix


def test_too_old_server_fails() -> None:
    assert verdict("version", replace(SOUND, info={"redis_version": "6.2.14"})) == "fail"


@pytest.mark.parametrize(
    ("url", "config", "expected"),
    [
        ("redis://h:1/0", {}, "fail"),
        ("redis://:secret@h:1/0", {}, "ok"),
        ("redis://h:1/0", {"requirepass": "secret"}, "ok"),
        ("redis://h:1/0", {"bind": "127.0.0.1 -::1"}, "ok"),
        ("redis://h:1/0", {"bind": "127.0.0.1 10.0.0.1"}, "fail"),
        ("redis://h:1/0", {"protected-mode": "yes"}, "ok"),
        ("unix:///run/s", {"port": "0"}, "ok"),
        ("redis://h:1/0", None, "warn"),
        ("redis://127.0.0.1:1/0", None, "ok"),
        ("redis+sentinel://h:1,g:2/mymaster", None, "warn"),
    ],
)
def test_server_on_the_network_must_require_a_password(url: str, config: dict[str, str] | None, expected: str) -> None:
    whole = None if config is None else {**(SOUND.config or {}), **config}
    assert verdict("password", replace(SOUND, settings=CommonSettings(redis_url=url), config=whole)) == expected


def cluster(state: str, slots: str) -> dict[str, Any]:
    return {"cluster": {"cluster_state": state, "cluster_slots_assigned": slots, "cluster_slots_ok": slots}}


CONDITIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "slow": ("latency", {"time_ms": [30.0] * 50}, "warn"),
    "skewed": ("clock", {"skew_s": -1.5}, "warn"),
    "half a cluster": ("cluster", cluster("fail", "9000"), "fail"),
    "a whole cluster": ("cluster", cluster("ok", "16384"), "ok"),
    "a certificate that is good for long": ("certificate", {"certificate_left_s": 60 * 86_400.0}, "ok"),
    "a certificate that expires soon": ("certificate", {"certificate_left_s": 13 * 86_400.0}, "warn"),
    "a log that cannot be written": ("fsync", {"info": {**SOUND.info, "aof_last_write_status": "err"}}, "fail"),
    "nearly full": ("memory", {"info": {**SOUND.info, "used_memory": (1 << 30) * 0.95}}, "fail"),
    "filling": ("memory", {"info": {**SOUND.info, "used_memory": (1 << 30) * 0.8}}, "warn"),
    "records without a known form": ("records", {"config": None}, "ok"),
}


def test_libc_is_named_with_the_time_that_jemalloc_saves() -> None:
    told = [CHECKS["allocator"](replace(SOUND, info={"mem_allocator": name})) for name in ("libc", "jemalloc-5.3.0")]
    assert [word for word, _, _ in told] == ["ok", "ok"]
    assert ["10 to 20 %" in found for _, found, _ in told] == [True, False]


def found_in(code: Code, queue: str = "") -> Finding:
    ask = f"director {code} {queue}".strip()
    return Finding(code=code, level="bad", title=code, detail="so", queue=QueueName(queue) or None, ask=ask)


def test_each_kind_of_finding_is_shown_beside_frequent_ones() -> None:
    servers: list[Code] = ["setup_loop", "setup_failed", "server_auth", "servers_unwell"]
    many = [found_in("setup_loop", f"acme/m{number}:0123456789ab") for number in range(9)]
    _, told, fix = CHECKS["servers"](replace(SOUND, findings=[*map(found_in, servers), *many]))
    assert all(f"{code}: so" in told for code in servers)
    assert told.endswith(" And 7 more.")
    assert fix.endswith(" and 10 more")
    many = [found_in("queue_not_served")] * MOST
    assert CHECKS["directors"](replace(SOUND, findings=many))[1].endswith(f" And {MOST - 3} or more.")


@pytest.mark.parametrize(("check", "facts", "expected"), CONDITIONS.values(), ids=list(CONDITIONS))
def test_failed_fsync_and_other_rare_facts_are_judged(check: str, facts: dict[str, Any], expected: str) -> None:
    word, _, fix = CHECKS[check](replace(SOUND, **facts))
    assert word == expected
    assert bool(fix) == (expected != "ok")
