"""The table of all metrics: the name, kind, labels and meaning of each, and the processes that show it.

No other file names a metric. The reference is made from the table; alert rules and the dashboard are checked against
it. No label holds an id or an address, so each has few values. `queue` is bounded by `QueueNames`, and accounts are
named only if asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct

from director.core.ids import QueueName

Process = Literal["api", "director", "keeper"]
Kind = Literal["counter", "gauge", "histogram", "summary"]

OTHER: Final = "other"  # the label of queues that have no name of their own

BUCKETS: Final[Mapping[str, tuple[float, ...]]] = {
    "CALLS_S": (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 3.0),
    "ANSWERS_S": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0),
    "LAGS_S": (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0),
    # from a wait that no caller notices to that of a nightly batch
    "WAITS_S": (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
    "RUNS_S": (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
}

# [the processes that show what follows]
# name, kind, labels, and the buckets of a histogram
#     meaning
TABLE: Final = """
[api director keeper]
director_info gauge process version
    Always 1; its labels name the process and the release.
director_redis_up gauge
    1 if Redis answered the last call or PING, else 0.
director_redis_silence_seconds gauge
    Time since the last answer of Redis.
director_redis_round_trip_seconds histogram CALLS_S
    Time from one write of scripts, or a PING, to its answer.
director_redis_call_seconds summary script
    Calls of each script, and the time of their round trips.
director_redis_errors_total counter error
    Round trips that failed, by redis-py's name of the error.
director_loop_lag_seconds histogram LAGS_S
    Delay of a timer of 0.5 s, caused by other work of the loop.
director_files_up gauge
    0 if the store of files failed its last check, else 1.
director_connections_limited_total counter limit
    Connections beyond a limit, which may only ask for health. `limit`: all, or peer for those of one address.
[api]
director_api_requests_total counter route method status
    Requests answered. `route` is a template, or `none` if no route matches.
director_api_request_seconds histogram route method ANSWERS_S
    Time from a request to the head of its answer; with `Prefer: wait` this includes the wait.
director_api_refusals_total counter code
    Refusals by `code`, or by status if they have no code.
director_api_accepted_total counter kind lane
    Runs accepted, without replays of an idempotency key.
director_api_placed_total counter site how
    Runs accepted, by site, if there are several. `how`: chosen, forced, or failover from another site.
director_api_site_up gauge site
    1 while a site accepts new runs, if there are several.
director_api_held_responses gauge
    Requests that wait because of `Prefer: wait`.
director_api_stream_readers gauge
    Readers of event streams.
[director]
director_claims_total counter queue
    Predictions claimed.
director_starts_total counter queue attempt
    Runs started, by `attempt`: 1, 2, 3 or more.
director_ends_total counter queue status error
    Predictions finished by this director. `error`: the code, `other` for a model server's own, or `none`.
director_given_back_total counter queue error became
    Claims released. `error`: capacity, infrastructure, or `none` for a drain. `became`: `delayed` is a retry.
director_claims_lost_total counter queue
    Claims lost to another director before their run ended.
director_queue_seconds histogram queue lane WAITS_S
    Time from creation to claim.
director_setup_wait_seconds histogram queue WAITS_S
    The part of that time in which no model server of this director could run anything.
director_run_seconds histogram queue RUNS_S
    Time on the model server, for the attempt that finished the prediction.
director_total_seconds histogram queue WAITS_S
    Time from creation to the end.
director_first_output_seconds histogram queue RUNS_S
    Time from the start of a run to its first output, for models that yield.
director_eta_error_seconds histogram queue side WAITS_S
    Error of the estimated start (p50) that was given at acceptance. `side`: the run started late or early.
director_permits gauge queue
    Slots of model servers that can run, busy or free.
director_permits_used gauge queue
    Slots in use.
director_full_seconds_total counter queue
    Time with every slot in use, sampled twice a second. Its rate is the fraction of time.
director_held_claims gauge queue
    Claims that are neither finished nor released yet.
director_servers gauge queue state
    Model servers by `state`: the one that they report, `resting`, `doubted`, or `draining`, `at_rest`, `loading`.
director_swaps_total counter queue step
    Steps of swaps, of models that share devices. `step`: loaded, failed or rested.
director_swap_seconds_total counter queue step
    Time that these steps took: a device does no work meanwhile for this model.
director_device_bytes gauge device which
    Memory of a device that models share. `which`: all, or taken.
[director keeper]
director_webhooks_total counter outcome
    Attempts at a terminal webhook, by `outcome`: delivered, failed, gone, refused, given_up, revived.
director_webhook_seconds histogram ok ANSWERS_S
    Time of one POST to a receiver.
[keeper]
director_state_age_seconds gauge
    Age of the state that the keeper last read. State older than a minute is not shown.
director_state_look_seconds gauge
    Time that the keeper took to read the state.
director_findings gauge code queue
    Findings by `code`, as the doctor and the page show them; `queue` is empty for those of the whole service.
director_queues gauge
    Number of queues.
director_queue_waiting gauge queue lane
    Predictions that wait to be claimed, without what is idle or out of its open hours: it needs no director.
