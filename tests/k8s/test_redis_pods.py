"""The scripts that start Redis in a pod: who may log in, and who is the master."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.disk import fill, small_disk
from tests.support.eventually import wait_until
from tests.support.manifests import K8S
from tests.support.servers import binary

NO_RETRIES: Retry = Retry(NoBackoff(), 0)
SOURCES = (
    *(
        "base/redis/redis.conf",
        "base/redis/users.acl",
        "base/redis/room.sh",
        "base/redis/start.sh",
        "base/redis/copy.sh",
    ),
    *(
        f"components/sentinel/{name}"
        for name in (
            "members.sh",
            "member.sh",
            "caught-up.sh",
            "hand-over.sh",
            "sentinel.sh",
            "forget.sh",
            "reaches-itself.sh",
            "members.acl",
        )
    ),
)
SECRETS = {
    "REDIS_PASSWORD": "new",
    "REDIS_PASSWORD_FORMER": "former",
    "API_REDIS_PASSWORD": "api",
    "API_REDIS_PASSWORD_FORMER": "api-former",
    "KEEPER_REDIS_PASSWORD": "keeper",
    "RUN_REDIS_PASSWORD": "run",
    "KEDA_PASSWORD": "keda",
    "BACKUP_PASSWORD": "backup",
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
    program(folder, "getent", found_by_dns("10.9.0."))
    program(folder, "sleep", "/bin/sleep 0.01")
    return folder


def program(folder: Path, name: str, does: str) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)


def found_by_dns(net: str) -> str:
    """Write a `getent` that finds Services by DNS alone. The kubelet's own line in /etc/hosts has the pod's address."""
    own = '[ "$1 $2 $3" = "-s dns hosts" ] || { echo "10.244.7.7 $2"; exit; }'
    return f'{own}\necho "{net}${{4#redis-}} $4.director.svc"'


def surroundings(tmp_path: Path, programs: Path) -> dict[str, str]:
    return {**SECRETS, "PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(tmp_path), "DATA": str(tmp_path)}


def placed(etc: Path, tmp_path: Path) -> Path:
    socket, conf = tmp_path / "s", etc / "redis.conf"
    conf.write_text(conf.read_text().replace("dir /data", f"dir {tmp_path}\nport 0\nunixsocket {socket}"))
    return socket


@contextmanager
def started(script: Path, env: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sh", script], env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a script and what it started: the process is the first of a session of its own."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
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
                time.sleep(0.01)  # it starts


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
    """Secrets of manifests before 0.3.0 have only that one. A user without a password cannot log in."""
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
    member, env = ["sh", etc / "member.sh"], surroundings(tmp_path, programs)
    with subprocess.Popen(member, env=env, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.wait(30) == 0
            process.communicate(timeout=10)  # its output ends when nothing that it started runs any more
        finally:
            end(process)
    return (tmp_path / "etc/redis.conf").read_text().splitlines()


def has_a_log(data: Path) -> None:
    folder = data / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.1.incr.aof").touch()
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")


def sentinels_say(*answers: tuple[str, int]) -> str:
    """Write a `valkey-cli` whose Sentinels of redis-0 and redis-2 name a master, and the epoch of its failover."""
    cases = [
        f"*-h\\ 10.9.0.{number}\\ *) printf '%s\\n' {at} 6379 name director ip {at} config-epoch {epoch} ;;"
        for number, (at, epoch) in zip((0, 2), answers, strict=True)
    ]
    return "\n".join(['case "$*" in', *cases, "*) exit 1 ;;", "esac"])


@pytest.mark.parametrize(
    ("sentinels", "disk", "master"),
    [
        (sentinels_say(("10.9.0.2", 4), ("10.9.0.2", 4)), ("10.9.0.0", 3), "10.9.0.2"),  # what is, before what was
        (sentinels_say(("10.9.0.0", 3), ("10.9.0.2", 4)), ("10.9.0.0", 3), "10.9.0.2"),  # one has not heard of it yet
        (sentinels_say(("10.9.0.0", 0), ("10.9.0.0", 0)), ("10.9.0.2", 4), "10.9.0.2"),  # theirs are new disks
        ("exit 1", ("10.9.0.2", 4), "10.9.0.2"),  # all begin at once
        ("exit 1", ("redis-2.redis-nodes", 4), "10.9.0.2"),  # manifests before 0.3.0 wrote it
        ("exit 1", None, "10.9.0.0"),  # the very first time
        ("echo ERR invalid password", ("10.9.0.1", 1), ""),  # no answer is no master; itself
    ],
)
def test_a_member_starts_as_replica_of_the_newest_master(
    tmp_path: Path, etc: Path, programs: Path, sentinels: str, disk: tuple[str, int] | None, master: str
) -> None:
    program(programs, "valkey-cli", sentinels)
    has_a_log(tmp_path)
    if disk is not None:
        lines = f"sentinel monitor director {disk[0]} 6379 2\nsentinel config-epoch director {disk[1]}\n"
        (tmp_path / "sentinel.conf").write_text(lines)
    lines = started_member(tmp_path, etc, programs)
    assert [line for line in lines if line.startswith("replicaof")] == ([f"replicaof {master} 6379"] if master else [])
    assert "replica-announce-ip 10.9.0.1" in lines
    assert not [line for line in lines if line.startswith("replica-priority")]


@pytest.mark.parametrize(
    ("others", "may_start"),
    [
        ("loading:0\\r\\n# Keyspace\\r", True),  # the very first start
        ("loading:0\\r\\n# Keyspace\\r\\ndb0:keys=1,expires=0\\r", False),
        ("loading:1\\r\\n# Keyspace\\r", False),  # it has not read its log yet
        ("", False),  # it does not answer
    ],
)
def test_a_master_without_a_disk_waits_until_the_others_show_that_they_are_empty(
    tmp_path: Path, etc: Path, programs: Path, others: str, may_start: bool
) -> None:
    """Else they would copy nothing, and what they hold would be gone."""
    info = f'case "$*" in *info) printf "{others}" ;; *sentinel) printf "10.9.0.1\\n6379\\n" ;; esac'
    program(programs, "valkey-cli", info)
    looks = tmp_path / "looks"
    program(programs, "sleep", f"echo >> {looks}; [ $(wc -l < {looks}) -lt 3 ] || kill $PPID")
    program(programs, "valkey-server", "exit 0")
    done = subprocess.run(["sh", etc / "member.sh"], env=surroundings(tmp_path, programs), check=False, timeout=30)
    assert (done.returncode == 0) is may_start
    assert (tmp_path / "etc/redis.conf").exists() is may_start
    assert (tmp_path / "appendonlydir/filling").exists() is not may_start


def test_a_member_that_waits_for_a_master_ends_when_it_is_told(tmp_path: Path, etc: Path, programs: Path) -> None:
    """As the first process of its container it would get no signal that it does not ask for, and take 120 s to end."""
    program(programs, "hostname", "echo redis-0")
    member = ["sh", etc / "member.sh"]
    env = surroundings(tmp_path, programs)
    with subprocess.Popen(member, env=env, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stderr is not None
            assert b"The disk is empty." in process.stderr.readline()
            process.terminate()
            assert process.wait(20) == 143
        finally:
            end(process)


def test_a_member_waits_until_the_former_pod_has_left_the_disk(tmp_path: Path, etc: Path, programs: Path) -> None:
    """After a forced delete both run. Two servers would write one log."""
    program(programs, "valkey-server", "exit 0")
    has_a_log(tmp_path)
    waits = counted_waits(tmp_path, programs)
    former = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(former, fcntl.LOCK_EX)
    with started(etc / "member.sh", surroundings(tmp_path, programs)) as process:
        wait_for(waits, 3)
        assert not (tmp_path / "etc/redis.conf").exists()
        os.close(former)
        assert process.wait(20) == 0
    assert (tmp_path / "etc/redis.conf").exists()


@pytest.mark.parametrize(
    ("listed", "is_reset"),
    [
        ("10.9.0.0 master 10.9.0.1 slave 10.9.0.2 slave 10.244.0.7 s_down,slave,disconnected", True),
        ("10.9.0.0 master 10.9.0.1 slave 10.9.0.2 slave 10.244.0.7 slave", False),  # a pod of 0.3.0 that is there
        ("10.9.0.0 master 10.9.0.1 s_down,slave 10.9.0.2 slave 10.244.0.7 s_down,slave", False),  # not all are there
        ("10.9.0.0 master,failover_in_progress 10.9.0.1 slave 10.9.0.2 slave 10.244.0.7 s_down,slave", False),
        ("10.9.0.0 master 10.9.0.1 slave 10.9.0.2 s_down,slave", False),  # a member is never forgotten
    ],
)
def test_a_sentinel_forgets_only_an_address_that_no_member_has(
    tmp_path: Path, etc: Path, programs: Path, listed: str, is_reset: bool
) -> None:
    (tmp_path / "members").write_text("redis-0 10.9.0.0\nredis-1 10.9.0.1\nredis-2 10.9.0.2\n")
    lines = "\\n".join(f"{('ip', 'flags')[number % 2]}\\n{word}" for number, word in enumerate(listed.split()))
    answers = f'case "$(cat)" in *reset*) touch {tmp_path}/reset ;; *) printf "{lines}\\n" ;; esac'
    program(programs, "valkey-cli", answers)
    program(programs, "date", "echo 15")  # the turn of redis-1
    looks = tmp_path / "looks"
    program(programs, "sleep", f"echo >> {looks}; [ $(wc -l < {looks}) -lt 4 ]")
    command = ["sh", etc / "forget.sh", str(os.getpid())]
    subprocess.run(command, env=surroundings(tmp_path, programs), check=True, timeout=30)
    assert (tmp_path / "reset").exists() is is_reset


def test_a_replica_with_an_empty_disk_is_not_to_be_promoted(tmp_path: Path, etc: Path, programs: Path) -> None:
    program(programs, "valkey-cli", "exit 1")
    assert "replica-priority 0" in started_member(tmp_path, etc, programs)


@pytest.mark.parametrize(
    ("role", "is_ready"),
    [
        (("master", "1042", "redis-1.redis-nodes", "6379", "1042"), True),
        (("slave", "redis-0.redis-nodes", "6379", "connected", "1042"), True),
        (("slave", "10.9.0.0", "6379", "sync", "-1"), False),
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


@pytest.mark.parametrize(("answer", "is_ready"), [("echo PONG", True), ("exit 1", False), ("echo LOADING", False)])
def test_a_member_is_ready_only_if_it_reaches_itself_at_its_service(
    tmp_path: Path, etc: Path, programs: Path, answer: str, is_ready: bool
) -> None:
    (tmp_path / "members").write_text("redis-0 10.9.0.0\nredis-1 10.9.0.1\nredis-2 10.9.0.2\n")
    program(programs, "valkey-cli", f'case "$*" in *"-h 10.9.0.1 "*) {answer} ;; *) echo PONG ;; esac')
    env = surroundings(tmp_path, programs)
    done = subprocess.run(["sh", etc / "reaches-itself.sh"], env=env, check=False, timeout=30, capture_output=True)
    assert (done.returncode == 0) is is_ready
    assert (b"hairpin" in done.stdout) is not is_ready


def test_a_member_admits_replicas_and_sentinels(tmp_path: Path, etc: Path, programs: Path) -> None:
    program(programs, "hostname", "echo redis-0")
    has_a_log(tmp_path)
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
    assert "sentinel monitor director 10.9.0.0 6379 2" in conf.read_text().splitlines()
    conf.write_text(conf.read_text().replace("10.9.0.0", "10.9.0.2") + "sentinel current-epoch 7\n")
    subprocess.run(["sh", etc / "sentinel.sh"], env=env | {"REPLICA_PASSWORD": "other"}, check=True, timeout=30)
    lines = conf.read_text().splitlines()
    assert "sentinel monitor director 10.9.0.2 6379 2" in lines
    assert "sentinel current-epoch 7" in lines
    assert [line for line in lines if "pass" in line] == [
        "requirepass sentinel",
        "sentinel sentinel-pass sentinel",
        "sentinel auth-pass director other",
    ]


def test_a_sentinel_finds_members_whose_services_have_other_addresses(
    tmp_path: Path, etc: Path, programs: Path
) -> None:
    """Manifests before 0.3.0 wrote names. A Sentinel that looks names up acts late while look-ups stall."""
    program(programs, "valkey-sentinel", "exit 0")
    conf = tmp_path / "sentinel.conf"
    conf.write_text(
        "sentinel resolve-hostnames yes\nsentinel announce-ip redis-1.redis-nodes\n"
        "sentinel monitor director redis-2.redis-nodes 6379 2\n"
        "sentinel known-replica director redis-0.redis-nodes 6379\n"
    )
    for net in ("10.9.0", "10.9.1"):
        program(programs, "getent", found_by_dns(f"{net}."))
        subprocess.run(["sh", etc / "sentinel.sh"], env=surroundings(tmp_path, programs), check=True, timeout=30)
        lines = [line for line in conf.read_text().splitlines() if "pass" not in line]
        assert lines == [
            f"sentinel monitor director {net}.2 6379 2",
            f"sentinel known-replica director {net}.0 6379",
            f"sentinel announce-ip {net}.1",
            "sentinel failover-timeout director 3000",
        ]


def test_a_sentinel_that_knows_members_twice_keeps_each_once(tmp_path: Path, etc: Path, programs: Path) -> None:
    """During an upgrade it knows them by name and by address. Twice ends it at the start: "Duplicate hostname"."""
    program(programs, "valkey-sentinel", "exit 0")
    conf = tmp_path / "sentinel.conf"
    known = ("redis-0.redis-nodes", "10.9.0.0", "redis-2.redis-nodes", "10.9.0.2")
    replicas = [f"sentinel known-replica director {at} 6379" for at in known]
    conf.write_text("\n".join(["sentinel monitor director 10.9.0.0 6379 2", *replicas, ""]))
    subprocess.run(["sh", etc / "sentinel.sh"], env=surroundings(tmp_path, programs), check=True, timeout=30)
    replicas = [line for line in conf.read_text().splitlines() if "known-replica" in line]
    assert replicas == ["sentinel known-replica director 10.9.0.2 6379"]  # and the master is no replica of itself


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
    text = re.sub(r"10\.9\.0\.\d", "127.0.0.1", conf.read_text())
    (tmp_path / "members").unlink()
    program(programs, "getent", "echo 127.0.0.1 $4")
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
    wait_until(lambda: waits.exists() and waits.stat().st_size >= count, f"it waits {count} times")


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


@pytest.mark.parametrize("full", ["data", "tmp"])
def test_sentinel_waits_for_room_on_its_disks(tmp_path: Path, etc: Path, programs: Path, full: str) -> None:
    """A Sentinel writes its settings before it starts. With half of them, on a full disk, it would watch nothing."""
    program(programs, "valkey-sentinel", f"cp $1 {tmp_path}/began")
    with small_disk(tmp_path / "disk", mib=4) as disk:
        variable = {"data": "DATA", "tmp": "TMPDIR"}[full]
        waits = counted_waits(tmp_path, programs)
        ballast = fill(disk)
        with started(etc / "sentinel.sh", {**surroundings(tmp_path, programs), variable: str(disk)}) as process:
            wait_for(waits, 3)
            assert process.poll() is None
            assert not (disk / "sentinel.conf").exists()
            shutil.rmtree(ballast)
            assert process.wait(20) == 0
    assert "sentinel monitor director 10.9.0.0 6379 2" in (tmp_path / "began").read_text()


def test_server_that_waits_for_room_can_be_stopped(tmp_path: Path, etc: Path, programs: Path) -> None:
    """143 is the script's own exit: by default the signal ends a shell, except as process 1 of a container."""
    waits = counted_waits(tmp_path, programs)
    with started(etc / "start.sh", {**surroundings(tmp_path, programs), "DATA": str(tmp_path / "missing")}) as process:
        wait_for(waits, 1)
        process.terminate()
        assert process.wait(20) == 143


@pytest.mark.faults
def test_a_full_disk_ends_redis_and_loses_no_answered_write(tmp_path: Path, etc: Path, programs: Path) -> None:
    """A limit of 2 MiB on the size of a file stands for the disk. `DirectorRedisDiskFull` fires before it is full."""
    socket, env = placed(etc, tmp_path), surroundings(tmp_path, programs)
    full = ["sh", "-c", 'trap "" XFSZ; ulimit -f 4096; exec sh "$0"', etc / "start.sh"]
    process = subprocess.Popen(full, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    answered: list[int] = []
    try:
        assert asked(socket, "probe", "any", "PING") is True
        with Redis(unix_socket_path=str(socket), username="admin", password="admin", retry=NO_RETRIES) as redis:
            for number in range(4000):
                redis.set(f"contact:{number}", b"x" * 1024)
                answered.append(number)
    except exceptions.ConnectionError:
        assert process.wait(20) == 1
    finally:
        end(process)
    assert 10 < len(answered) < 4000
    with started(etc / "start.sh", env):
        names = [f"contact:{number}" for number in answered]
        assert asked(socket, "admin", "admin", "EXISTS", *names) == len(names)
