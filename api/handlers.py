"""What a caller is told of each error that a handler may raise.

Never shows what went wrong inside: the log has it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.answers import carried
from api.problems import Problem, problem
from api.refusals import (
    idempotency_mismatch,
    internal,
    invalid_version,
    malformed,
    method_not_allowed,
    not_found,
    queue_refused,
    unavailable,
)
from director.core.errors import BackendUnavailable, IdempotencyMismatch, QueueRefused, UnknownQueue

__all__ = (
    "EXCEPTION_HANDLERS",
    "REFUSAL",
    "problem_of",
)

log = logging.getLogger(__name__)

REFUSAL: Final = "director.refusal"  # of a request's scope: what its caller was told, for whoever counts that


def _of_starlette(exc: HTTPException) -> Problem:
    if exc.status_code == HTTPStatus.NOT_FOUND:
        return not_found()
    if exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return method_not_allowed(exc.headers)
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
    # Starlette raises it again once this was sent, so that the server logs the traceback
    Exception: lambda _: internal(),
}


def problem_of(exc: Exception) -> Problem:
    """What a caller is told of this."""
    return next(tell(exc) for kind, tell in PROBLEMS.items() if isinstance(exc, kind))


async def _answer(request: Request, exc: Exception) -> Response:
    problem = problem_of(exc)
    request.scope[REFUSAL] = problem
    return carried(request, problem.response())


EXCEPTION_HANDLERS: Final[Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]] = dict.fromkeys(
    PROBLEMS, _answer
)
