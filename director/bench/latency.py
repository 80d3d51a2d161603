"""`director bench latency`: what the service adds to a direct call of the model server, on this machine, now.

Both ways are asked in turn, one by one, so that whatever slows the machine slows both. Starts nothing: it asks the `up`
that runs.
"""

import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import httpx

from director.core.errors import SettingsError
from director.local.home import Home

MODEL: Final = "example/hello"
INPUT: Final = {"input": {"text": "hello", "n": 0}}
WARM_UP: Final = 20
ANSWER_S: Final = 30.0


def latency(home: Home, *, rounds: int) -> dict[str, Any]:
    """Measure the `up` of this home. Raises SettingsError where none runs, or where it breaks off."""
    state = home.read()
    if MODEL not in state.servers:
        raise SettingsError(f"no `director up` with its examples runs in {home.shown}. Start one, then measure.")
    try:
        with (
            httpx.Client(base_url=state.servers[MODEL], timeout=ANSWER_S, trust_env=False) as model,
            httpx.Client(base_url=state.url, timeout=ANSWER_S, trust_env=False) as api,
        ):
            api.headers.update({"authorization": f"Bearer {state.token}", "prefer": "wait"})
            return _measured(model, api, rounds=max(2, rounds))
    except httpx.HTTPError as exc:
        raise SettingsError(f"the measurement broke off ({exc!r}). Is the `director up` still running?") from exc


def _measured(model: httpx.Client, api: httpx.Client, *, rounds: int) -> dict[str, Any]:
    load_before = os.getloadavg()[0]
    number = itertools.count()

    def direct() -> httpx.Response:
        while True:
            answer = model.put(f"/predictions/bench{os.getpid()}x{next(number)}", json=INPUT)
            # Cog answers a moment before the slot is free again
            if answer.status_code != 409:
                return answer

    def through() -> httpx.Response:
        return api.post(f"/v1/models/{MODEL}/predictions", json=INPUT)

    for _ in range(WARM_UP):
        _timed_ms(direct)
        _timed_ms(through)
    pairs = [(_timed_ms(direct), _timed_ms(through)) for _ in range(rounds)]
    alone, served = ([pair[way] for pair in pairs] for way in (0, 1))
    return {
        "rounds": rounds,
        "direct_ms": _spread(alone),
        "through_ms": _spread(served),
        "added_median_ms": round(statistics.median(served) - statistics.median(alone), 2),
        "durability": api.get("/readyz").json().get("durability", "unknown"),
        "load": {"before": round(load_before, 2), "after": round(os.getloadavg()[0], 2), "cpus": os.cpu_count()},
    }


def _timed_ms(ask: Callable[[], httpx.Response]) -> float:
    began = time.perf_counter()
    answer = ask()
    took_ms = (time.perf_counter() - began) * 1000
    if not answer.is_success or answer.json().get("status") != "succeeded":
        raise SettingsError(f"a measured prediction did not succeed: {answer.status_code} {answer.text[:200]}")
    return took_ms


def _spread(times_ms: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(times_ms), 2),
        "p90": round(statistics.quantiles(times_ms, n=10)[-1], 2),
    }


def told(facts: dict[str, Any]) -> str:
    """The facts, for people."""
    direct, through, load = facts["direct_ms"], facts["through_ms"], facts["load"]
    return (
        f"{MODEL} with n=0, {facts['rounds']} of each, in turn, ms       median     p90\n"
        f"  direct call of the model server      {direct['median']:>12} {direct['p90']:>7}\n"
        f"  POST with Prefer: wait               {through['median']:>12} {through['p90']:>7}\n"
        f"  added by the service                 {facts['added_median_ms']:>12}\n"
        f"durability {facts['durability']}, "
        f"load {load['before']} before and {load['after']} after on {load['cpus']} CPUs"
    )
