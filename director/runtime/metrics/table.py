"""The table of all metrics: what each is called, what it tells, by which labels, and which processes show it.

The only place that a metric is named; README.md, alert rules and the dashboard are checked against it. No label has an
id or an address in it: each has few values, `queue` is bounded (`names.py`), and accounts are named only where asked.
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
TELLERS: Final[tuple[Process, ...]] = ("director", "keeper")

CALLS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 3.0)
ANSWERS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
LAGS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
# from what a caller does not notice to what a batch of a night takes
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
    Metric("director_info", "gauge", ALL, "1, of this process and release.", ("process", "version")),
    Metric("director_redis_up", "gauge", ALL, "1 while Redis answers, by the last call or PING; else 0."),
    Metric("director_redis_silence_seconds", "gauge", ALL, "How long ago Redis answered last."),
    Metric(
        "director_redis_round_trip_seconds",
        "histogram",
        ALL,
        "One write of scripts, or a PING, to its answer.",
        buckets=CALLS_S,
    ),
    Metric("director_redis_call_seconds", "summary", ALL, "Scripts called, and their round trips.", ("script",)),
    Metric(
        "director_redis_errors_total", "counter", ALL, "Round trips that failed, by what redis-py calls it.", ("error",)
    ),
    Metric(
        "director_loop_lag_seconds",
        "histogram",
        ALL,
        "How late a timer of half a second is: what else the loop did.",
        buckets=LAGS_S,
    ),
    # the front door
    Metric(
        "director_api_requests_total",
        "counter",
        API,
        "Requests answered. `route` is a template; `none` where none matches.",
        ("route", "method", "status"),
    ),
    Metric(
        "director_api_request_seconds",
        "histogram",
        API,
        "A request to the head of its answer; with `Prefer: wait` that is its wait.",
        ("route", "method"),
        ANSWERS_S,
    ),
    Metric(
        "director_api_refusals_total", "counter", API, "Refusals by `code`; by status where there is none.", ("code",)
    ),
    Metric("director_api_accepted_total", "counter", API, "Runs accepted, replays left out.", ("kind", "lane")),
    Metric(
        "director_api_placed_total",
        "counter",
        API,
        "Runs accepted, by the site of several that has them. `how`: chosen, forced, or failover from another.",
        ("site", "how"),
    ),
    Metric("director_api_site_up", "gauge", API, "1 while a site of several may have new runs.", ("site",)),
    Metric("director_api_held_responses", "gauge", API, "Requests held by `Prefer: wait`."),
    Metric("director_api_stream_readers", "gauge", API, "Readers of event streams."),
    # the engine room
    Metric("director_claims_total", "counter", DIRECTOR, "Predictions claimed.", ("queue",)),
    Metric(
        "director_starts_total",
        "counter",
        DIRECTOR,
        "Runs that began, by `attempt`: 1, 2, 3 or more.",
        ("queue", "attempt"),
    ),
    Metric(
        "director_ends_total",
        "counter",
        DIRECTOR,
        "Predictions ended here. `error` is their code; `other` for a server's own, `none` for none.",
        ("queue", "status", "error"),
    ),
    Metric(
        "director_given_back_total",
        "counter",
        DIRECTOR,
        "Claims given back. `error`: capacity, infrastructure, or `none` for a drain. `became`: delayed is a retry.",
        ("queue", "error", "became"),
    ),
    Metric(
        "director_claims_lost_total", "counter", DIRECTOR, "Claims that were another's before they ended.", ("queue",)
    ),
    Metric("director_queue_seconds", "histogram", DIRECTOR, "From creation to claim.", ("queue", "lane"), WAITS_S),
    Metric(
        "director_setup_wait_seconds",
        "histogram",
        DIRECTOR,
        "Of that, while no server here could run anything.",
        ("queue",),
        WAITS_S,
    ),
    Metric(
        "director_run_seconds",
        "histogram",
        DIRECTOR,
        "On the server, of the attempt that ended it.",
        ("queue",),
        RUNS_S,
    ),
    Metric("director_total_seconds", "histogram", DIRECTOR, "From creation to the end.", ("queue",), WAITS_S),
    Metric(
        "director_first_output_seconds",
        "histogram",
        DIRECTOR,
        "From the start of the run to its first output, of models that yield.",
        ("queue",),
        RUNS_S,
    ),
    Metric(
        "director_eta_error_seconds",
        "histogram",
        DIRECTOR,
        "How far the estimate at acceptance (p50) was off, of what was told one. `side`: it began late or early.",
        ("queue", "side"),
        WAITS_S,
    ),
    Metric("director_permits", "gauge", DIRECTOR, "Slots of servers that can run, busy or free.", ("queue",)),
    Metric("director_permits_used", "gauge", DIRECTOR, "Slots taken.", ("queue",)),
    Metric(
        "director_full_seconds_total",
        "counter",
        DIRECTOR,
        "Time with every slot taken, looked at twice a second; its rate is the fraction.",
        ("queue",),
    ),
    Metric("director_held_claims", "gauge", DIRECTOR, "Claims that are not settled yet.", ("queue",)),
    Metric(
        "director_servers",
        "gauge",
        DIRECTOR,
        "Model servers by `state`: as they say, `resting` or `doubted`.",
        ("queue", "state"),
    ),
    # telling callers
    Metric(
        "director_webhooks_total",
        "counter",
        TELLERS,
        "Attempts to tell an end, by `outcome`: delivered, failed, gone, refused, given_up, revived.",
        ("outcome",),
    ),
    Metric("director_webhook_seconds", "histogram", TELLERS, "One POST to a receiver.", ("ok",), ANSWERS_S),
    # the state, as the keeper last looked at it
    Metric(
        "director_state_age_seconds",
        "gauge",
        KEEPER,
        "How old the last look is. Without a new one for a minute, all of the state is left out.",
    ),
    Metric("director_state_look_seconds", "gauge", KEEPER, "How long the look took."),
    Metric("director_queues", "gauge", KEEPER, "Queues that there are."),
    Metric("director_queue_waiting", "gauge", KEEPER, "Waiting to be claimed.", ("queue", "lane")),
    Metric("director_queue_oldest_seconds", "gauge", KEEPER, "Age of the oldest that has not ended.", ("queue",)),
    Metric("director_queue_claimed", "gauge", KEEPER, "Claimed.", ("queue",)),
    Metric("director_queue_delayed", "gauge", KEEPER, "Retries that are not due yet.", ("queue",)),
    Metric("director_queue_dead", "gauge", KEEPER, "Dead letters.", ("queue",)),
    Metric("director_queue_directors", "gauge", KEEPER, "Directors that beat within 20 s.", ("queue",)),
    Metric("director_queue_slots", "gauge", KEEPER, "Slots that they tell of.", ("queue",)),
    Metric(
        "director_queue_setup_failed", "gauge", KEEPER, "Directors whose servers all failed in their setup.", ("queue",)
    ),
    Metric("director_queue_paused", "gauge", KEEPER, "1 where it is paused.", ("queue",)),
    Metric(
        "director_queue_breaker_open",
        "gauge",
        KEEPER,
        "1 where its servers failed in a row and it starts nothing.",
        ("queue",),
    ),
    Metric(
        "director_queue_tenants",
        "gauge",
        KEEPER,
        "Accounts with anything waiting; of queues with 20 or more waiting.",
        ("queue",),
    ),
    Metric(
        "director_queue_largest_share",
        "gauge",
        KEEPER,
        "0 to 1: what the account with the most has of what waits; of those queues, up to 1,000 accounts.",
        ("queue",),
    ),
    Metric(
        "director_queue_tenant_waiting",
        "gauge",
        KEEPER,
        "Of the five accounts that have the most waiting in such a queue; only with `DIRECTOR_METRICS_TENANTS`.",
        ("queue", "account"),
    ),
    Metric("director_queue_accepted_total", "counter", KEEPER, "Accepted since ever.", ("queue", "lane")),
    Metric("director_queue_started_total", "counter", KEEPER, "First attempts handed out since ever.", ("queue",)),
    Metric("director_queue_ended_total", "counter", KEEPER, "Ended since ever, however.", ("queue",)),
    Metric(
        "director_objective_share", "gauge", KEEPER, "Share of a lane's starts that is promised.", ("queue", "lane")
    ),
    Metric(
        "director_objective_met_total", "counter", KEEPER, "Starts within their lane's objective.", ("queue", "lane")
    ),
    Metric("director_objective_missed_total", "counter", KEEPER, "Starts that came later.", ("queue", "lane")),
    Metric(
        "director_objective_burn_rate",
        "gauge",
        KEEPER,
        "Share missed over `window` (5m, 1h) by the share that may be; what waits too long by now is missed.",
        ("queue", "lane", "window"),
    ),
    Metric("director_webhooks_owed", "gauge", KEEPER, "Ends that are not told yet."),
    Metric(
        "director_webhooks_owed_oldest_seconds",
        "gauge",
        KEEPER,
        "Since when the oldest of them is owed; of a partition, by the 100 of the first and last next attempts.",
    ),
    Metric("director_redis_memory_bytes", "gauge", KEEPER, "Memory that Redis uses."),
    Metric("director_redis_memory_limit_bytes", "gauge", KEEPER, "Its `maxmemory`; 0 where there is none."),
    Metric(
        "director_redis_durable", "gauge", KEEPER, "1 while the server keeps what DIRECTOR_DURABILITY asks; else 0."
    ),
    # what the keeper did
    Metric("director_reaped_total", "counter", KEEPER, "Claims taken back: their lease ran out.", ("queue", "became")),
    Metric(
        "director_recovered_total",
        "counter",
        KEEPER,
        "Claims taken back that had lost their lease.",
        ("queue", "became"),
    ),
    Metric("director_repaired_total", "counter", KEEPER, "What the reconciler put right.", ("repair",)),
    Metric("director_promoted_total", "counter", KEEPER, "Retries that came due.", ("queue",)),
    Metric(
        "director_expired_total",
        "counter",
        KEEPER,
        "Deadlines that passed: `ended` in the queue, `told` to a holder.",
        ("outcome",),
    ),
    Metric("director_webhooks_put_off_total", "counter", KEEPER, "Attempts put off since their receiver is away."),
)


def series(metric: Metric) -> tuple[str, ...]:
    """Names that its samples have, as rules and dashboards write them."""
    parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}.get(metric.kind, ("",))
    return tuple(metric.name + part for part in parts)


def markdown(metrics: tuple[Metric, ...] = METRICS) -> str:
    """The table as the README has it."""
    lines = ["| metric | type | labels | of | what |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        by = "all" if metric.by == ALL else ", ".join(metric.by)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {by} | {metric.what} |")
    return "\n".join(lines)


# Which queues are named in a label: so many at once, and the rest together as `other`.
#
# A queue that has its name keeps it until it is gone, and one that is counted under `other` gets none later, so that
# no counter ever goes back. Pure.

OTHER: Final = "other"


class QueueNames:
    """At most `most` names. `on_new` hears of each that is given, and `on_gone` of each that is free again."""

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
        """What it is called in a label."""
        if queue in self._named:
            return queue
        if queue not in self._unnamed and len(self._named) < self._most:
            self._named.add(queue)
            self._on_new(queue)
            return queue
        self._unnamed.add(queue)
        return OTHER

    def keep(self, queues: Iterable[QueueName]) -> None:
        """These are all that there are: the names of others are free."""
        there = set(queues)
        gone = self._named - there
        self._named &= there
        self._unnamed &= there
        for name in gone:
            self._on_gone(name)
