"""Everything that a director's process shows at /metrics: its runs, its servers, its webhooks, how Redis answers it.

Decides nothing. What a run costs here is a few microseconds: the series of a queue are looked up once, and then kept.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from director.broker.scripts import Requeued
from director.core.ids import LANES, QueueName
from director.core.schema import Record
from director.core.states import Status
from director.execution.ends import CODES, STOPS, VERDICTS, ErrorClass, GiveBack
from director.execution.holdings import Holdings
from director.runtime.metrics.registry import RedisMeter, Registry, WebhookMeter
from director.runtime.metrics.series import Counter
from director.runtime.metrics.table import METRICS, QueueNames
from director.servers.runners.runner import HealthStatus, Outcome
from director.servers.server import Server
from director.servers.servers import Servers

MOST_QUEUES: Final = 500
MOST_ATTEMPTS: Final = 3
NONE: Final = "none"
OTHER: Final = "other"
# Codes that are ours; a server may tell any other
KNOWN: Final = frozenset(
    {code for code, _ in (*CODES.values(), *VERDICTS.values())}
    | {code for _, code, _ in STOPS.values()}
    | {"deadline_exceeded"}
)
STATES: Final = (*HealthStatus, "resting", "doubted")
# a run's own figure → what it is shown as
TIMES: Final[Mapping[str, str]] = {
    "setup_wait_time": "director_setup_wait_seconds",
    "run_time": "director_run_seconds",
    "time_to_first_output": "director_first_output_seconds",
}
SHOWN: Final = ("director_permits", "director_permits_used", "director_held_claims", "director_servers")


class Watched:
    """One director, as it is looked at. `queue`: what it serves, or its model while that is not known."""

    def __init__(self, queue: Callable[[], str], servers: Servers, holdings: Holdings) -> None:
        self.queue = queue
        self._servers = servers
        self._holdings = holdings

    @property
    def permits(self) -> int:
        return sum(server.usable for server in list(self._servers.all) if server.can_run)

    @property
    def used(self) -> int:
        return self._servers.permits.busy

    @property
    def held(self) -> int:
        return len(self._holdings)

    @property
    def states(self) -> Mapping[str, int]:
        """How many of its servers are in each."""
        found = [_state(server) for server in list(self._servers.all)]
        return {state: found.count(state) for state in STATES}


class Metering:
    """One per process."""

    def __init__(self) -> None:
        self.registry: Final = Registry("director")
        self.redis: Final = RedisMeter(self.registry)
        self.webhooks: Final = WebhookMeter(self.registry)
        self._rows = _Rows(self.registry)
        self._names = QueueNames(MOST_QUEUES)
        self._queues: dict[str, _OfQueue] = {}
        self._directors: list[Watched] = []
        self.registry.add(SHOWN, _Engine(self._directors))

    def watch(self, director: Watched) -> None:
        """Show its servers and permits from now on."""
        self._directors.append(director)

    def beat(self, since_s: float) -> None:
        """Time has passed: of whom is every slot taken?"""
        for director in self._directors:
            if 0 < director.permits <= director.used:
                self._of(QueueName(director.queue())).full.inc(since_s)

    def claimed(self, record: Record) -> None:
        """A prediction is ours to run."""
        queue = self._of(record.queue)
        queue.claims.inc()
        if record.claimed is None:
            return
        waited_s = max(0, record.claimed - record.created) / 1000
        queue.queued[record.lane].observe(waited_s)
        if record.eta50 is not None and record.claims <= 1:
            late_s = waited_s - record.eta50 / 1000
            queue.eta["late" if late_s > 0 else "early"].observe(abs(late_s))

    def started(self, record: Record) -> None:
        """Its run began."""
        self._of(record.queue).starts[max(1, min(record.attempt, MOST_ATTEMPTS))].inc()

    def measured(self, record: Record, metrics: Mapping[str, float]) -> None:
        """Its run is over, and these are its figures."""
        for name, histogram in self._of(record.queue).times:
            if name in metrics:
                histogram.observe(metrics[name])

    def ended(self, record: Record, status: Status, code: str, *, now_ms: int) -> None:
        """It is terminal, by us."""
        queue = self._of(record.queue)
        error = error_label(code) or NONE
        found = queue.ends.get((status, error))
        if found is None:
            found = queue.ends[status, error] = self._rows.ends.labels(queue.name, status, error)
        found.inc()
        queue.total.observe(max(0, now_ms - record.created) / 1000)

    def given_back(self, record: Record, end: GiveBack, became: Requeued) -> None:
        """Its claim was given back."""
        self._rows.given_back.labels(self._of(record.queue).name, end.fault or NONE, became).inc()

    def lost(self, record: Record) -> None:
        """Its claim was another's before we were done."""
        self._of(record.queue).lost.inc()

    def _of(self, queue: QueueName) -> "_OfQueue":
        found = self._queues.get(queue)
        if found is None:
            name = self._names.of(queue)
            found = self._queues[name] if name in self._queues else _OfQueue(self._rows, name)
            self._queues[name] = found
        return found


