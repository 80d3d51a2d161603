"""How callers are told: each POST to a receiver, and what came of each attempt to tell an end.

Never knows to whom: a receiver is the caller's own business.
"""

from director.runtime.metrics.registry import Registry

__all__ = ("WebhookMeter",)

OUTCOMES = ("delivered", "failed", "gone", "refused", "given_up")


class WebhookMeter:
    """One for all webhooks of the process."""

    def __init__(self, registry: Registry) -> None:
        seconds = registry.histogram("director_webhook_seconds")
        self._seconds = {ok: seconds.labels("yes" if ok else "no") for ok in (True, False)}
        self._outcomes = registry.counter("director_webhooks_total")
        for outcome in OUTCOMES:  # where a counter begins at one, no rule sees that it rose
            self._outcomes.labels(outcome)

    def sent(self, ok: bool, took_s: float) -> None:
        """One POST is over."""
        self._seconds[ok].observe(took_s)

    def told(self, outcome: str) -> None:
        """An attempt to tell an end was noted so."""
        self._outcomes.labels(outcome).inc()
