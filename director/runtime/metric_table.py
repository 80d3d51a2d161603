"""The table of all metrics: the name, meaning and labels of each, and the processes that show it.

No other file names a metric; README.md, alert rules and the dashboard are checked against the table. No label holds an
id or an address, so each has few values. `queue` is bounded by `QueueNames`, and accounts are named only if asked for.
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal

from msgspec import Struct

from director.core.ids import QueueName

Process = Literal["api", "director", "keeper"]
Kind = Literal["counter", "gauge", "histogram", "summary"]

ALL: Final[tuple[Process, ...]] = ("api", "director", "keeper")
API: Final[tuple[Process, ...]] = ("api",)
DIRECTOR: Final[tuple[Process, ...]] = ("director",)
KEEPER: Final[tuple[Process, ...]] = ("keeper",)
SENDERS: Final[tuple[Process, ...]] = ("director", "keeper")

OTHER: Final = "other"  # the label of queues that have no name of their own

CALLS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 3.0)
ANSWERS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
LAGS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
# from a wait that no caller notices to that of a nightly batch
WAITS_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
RUNS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Metric(Struct, frozen=True):
    """One row. `by`: the processes that show it. `buckets`: upper bounds of a histogram."""

    name: str
    kind: Kind
    by: tuple[Process, ...]
    what: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: Final[tuple[Metric, ...]] = (
    # every process
    Metric(
        "director_info", "gauge", ALL, "Always 1; its labels name the process and the release.", ("process", "version")
    ),
    Metric("director_redis_up", "gauge", ALL, "1 if Redis answered the last call or PING, else 0."),
    Metric("director_redis_silence_seconds", "gauge", ALL, "Time since the last answer of Redis."),
    Metric(
        "director_redis_round_trip_seconds",
        "histogram",
        ALL,
        "Time from one write of scripts, or a PING, to its answer.",
        buckets=CALLS_S,
    ),
    Metric(
        "director_redis_call_seconds",
        "summary",
        ALL,
        "Calls of each script, and the time of their round trips.",
        ("script",),
    ),
    Metric(
        "director_redis_errors_total",
        "counter",
        ALL,
        "Round trips that failed, by redis-py's name of the error.",
        ("error",),
    ),
    Metric(
        "director_loop_lag_seconds",
        "histogram",
        ALL,
        "Delay of a timer of 0.5 s, caused by other work of the loop.",
        buckets=LAGS_S,
    ),
    # the API
    Metric(
        "director_api_requests_total",
        "counter",
        API,
        "Requests answered. `route` is a template, or `none` if no route matches.",
        ("route", "method", "status"),
    ),
    Metric(
        "director_api_request_seconds",
        "histogram",
        API,
        "Time from a request to the head of its answer; with `Prefer: wait` this includes the wait.",
        ("route", "method"),
        ANSWERS_S,
    ),
    Metric(
        "director_api_refusals_total",
        "counter",
        API,
        "Refusals by `code`, or by status if they have no code.",
        ("code",),
    ),
    Metric(
        "director_api_accepted_total",
        "counter",
        API,
        "Runs accepted, without replays of an idempotency key.",
        ("kind", "lane"),
    ),
    Metric(
        "director_api_placed_total",
        "counter",
        API,
        "Runs accepted, by site, if there are several. `how`: chosen, forced, or failover from another site.",
        ("site", "how"),
    ),
    Metric("director_api_site_up", "gauge", API, "1 while a site accepts new runs, if there are several.", ("site",)),
    Metric("director_api_held_responses", "gauge", API, "Requests that wait because of `Prefer: wait`."),
    Metric("director_api_stream_readers", "gauge", API, "Readers of event streams."),
    # the director
    Metric("director_claims_total", "counter", DIRECTOR, "Predictions claimed.", ("queue",)),
    Metric(
        "director_starts_total",
        "counter",
        DIRECTOR,
        "Runs started, by `attempt`: 1, 2, 3 or more.",
        ("queue", "attempt"),
    ),
    Metric(
        "director_ends_total",
        "counter",
        DIRECTOR,
        "Predictions finished by this director. `error`: the code, `other` for a model server's own, or `none`.",
        ("queue", "status", "error"),
    ),
    Metric(
        "director_given_back_total",
        "counter",
        DIRECTOR,
        "Claims released. `error`: capacity, infrastructure, or `none` for a drain. `became`: `delayed` is a retry.",
        ("queue", "error", "became"),
    ),
    Metric(
        "director_claims_lost_total",
        "counter",
        DIRECTOR,
        "Claims lost to another director before their run ended.",
        ("queue",),
    ),
    Metric("director_queue_seconds", "histogram", DIRECTOR, "Time from creation to claim.", ("queue", "lane"), WAITS_S),
    Metric(
        "director_setup_wait_seconds",
        "histogram",
        DIRECTOR,
        "The part of that time in which no model server of this director could run anything.",
        ("queue",),
        WAITS_S,
    ),
    Metric(
        "director_run_seconds",
        "histogram",
        DIRECTOR,
        "Time on the model server, for the attempt that finished the prediction.",
        ("queue",),
        RUNS_S,
    ),
    Metric("director_total_seconds", "histogram", DIRECTOR, "Time from creation to the end.", ("queue",), WAITS_S),
    Metric(
        "director_first_output_seconds",
        "histogram",
        DIRECTOR,
        "Time from the start of a run to its first output, for models that yield.",
        ("queue",),
        RUNS_S,
    ),
    Metric(
        "director_eta_error_seconds",
        "histogram",
        DIRECTOR,
        "Error of the estimated start (p50) that was given at acceptance. `side`: the run started late or early.",
        ("queue", "side"),
        WAITS_S,
    ),
    Metric("director_permits", "gauge", DIRECTOR, "Slots of model servers that can run, busy or free.", ("queue",)),
    Metric("director_permits_used", "gauge", DIRECTOR, "Slots in use.", ("queue",)),
    Metric(
        "director_full_seconds_total",
        "counter",
        DIRECTOR,
        "Time with every slot in use, sampled twice a second. Its rate is the fraction of time.",
        ("queue",),
    ),
    Metric("director_held_claims", "gauge", DIRECTOR, "Claims that are neither finished nor released yet.", ("queue",)),
    Metric(
        "director_servers",
        "gauge",
        DIRECTOR,
        "Model servers by `state`: the one that they report, `resting` or `doubted`.",
        ("queue", "state"),
    ),
    # webhooks
    Metric(
        "director_webhooks_total",
        "counter",
        SENDERS,
        "Attempts at a terminal webhook, by `outcome`: delivered, failed, gone, refused, given_up, revived.",
        ("outcome",),
    ),
    Metric("director_webhook_seconds", "histogram", SENDERS, "Time of one POST to a receiver.", ("ok",), ANSWERS_S),
    # the state of queues and Redis, as the keeper last read it
    Metric(
        "director_state_age_seconds",
        "gauge",
        KEEPER,
        "Age of the state that the keeper last read. State older than a minute is not shown.",
    ),
    Metric("director_state_look_seconds", "gauge", KEEPER, "Time that the keeper took to read the state."),
    Metric("director_queues", "gauge", KEEPER, "Number of queues."),
    Metric("director_queue_waiting", "gauge", KEEPER, "Predictions that wait to be claimed.", ("queue", "lane")),
    Metric(
        "director_queue_oldest_seconds", "gauge", KEEPER, "Age of the oldest prediction that has not ended.", ("queue",)
    ),
    Metric("director_queue_claimed", "gauge", KEEPER, "Predictions that are claimed.", ("queue",)),
    Metric("director_queue_delayed", "gauge", KEEPER, "Retries that are not due yet.", ("queue",)),
    Metric("director_queue_dead", "gauge", KEEPER, "Dead letters.", ("queue",)),
    Metric("director_queue_directors", "gauge", KEEPER, "Directors with a heartbeat in the last 20 s.", ("queue",)),
    Metric("director_queue_slots", "gauge", KEEPER, "Slots that these directors report.", ("queue",)),
    Metric(
        "director_queue_setup_failed",
        "gauge",
        KEEPER,
        "Directors of which every model server failed in its setup.",
        ("queue",),
    ),
    Metric("director_queue_paused", "gauge", KEEPER, "1 if the queue is paused, else 0.", ("queue",)),
    Metric(
        "director_queue_breaker_open",
        "gauge",
        KEEPER,
        "1 if the queue starts nothing because its model servers failed in a row, else 0.",
        ("queue",),
    ),
    Metric(
        "director_queue_tenants",
        "gauge",
        KEEPER,
        "Accounts with predictions waiting, for queues where 20 or more wait.",
        ("queue",),
    ),
    Metric(
        "director_queue_largest_share",
        "gauge",
        KEEPER,
        "Part of the waiting (0 to 1) that the largest account has; the same queues, up to 1,000 accounts.",
        ("queue",),
    ),
    Metric(
        "director_queue_tenant_waiting",
        "gauge",
        KEEPER,
        "Predictions waiting of the five largest accounts of such a queue; only with `DIRECTOR_METRICS_TENANTS`.",
        ("queue", "account"),
    ),
    Metric(
        "director_queue_accepted_total",
        "counter",
        KEEPER,
        "Predictions accepted since the queue was made.",
        ("queue", "lane"),
    ),
    Metric(
        "director_queue_started_total",
        "counter",
        KEEPER,
        "Predictions claimed for their first attempt since the queue was made.",
        ("queue",),
    ),
    Metric(
        "director_queue_ended_total",
        "counter",
        KEEPER,
        "Predictions ended since the queue was made, with any status.",
        ("queue",),
    ),
    Metric(
        "director_objective_share",
        "gauge",
        KEEPER,
        "Share of a lane's starts that its objective promises.",
        ("queue", "lane"),
    ),
    Metric(
        "director_objective_met_total", "counter", KEEPER, "Starts within their lane's objective.", ("queue", "lane")
    ),
    Metric(
        "director_objective_missed_total",
        "counter",
        KEEPER,
        "Starts later than their lane's objective.",
        ("queue", "lane"),
    ),
    Metric(
        "director_objective_burn_rate",
        "gauge",
        KEEPER,
        "Missed share in `window` (5m, 1h) divided by the share allowed; too long a wait counts as missed.",
        ("queue", "lane", "window"),
    ),
    Metric("director_webhooks_owed", "gauge", KEEPER, "Terminal webhooks that are not delivered yet."),
    Metric(
        "director_webhooks_owed_oldest_seconds",
        "gauge",
        KEEPER,
        "Age of the oldest of them, among 200 of each partition: the 100 due first and the 100 due last.",
    ),
    Metric("director_redis_memory_bytes", "gauge", KEEPER, "Memory that Redis uses."),
    Metric("director_redis_memory_limit_bytes", "gauge", KEEPER, "The `maxmemory` of Redis, or 0 if it has none."),
    Metric(
        "director_redis_durable", "gauge", KEEPER, "1 while Redis is as durable as DIRECTOR_DURABILITY asks, else 0."
    ),
    # work of the keeper
    Metric(
        "director_reaped_total", "counter", KEEPER, "Claims recovered because their lease expired.", ("queue", "became")
    ),
    Metric(
        "director_recovered_total",
        "counter",
        KEEPER,
        "Claims recovered that had no lease any more.",
        ("queue", "became"),
    ),
    Metric("director_repaired_total", "counter", KEEPER, "Repairs by the reconciler.", ("repair",)),
    Metric("director_promoted_total", "counter", KEEPER, "Retries put back into their queue when due.", ("queue",)),
    Metric(
        "director_expired_total",
        "counter",
        KEEPER,
        "Deadlines that passed: `ended` in the queue, or `told` to the director that has the claim.",
        ("outcome",),
    ),
    Metric(
        "director_webhooks_put_off_total", "counter", KEEPER, "Webhook attempts put off because their receiver is away."
    ),
)


class QueueNames:
    """The queues that have a label of their own: at most `most` at once, all others share `other`.

    A queue keeps its name until it is gone, and one under `other` gets none later, so that no counter ever goes down.
    `on_new` is called with each name that is given, `on_gone` with each that is free again.
    """

    def __init__(
        self,
        most: int,
        *,
        on_new: Callable[[str], None] = lambda name: None,
        on_gone: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._most = most
        self._on_new = on_new
        self._on_gone = on_gone
        self._named: set[str] = set()
        self._unnamed: set[str] = set()

    def of(self, queue: QueueName) -> str:
        """Return the label of this queue."""
        if queue in self._named:
            return queue
        if queue not in self._unnamed and len(self._named) < self._most:
            self._named.add(queue)
            self._on_new(queue)
            return queue
        self._unnamed.add(queue)
        return OTHER

    def keep(self, queues: Iterable[QueueName]) -> None:
        """Free the names of all queues that are not among these."""
        there = set(queues)
        gone = self._named - there
        self._named &= there
        self._unnamed &= there
        for name in gone:
            self._on_gone(name)
