"""Count requests and answers for `GET /metrics`.

Requests are counted by the template of their route, so no caller's text becomes a label. Time is measured up to the
head of the response, because an event stream may last for hours.
"""

from collections.abc import Callable, Mapping
from typing import Final

from api.errors import Code, Problem
from director.runtime.metrics import Counter, Histogram, RedisMeter, Registry

NO_ROUTE: Final = "none"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"})
OTHER: Final = "other"


class Meters:
    """All metrics of this process."""

    def __init__(self) -> None:
        self.registry: Final = Registry("api")
        self.redis: Final = RedisMeter(self.registry)
        self._requests = self.registry.counter("director_api_requests_total")
        self._seconds = self.registry.histogram("director_api_request_seconds")
        self._refusals = self.registry.counter("director_api_refusals_total")
        self._accepted = self.registry.counter("director_api_accepted_total")
        self._placed = self.registry.counter("director_api_placed_total")
        self._sites_up = self.registry.gauge("director_api_site_up")
        for code in Code:  # alert rules miss the rise of a counter that begins at one
            self._refusals.labels(code)
        self._by_run: dict[tuple[str, str], Counter] = {}
        self._by_answer: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, method: str, status: int, took_s: float) -> None:
        """Count a request whose response head was sent."""
        method = method if method in METHODS else OTHER
        found = self._by_answer.get((route, method, status))
        if found is None:
            found = self._requests.labels(route, method, str(status)), self._seconds.labels(route, method)
            self._by_answer[route, method, status] = found
        counter, seconds = found
        counter.inc()
        seconds.observe(took_s)

    def refused(self, problem: Problem) -> None:
        """Count a refusal."""
        self._refusals.labels(problem.document.code or str(problem.status)).inc()

    def accepted(self, kind: str, lane: str) -> None:
        """Count a newly accepted run; replays are not counted."""
        counter = self._by_run.get((kind, lane))
        if counter is None:
            counter = self._by_run[kind, lane] = self._accepted.labels(kind or "prediction", lane)
        counter.inc()

    def placed(self, site: str, how: str) -> None:
        """Count a run that was placed at one of several sites."""
        self._placed.labels(site, how).inc()

    def watch_sites(self, up: Mapping[str, Callable[[], float]]) -> None:
        """Read these values at each scrape."""
        for name, is_up in up.items():
            self._sites_up.labels(name).set_function(is_up)

    def watch(self, *, held: Callable[[], float], readers: Callable[[], float]) -> None:
        """Read these values at each scrape."""
        self.registry.gauge("director_api_held_responses").set_function(held)
        self.registry.gauge("director_api_stream_readers").set_function(readers)
