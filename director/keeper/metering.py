"""Show at /metrics what a keeper's roles did, what its observer saw, and how Redis answers it."""

from typing import Final, get_args

from director.broker.replies import Repair, Requeued
from director.core.ids import QueueName
from director.keeper.observer import Observer, StateCollector
from director.runtime.metrics.registry import RedisMeter, Registry, WebhookMeter
from director.runtime.metrics.table import QueueNames

BECAME: Final[tuple[Requeued, ...]] = ("waiting", "delayed", "dead")


class Metering:
    """The metrics of one keeper. Up to `most_queues` queues have their name as a label, and the others share one."""

    def __init__(self, *, most_queues: int) -> None:
        self.registry: Final = Registry("keeper")
        self.redis: Final = RedisMeter(self.registry)
        self.webhooks: Final = WebhookMeter(self.registry)
        self.names: Final = QueueNames(most_queues, on_new=self._begin, on_gone=self.registry.forget)
        self._reaped = self.registry.counter("director_reaped_total")
        self._recovered = self.registry.counter("director_recovered_total")
        self._repaired = self.registry.counter("director_repaired_total")
        self._promoted = self.registry.counter("director_promoted_total")
        self._expired = self.registry.counter("director_expired_total")
        self._put_off = self.registry.counter("director_webhooks_put_off_total").labels()
        for repair in get_args(Repair):
            self._repaired.labels(repair)

    def show(self, observer: Observer) -> None:
        """Show what the observer sees."""
        collector = StateCollector(lambda: observer.state)
        self.registry.add(collector.names, collector)
        self.registry.gauge("director_state_age_seconds").set_function(lambda: observer.age_s)

    def reaped(self, queue: QueueName, became: Requeued) -> None:
        self._reaped.labels(self.names.of(queue), became).inc()

    def recovered(self, queue: QueueName, became: Requeued) -> None:
        self._recovered.labels(self.names.of(queue), became).inc()

    def repaired(self, repair: Repair) -> None:
        self._repaired.labels(repair).inc()

    def promoted(self, queue: QueueName, count: int) -> None:
        self._promoted.labels(self.names.of(queue)).inc(count)

    def expired(self, ended: int, told: int) -> None:
        self._expired.labels("ended").inc(ended)
        self._expired.labels("told").inc(told)

    def _begin(self, queue: str) -> None:
        """Start counters at zero: no rule would see the rise of a counter that begins at one."""
        for became in BECAME:
            self._reaped.labels(queue, became)

    def put_off(self, count: int) -> None:
        self._put_off.inc(count)
