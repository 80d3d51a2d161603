"""Three Redis pods of the overlay `ha`, as processes: one is lost, comes back, and all of them start at once."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, exceptions

from director.local.launcher.processes import free_port
from tests.k8s.played_cluster import CLI
from tests.k8s.test_redis_pods import NO_RETRIES, SECRETS, SOURCES, end, found_by_dns, program
from tests.support.eventually import wait_until
from tests.support.manifests import K8S
from tests.support.servers import binary

pytestmark = [pytest.mark.heavy, pytest.mark.long]

# Look-ups of the members' names, every second one of which stalls for 5 s while the file $SLOW_DNS is there
wait_for = partial(wait_until, limit_s=60, every_s=0.05)
SLOW_DNS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static unsigned asked;
    char address[32];
    lookup *real = (lookup *)dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strncmp(name, "redis-", 6)) return real(name, service, hints, found);
    if (!access(getenv("SLOW_DNS"), F_OK) && ++asked % 2) { sleep(5); return EAI_AGAIN; }
    snprintf(address, sizeof address, "127.77.0.1%c", name[6]);
    return real(address, service, hints, found);
}
"""


class Pod:
    """A member of the cluster whose disk outlives its processes. Its Service's address is one of this machine."""

    def __init__(self, number: int, folder: Path, port: int, *, down_after_ms: int = 1000) -> None:
        self.host = f"127.77.0.1{number}"
        self.port = port
        self.data = folder / "data"
        self.log = folder / "log"
        self._folder = folder
        self._down_after_ms = down_after_ms
        paths = {"PATH": f"{folder}/bin:/usr/bin:/bin", "TMPDIR": f"{folder}/tmp", "DATA": str(self.data)}
        self._env = {**SECRETS, **paths, "POD_HOST": self.host, "POD_PORT": str(port)}
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("etc-redis", "data", "tmp", "bin"):
            (folder / name).mkdir(parents=True)
        for source in SOURCES:
            (folder / "etc-redis" / Path(source).name).write_text(self._here((K8S / source).read_text()))
        for name in ("valkey-server", "valkey-sentinel"):
            (folder / "bin" / name).symlink_to(binary("valkey"))
        program(folder / "bin", "hostname", f"echo redis-{number}")
        program(folder / "bin", "getent", found_by_dns("127.77.0.1"))
        (folder / "bin/valkey-cli").write_text(CLI)
        (folder / "bin/valkey-cli").chmod(0o755)

    def start(self, **env: str) -> None:
        self._env |= env
        with self.log.open("w") as log:
            for script in ("member.sh", "sentinel.sh"):
                command = ["sh", self._folder / "etc-redis" / script]
                process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log, start_new_session=True)
                self._processes.append(process)

    def lose(self) -> None:
        for process in self._processes:
            end(process)
        self._processes = []

    def lose_disk(self) -> None:
        shutil.rmtree(self.data)
        self.data.mkdir()

    def run(self, script: str) -> None:
        path = self._folder / "etc-redis" / script
        subprocess.run(["sh", path], env=self._env, check=True, timeout=60)

    def ask(self, *command: str) -> Any:
        with Redis(host=self.host, port=self.port, username="admin", password="admin", retry=NO_RETRIES) as redis:
            return redis.execute_command(*command)

    @property
    def knows(self) -> tuple[int, int]:
        """Return how many replicas and other Sentinels its Sentinel knows."""
        try:
            with Redis(host=self.host, port=self.port + 1, password="sentinel", retry=NO_RETRIES, protocol=2) as redis:
                told = redis.sentinel_master("director")
        except exceptions.RedisError:
            return (0, 0)
        return (told["num-slaves"], told["num-other-sentinels"])

    @property
    def role(self) -> tuple[str, ...]:
        """Return for example ("slave", its master's host, "connected")."""
        try:
            told = [each.decode() if isinstance(each, bytes) else each for each in self.ask("ROLE")]
        except exceptions.RedisError:
            return ("away",)
        return ("master",) if told[0] == "master" else (told[0], told[1], told[3])

    def _here(self, text: str) -> str:
        text = text.replace("26379", str(self.port + 1)).replace("6379", str(self.port))
        text = text.replace("bind * -::*", f"bind {self.host}\nport {self.port}").replace(
            "dir /data", f"dir {self.data}"
        )
        text = text.replace(f"\nport {self.port + 1}\n", f"\nport {self.port + 1}\nbind {self.host}\n")
        down_after = f"milliseconds director {self._down_after_ms}"
        return text.replace("milliseconds director 5000", down_after).replace("sleep 1", "sleep 0.2")


@contextmanager
def members(tmp_path: Path, **settings: int) -> Iterator[list[Pod]]:
    port = free_port()
    pods = [Pod(number, tmp_path / f"redis-{number}", port, **settings) for number in range(3)]
    try:
        yield pods
    finally:
        for pod in pods:
            pod.lose()


