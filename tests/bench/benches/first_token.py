"""Measure what a service adds to the first token of a call of OpenAI's API, beside the model server itself.

Calls come at random moments and wait for none before them, so that a side that falls behind shows it.
"""

import random
from contextlib import AsyncExitStack
from typing import Final

from director.core.figures import percentile
from tests.bench.benches.options import Found, Options, Rounds
from tests.bench.results import OURS
from tests.bench.sides.gateways import LITELLM, Side, running
from tests.bench.sides.others import model_server
from tests.bench.sides.ours import MODEL, OPENAI, ours
from tests.bench.sides.peers import NotInstalled
from tests.bench.sides.servers import own_redis
from tests.bench.sides.streams import hear

DIRECT: Final = "direct"
STREAMS: Final = 16
TOKENS: Final = 40
PAUSE_S: Final = 0.025  # so a stream takes a second, and as many come in a second as are read at once
SECONDS: Final = 10.0
LEAST_MS: Final = 0.01  # what noise makes of less is no ratio
LIMIT_S: Final = 60.0
P50: Final = f"first token added, p50 of {STREAMS} streams at once"
P99: Final = f"first token added, p99 of {STREAMS} streams at once"
WHOLE: Final = "request → first token read, p50"


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
        direct = Side(name=DIRECT, url=f"{model.url}/v1")
        sides = [Side(name=OURS, url=f"{url}/openai/v1", token=installation.token, model=MODEL)]
        if options.with_peers:
            try:
                sides.append((await stack.enter_async_context(running(LITELLM, model.url)))[0])
            except NotInstalled as exc:
                left_out[LITELLM.name] = str(exc)
        for side in (direct, *sides):
            await _first_ms(side, options.seconds(2), seed=0)
        for number in range(options.rounds):
            beside_ms = await _first_ms(direct, options.seconds(SECONDS), seed=number)
            for side in list(sides):
                try:
                    took_ms = await _first_ms(side, options.seconds(SECONDS), seed=number)
                except ChildProcessError as exc:  # one of LiteLLM's streams stood still for a minute in its fifth round
                    if side.name == OURS:
                        raise
                    left_out[side.name] = f"in round {number + 1} {exc}"
                    sides.remove(side)
                    continue
                added = {part: percentile(took_ms, part) - percentile(beside_ms, part) for part in (0.5, 0.99)}
                added_p50.add(side.name, max(LEAST_MS, added[0.5]))
                added_p99.add(side.name, max(LEAST_MS, added[0.99]))
                whole.add(side.name, percentile(took_ms, 0.5))
                options.say(
                    f"  {side.name:12} p50 {added[0.5]:.1f} ms, p99 {added[0.99]:.1f} ms more, of {len(took_ms)} calls"
                )
            whole.add(DIRECT, max(LEAST_MS, percentile(beside_ms, 0.5)))
        return Found(
            what=f"{STREAMS} streams at once, which begin at random moments, with a token each {PAUSE_S * 1000:g} ms",
            redis=await server.release(),
            durability={OURS: level},
            figures=[each.measured() for each in (added_p50, added_p99, whole)],
            left_out=left_out,
        )


async def _first_ms(side: Side, seconds: float, *, seed: int) -> list[float]:
    """Return the milliseconds to the first token of each call. The same seed means the same moments."""
    dice = random.Random(seed)
    moments = sorted(dice.uniform(0, seconds) for _ in range(round(STREAMS * seconds / (TOKENS * PAUSE_S))))
    heard = await hear(side.plan(f"{TOKENS} {PAUSE_S}", moments, connections=2 * STREAMS, limit_s=LIMIT_S))
    if faults := [each.fault for each in heard if each.fault]:
        raise ChildProcessError(f"{len(faults)} streams failed: {faults[0]}")
    return [each.first_ms for each in heard]
