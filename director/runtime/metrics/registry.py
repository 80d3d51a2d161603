"""The metrics of one process: made from the table, and written out for whoever scrapes them.

Has a registry of its own, so that two of them in one process, as in tests, know nothing of each other. Writing is done
in a thread, and at most once a second, so that no scrape holds up the loop.
"""

import time
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import anyio
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from director import __version__
from director.runtime.metrics.series import Counter, Histogram, Series, Summary, counters, histograms, summaries
from director.runtime.metrics.table import METRICS, Metric, Process

__all__ = ("OPEN_METRICS", "PLAIN", "Registry")

PLAIN: Final = CONTENT_TYPE_PLAIN_0_0_4
OPEN_METRICS: Final = openmetrics.CONTENT_TYPE_LATEST
AGAIN_S: Final = 1.0

Made = TypeVar("Made", bound=Counter | Histogram | Summary)


class Registry:
    """What one process shows. Rows that are not of this process are not there."""

    def __init__(self, process: Process) -> None:
        self.process: Final = process
        self._prometheus = CollectorRegistry(auto_describe=False)
        self._made: dict[str, tuple[Metric, Series[Any]]] = {}
        self._own: set[str] = set()
        self._pages: dict[str, tuple[float, bytes]] = {}
        self._writing = anyio.Lock()
        ProcessCollector(registry=self._prometheus)
        PlatformCollector(registry=self._prometheus)
        GCCollector(registry=self._prometheus)
        self.gauge("director_info").labels(process, __version__).set(1)

    def counter(self, name: str) -> Series[Counter]:
        row = self._row(name, "counter")
        return self._kept(row, counters(row.name, row.what, row.labels))

    def gauge(self, name: str) -> Gauge:
        row = self._row(name, "gauge")
        self._own.add(name)
        return Gauge(row.name, row.what, row.labels, registry=self._prometheus)

    def histogram(self, name: str) -> Series[Histogram]:
        row = self._row(name, "histogram")
        return self._kept(row, histograms(row.name, row.what, row.labels, row.buckets))

    def summary(self, name: str) -> Series[Summary]:
        row = self._row(name, "summary")
        return self._kept(row, summaries(row.name, row.what, row.labels))

    def add(self, names: Iterable[str], collector: Collector) -> None:
        """Ask `collector` for these gauges and counters at each scrape."""
        for name in names:
            self._row(name, "gauge", "counter")
            self._own.add(name)
        self._prometheus.register(collector)

    def forget(self, queue: str) -> None:
        """Drop all that is counted for this queue."""
        for row, made in self._made.values():
            if "queue" in row.labels:
                made.remove("queue", queue)

    @property
    def names(self) -> set[str]:
        """Every row of the table that this process shows."""
        return self._made.keys() | self._own

    async def page(self, accept: str) -> tuple[bytes, str]:
        """All of it as text, and what kind of text: OpenMetrics for who accepts that."""
        kind = OPEN_METRICS if "application/openmetrics-text" in accept else PLAIN
        async with self._writing:
            written_s, text = self._pages.get(kind, (float("-inf"), b""))
            if time.monotonic() - written_s >= AGAIN_S:
                text = await anyio.to_thread.run_sync(self._write, kind)
                self._pages[kind] = time.monotonic(), text
        return text, kind

    def families(self) -> list[Family]:
        """What would be written now."""
        return list(self._prometheus.collect())

    def _write(self, kind: str) -> bytes:
        if kind == PLAIN:
            return generate_latest(self._prometheus)
        text: bytes = openmetrics.generate_latest(self._prometheus)  # type: ignore[no-untyped-call]
        return text

    def _row(self, name: str, *kinds: str) -> Metric:
        row = next(metric for metric in METRICS if metric.name == name)
        if row.kind not in kinds or self.process not in row.by:
            raise ValueError(f"{name} is a {row.kind} of {row.by}")
        if name in self.names:
            raise ValueError(f"{name} is there already")
        return row

    def _kept(self, row: Metric, made: Series[Made]) -> Series[Made]:
        self._made[row.name] = row, made
        self._prometheus.register(made)
        return made
