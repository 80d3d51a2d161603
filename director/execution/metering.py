"""Measure runs: the figures on a prediction's record, the series at /metrics, the spans of a trace.

Decides nothing. A run costs a few microseconds here: the series of a queue are looked up once and then kept.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Final

import msgspec
from msgspec import Raw, Struct
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from director.broker.replies import Requeued
from director.core.ids import ALL_LANES, QueueName
from director.core.schema import Record, TraceHeaders, parse_history
from director.core.states import Status
from director.execution.active_claims import ActiveClaims
from director.execution.tracker import FAULTS, STOPS, VERDICTS, End, ErrorClass, Finish, GiveBack, Stop, Tracker
from director.gpus.garage import Garage, SwapStep
from director.runtime.metric_table import METRICS, QueueNames
from director.runtime.metrics import Counter, RedisMeter, Registry, WebhookMeter
from director.runtime.tracing import Facts, Span, Tracing, facts_of
from director.servers.runners.runner import Ended, HealthStatus, Outcome
from director.servers.servers import Servers
from director.store.directors import EndsFound

MOST_QUEUES: Final = 500
MOST_ATTEMPTS: Final = 3
NONE: Final = "none"
# Outputs that come together are read together: over a shorter time their rate says nothing of the model
RATE_OVER_S: Final = 0.1
OTHER: Final = "other"
# The codes that this product gives; a server may answer with any other
KNOWN: Final = frozenset(
    {fault.code for fault in FAULTS.values()}
    | {code for code, _ in VERDICTS.values()}
    | {code for _, code, _ in STOPS.values()}
)
STATES: Final = (*HealthStatus, "resting", "doubted", "draining", "at_rest", "loading")
TIMES: Final[Mapping[str, str]] = {
    "setup_wait_time": "director_setup_wait_seconds",
    "run_time": "director_run_seconds",
    "time_to_first_output": "director_first_output_seconds",
}
SHOWN: Final = (
    "director_permits",
    "director_permits_used",
    "director_held_claims",
    "director_servers",
    "director_device_bytes",
)


class DirectorGauges(Struct):
    """The gauges of one director. `queue` returns its queue, or its model while the queue is not known."""

    queue: Callable[[], str]
    servers: Servers
    claims: ActiveClaims

    @property
    def permits(self) -> int:
        return sum(server.usable for server in list(self.servers.all) if server.can_run)

    @property
    def used(self) -> int:
        return self.servers.permits.busy


class Metering(Collector):
    def __init__(self) -> None:
        self.registry: Final = Registry("director")
        self.redis: Final = RedisMeter(self.registry)
        self.webhooks: Final = WebhookMeter(self.registry)
        self.claims: Final = self.registry.counter("director_claims_total")
        self.starts: Final = self.registry.counter("director_starts_total")
        self.ends: Final = self.registry.counter("director_ends_total")
        self.released: Final = self.registry.counter("director_given_back_total")
        self.losses: Final = self.registry.counter("director_claims_lost_total")
        self.full: Final = self.registry.counter("director_full_seconds_total")
        self.queued: Final = self.registry.histogram("director_queue_seconds")
        self.total: Final = self.registry.histogram("director_total_seconds")
        self.eta: Final = self.registry.histogram("director_eta_error_seconds")
        self.times: Final = {time: self.registry.histogram(name) for time, name in TIMES.items()}
        self._names = QueueNames(MOST_QUEUES)
        self._queues: dict[str, QueueSeries] = {}
        self._directors: list[DirectorGauges] = []
        self._steps: Final = self.registry.counter("director_swaps_total")
        self._step_s: Final = self.registry.counter("director_swap_seconds_total")
        self._garage: Garage | None = None
        self.registry.add(SHOWN, self)

    def follow(self, garage: Garage) -> None:
        self._garage, garage.on_step = garage, self._note_step

    def _note_step(self, queue: str, step: SwapStep, seconds: float) -> None:
        self._steps.labels(queue, step).inc()
        self._step_s.labels(queue, step).inc(seconds)

    def watch(self, director: DirectorGauges) -> None:
        self._directors.append(director)

    def count_full(self, since_s: float) -> None:
        for director in self._directors:
            if 0 < director.permits <= director.used:
                self.of(QueueName(director.queue())).full.inc(since_s)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = {
            row.name: GaugeMetricFamily(row.name, row.what, labels=row.labels) for row in METRICS if row.name in SHOWN
        }
        for director in self._directors:
            queue = director.queue()
            for name, value in zip(SHOWN, (director.permits, director.used, len(director.claims)), strict=False):
                families[name].add_metric((queue,), value)
            states = [server.state for server in list(director.servers.all)]
            for state in STATES:
                families["director_servers"].add_metric((queue, state), states.count(state))
        for device, (taken, size) in (self._garage.memory if self._garage else {}).items():
            families["director_device_bytes"].add_metric((device, "taken"), taken)
            families["director_device_bytes"].add_metric((device, "all"), size)
        return families.values()

    def of(self, queue: QueueName) -> "QueueSeries":
        found = self._queues.get(queue)
        if found is None:
            name = self._names.of(queue)
            found = self._queues[name] if name in self._queues else QueueSeries(self, name)
            self._queues[name] = found
        return found


RECENT: Final = 50  # ends
RECENT_MS: Final = 900_000
FORGETS: Final = 0.998  # of the longest run's time after each run: half of it after 350 runs
NOT_OF_THE_MODEL: Final = frozenset({"invalid_input", "moderation_refused"})  # one caller may cause many of these


class RecentEnds:
    """The last ends of one queue here. Findings judge by them whether its model fails: see `EndsFound`."""

    def __init__(self) -> None:
        self._ends = deque[tuple[int, str, str]](maxlen=RECENT)
        self._longest_s = 0.0

    def add(self, prediction_id: str, status: Status, code: str, now_ms: int, *, run_s: float = 0.0) -> None:
        if status is Status.SUCCEEDED:
            self._longest_s = max(run_s, self._longest_s * FORGETS)
            self._ends.append((now_ms, "", prediction_id))
        elif status is Status.FAILED and code not in NOT_OF_THE_MODEL:
            self._ends.append((now_ms, code or status, prediction_id))

    def find(self, now_ms: int) -> EndsFound:
        recent = [end for end in self._ends if now_ms - end[0] <= RECENT_MS]
        # Old ends count here, because a run limit may be longer than what is recent
        in_a_row = takewhile(lambda end: end[1] == STOPS[Stop.RUN_LIMIT][1], reversed(self._ends))
        failed_ms, _, failed_id = next((end for end in reversed(self._ends) if end[1]), (0, "", ""))
        return EndsFound(
            ended=len(recent),
            failed=sum(1 for end in recent if end[1]),
            timed_out_in_a_row=sum(1 for _ in in_a_row),
            failed_id=failed_id,
            failed_ms=failed_ms,
            longest_s=round(self._longest_s, 3),
        )


class QueueSeries:
    """The series of one queue, which a run looks up once."""

    def __init__(self, rows: Metering, name: str) -> None:
        attempts = {number: str(number) for number in range(1, MOST_ATTEMPTS)}
        attempts[MOST_ATTEMPTS] = f"{MOST_ATTEMPTS} or more"
        self.name = name
        self._rows = rows
        self.claims = rows.claims.labels(name)
        self.lost = rows.losses.labels(name)
        self.full = rows.full.labels(name)
        self.total = rows.total.labels(name)
        self.starts = {number: rows.starts.labels(name, attempt) for number, attempt in attempts.items()}
        self.queued = {lane: rows.queued.labels(name, lane) for lane in ALL_LANES}
        self.eta = {side: rows.eta.labels(name, side) for side in ("late", "early")}
        self.times = [(time, histogram.labels(name)) for time, histogram in rows.times.items()]
        self.ends: dict[tuple[Status, str], Counter] = {}
        self.recent = RecentEnds()
        # an alert rule does not see a rise of a counter that begins at one
        rows.released.labels(name, ErrorClass.INFRASTRUCTURE, "dead")
        rows.ends.labels(name, Status.FAILED, FAULTS[Outcome.FAILED].code)

    def note_claim(self, record: Record) -> None:
        self.claims.inc()
        if record.claimed is None:
            return
        waited_s = max(0, record.claimed - record.created) / 1000
        self.queued[record.lane].observe(waited_s)
        if record.eta50 is not None and record.claims <= 1:
            late_s = waited_s - record.eta50 / 1000
            self.eta["late" if late_s > 0 else "early"].observe(abs(late_s))

    def note_start(self, record: Record) -> None:
        self.starts[min(record.attempt, MOST_ATTEMPTS) or 1].inc()

    def note_metrics(self, metrics: Mapping[str, float]) -> None:
        for name, histogram in self.times:
            if name in metrics:
                histogram.observe(metrics[name])

    def note_end(self, record: Record, status: Status, code: str, *, now_ms: int, run_s: float) -> None:
        error = error_label(code) or NONE
        found = self.ends.get((status, error))
        if found is None:
            found = self.ends[status, error] = self._rows.ends.labels(self.name, status, error)
        found.inc()
        self.recent.add(record.id, status, code, now_ms, run_s=run_s)
        self.total.observe(max(0, now_ms - record.created) / 1000)

    def note_release(self, end: GiveBack, became: Requeued) -> None:
        self._rows.released.labels(self.name, end.fault or NONE, became).inc()


def error_label(code: str) -> str:
    return code if not code or code in KNOWN else OTHER


def metrics_of(record: Record, tracker: Tracker, *, setup_wait_s: float, ahead_s: float = 0) -> dict[str, float]:
    """Return the figures of the attempt in seconds by our own clock, without those that are unknown.
    `ahead_s`: the wait for a slot after the claim. `setup_wait_s`: the time in the queue while no server could run.
    """
    found: dict[str, float] = {}
    if record.claimed is not None:
        found["queue_time"] = max(0, record.claimed - record.created) / 1000 + ahead_s
        found["setup_wait_time"] = setup_wait_s
    if tracker.began_at is not None:
        if tracker.over_at is not None:
            found["run_time"] = tracker.over_at - tracker.began_at
        if tracker.first_output_at is not None:
            found["time_to_first_output"] = tracker.first_output_at - tracker.began_at
            found["output_count"] = tracker.outputs
            spread = tracker.last_output_at - tracker.first_output_at
            if tracker.outputs > 1 and spread >= RATE_OVER_S:
                found["outputs_per_second"] = (tracker.outputs - 1) / spread
    return {  # five digits: three times then fit into 64 bytes, above which a record takes twice its memory by default
        name: round(value, 4 if value < 10 else 3 if value < 100 else 2 if value < 1000 else 1)
        for name, value in found.items()
    }


def with_metrics(of_model: bytes, ours: dict[str, float]) -> bytes:
    metrics = msgspec.json.decode(of_model, type=dict[str, Raw]) if of_model else {}
    if "run_time" in ours:
        metrics.pop("predict_time", None)  # every reader replaces it by its own, which the record's times give
    return msgspec.json.encode({**ours, **metrics})


class ClaimMeter(Struct, eq=False):
    """The figures of one claim. `claimed_at`: by the monotonic clock. `ahead_s`: its wait for a slot after the claim.
    `setup_wait_s`: its wait in the queue while no server could run. `times`: of the attempt, once it has ended.
    """

    series: QueueSeries
    claimed_at: float
    setup_wait_s: float
    spans: "ClaimSpans | None" = None
    ahead_s: float = 0.0
    times: dict[str, float] = {}

    def measure(self, record: Record, tracker: Tracker) -> None:
        self.times = metrics_of(record, tracker, setup_wait_s=self.setup_wait_s, ahead_s=self.ahead_s)
        self.series.note_metrics(self.times)


class ClaimSpans:
    """The spans of one claim, if tracing is on: the wait before it (times from the record), the claim, and the run."""

    def __init__(self, tracing: Tracing, record: Record) -> None:
        self._tracing = tracing
        self._facts = {**facts_of(tracing, record), "attempt": record.attempt}
        self._run: Span | None = None
        if record.claimed is not None:
            spent = parse_history(record.history)
            since = spent[-1].ended if spent else record.created
            wait = tracing.begin("wait", record.trace, at_ms=since, facts=self._facts)
            wait.end(at_ms=record.claimed)
        self._claim: Span | None = tracing.begin("claim", record.trace, facts=self._facts)

    def run(self) -> TraceHeaders:
        trace = self._claim.headers if self._claim is not None else {}
        self._run = self._tracing.begin("run", trace, kind="client", facts=self._facts)
        return self._run.headers

    def ran(self, ended: Ended) -> None:
        fault = FAULTS.get(ended.outcome)
        self._end_run(error=fault.kind if fault else "", facts={"outcome": ended.outcome})

    def end(self, end: End | None) -> None:
        self._end_run(error="left")
        match end:
            case Finish():
                self._end_claim({"status": end.status}, error=error_label(end.code))
            case GiveBack():
                self._end_claim({"status": "given_back"}, error=end.fault or "")
            case None:
                self._end_claim({}, error="claim_lost")

    def drop(self) -> None:
        self._end_run(error="left")
        self._end_claim({}, error="left")

    def _end_run(self, *, error: str, facts: Facts | None = None) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.end(facts, error=error)

    def _end_claim(self, facts: Facts, *, error: str) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.end(facts, error=error)
