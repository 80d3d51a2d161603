"""Measure a token from the model server to the reader of an event stream, at a pace and at full speed."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import httpx
import msgspec

from director.core.figures import percentile
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.results import OURS
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import VERSION, Ours, ours
from tests.bench.sides.servers import own_redis

DIRECT: Final = "direct"
STREAMS: Final = 16
PAUSE_S: Final = 0.025
TOKENS: Final = 80
FAST_STREAMS: Final = 4
FAST_TOKENS: Final = 1_500
LEAST_MS: Final = 0.01
OPENAI: Final = {"kind": "openai", "endpoint": "chat"}

Read = Callable[[str], Awaitable[list[float]]]
"""Reads one stream for this prompt: how late each token was, in ms."""


async def streaming(options: Options) -> Found:
    late_p50 = Rounds(f"token written → read, p50 of {STREAMS} streams", "ms", less_is_better=True)
    late_p99 = Rounds(f"token written → read, p99 of {STREAMS} streams", "ms", less_is_better=True, is_judged=False)
    per_s = Rounds("tokens a second, as fast as they go", "")
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
                    late_p50.add(side, max(LEAST_MS, percentile(paced, 0.5)))
                    late_p99.add(side, max(LEAST_MS, percentile(paced, 0.99)))
                    began = time.monotonic()
                    fast = await _all(read, FAST_STREAMS, f"{options.many(FAST_TOKENS)} 0")
                    per_s.add(side, len(fast) / (time.monotonic() - began))
                    options.say(f"  {side:12} {percentile(paced, 0.5):.1f} ms, {percentile(paced, 0.99):.1f} ms")
        return Found(
            what=f"{STREAMS} streams with a token each {PAUSE_S * 1000:g} ms, then {FAST_STREAMS} without a pause",
            redis=await server.release(),
            durability={OURS: level, DIRECT: level},
            figures=[each.measured() for each in (late_p50, late_p99, per_s)],
        )


async def _all(read: Read, streams: int, prompt: str) -> list[float]:
    many = await asyncio.gather(*(read(prompt) for _ in range(streams)))
    late_ms = [late for each in many for late in each]
    wanted = streams * int(prompt.split()[0])
    if len(late_ms) != wanted:
        raise ChildProcessError(f"{len(late_ms)} tokens were read and {wanted} written")
    return late_ms


async def _direct(http: httpx.AsyncClient, url: str, prompt: str) -> list[float]:
    asked = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": prompt}]}
    async with http.stream("POST", f"{url}/v1/chat/completions", json=asked) as answer:
        return [
            (time.time() - float(text)) * 1000
            async for data in _data(answer)
            if data != "[DONE]" and (text := msgspec.json.decode(data)["choices"][0]["delta"].get("content"))
        ]


async def _through(http: httpx.AsyncClient, installation: Ours, url: str, prompt: str) -> list[float]:
    body: dict[str, Any] = {"version": VERSION, "input": {"prompt": prompt}}
    made = (await http.post(f"{url}/v1/predictions", json=body, headers=installation.headers)).json()
    late_ms = []
    async with http.stream("GET", made["urls"]["stream"]) as answer:
        async for data in _data(answer):
            now = time.time()
            late_ms += [(now - float(text)) * 1000 for text in data.split() if text.startswith("1")]
    return late_ms


async def _data(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
