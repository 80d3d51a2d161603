"""Play the neighbours of a run, in a process of its own: `python -m director.lab.chaos.neighbours < errand.json`. They
are hungry and hostile tenants, which come for some seconds. All that they take is bounded, stays on loopback, and is
given back when the visit ends:

- one sends inputs and gets outputs of almost a megabyte
- one opens event streams with megabytes, and reads none of them
- one opens more connections than an address may have: silent ones, heads without an end, bodies that drip
- one has receivers of webhooks that refuse, or that accept and never answer, some at the host of the good receiver
- one has inputs that fail with the words of a sick accelerator
- one has inputs that hang, and inputs that kill or freeze the model server
"""

import asyncio
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from director.core.states import TERMINAL
from director.lab.chaos.client import Client
from director.lab.chaos.client import Errand as Orders
from director.lab.chaos.journal import Held, Journal, now_ms
from director.lab.chaos.plan import Order, Tenants, visit
from director.lab.chaos.rest import DEAD
from director.lab.chaos.wire import Caller, Unanswered

LOOPBACK: Final = "127.0.0.1"
# Linux has all of 127/8. Elsewhere the slow connections come from the address of all other clients, and are few.
OWN: Final = "127.0.0.2" if sys.platform == "linux" else LOOPBACK
SLOW: Final = 640 if sys.platform == "linux" else 64  # more than the API has places for
STALLED: Final = 24  # more than the API has turns for large events
BUFFER_BYTES: Final = 4_096  # of a socket that is not read: the kernel must not take the stream in its place
DRIP_S: Final = 1.0
LOOK_S: Final = 0.1
ANSWER_S: Final = 2.0
SILENT: Final = b""
HALF_HEAD: Final = b"POST /v1/predictions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
DRIPPING: Final = (
    HALF_HEAD + b"Authorization: Bearer %b\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
)
OK: Final = b"HTTP/1.1 200"


class Visit(Struct, frozen=True, kw_only=True):
    part: str
    at_s: float
    seconds: float


class Errand(Struct, frozen=True, kw_only=True):
    """`url` is for ordinary requests, `api_url` is the API itself, without the link to it."""

    url: str
    api_url: str
    tokens: Sequence[str]
    tenants: Tenants
    sink_url: str
    crowded: str
    quiet: str
    spare: str
    seed: int
    journal: str
    visits: Sequence[Visit]


