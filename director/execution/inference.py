"""What one run took: the metrics that go on the record beside the model's own, and into one line of the log. Pure.

All times are ours: no clock of a model server is believed. None of them replaces what Replicate shows.
"""

import msgspec
from msgspec import Raw

from director.core.schema import Record
from director.execution.tracker import Tracker

__all__ = ("metrics_of", "with_metrics")


def metrics_of(record: Record, tracker: Tracker, *, setup_wait_s: float, ahead_s: float = 0) -> dict[str, float]:
    """Of the attempt that ends it. Times are in seconds; what cannot be told is left out.

    `ahead_s`: what it still waited for a slot after it was claimed. `setup_wait_s`: how much of the time in the queue
    no server of this director could run anything.
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
            if tracker.outputs > 1 and spread > 0:
                found["outputs_per_second"] = (tracker.outputs - 1) / spread
    return {name: round(value, 4) for name, value in found.items()}


def with_metrics(told: bytes, ours: dict[str, float]) -> bytes:
    """What the model measured, with ours. A model's own figure of the same name stays."""
    metrics = msgspec.json.decode(told, type=dict[str, Raw]) if told else {}
    return msgspec.json.encode({**ours, **metrics})
