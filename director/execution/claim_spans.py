"""The spans of one claim: the wait before it, the claim itself, and the run within it.

Times of the wait are those of the record. Where nobody collects spans it hands on the headers of the trace, no more.
"""

from director.core.history import spent_attempts
from director.core.schema import Record
from director.core.trace_context import TraceHeaders
from director.execution.ends import FAULTS, Finish, GiveBack
from director.execution.metering import error_label
from director.runtime.span_facts import facts_of
from director.runtime.tracing import Facts, Span, Tracing
from director.servers.runners.runner import Ended

__all__ = ("ClaimSpans",)


class ClaimSpans:
    """Of one claim, from its first moment here."""

    def __init__(self, tracing: Tracing, record: Record) -> None:
        self._tracing = tracing
        self._facts = _facts(tracing, record) if tracing.is_on else None
        self._run: Span | None = None
        if tracing.is_on and record.claimed is not None:
            wait = tracing.begin("wait", record.trace, at_ms=_waits_since(record), facts=self._facts)
            wait.end(at_ms=record.claimed)
        self._claim: Span | None = tracing.begin("claim", record.trace, facts=self._facts)

    def asks(self) -> TraceHeaders:
        """Its run is asked for now: what the server is given."""
        trace = self._claim.headers if self._claim is not None else {}
        self._run = self._tracing.begin("run", trace, kind="client", facts=self._facts)
        return self._run.headers

    def ran(self, ended: Ended) -> None:
        """Its run is over."""
        self._end_run(error=FAULTS.get(ended.outcome, ""), facts={"outcome": ended.outcome})

    def settled(self, end: Finish | GiveBack | None) -> None:
        """Its end is written, unless the claim was lost."""
        if not self._tracing.is_on:
            return
        self._end_run(error="left")
        match end:
            case Finish():
                self._end_claim({"status": end.status}, error=error_label(end.code))
            case GiveBack():
                self._end_claim({"status": "given_back"}, error=end.fault or "")
            case None:
                self._end_claim({}, error="claim_lost")

    def drop(self) -> None:
        """Nothing more is done about it here. What was not settled is left to its lease."""
        if self._tracing.is_on:
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


def _facts(tracing: Tracing, record: Record) -> Facts:
    return {**facts_of(tracing, record), "attempt": record.attempt}


def _waits_since(record: Record) -> int:
    """Since it was made, or since an attempt of it was used up."""
    spent = spent_attempts(record.history)
    return spent[-1].ended if spent else record.created
