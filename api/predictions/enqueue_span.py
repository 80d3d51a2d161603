"""The step of a trace in which a prediction is taken in: within what its caller sent, or the first of a trace.

What it leads to is handed on with the prediction, also where no spans are made.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.requests import Request

from api.handlers import problem_of
from api.parts import parts_of
from api.problems import Problem
from director.broker.scripts import Accepted
from director.core.errors import DirectorError
from director.core.schema import Record
from director.core.trace_context import TraceHeaders, trace_headers
from director.runtime.tracing import Facts
from director.store.accounts import Account
from director.store.catalog import Version

__all__ = ("Step", "enqueue_span")

UNEXPECTED: Final = "internal"


class Step:
    """What became of it. `headers`: what is handed on with the prediction."""

    def __init__(self, headers: TraceHeaders) -> None:
        self.headers = headers
        self.facts: Facts = {}

    def found(self, accepted: Accepted, record: Record) -> None:
        """It was taken in, or had been before."""
        self.facts = {"prediction": record.id, "lane": record.lane, "replayed": accepted.replayed}


@contextmanager
def enqueue_span(request: Request, account: Account, version: Version) -> Iterator[Step]:
    """Around all that judges and files one prediction."""
    tracing, headers = parts_of(request).tracing, request.headers
    trace = trace_headers(headers.getlist("traceparent"), headers.getlist("tracestate"))
    if not tracing.is_on:
        yield Step(trace)
        return
    span = tracing.begin("enqueue", trace, kind="server", facts=_facts(version, tracing.account(account.name)))
    step, error = Step(span.headers), UNEXPECTED
    try:
        yield step
        error = ""
    except (Problem, DirectorError) as exc:
        document = problem_of(exc).document
        error = document.code or str(document.status)
        raise
    finally:
        span.end(step.facts, error=error)


def _facts(version: Version, whose: Facts) -> Facts:
    return {
        "kind": version.kind or "prediction",
        "queue": version.queue,
        "model": version.model,
        "version": version.id,
        **whose,
    }