class Neighbours:
    def __init__(self, errand: Errand, journal: Journal) -> None:
        self._errand = errand
        self._journal = journal
        self._api = Caller(errand.url)
        parts = urlsplit(errand.api_url)
        self._address = (parts.hostname, parts.port)
        orders = Orders(
            url=errand.url,
            tokens=errand.tokens,
            tenants=0,
            equals=0,
            sink_url=errand.sink_url,
            models=(),
            seed=errand.seed,
            seconds=0.0,
            journal=errand.journal,
            rate=1.0,
        )
        self._client = Client(orders, journal)

    async def come(self) -> None:
        began = anyio.current_time()
        with dead_receivers() as urls:
            # every other one is at the host of the good receiver
            good = f"{self._errand.sink_url}{DEAD}"
            hooks = [hook for url in urls for hook in (good, f"{url}{DEAD}")]
            for each in self._errand.visits:
                await anyio.sleep_until(began + each.at_s)
                await self._visit(each, hooks)

    async def _visit(self, each: Visit, hooks: Sequence[str]) -> None:
        errand = self._errand
        models = {"crowded": errand.crowded, "quiet": errand.quiet, "spare": errand.spare}
        wanted = visit(each.part, errand.tenants, hooks=hooks, **models)
        with anyio.move_on_after(each.seconds):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._connect_slowly, each)
                tasks.start_soon(self._stall, wanted.pop("stall")[0], each)
                for orders in wanted.values():
                    tasks.start_soon(self._create, orders)

    async def _create(self, orders: Sequence[Order]) -> None:
        async with anyio.create_task_group() as tasks:
            for order in orders:
                tasks.start_soon(self._client.create, order)
                await anyio.sleep(order.gap)

    async def _stall(self, order: Order, each: Visit) -> None:
        """Open streams of an ended prediction, whose output comes as one event."""
        path = await self._stream_of(await self._client.create(order), self._errand.tokens[order.tenant])
        head = f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nAccept: text/event-stream\r\n\r\n".encode()
        with open_sockets() as sockets:
            for _ in range(STALLED):
                await self._open(sockets, LOOPBACK, head, takes=BUFFER_BYTES)
            await anyio.sleep(ANSWER_S)
            answered = sum(peek(one).startswith(OK) for one in sockets)
            self._journal.write(Held(at=now_ms(), kind="stall", part=each.part, count=answered))
            await anyio.sleep_forever()

    async def _stream_of(self, prediction_id: str, token: str) -> str:
        headers = {"authorization": f"Bearer {token}"}
        while True:
            with suppress(Unanswered):
                path = f"/v1/predictions/{prediction_id}"
                answer = await self._api.ask("GET", path, headers=headers, within_s=ANSWER_S)
                shown = msgspec.json.decode(answer.body) if answer.status == 200 else {}
                if shown.get("status") in TERMINAL:
                    return "/" + str(shown["urls"]["stream"]).split("/", 3)[3]
            await anyio.sleep(LOOK_S)

    async def _connect_slowly(self, each: Visit) -> None:
        dripping = DRIPPING % self._errand.tokens[self._errand.tenants.slow].encode()
        with open_sockets() as sockets:
            drips = []
            for number in range(SLOW):
                sent = (SILENT, HALF_HEAD, dripping)[number % 3]
                one = await self._open(sockets, OWN, sent)
                if one is not None and sent is dripping:
                    drips.append(one)
            is_noted, noted_at = False, anyio.current_time() + each.seconds / 3
            while True:
                await anyio.sleep(DRIP_S)
                for one in drips:
                    with suppress(OSError):
                        one.send(b" ")
                if not is_noted and anyio.current_time() >= noted_at:
                    is_noted = True
                    count = sum(peek(one) == NOTHING for one in sockets)
                    self._journal.write(Held(at=now_ms(), kind="slow", part=each.part, count=count))

    async def _open(
        self, sockets: list[socket.socket], own: str, sent: bytes, *, takes: int = 0
    ) -> socket.socket | None:
        one, loop = socket.socket(), asyncio.get_running_loop()
        sockets.append(one)
        one.setblocking(False)
        with suppress(OSError):
            if takes:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes)
            one.bind((own, 0))
            await loop.sock_connect(one, self._address)
            await loop.sock_sendall(one, sent)
            return one
        return None


NOTHING: Final = b"-"


def peek(one: socket.socket) -> bytes:
    """Return the first bytes that wait at this socket, b'' if it was closed or never open, NOTHING for none yet."""
    try:
        return one.recv(len(OK), socket.MSG_PEEK)
    except BlockingIOError:
        return NOTHING
    except OSError:
        return b""


@contextmanager
def open_sockets() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    try:
        yield sockets
    finally:
        for one in sockets:
            one.close()


@contextmanager
def dead_receivers() -> Iterator[Sequence[str]]:
    """Yield the URLs of two receivers: one accepts connections and never answers, the other one refuses them."""
    with socket.create_server((LOOPBACK, 0), backlog=512) as hangs, socket.socket() as refuses:
        refuses.bind((LOOPBACK, 0))  # it never listens, and no other process gets this port
        yield [f"http://{LOOPBACK}:{one.getsockname()[1]}" for one in (hangs, refuses)]


async def run(errand: Errand) -> None:
    await Neighbours(errand, Journal(Path(errand.journal))).come()


def main() -> None:
    anyio.run(run, msgspec.json.decode(sys.stdin.buffer.read(), type=Errand), backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
