"""When a model server that does not get well by itself is asked to end, so that a fresh one comes. Pure.

Never of one that runs something, and ever less often of one that a new start did not help.
"""

from collections.abc import Mapping
from typing import Final

from director.servers.runners.runner import Health, HealthStatus

__all__ = ("UNHEALTHY_S", "Recovery")

UNHEALTHY_S: Final = 60.0  # it recovers within seconds, or hangs
LONGEST_S: Final = 600.0


class Recovery:
    """Of one server. `waits`: how long it may be so before it is asked to end; for ever where that is 0 or missing."""

    def __init__(self, waits: Mapping[HealthStatus, float]) -> None:
        self._waits = waits
        self._seen: tuple[HealthStatus, str] | None = None
        self._due_s = 0.0
        self._tries = 0

    def is_due(self, health: Health, now: float, *, is_idle: bool) -> bool:
        """Is it to be asked to end now, after this look at it?"""
        if health.can_run:
            self._tries = 0
        wait_s = self._waits.get(health.status, 0.0)
        if not wait_s or not is_idle:
            self._seen = None
            return False
        if self._seen != (health.status, health.since):
            self._seen = health.status, health.since
            self._due_s = now + self._next(wait_s)
        if now < self._due_s:
            return False
        self._tries += 1
        self._due_s = now + self._next(wait_s)
        return True

    def _next(self, wait_s: float) -> float:
        return max(wait_s, min(wait_s * (1 << min(self._tries, 16)), LONGEST_S))