class _Rows:
    """What the table has of runs."""

    def __init__(self, registry: Registry) -> None:
        self.claims = registry.counter("director_claims_total")
        self.starts = registry.counter("director_starts_total")
        self.ends = registry.counter("director_ends_total")
        self.given_back = registry.counter("director_given_back_total")
        self.lost = registry.counter("director_claims_lost_total")
        self.full = registry.counter("director_full_seconds_total")
        self.queued = registry.histogram("director_queue_seconds")
        self.total = registry.histogram("director_total_seconds")
        self.eta = registry.histogram("director_eta_error_seconds")
        self.times = {time: registry.histogram(name) for time, name in TIMES.items()}


class _OfQueue:
    """The series of one queue, all but those of its ends, which come to be as they are met."""

    def __init__(self, rows: _Rows, name: str) -> None:
        attempts = {number: str(number) for number in range(1, MOST_ATTEMPTS)}
        attempts[MOST_ATTEMPTS] = f"{MOST_ATTEMPTS} or more"
        self.name = name
        self.claims = rows.claims.labels(name)
        self.lost = rows.lost.labels(name)
        self.full = rows.full.labels(name)
        self.total = rows.total.labels(name)
        self.starts = {number: rows.starts.labels(name, attempt) for number, attempt in attempts.items()}
        self.queued = {lane: rows.queued.labels(name, lane) for lane in LANES}
        self.eta = {side: rows.eta.labels(name, side) for side in ("late", "early")}
        self.times = [(time, histogram.labels(name)) for time, histogram in rows.times.items()]
        self.ends: dict[tuple[Status, str], Counter] = {}
        # where a counter begins at one, no rule sees that it rose
        rows.given_back.labels(name, ErrorClass.INFRASTRUCTURE, "dead")
        rows.ends.labels(name, Status.FAILED, CODES[Outcome.FAILED][0])


class _Engine(Collector):
    """Looks at the directors at each scrape."""

    def __init__(self, directors: list[Watched]) -> None:
        self._directors = directors

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = {
            row.name: GaugeMetricFamily(row.name, row.what, labels=row.labels) for row in METRICS if row.name in SHOWN
        }
        for director in self._directors:
            queue = director.queue()
            for name, value in zip(SHOWN, (director.permits, director.used, director.held), strict=False):
                families[name].add_metric((queue,), value)
            for state, count in director.states.items():
                families["director_servers"].add_metric((queue, state), count)
        return families.values()


def error_label(code: str) -> str:
    """A code that is ours, or that it is another one: servers may tell any."""
    return code if not code or code in KNOWN else OTHER


def _state(server: Server) -> str:
    if server.doubt.is_set():
        return "doubted"
    return "resting" if server.is_resting else server.health.status
