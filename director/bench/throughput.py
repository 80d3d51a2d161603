"""`director bench throughput`: how many predictions a second the service that runs here makes, from POST to answer.

Asks `example/hello` of the `up` that runs, for nothing but its name. Starts nothing but who asks; what it finds has the
example's own work in it, and is no measure of another machine.
"""

import os
import statistics
from collections.abc import Sequence
from typing import Any, Final

import httpx
import msgspec

from director.bench.latency import INPUT, MODEL
from director.bench.load import Answered, Load, ask
from director.core.errors import SettingsError
from director.local.home import Home, State

ROUNDS: Final = 3
ANSWER_S: Final = 30.0


async def throughput(home: Home, *, connections: int, seconds: float) -> dict[str, Any]:
    """Measure the `up` of this home. Raises SettingsError where none runs, or where it breaks off."""
    state = home.read()
    if MODEL not in state.servers:
        raise SettingsError(f"no `director up` with its examples runs in {home.shown}. Start one, then measure.")
    load = Load(
        url=f"{state.url}/v1/models/{MODEL}/predictions",
        headers={"authorization": f"Bearer {state.token}", "prefer": "wait"},
        body=msgspec.json.encode(INPUT).decode(),
        wanted='"status":"succeeded"',
        connections=connections,
        seconds=seconds / ROUNDS,
    )
    before = os.getloadavg()[0]
    try:
        durability = await _durability(state)
        rounds = [await ask(load) for _ in range(ROUNDS)]
    except (ChildProcessError, httpx.HTTPError) as exc:
        raise SettingsError(f"the measurement broke off ({exc}). Is the `director up` still running?") from exc
    return _facts(rounds, load, durability=durability, load_before=before)


def told(facts: dict[str, Any]) -> str:
    """The facts, for people."""
    per_s, load = facts["predictions_per_s"], facts["load"]
    return (
        f"{MODEL} with n=0 over {facts['connections']} connections: {per_s['median']} predictions a second "
        f"({per_s['least']} to {per_s['most']}), p50 {facts['p50_ms']} ms, p99 {facts['p99_ms']} ms\n"
        f"durability {facts['durability']}, "
        f"load {load['before']} before and {load['after']} after on {load['cpus']} CPUs"
    )


async def _durability(state: State) -> str:
    async with httpx.AsyncClient(base_url=state.url, timeout=ANSWER_S, trust_env=False) as api:
        level: str = (await api.get("/readyz")).json().get("durability", "unknown")
        return level


def _facts(rounds: Sequence[Answered], load: Load, *, durability: str, load_before: float) -> dict[str, Any]:
    rates = [answered.per_s for answered in rounds]
    return {
        "connections": load.connections,
        "rounds": len(rounds),
        "predictions_per_s": {
            "median": round(statistics.median(rates), 1),
            "least": round(min(rates), 1),
            "most": round(max(rates), 1),
        },
        "p50_ms": round(statistics.median(answered.p50_ms for answered in rounds), 2),
        "p99_ms": round(max(answered.p99_ms for answered in rounds), 2),
        "durability": durability,
        "load": {"before": round(load_before, 2), "after": round(os.getloadavg()[0], 2), "cpus": os.cpu_count()},
    }
