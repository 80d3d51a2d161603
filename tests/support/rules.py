"""Find the series and labels of a PromQL expression. Fails on syntax that our rules do not use."""

import re
from collections.abc import Mapping
from typing import Final

from director.runtime.metric_table import METRICS, Metric


def series(metric: Metric) -> tuple[str, ...]:
    parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}.get(metric.kind, ("",))
    return tuple(metric.name + part for part in parts)


LABELS_OF: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(metric.labels) | ({"le"} if name.endswith("_bucket") else set())
    for metric in METRICS
    for name in series(metric)
}
# prometheus-client adds these to every process, and Prometheus to every scrape
OF_THE_PROCESS: Final = frozenset(
    {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"}
)
OF_A_SCRAPE: Final = frozenset({"job", "instance"})

SELECTOR: Final = re.compile(r"\b((?:director|process|python)_[a-z_]+)\s*(?:\{([^}]*)\})?")
MATCHER: Final = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
GROUPED: Final = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")


def strangers(expression: str) -> set[str]:
    """Return the names of series and labels that do not exist here."""
    found: set[str] = set()
    known = set(OF_A_SCRAPE)
    for name, matchers in SELECTOR.findall(expression):
        if name not in LABELS_OF and name not in OF_THE_PROCESS:
            found.add(name)
            continue
        labels = LABELS_OF.get(name, frozenset())
        known |= labels
        found |= {f"{name}{{{label}}}" for label in MATCHER.findall(matchers)} - {
            f"{name}{{{label}}}" for label in labels | OF_A_SCRAPE
        }
    grouped = {label.strip() for some in GROUPED.findall(expression) for label in some.split(",") if label.strip()}
    return found | (grouped - known)
