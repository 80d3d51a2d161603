"""Count what the API does, for its metrics."""

from collections.abc import Callable, Iterable
from typing import Final

from director.runtime.metrics import Counter, Histogram, RedisMeter, Registry

NO_ROUTE: Final = "none"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"})


class Meters:
    """Counts requests and answers by the route's template: no caller's text becomes a label. Time is measured up to the
    head of the response, because an event stream may last for hours. `codes`: those of refusals, which are shown from
    the start.
    """

    def __init__(self, codes: Iterable[str] = ()) -> None:
        self.registry: Final = Registry("api")
        self.redis: Final = RedisMeter(self.registry)
        self._requests = self.registry.counter("director_api_requests_total")
        self._seconds = self.registry.histogram("director_api_request_seconds")
        self._refusals = self.registry.counter("director_api_refusals_total")
        self._accepted = self.registry.counter("director_api_accepted_total")
        self._placed = self.registry.counter("director_api_placed_total")
        self._sites_up = self.registry.gauge("director_api_site_up")
        for code in codes:  # alert rules miss the rise of a counter that begins at one
            self._refusals.labels(code)
        self._by_run: dict[tuple[str, str], Counter] = {}
        self._by_answer: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def note_answer(self, route: str, method: str, status: int, took_s: float) -> None:
        method = method if method in METHODS else "other"
        found = self._by_answer.get((route, method, status))
        if found is None:
            found = self._requests.labels(route, method, str(status)), self._seconds.labels(route, method)
            self._by_answer[route, method, status] = found
        counter, seconds = found
        counter.inc()
        seconds.observe(took_s)

    def note_refusal(self, code: str) -> None:
        self._refusals.labels(code).inc()

    def note_acceptance(self, kind: str, lane: str) -> None:
        counter = self._by_run.get((kind, lane))
        if counter is None:
            counter = self._by_run[kind, lane] = self._accepted.labels(kind or "prediction", lane)
        counter.inc()

    def note_placement(self, site: str, how: str) -> None:
        self._placed.labels(site, how).inc()

    def watch_site(self, name: str, is_up: Callable[[], float]) -> None:
        self._sites_up.labels(name).set_function(is_up)
