"""Measure a token from the model server to the reader of an event stream, at a pace and at full speed.

A token is late from the moment the reader is connected, since what the model server wrote before waits for the reader.
The bench `first_token` measures the first one: here 16 requests leave one HTTP client at one instant.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import httpx
import msgspec
from msgspec import Struct

from director.core.figures import percentile
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.results import OURS
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import OPENAI, VERSION, Ours, ours
from tests.bench.sides.servers import own_redis

DIRECT: Final = "direct"
STREAMS: Final = 16
PAUSE_S: Final = 0.025
TOKENS: Final = 80
FAST_STREAMS: Final = 4
FAST_TOKENS: Final = 1_500
LEAST_MS: Final = 0.01
P50: Final = f"token written → read by a connected reader, p50 of {STREAMS} streams"
P99: Final = f"token written → read by a connected reader, p99 of {STREAMS} streams"
PER_S: Final = "tokens a second, as fast as they go"


class Reading(Struct, frozen=True):
    """One stream, in seconds: when its reader connected, and the tokens as (written, read)."""

    connected_s: float
    tokens: list[tuple[float, float]]

    @property
    def late_ms(self) -> list[float]:
        return [1000 * (read_s - written_s) for written_s, read_s in self.tokens if written_s >= self.connected_s]


Read = Callable[[str], Awaitable[Reading]]
"""Reads one stream for this prompt."""


async def streaming(options: Options) -> Found:
    p50 = Rounds(P50, "ms", less_is_better=True)
    p99 = Rounds(P99, "ms", less_is_better=True, is_judged=False)
    per_s = Rounds(PER_S, "")
    level = options.durability
    async with (
        model_server() as model,
        own_redis(level) as server,
        ours(server) as installation,
        installation.api() as (url, _),
        httpx.AsyncClient(trust_env=False, timeout=120) as http,
    ):
        with installation.keeper(), installation.director(model.url, slots=STREAMS, runner=OPENAI):
            sides: dict[str, Read] = {
                DIRECT: lambda prompt: _direct(http, model.url, prompt),
                OURS: lambda prompt: _through(http, installation, url, prompt),
            }
            await sides[OURS]("5 0.01")
            for _ in range(options.rounds):
                for side, read in sides.items():
                    paced = await _all(read, STREAMS, f"{options.many(TOKENS)} {PAUSE_S}")
                    late_ms = [late for each in paced for late in each.late_ms]
                    p50.add(side, max(LEAST_MS, percentile(late_ms, 0.5)))
                    p99.add(side, max(LEAST_MS, percentile(late_ms, 0.99)))
                    began = time.monotonic()
                    fast = await _all(read, FAST_STREAMS, f"{options.many(FAST_TOKENS)} 0")
                    per_s.add(side, sum(len(each.tokens) for each in fast) / (time.monotonic() - began))
                    options.say(f"  {side:12} {percentile(late_ms, 0.5):.1f} ms, {percentile(late_ms, 0.99):.1f} ms")
        return Found(
            what=f"{STREAMS} streams with a token each {PAUSE_S * 1000:g} ms, then {FAST_STREAMS} without a pause",
            redis=await server.release(),
            durability={OURS: level, DIRECT: level},
            figures=[each.measured() for each in (p50, p99, per_s)],
        )


async def _all(read: Read, streams: int, prompt: str) -> list[Reading]:
    many = await asyncio.gather(*(read(prompt) for _ in range(streams)))
    found, wanted = sum(len(each.tokens) for each in many), streams * int(prompt.split()[0])
    if found != wanted:
        raise ChildProcessError(f"{found} tokens were read and {wanted} written")
    return many


async def _direct(http: httpx.AsyncClient, url: str, prompt: str) -> Reading:
    asked = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": prompt}]}
    async with http.stream("POST", f"{url}/v1/chat/completions", json=asked) as answer:
        connected_s = time.time()
        tokens = [
            (float(text), time.time())
            async for data in _data(answer)
            if data != "[DONE]" and (text := msgspec.json.decode(data)["choices"][0]["delta"].get("content"))
        ]
    return Reading(connected_s, tokens)


async def _through(http: httpx.AsyncClient, installation: Ours, url: str, prompt: str) -> Reading:
    body: dict[str, Any] = {"version": VERSION, "input": {"prompt": prompt}}
    made = (await http.post(f"{url}/v1/predictions", json=body, headers=installation.headers)).json()
    tokens = []
    async with http.stream("GET", made["urls"]["stream"]) as answer:
        connected_s = time.time()
        async for data in _data(answer):
            now_s = time.time()
            tokens += [(float(text), now_s) for text in data.split() if text.startswith("1")]
    return Reading(connected_s, tokens)


async def _data(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
