"""Devices whose memory is counted exactly: models allocate from them over a socket, and hold what they have for as long
as any process has that socket open. So a peak is seen and not sampled.

More than a device has is refused and kept in `refused`: the test fails. Each allocation first takes note of sockets
that were closed before it, as a driver does at the exit of a process.
"""

import json
import select
import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

ADDRESS: Final = "FAKE_DEVICES"


class Holding(Struct, frozen=True):
    device: str
    model: str
    pid: int
    size: int


class FakeDevices:
    """`sizes`: the memory of each device. `refused`: the holdings for which there was no room. `loads`: each model that
    allocated, in order. `cut`: the models that ended in the middle of a run.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.peak = dict.fromkeys(sizes, 0)
        self.refused: list[Holding] = []
        self.loads: list[str] = []
        self.cut: list[str] = []
        self._held: dict[socket.socket, list[Holding]] = {}
        self._runs: dict[socket.socket, int] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._ended, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def used(self, device: str) -> int:
        with self._lock:
            self._drop_closed()
            return self._sum(device)

    def holdings(self) -> list[Holding]:
        with self._lock:
            self._drop_closed()
            return [one for held in self._held.values() for one in held]

    def running(self) -> list[str]:
        """Return the models that run something now."""
        with self._lock:
            return [one.model for client, count in self._runs.items() if count for one in self._held[client][:1]]

    def _sum(self, device: str) -> int:
        return sum(one.size for held in self._held.values() for one in held if one.device == device)

    def _serve(self) -> None:
        while True:
            with self._lock:
                watched = [self._listener, self._ended, *self._held]
            ready, _, _ = select.select(watched, [], [])
            if self._ended in ready:
                return
            with self._lock:
                if self._listener in ready:
                    self._held[self._listener.accept()[0]] = []
                for one in [one for one in ready if one in self._held]:
                    self._read(one)

    def _read(self, client: socket.socket) -> None:
        """Each line is a whole message: they are short, and the model waits for the answer to each."""
        try:
            line = client.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            line = b""
        if not line:
            self._drop(client)
            return
        said = json.loads(line)
        if "run" in said:
            self._runs[client] = self._runs.get(client, 0) + said["run"]
            answer = True
        else:
            self._drop_closed(but=client)
            answer = self._allocate(client, [Holding(**each) for each in said])
        with suppress(ConnectionError):
            client.sendall(b"1" if answer else b"0")

    def _allocate(self, client: socket.socket, wanted: list[Holding]) -> bool:
        over = [one for one in wanted if self._sum(one.device) + one.size > self.sizes[one.device]]
        if over:
            self.refused += over
            return False
        self._held[client] += wanted
        self.loads += [one.model for one in wanted[:1]]
        for one in wanted:
            self.peak[one.device] = max(self.peak[one.device], self._sum(one.device))
        return True

    def _drop_closed(self, but: socket.socket | None = None) -> None:
        for client in [one for one in self._held if one is not but]:
            with suppress(BlockingIOError):
                try:
                    if client.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                        continue
                except ConnectionResetError:
                    pass
                self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        held = self._held.pop(client)
        if self._runs.pop(client, 0) > 0:
            self.cut += [one.model for one in held[:1]]
        client.close()

    def __enter__(self) -> "FakeDevices":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.send(b"x")
        self._thread.join()
        for each in (self._listener, self._ended, self._end, *self._held):
            each.close()


@contextmanager
def fake_devices(**sizes: int) -> Generator[FakeDevices]:
    """Yield devices of these sizes. Fails if a model wanted more than there was."""
    with FakeDevices(sizes) as devices:
        yield devices
        assert devices.refused == [], "a model was started before there was room for it"