director_queue_oldest_seconds gauge queue
    Age of the oldest prediction that has not ended.
director_queue_claimed gauge queue
    Predictions that are claimed.
director_queue_delayed gauge queue
    Retries, and planned predictions, that are not due yet.
director_queue_dead gauge queue
    Dead letters.
director_queue_directors gauge queue
    Directors with a heartbeat in the last 20 s.
director_queue_slots gauge queue
    Slots that these directors report.
director_queue_setup_failed gauge queue
    Directors of which every model server failed in its setup.
director_queue_paused gauge queue
    1 if the queue is paused, else 0.
director_queue_breaker_open gauge queue
    1 if the queue starts nothing because its model servers failed in a row, else 0.
director_queue_tenants gauge queue
    Accounts with predictions waiting, for queues where 20 or more wait.
director_queue_largest_share gauge queue
    Part of the waiting (0 to 1) that the largest account has; the same queues, up to 1,000 accounts.
director_queue_tenant_waiting gauge queue account
    Predictions waiting of the five largest accounts of such a queue; only with `DIRECTOR_METRICS_TENANTS`.
director_queue_accepted_total counter queue lane
    Predictions accepted since the queue was made, planned ones once they are due.
director_queue_started_total counter queue
    Predictions claimed for their first attempt since the queue was made.
director_queue_ended_total counter queue
    Predictions ended since the queue was made, with any status.
director_objective_share gauge queue lane
    Share of a lane's starts that its objective promises.
director_objective_met_total counter queue lane
    Starts within their lane's objective.
director_objective_missed_total counter queue lane
    Starts later than their lane's objective.
director_objective_burn_rate gauge queue lane window
    Missed share in `window` (5m, 1h) divided by the share allowed; too long a wait counts as missed.
director_webhooks_owed gauge
    Terminal webhooks that are not delivered yet.
director_webhooks_owed_oldest_seconds gauge
    Age of the oldest of them, among 200 of each partition: the 100 due first and the 100 due last.
director_batches gauge status
    Batches that have not ended, by status; `closed`: out of their hours, or left for a minute. Of 1,000 at most.
director_batches_oldest_waiting_seconds gauge
    Age of the oldest of them that waits for a keeper, of accounts of which none runs. Closed ones do not wait.
director_batch_lines_total counter step
    Lines of batches of this keeper: filed, and written as succeeded or failed.
director_batch_slots_used gauge
    Batches that this keeper runs, of 64.
director_redis_memory_bytes gauge
    Memory that Redis uses.
director_redis_memory_limit_bytes gauge
    The `maxmemory` of Redis, or 0 if it has none.
director_data_accounts gauge
    Accounts whose predictions have data in Redis.
director_data_bytes gauge
    Bytes in Redis of the predictions of all accounts, waiting and ended: an estimate.
director_data_largest_bytes gauge
    The most of them that one account has.
director_data_share_bytes gauge
    Bytes that one account may have while memory is short, or 0 without a `maxmemory`.
director_account_data_bytes gauge account
    Bytes of the five accounts that have the most of them, if accounts may be named (DIRECTOR_METRICS_TENANTS).
director_redis_durable gauge
    1 while Redis is as durable as DIRECTOR_DURABILITY asks, else 0.
director_reaped_total counter queue became
    Claims recovered because their lease expired.
director_recovered_total counter queue became
    Claims recovered that had no lease any more.
director_repaired_total counter repair
    Repairs by the reconciler.
director_promoted_total counter queue
    Retries put back into their queue when due.
director_expired_total counter outcome
    Deadlines that passed: `ended` in the queue, or `told` to the director that has the claim.
director_webhooks_put_off_total counter
    Webhook attempts put off because their receiver is away.
"""


class Metric(Struct, frozen=True, array_like=True):
    """One row. `by`: the processes that show it. `buckets`: upper bounds of a histogram."""

    name: str
    kind: Kind
    by: tuple[Process, ...]
    what: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...]


def _parse(table: str) -> Iterator[Metric]:
    lines = iter(table.strip().splitlines())
    by: list[str] = []
    for line in lines:
        if line.startswith("["):
            by = line.strip("[]").split()
            continue
        name, kind, *words = line.split()
        labels = [word for word in words if word not in BUCKETS]
        buckets = BUCKETS[words[-1]] if len(labels) < len(words) else ()
        yield msgspec.convert((name, kind, by, next(lines).strip(), labels, buckets), Metric)


METRICS: Final = tuple(_parse(TABLE))


class QueueNames:
    """The queues that have a label of their own: at most `most` at once, all others share `other`.
    A queue keeps its name until it is gone, and one under `other` gets none later, so that no counter ever goes down.
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
        if queue in self._named:
            return queue
        if queue not in self._unnamed and len(self._named) < self._most:
            self._named.add(queue)
            self._on_new(queue)
            return queue
        self._unnamed.add(queue)
        return OTHER

    def keep(self, queues: Iterable[QueueName]) -> None:
        there = set(queues)
        gone = self._named - there
        self._named &= there
        self._unnamed &= there
        for name in gone:
            self._on_gone(name)
