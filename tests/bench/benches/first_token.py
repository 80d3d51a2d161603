"""Measure what a service adds to the first token of a call of OpenAI's API, beside the model server itself.

Calls come at random moments and wait for none before them, so that a side that falls behind shows it. Bare sockets,
since an HTTP client would be most of what is measured.
"""

import asyncio
import random
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from director.core.figures import percentile
from director.local.launcher.processes import free_port
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.processes import child
from tests.bench.results import OURS
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import MODEL, answers, ours
from tests.bench.sides.peers import NotInstalled, Peer, installed
from tests.bench.sides.servers import own_redis

DIRECT: Final = "direct"
STREAMS: Final = 16
TOKENS: Final = 40
PAUSE_S: Final = 0.025  # so a stream takes a second, and as many come in a second as are read at once
SECONDS: Final = 10.0
LEAST_MS: Final = 0.01  # what noise makes of less is no ratio
LIMIT_S: Final = 60.0
FIRST: Final = re.compile(rb'"content": ?"1')  # a token is the time at which it was written
OPENAI: Final = {"kind": "openai", "endpoint": "chat"}
P50: Final = f"first token added, p50 of {STREAMS} streams at once"
P99: Final = f"first token added, p99 of {STREAMS} streams at once"
WHOLE: Final = "request → first token read, p50"
LITELLM: Final = Peer(name="litellm", version="1.108.7", needs=("litellm[proxy]==1.108.7",), work=())
LITELLM_TOKEN: Final = f"sk-{'0123456789abcdef' * 3}"
LITELLM_CONFIG: Final = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/tiny, api_base: {url}/v1, api_key: {token}}}
general_settings: {{disable_spend_logs: true}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""


class Side(Struct, frozen=True):
    """Where calls go. `model`: the name that it has there."""

    url: str
    token: str = "-"
    model: str = "tiny"

    def request(self) -> bytes:
        prompt = [{"role": "user", "content": f"{TOKENS} {PAUSE_S}"}]
        body = msgspec.json.encode({"model": self.model, "stream": True, "messages": prompt})
        parts = urlsplit(self.url)
        fields = {
            "host": parts.netloc,
            "authorization": f"Bearer {self.token}",
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {parts.path}/chat/completions HTTP/1.1\r\n{lines}\r\n".encode() + body


class Stream(asyncio.Protocol):
    """Reads one answer at a time on a connection."""

    def __init__(self) -> None:
        self._tail = b""
        self._first_s = 0.0
        self._over: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ChildProcessError(f"the stream ended early: {self._tail!r}"))

    async def read(self, request: bytes) -> float:
        """Return how many seconds its first token took. The answer is read to its end."""
        self._tail, self._first_s = b"", 0.0
        self._over = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._transport.write(request)
        async with asyncio.timeout(LIMIT_S):
            await self._over
        return self._first_s - began

    def data_received(self, data: bytes) -> None:
        self._tail = self._tail[-300:] + data
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200 "):
            self._end(ChildProcessError(f"it was refused: {data!r}"))
        if not self._first_s and b'"content":"1' in self._tail.replace(
            b'": "', b'":"'
        ):  # the time at which it was sent
            self._first_s = time.perf_counter()
        if self._tail.endswith(b"0\r\n\r\n"):
            self._end(None if self._first_s else ChildProcessError(f"there was no token: {self._tail!r}"))

    def _end(self, fault: Exception | None) -> None:
        if self._over is None or self._over.done():
            return
        if fault is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(fault)

    def close(self) -> None:
        self._over = None
        self._transport.close()


async def first_token(options: Options) -> Found:
    added_p50 = Rounds(P50, "ms", less_is_better=True)
    added_p99 = Rounds(P99, "ms", less_is_better=True, is_judged=False)
    whole = Rounds(WHOLE, "ms", less_is_better=True, is_judged=False)
    level = options.durability
    left_out: dict[str, str] = {}
    async with (
        model_server() as model,
        own_redis(level) as server,
        ours(server, kind="openai") as installation,
        installation.api(OPENAI="true") as (url, _),
        AsyncExitStack() as stack,
    ):
        stack.enter_context(installation.keeper())
        stack.enter_context(installation.director(model.url, slots=2 * STREAMS, runner=OPENAI))
        direct = Side(f"{model.url}/v1")
        sides = {OURS: Side(f"{url}/openai/v1", installation.token, MODEL)}
        if options.with_peers:
            try:
                sides[LITELLM.name] = await stack.enter_async_context(litellm(model.url))
            except NotInstalled as exc:
                left_out[LITELLM.name] = str(exc)
        for side in (direct, *sides.values()):
            await _all(side, options.seconds(2), seed=0)
        for number in range(options.rounds):
            beside_ms = await _all(direct, options.seconds(SECONDS), seed=number)
            for name, side in list(sides.items()):
                try:
                    took_ms = await _all(side, options.seconds(SECONDS), seed=number)
                except TimeoutError:  # one of LiteLLM's streams stood still for a minute in its fifth round
                    if name == OURS:
                        raise
                    left_out[name] = f"a stream of its round {number + 1} gave no end within {LIMIT_S:g} s"
                    del sides[name]
                    continue
                added = {part: percentile(took_ms, part) - percentile(beside_ms, part) for part in (0.5, 0.99)}
                added_p50.add(name, max(LEAST_MS, added[0.5]))
                added_p99.add(name, max(LEAST_MS, added[0.99]))
                whole.add(name, percentile(took_ms, 0.5))
                options.say(
                    f"  {name:12} p50 {added[0.5]:.1f} ms, p99 {added[0.99]:.1f} ms more, of {len(took_ms)} calls"
                )
            whole.add(DIRECT, max(LEAST_MS, percentile(beside_ms, 0.5)))
        return Found(
            what=f"{STREAMS} streams at once, which begin at random moments, with a token each {PAUSE_S * 1000:g} ms",
            redis=await server.release(),
            durability={OURS: level},
            figures=[each.measured() for each in (added_p50, added_p99, whole)],
            left_out=left_out,
        )


@asynccontextmanager
async def litellm(model_url: str) -> AsyncIterator[Side]:
    """Run LiteLLM's proxy as one worker. Raises NotInstalled."""
    peer, port = installed(LITELLM), free_port()
    settings: dict[str, Any] = {
        "LITELLM_MASTER_KEY": LITELLM_TOKEN,
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_DOCS": "True",
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(LITELLM_CONFIG.format(model=MODEL, url=model_url, token=LITELLM_TOKEN))
        file.flush()
        command = [
            str(peer.home / "bin" / "litellm"),
            "--config",
            file.name,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        with child(peer.name, [*command, "--num_workers", "1"], **settings) as process:
            await answers(f"http://127.0.0.1:{port}/health/liveliness", process)
            yield Side(f"http://127.0.0.1:{port}/v1", LITELLM_TOKEN, MODEL)


async def _all(side: Side, seconds: float, *, seed: int) -> list[float]:
    """Return the milliseconds to the first token of each call. The same seed means the same moments."""
    dice, request, parts = random.Random(seed), side.request(), urlsplit(side.url)
    moments = sorted(dice.uniform(0, seconds) for _ in range(round(STREAMS * seconds / (TOKENS * PAUSE_S))))

    async def connect() -> Stream:
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(Stream, parts.hostname or "", parts.port or 80)
        return stream

    async def call() -> float:
        stream = idle.pop() if idle else await connect()
        took_s = await stream.read(request)
        idle.append(stream)
        return 1000 * took_s

    idle = [await connect() for _ in range(2 * STREAMS)]
    calls, began = [], time.perf_counter()
    for moment in moments:
        await asyncio.sleep(began + moment - time.perf_counter())  # the callers' own time
        calls.append(asyncio.create_task(call()))
    took_ms = await asyncio.gather(*calls)
    for stream in idle:
        stream.close()
    return took_ms
