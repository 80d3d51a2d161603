"""A machine that can vanish: a network namespace whose packets are dropped both ways, so that no connection is reset.

A process that is killed or frozen still has a kernel, which resets or acknowledges. A machine that lost its power, or
its network, answers nothing at all. Only timers end its connections. Needs Linux, root, iproute2 and nftables.
"""

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

MISSING: Final = "no network namespaces: they need Linux, root, iproute2 and nftables"
TOOLS: Final = ("ip", "nft")
NAMESPACES: Final = Path("/run/netns")
NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET of setns, which Python has only since 3.12
# kept for benchmarks of networks, so nothing routable is hidden; each host takes a network of four addresses
NETWORK: Final = IPv4Network("198.18.0.0/15")
CONNECT_S: Final = 10.0
TABLE: Final = "hole"
HOLE: Final = f"""
table inet {TABLE} {{
  chain arriving {{
    type filter hook prerouting priority raw; policy drop;
  }}
  chain leaving {{
    type filter hook output priority raw; policy drop;
  }}
}}
"""


class FarHost:
    """The far machine, at `address`. This machine has `near` on the same wire."""

    def __init__(self) -> None:
        tail = secrets.token_hex(4)
        self.name = f"dr-{tail}"
        self._link = f"dr{tail}"
        first = int(NETWORK[0]) + 4 * secrets.randbelow(NETWORK.num_addresses // 4)
        self.near, self.address = (str(IPv4Network((first, 30))[at]) for at in (1, 2))
        self._is_away = False

    def command(self, *words: str) -> list[str]:
        """Return the command line that runs `words` there. The process keeps the pid of that command."""
        return ["ip", "netns", "exec", self.name, *words]

    def listen(self, port: int = 0) -> socket.socket:
        """Return a socket that listens there, for a server in this process."""
        return self._there(lambda: socket.create_server((self.address, port)))

    def connect(self, port: int) -> socket.socket:
        """Return a connection from there to a server on this machine, at `near`."""
        return self._there(lambda: socket.create_connection((self.near, port), timeout=CONNECT_S))

    def vanish(self) -> None:
        """Drop all packets from now on, both ways. Nothing is reset, nothing is acknowledged."""
        if not self._is_away:
            _run(self.command("nft", "-f", "-"), HOLE)
            self._is_away = True

    def come_back(self) -> None:
        """Let packets pass again. Connections that both ends still have go on, as TCP sends again."""
        if self._is_away:
            _run(self.command("nft", "delete", "table", "inet", TABLE))
            self._is_away = False

    def start(self) -> None:
        """Make the namespace. Raises OSError or CalledProcessError where that is not allowed."""
        _run(["ip", "netns", "add", self.name])
        try:
            far = ["ip", "-n", self.name]
            _run(["ip", "link", "add", self._link, "type", "veth", "peer", "name", "far", "netns", self.name])
            _run(["ip", "addr", "add", f"{self.near}/30", "dev", self._link])
            _run(["ip", "link", "set", self._link, "up"])
            _run([*far, "addr", "add", f"{self.address}/30", "dev", "far"])
            _run([*far, "link", "set", "far", "up"])
            _run([*far, "link", "set", "lo", "up"])
            self.vanish()  # nftables may be missing in this kernel
            self.come_back()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Remove it. End its processes before."""
        with suppress(subprocess.CalledProcessError):  # it may never have been made
            _run(["ip", "link", "del", self._link])
        _run(["ip", "netns", "del", self.name])

    def _there(self, make: Callable[[], socket.socket]) -> socket.socket:
        """Make a socket in the namespace: it stays there."""

        def enter() -> socket.socket:
            libc = ctypes.CDLL(None, use_errno=True)
            with (NAMESPACES / self.name).open() as namespace:
                if libc.setns(namespace.fileno(), NEW_NETWORK):
                    raise OSError(ctypes.get_errno(), "setns")
            return make()

        with ThreadPoolExecutor(1) as thread:  # only this thread enters the namespace, and it ends with the block
            return thread.submit(enter).result()


@contextmanager
def far_host() -> Iterator[FarHost]:
    """Make a machine that can vanish. Raises OSError with MISSING where this machine cannot have one."""
    if any(shutil.which(tool) is None for tool in TOOLS) or os.geteuid():
        raise OSError(MISSING)
    host = FarHost()
    try:
        host.start()
    except (OSError, subprocess.CalledProcessError) as exc:
        raise OSError(MISSING) from exc
    try:
        yield host
    finally:
        host.end()


def _run(command: list[str], text: str = "") -> None:
    subprocess.run(command, input=text.encode(), check=True, capture_output=True, timeout=10)
