"""Three Redis pods of the overlay `ha`, as processes: one is lost, comes back, and all of them start at once."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, exceptions

from tests.k8s.test_redis_pods import NO_RETRIES, SECRETS, SOURCES
from tests.support.cog import free_port
from tests.support.manifests import K8S
from tests.support.servers import binary

pytestmark = [pytest.mark.heavy, pytest.mark.long]

# The answer of `valkey-cli … sentinel get-master-addr-by-name director`, for machines that have none
CLI = f"""#!{sys.executable}
import sys
from redis import Redis
words = sys.argv
at = dict(zip(words[1:], words[2:]))
try:
    with Redis(host=at["-h"], port=int(at["-p"]), password=at["-a"], socket_timeout=2) as redis:
        print(*redis.execute_command(*words[words.index("sentinel"):]), sep="\\n")
except Exception:
    sys.exit(1)
"""


class Pod:
    """A member of the cluster whose disk outlives its processes. Its name is an address of this machine."""

    def __init__(self, number: int, folder: Path, port: int) -> None:
        self.host = f"127.77.0.1{number}"
        self.port = port
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in ("etc-redis", "data", "tmp", "bin"):
            (folder / name).mkdir(parents=True)
        for source in SOURCES:
            (folder / "etc-redis" / Path(source).name).write_text(self._here((K8S / source).read_text()))
        for name in ("valkey-server", "valkey-sentinel"):
            (folder / "bin" / name).symlink_to(binary("valkey"))
        (folder / "bin/valkey-cli").write_text(CLI)
        (folder / "bin/valkey-cli").chmod(0o755)

    def start(self) -> None:
        paths = {"PATH": f"{self._folder}/bin:/usr/bin:/bin", "TMPDIR": f"{self._folder}/tmp"}
        for script in ("member.sh", "sentinel.sh"):
            self._processes.append(
                subprocess.Popen(
                    ["sh", self._folder / "etc-redis" / script],
                    env={**SECRETS, **paths, "DATA": f"{self._folder}/data"},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )

    def lose(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait(20)
        self._processes = []

    def lose_disk(self) -> None:
        shutil.rmtree(self._folder / "data")
        (self._folder / "data").mkdir()

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
        text = text.replace("$(hostname).redis-nodes", self.host).replace(
            "redis-$member.redis-nodes", "127.77.0.1$member"
        )
        text = re.sub(r"redis-(\d)\.redis-nodes", r"127.77.0.1\1", text).replace("redis-*)", "127.*)")
        text = text.replace("26379", str(self.port + 1)).replace("6379", str(self.port))
        text = text.replace("bind * -::*", f"bind {self.host}\nport {self.port}").replace(
            "dir /data", f"dir {self._folder}/data"
        )
        text = text.replace(f"\nport {self.port + 1}\n", f"\nport {self.port + 1}\nbind {self.host}\n")
        return text.replace("milliseconds director 5000", "milliseconds director 1000").replace("sleep 1", "sleep 0.2")


@contextmanager
def members(tmp_path: Path) -> Iterator[list[Pod]]:
    port = free_port()
    pods = [Pod(number, tmp_path / f"redis-{number}", port) for number in range(3)]
    try:
        yield pods
    finally:
        for pod in pods:
            pod.lose()


def wait_for(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.05)


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
