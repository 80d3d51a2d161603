"""Count what the API is asked and what it answers, for `GET /metrics`.

Requests are counted by the template of their route, so no caller's text becomes a label. Time is taken up to the head
of an answer: an event stream may last for hours.
"""

from collections.abc import Callable, Mapping
from typing import Final

from api.errors import Code, Problem
from director.runtime.metrics.registry import RedisMeter, Registry
from director.runtime.metrics.series import Counter, Histogram

NO_ROUTE: Final = "none"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"})
OTHER: Final = "other"


class Meters:
    """All that this process shows."""

    def __init__(self) -> None:
        self.registry: Final = Registry("api")
        self.redis: Final = RedisMeter(self.registry)
        self._requests = self.registry.counter("director_api_requests_total")
        self._seconds = self.registry.histogram("director_api_request_seconds")
        self._refusals = self.registry.counter("director_api_refusals_total")
        self._accepted = self.registry.counter("director_api_accepted_total")
        self._placed = self.registry.counter("director_api_placed_total")
        self._sites_up = self.registry.gauge("director_api_site_up")
        for code in Code:  # where a counter begins at one, no rule sees that it rose
            self._refusals.labels(code)
        self._by_run: dict[tuple[str, str], Counter] = {}
        self._by_answer: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, method: str, status: int, took_s: float) -> None:
        """A request has the head of its answer."""
        method = method if method in METHODS else OTHER
        found = self._by_answer.get((route, method, status))
        if found is None:
            found = self._requests.labels(route, method, str(status)), self._seconds.labels(route, method)
            self._by_answer[route, method, status] = found
        counter, seconds = found
        counter.inc()
        seconds.observe(took_s)

    def refused(self, problem: Problem) -> None:
        """A caller was refused so."""
        self._refusals.labels(problem.document.code or str(problem.status)).inc()

    def accepted(self, kind: str, lane: str) -> None:
        """A run was taken in that was not there before."""
        counter = self._by_run.get((kind, lane))
        if counter is None:
            counter = self._by_run[kind, lane] = self._accepted.labels(kind or "prediction", lane)
        counter.inc()

    def placed(self, site: str, how: str) -> None:
        """A new run went to one of several sites."""
        self._placed.labels(site, how).inc()

    def watch_sites(self, up: Mapping[str, Callable[[], float]]) -> None:
        """Ask these at each scrape."""
        for name, is_up in up.items():
            self._sites_up.labels(name).set_function(is_up)

    def watch(self, *, held: Callable[[], float], readers: Callable[[], float]) -> None:
        """Ask these at each scrape."""
        self.registry.gauge("director_api_held_responses").set_function(held)
        self.registry.gauge("director_api_stream_readers").set_function(readers)