def masters(pods: list[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.role == ("master",)]


def are_one(pods: list[Pod]) -> bool:
    found = masters(pods)
    return len(found) == 1 and all(
        pod.role == ("slave", found[0].host, "connected") for pod in pods if pod is not found[0]
    )


def write(pods: list[Pod], number: int) -> bool:
    try:
        return [pod.ask("SET", f"contact:{number}", "kept") for pod in masters(pods)] == [True]
    except exceptions.RedisError:  # it waits for a replica
        return False


def test_written_data_survives_a_lost_node_and_a_full_restart(tmp_path: Path) -> None:
    with members(tmp_path) as pods:
        for pod in pods:
            pod.start()
        wait_for(lambda: are_one(pods), "three that begin for the first time are one master and two replicas")
        assert masters(pods) == [pods[0]]
        wait_for(lambda: write(pods, 1), "a master with a replica takes a write")

        wait_for(lambda: all(pod.knows == (2, 2) for pod in pods), "Sentinels know each other")
        pods[0].lose()
        wait_for(lambda: len(masters(pods[1:])) == 1, "another one becomes the master")
        wait_for(lambda: write(pods[1:], 2), "and takes writes")
        pods[0].start()
        wait_for(lambda: are_one(pods), "who comes back is its replica")
        [master] = masters(pods)
        assert master is not pods[0]

        for pod in pods:
            pod.lose()
        for pod in pods:
            pod.start()
        wait_for(lambda: are_one(pods), "three that begin at once are one again")
        assert [masters(pods)[0].ask("GET", f"contact:{number}") for number in (1, 2)] == [b"kept", b"kept"]

        wait_for(lambda: all(pod.knows == (2, 2) for pod in pods), "Sentinels know each other again")
        [master] = masters(pods)
        master.lose()
        master.lose_disk()
        master.start()
        wait_for(lambda: are_one(pods), "one that comes back with an empty disk is no master that others copy")
        assert [masters(pods)[0].ask("GET", f"contact:{number}") for number in (1, 2)] == [b"kept", b"kept"]


def test_the_former_master_with_an_empty_disk_empties_no_other_member(tmp_path: Path) -> None:
    with members(tmp_path) as pods:
        began(pods)
        for pod in pods:
            pod.lose()
        pods[0].lose_disk()
        pods[0].start()
        # by itself it knows no other master: it must not become one that the others copy
        wait_for(lambda: "The disk is empty." in pods[0].log.read_text() or bool(masters(pods)), "it begins")
        for pod in pods[1:]:
            pod.start()
        wait_for(lambda: are_one(pods), "three that begin are one again")
        assert masters(pods)[0].ask("GET", "contact:1") == b"kept"


def test_a_member_is_not_promoted_before_its_first_copy_is_complete(tmp_path: Path) -> None:
    with members(tmp_path) as pods:
        began(pods)
        pods[0].ask("CONFIG", "SET", "repl-diskless-sync-delay", "3600")  # nothing is copied meanwhile
        pods[2].lose()
        pods[2].lose_disk()
        pods[2].start()
        wait_for(lambda: pods[2].role != ("away",), "it begins")
        assert priority(pods[2]) == b"0"
        pods[0].ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        wait_for(lambda: are_one(pods), "it has its copy")
        wait_for(lambda: priority(pods[2]) == b"100", "it may be promoted")


def test_a_roll_hands_the_master_over_without_losing_a_write(tmp_path: Path) -> None:
    with members(tmp_path) as pods:
        began(pods)
        with ThreadPoolExecutor(1) as writer:
            answered = writer.submit(write_until_refused, pods[0])
            pods[0].run("hand-over.sh")
            assert masters(pods[:1]) == []
        wait_for(lambda: are_one(pods), "another one is the master")
        names = [f"contact:{number}" for number in range(2, answered.result())]
        assert masters(pods)[0].ask("EXISTS", *names) == len(names) > 0


def write_until_refused(pod: Pod) -> int:
    """Return the number of the first write that was not answered. A roll kills the member after it handed over."""
    with Redis(host=pod.host, port=pod.port, username="admin", password="admin", retry=NO_RETRIES) as redis:
        for number in range(2, 20_000):
            try:
                redis.set(f"contact:{number}", "kept")
            except exceptions.RedisError:
                break
    return number


def test_a_failover_takes_seconds_while_half_of_the_lookups_stall(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no cc in PATH: nothing here slows look-ups")
    source, library, is_slow = tmp_path / "slow.c", tmp_path / "slow.so", tmp_path / "is-slow"
    source.write_text(SLOW_DNS)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    with members(tmp_path, down_after_ms=5000) as pods:
        began(pods, LD_PRELOAD=str(library), SLOW_DNS=str(is_slow))
        is_slow.touch()
        pods[0].lose()
        lost = time.monotonic()
        wait_for(lambda: len(masters(pods[1:])) == 1, "another one becomes the master", limit_s=120)
        took_s = time.monotonic() - lost
    assert took_s < 15


def priority(pod: Pod) -> Any:
    return pod.ask("CONFIG", "GET", "replica-priority")[b"replica-priority"]


def began(pods: list[Pod], **env: str) -> None:
    """Start all three for the first time, and write one key."""
    for pod in pods:
        pod.start(**env)
    wait_for(lambda: are_one(pods), "three that begin for the first time are one master and two replicas")
    wait_for(lambda: write(pods, 1), "a master with a replica takes a write")
    wait_for(lambda: all(pod.knows == (2, 2) for pod in pods), "Sentinels know each other")
    wait_for(lambda: not [pod for pod in pods if (pod.data / "appendonlydir/filling").exists()], "copies are complete")
