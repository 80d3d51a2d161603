"""The scripts that start Redis in a pod: who may log in, and who is the master."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.disk import fill, small_disk
from tests.support.manifests import K8S
from tests.support.servers import binary

NO_RETRIES: Retry = Retry(NoBackoff(), 0)
SOURCES = (
    *("base/redis/redis.conf", "base/redis/users.acl", "base/redis/start.sh"),
    *("components/sentinel/member.sh", "components/sentinel/sentinel.sh", "components/sentinel/members.acl"),
)
SECRETS = {
    "REDIS_PASSWORD": "new",
    "REDIS_PASSWORD_FORMER": "former",
    "API_REDIS_PASSWORD": "api",
    "API_REDIS_PASSWORD_FORMER": "api-former",
    "KEEPER_REDIS_PASSWORD": "keeper",
    "RUN_REDIS_PASSWORD": "run",
    "KEDA_PASSWORD": "keda",
    "ADMIN_PASSWORD": "admin",
    "REPLICA_PASSWORD": "replica",
    "SENTINEL_PASSWORD": "sentinel",
}


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    folder = tmp_path / "etc-redis"
    folder.mkdir()
    for source in SOURCES:
        (folder / Path(source).name).write_bytes((K8S / source).read_bytes())
    return folder


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "valkey-server").symlink_to(binary("valkey"))
    program(folder, "valkey-cli", "exit 1")
    program(folder, "hostname", "echo redis-1")
    return folder


def program(folder: Path, name: str, does: str) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)


def surroundings(tmp_path: Path, programs: Path) -> dict[str, str]:
    return {**SECRETS, "PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(tmp_path), "DATA": str(tmp_path)}


def placed(etc: Path, tmp_path: Path) -> Path:
    socket, conf = tmp_path / "s", etc / "redis.conf"
    conf.write_text(conf.read_text().replace("dir /data", f"dir {tmp_path}\nport 0\nunixsocket {socket}"))
    return socket


@contextmanager
def started(script: Path, env: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sh", script], env=env, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


def asked(socket: Path, user: str | None, password: str | None, *command: str | bytes) -> Any:
    until = time.monotonic() + 20
    with Redis(unix_socket_path=str(socket), username=user, password=password, protocol=2, retry=NO_RETRIES) as redis:
        while True:
            try:
                return redis.execute_command(*command)
            except exceptions.AuthenticationError:
                raise
            except (exceptions.ConnectionError, exceptions.BusyLoadingError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)


def test_passwords_replace_the_words_in_the_users_file(tmp_path: Path, etc: Path, programs: Path) -> None:
    socket = placed(etc, tmp_path)
    with started(etc / "start.sh", surroundings(tmp_path, programs)):
        assert asked(socket, "probe", "any", "PING") is True
        ours = [
            ("director", "new"),
            ("director", "former"),
            ("api", "api"),
            ("api", "api-former"),
            ("keeper", "keeper"),
        ]
        for user, password in [*ours, ("keeper", "keeper"), ("run", "run")]:
            assert asked(socket, user, password, "EXISTS", "queues") == 0
        assert asked(socket, "admin", "admin", "CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]
        for user, password in (("director", "admin"), ("director", ""), ("keda", "new"), ("default", ""), ("run", "")):
            with pytest.raises(exceptions.AuthenticationError):
                asked(socket, user, password or "no", "PING")
        with pytest.raises(exceptions.NoPermissionError):
            asked(socket, "probe", "any", "GET", "x")
        with pytest.raises(exceptions.AuthenticationError):
            asked(socket, None, None, "PING")
    text = (tmp_path / "users.acl").read_text()
    assert not [secret for secret in SECRETS.values() if f">{secret}" in text]
    assert (tmp_path / "users.acl").stat().st_mode & 0o777 == 0o600


def test_server_without_passwords_of_the_parts_admits_the_user_for_all(
    tmp_path: Path, etc: Path, programs: Path
) -> None:
    """Secrets of the former release have only that one. A user without a password cannot log in."""
    socket = placed(etc, tmp_path)
    env = {
        name: value
        for name, value in surroundings(tmp_path, programs).items()
        if name[:4] not in ("API_", "KEEP", "RUN_")
    }
    with started(etc / "start.sh", env):
        assert asked(socket, "director", "new", "EXISTS", "queues") == 0
        for user in ("api", "keeper", "run"):
            for password in ("", "any", "new"):
                with pytest.raises(exceptions.AuthenticationError):
                    asked(socket, user, password, "PING")


def started_member(tmp_path: Path, etc: Path, programs: Path) -> list[str]:
    program(programs, "valkey-server", "exit 0")
    subprocess.run(["sh", etc / "member.sh"], env=surroundings(tmp_path, programs), check=True, timeout=30)
    return (tmp_path / "etc/redis.conf").read_text().splitlines()


@pytest.mark.parametrize(
    ("sentinels", "disk", "master"),
    [
        ("echo redis-2.redis-nodes", "redis-0.redis-nodes", "redis-2.redis-nodes"),  # what is, before what was
        ("exit 1", "redis-2.redis-nodes", "redis-2.redis-nodes"),  # all begin at once: what was
        ("exit 1", "", "redis-0.redis-nodes"),  # the very first time
        ("echo ERR invalid password", "redis-1.redis-nodes", ""),  # no answer is no master; itself
    ],
)
def test_a_member_starts_as_replica_of_the_known_master(
    tmp_path: Path, etc: Path, programs: Path, sentinels: str, disk: str, master: str
) -> None:
    program(programs, "valkey-cli", sentinels)
    if disk:
        (tmp_path / "sentinel.conf").write_text(f"port 26379\nsentinel monitor director {disk} 6379 2\n")
    lines = started_member(tmp_path, etc, programs)
    assert [line for line in lines if line.startswith("replicaof")] == ([f"replicaof {master} 6379"] if master else [])
    assert "replica-announce-ip redis-1.redis-nodes" in lines


@pytest.mark.parametrize(
    ("has_data", "looks", "master"),
    [
        (False, 3, "redis-2.redis-nodes"),  # they name another one in time
        (False, 99, ""),  # no master is known: they know no other member yet
        (True, 99, ""),
    ],
)
def test_a_member_with_an_empty_disk_waits_for_another_master(
    tmp_path: Path, etc: Path, programs: Path, has_data: bool, looks: int, master: str
) -> None:
    tally = tmp_path / "looks"
    program(
        programs,
        "valkey-cli",
        f"echo >> {tally}; [ $(wc -l < {tally}) -gt {looks} ] && m=2; echo redis-${{m:-1}}.redis-nodes",
    )
    program(programs, "sleep", "exit 0")
    if has_data:
        (tmp_path / "appendonlydir").mkdir()
    lines = started_member(tmp_path, etc, programs)
    assert [line for line in lines if line.startswith("replicaof")] == ([f"replicaof {master} 6379"] if master else [])
    assert len(tally.read_text()) == (1 if has_data else min(looks + 1, 21))


@pytest.mark.parametrize(
    ("role", "is_ready"),
    [
        (("master", "1042", "redis-1.redis-nodes", "6379", "1042"), True),
        (("slave", "redis-0.redis-nodes", "6379", "connected", "1042"), True),
        (("slave", "redis-0.redis-nodes", "6379", "sync", "-1"), False),
        (("slave", "redis-0.redis-nodes", "6379", "connect", "-1"), False),
        (("NOAUTH", "Authentication", "required."), False),
    ],
)
def test_a_member_is_ready_once_it_has_its_masters_data(
    tmp_path: Path, programs: Path, role: tuple[str, ...], is_ready: bool
) -> None:
    program(programs, "valkey-cli", f"printf '%s\\n' {' '.join(role)}")
    script = K8S / "components/sentinel/caught-up.sh"
    done = subprocess.run(["sh", script], env=surroundings(tmp_path, programs), check=False, timeout=30)
    assert (done.returncode == 0) is is_ready


def test_a_member_admits_replicas_and_sentinels(tmp_path: Path, etc: Path, programs: Path) -> None:
    program(programs, "hostname", "echo redis-0")
    socket = placed(etc, tmp_path)
    with started(etc / "member.sh", surroundings(tmp_path, programs)):
        assert asked(socket, "replica", "replica", "PING") is True
        assert asked(socket, "sentinel", "replica", "ROLE")[0] == b"master"
        for name, value in ((b"min-replicas-to-write", b"1"), (b"maxmemory-policy", b"noeviction")):
            assert asked(socket, "admin", "admin", "CONFIG", "GET", name) == [name, value]
        with pytest.raises(exceptions.NoPermissionError):
            asked(socket, "replica", "replica", "GET", "x")


def test_a_sentinel_keeps_its_state_and_accepts_new_passwords(tmp_path: Path, etc: Path, programs: Path) -> None:
    program(programs, "valkey-sentinel", "exit 0")
    env = surroundings(tmp_path, programs)
    conf = tmp_path / "sentinel.conf"
    subprocess.run(["sh", etc / "sentinel.sh"], env=env, check=True, timeout=30)
    assert "sentinel monitor director redis-0.redis-nodes 6379 2" in conf.read_text().splitlines()
    conf.write_text(conf.read_text().replace("redis-0", "redis-2") + "sentinel current-epoch 7\n")
    subprocess.run(["sh", etc / "sentinel.sh"], env=env | {"REPLICA_PASSWORD": "other"}, check=True, timeout=30)
    lines = conf.read_text().splitlines()
    assert "sentinel monitor director redis-2.redis-nodes 6379 2" in lines
    assert "sentinel current-epoch 7" in lines
    assert [line for line in lines if "pass" in line] == [
        "requirepass sentinel",
        "sentinel sentinel-pass sentinel",
        "sentinel auth-pass director other",
    ]


def test_a_real_sentinel_accepts_the_written_configuration(tmp_path: Path, etc: Path, programs: Path) -> None:
    (programs / "valkey-sentinel").symlink_to(binary("valkey"))
    socket = tmp_path / "s"
    subprocess.run(
        ["sh", etc / "sentinel.sh"],
        env=surroundings(tmp_path, programs) | {"PATH": f"{made_nothing(tmp_path)}:{programs}:/usr/bin:/bin"},
        check=True,
        timeout=30,
    )
    conf = tmp_path / "sentinel.conf"
    text = re.sub(r"redis-\d\.redis-nodes", "127.0.0.1", conf.read_text())  # those names are a cluster's
    conf.write_text(text.replace("port 26379", f"port 0\nunixsocket {socket}"))
    with started(etc / "sentinel.sh", surroundings(tmp_path, programs)):
        assert asked(socket, None, "sentinel", "SENTINEL", "get-master-addr-by-name", "director")[0] == b"127.0.0.1"
        with pytest.raises(exceptions.AuthenticationError):
            asked(socket, None, None, "PING")
        assert asked(socket, None, "sentinel", "SENTINEL", "FLUSHCONFIG")
    with started(etc / "sentinel.sh", surroundings(tmp_path, programs) | {"SENTINEL_PASSWORD": "other"}):
        assert asked(socket, None, "other", "PING") is True
        with pytest.raises(exceptions.AuthenticationError):
            asked(socket, None, "sentinel", "PING")


def made_nothing(tmp_path: Path) -> Path:
    folder = tmp_path / "nothing"
    folder.mkdir()
    program(folder, "valkey-sentinel", "exit 0")
    return folder


def counted_waits(tmp_path: Path, programs: Path) -> Path:
    """Let each `sleep` of a script be short, and add a byte to the file that is returned."""
    program(programs, "sleep", f"echo >> {tmp_path}/waits; exec /bin/sleep 0.05")
    return tmp_path / "waits"


def wait_for(waits: Path, count: int) -> None:
    until = time.monotonic() + 20
    while not waits.exists() or waits.stat().st_size < count:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("full", ["data", "tmp"])
def test_server_waits_for_room_on_its_disks(tmp_path: Path, etc: Path, programs: Path, full: str) -> None:
    socket = placed(etc, tmp_path)
    with small_disk(tmp_path / "disk", mib=4) as disk:
        variable = {"data": "DATA", "tmp": "TMPDIR"}[full]
        waits = counted_waits(tmp_path, programs)
        ballast = fill(disk)
        with started(etc / "start.sh", {**surroundings(tmp_path, programs), variable: str(disk)}):
            wait_for(waits, 3)
            assert not socket.exists()
            assert not (disk / ".room").exists()
            shutil.rmtree(ballast)
            assert asked(socket, "probe", "any", "PING") is True


def test_server_that_waits_for_room_can_be_stopped(tmp_path: Path, etc: Path, programs: Path) -> None:
    """143 is the script's own exit: by default the signal ends a shell, except as process 1 of a container."""
    waits = counted_waits(tmp_path, programs)
    with started(etc / "start.sh", {**surroundings(tmp_path, programs), "DATA": str(tmp_path / "missing")}) as process:
        wait_for(waits, 1)
        process.terminate()
        assert process.wait(20) == 143
