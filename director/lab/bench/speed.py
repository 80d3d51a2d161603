"""Measure the latency that the running `director up` adds to a call of the model server, and its throughput. The work
of `example/hello` itself is in the figures: they say nothing about another machine.
"""

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import anyio
import httpx
import msgspec

from director.core.errors import SettingsError
from director.lab.bench.load import Answered, Load, ask
from director.local.home import Home, State

MODEL: Final = "example/hello"
INPUT: Final = {"input": {"text": "hello", "n": 0}}
WARM_UP: Final = 20
ROUNDS: Final = 3  # of throughput
ANSWER_S: Final = 30.0


def latency(home: Home, *, rounds: int) -> dict[str, Any]:
    """Compare `Prefer: wait` with a direct call, in turn, so that whatever slows the machine slows both. Raises
    SettingsError if no `up` runs in this home, or if the measurement breaks off.
    """
    with (
        _measure(home) as state,
        httpx.Client(base_url=state.servers[MODEL], timeout=ANSWER_S, trust_env=False) as model,
        httpx.Client(base_url=state.url, timeout=ANSWER_S, trust_env=False) as api,
    ):
        api.headers.update({"authorization": f"Bearer {state.token}", "prefer": "wait"})
        return _compare(model, api, rounds=max(2, rounds))


def latency_text(facts: dict[str, Any]) -> str:
    direct, through = facts["direct_ms"], facts["through_ms"]
    return (
        f"{MODEL} with n=0, {facts['rounds']} of each, in turn, ms       median     p90\n"
        f"  direct call of the model server      {direct['median']:>12} {direct['p90']:>7}\n"
        f"  POST with Prefer: wait               {through['median']:>12} {through['p90']:>7}\n"
        f"  added by the service                 {facts['added_median_ms']:>12}\n"
        f"{_conditions_text(facts)}"
    )


def throughput(home: Home, *, connections: int, seconds: float) -> dict[str, Any]:
    """Count the predictions per second, from the POST to its answer. Raises as `latency` does."""
    with _measure(home) as state:
        load = Load(
            url=f"{state.url}/v1/models/{MODEL}/predictions",
            headers={"authorization": f"Bearer {state.token}", "prefer": "wait"},
            body=msgspec.json.encode(INPUT).decode(),
            wanted='"status":"succeeded"',
            connections=connections,
            seconds=seconds / ROUNDS,
        )
        load_before = os.getloadavg()[0]
        ready = httpx.get(f"{state.url}/readyz", timeout=ANSWER_S, trust_env=False)
        rounds = [anyio.run(ask, load) for _ in range(ROUNDS)]
    return {"connections": connections, **_rates(rounds), **_conditions(ready, load_before)}


def throughput_text(facts: dict[str, Any]) -> str:
    per_s = facts["predictions_per_s"]
    return (
        f"{MODEL} with n=0 over {facts['connections']} connections: {per_s['median']} predictions a second "
        f"({per_s['least']} to {per_s['most']}), p50 {facts['p50_ms']} ms, p99 {facts['p99_ms']} ms\n"
        f"{_conditions_text(facts)}"
    )


@contextmanager
def _measure(home: Home) -> Iterator[State]:
    state = home.read()
    if MODEL not in state.servers:
        raise SettingsError(f"no `director up` with its examples runs in {home.shown}. Start one, then measure.")
    try:
        yield state
    except (ChildProcessError, httpx.HTTPError) as exc:
        raise SettingsError(f"the measurement broke off ({exc!r}). Is the `director up` still running?") from exc


def _compare(model: httpx.Client, api: httpx.Client, *, rounds: int) -> dict[str, Any]:
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
        _time_ms(direct)
        _time_ms(through)
    pairs = [(_time_ms(direct), _time_ms(through)) for _ in range(rounds)]
    alone, served = ([pair[way] for pair in pairs] for way in (0, 1))
    return {
        "rounds": rounds,
        "direct_ms": _spread(alone),
        "through_ms": _spread(served),
        "added_median_ms": round(statistics.median(served) - statistics.median(alone), 2),
        **_conditions(api.get("/readyz"), load_before),
    }


def _time_ms(call: Callable[[], httpx.Response]) -> float:
    began = time.perf_counter()
    answer = call()
    took_ms = (time.perf_counter() - began) * 1000
    if not answer.is_success or answer.json().get("status") != "succeeded":
        raise SettingsError(f"a measured prediction did not succeed: {answer.status_code} {answer.text[:200]}")
    return took_ms


def _spread(times_ms: list[float]) -> dict[str, float]:
    median, p90 = statistics.median(times_ms), statistics.quantiles(times_ms, n=10)[-1]
    return {"median": round(median, 2), "p90": round(p90, 2)}


def _rates(rounds: Sequence[Answered]) -> dict[str, Any]:
    rates = [answered.per_s for answered in rounds]
    figures = {"median": statistics.median(rates), "least": min(rates), "most": max(rates)}
    return {
        "rounds": len(rounds),
        "predictions_per_s": {name: round(rate, 1) for name, rate in figures.items()},
        "p50_ms": round(statistics.median(answered.p50_ms for answered in rounds), 2),
        "p99_ms": round(max(answered.p99_ms for answered in rounds), 2),
    }


def _conditions(ready: httpx.Response, load_before: float) -> dict[str, Any]:
    load = {"before": round(load_before, 2), "after": round(os.getloadavg()[0], 2), "cpus": os.cpu_count()}
    return {"durability": ready.json().get("durability", "unknown"), "load": load}


def _conditions_text(facts: dict[str, Any]) -> str:
    load, durability = facts["load"], facts["durability"]
    return f"durability {durability}, load {load['before']} before and {load['after']} after on {load['cpus']} CPUs"
