"""What one process sees of Redis: does it answer, how fast, and what was asked of it.

Hears of each round trip from who made it; asks nothing by itself.
"""

import time
from collections.abc import Iterable
from typing import Final

from director.broker.redis_client import AWAY
from director.runtime.metrics.registry import Registry
from director.runtime.metrics.series import Summary

__all__ = ("RedisMeter",)

OTHER: Final = "other"
# only these are names of a kind of error; whatever else comes is one of ours
KINDS: Final = frozenset(error.__name__ for error in AWAY)


class RedisMeter:
    """One for all clients of the process."""

    def __init__(self, registry: Registry) -> None:
        self._up = registry.gauge("director_redis_up")
        self._round_trip = registry.histogram("director_redis_round_trip_seconds").labels()
        self._calls = registry.summary("director_redis_call_seconds")
        self._errors = registry.counter("director_redis_errors_total")
        self._by_script: dict[str, Summary] = {}
        self._heard_s = time.monotonic()
        registry.gauge("director_redis_silence_seconds").set_function(lambda: time.monotonic() - self._heard_s)

    def answered(self, took_s: float, scripts: Iterable[str] = ()) -> None:
        """A round trip came back, with the answers of these scripts."""
        self._heard_s = time.monotonic()
        self._up.set(1)
        self._round_trip.observe(took_s)
        for name in scripts:
            child = self._by_script.get(name)
            if child is None:
                child = self._by_script[name] = self._calls.labels(name)
            child.observe(took_s)

    def failed(self, error: Exception) -> None:
        """It did not."""
        self._up.set(0)
        name = type(error).__name__
        self._errors.labels(name if name in KINDS else OTHER).inc()
