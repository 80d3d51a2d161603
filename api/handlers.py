"""What a caller is told of each error that a handler may raise.

Never shows what went wrong inside: the log has it.
"""

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.problems import Problem, problem
from api.refusals import idempotency_mismatch, internal, invalid_version, malformed, queue_refused, unavailable
from director.core.errors import BackendUnavailable, IdempotencyMismatch, QueueRefused, UnknownQueue

__all__ = ("is_expected", "problem_of")

log = logging.getLogger(__name__)


def _of_starlette(exc: HTTPException) -> Problem:
    # the framework's own detail may quote the request, so only the status's name is said
    return problem(exc.status_code, HTTPStatus(exc.status_code).phrase, headers=exc.headers)


def _of_backend(exc: BackendUnavailable) -> Problem:
    log.warning("request refused: backend unavailable", extra={"reason": str(exc)})
    return unavailable(exc.retry_after_s)


PROBLEMS: Final[Mapping[Any, Callable[[Any], Problem]]] = {
    Problem: lambda problem: problem,
    HTTPException: _of_starlette,
    BackendUnavailable: _of_backend,
    UnknownQueue: lambda _: invalid_version(),
    IdempotencyMismatch: lambda _: idempotency_mismatch(),
    QueueRefused: queue_refused,
    ClientDisconnect: lambda _: malformed("The request ended before its body did."),
    # raised again once this was sent, so that the server logs the traceback
    Exception: lambda _: internal(),
}
EXPECTED: Final = tuple(kind for kind in PROBLEMS if kind is not Exception)


def is_expected(exc: Exception) -> bool:
    """May a handler raise this, or is it a fault of ours?"""
    return isinstance(exc, EXPECTED)


def problem_of(exc: Exception) -> Problem:
    """What a caller is told of this."""
    return next(tell(exc) for kind, tell in PROBLEMS.items() if isinstance(exc, kind))
