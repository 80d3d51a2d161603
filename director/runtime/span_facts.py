"""What spans tell of a prediction: what it is and where it waits. Never what was sent, made or logged. Pure."""

from director.core.schema import Record
from director.runtime.tracing import Facts, Tracing

__all__ = ("facts_of",)


def facts_of(tracing: Tracing, record: Record) -> Facts:
    """The same in every span of it."""
    return {
        "prediction": record.id,
        "kind": record.kind or "prediction",
        "queue": record.queue,
        "model": record.model,
        "version": record.version,
        "lane": record.lane,
        **tracing.account(record.account),
    }
