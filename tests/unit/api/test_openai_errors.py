import json
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

from api.openai.errors import answer, refuse
from api.web import errors
from api.web.errors import Problem, Refusal, invalid_field, invalid_header
from director.core.errors import BackendUnavailable, IdempotencyMismatch, QueueRefused, UnknownQueue

SECRET = "redis://:hunter2@10.0.0.1"


def said(exc: Exception) -> tuple[int, dict[str, Any], Any]:
    response = answer(refuse(exc))
    return response.status_code, json.loads(bytes(response.body))["error"], response.headers


@pytest.mark.parametrize(
    ("exc", "status", "type_", "code"),
    [
        (errors.no_token(), 401, "authentication_error", "invalid_api_key"),
        (errors.invalid_token(), 401, "authentication_error", "invalid_api_key"),
        (errors.forbidden(), 403, "permission_error", None),
        (errors.account_suspended(why="x"), 403, "permission_error", "account_suspended"),
        (errors.model_not_found(), 404, "not_found_error", "model_not_found"),
        (UnknownQueue("a/b:c"), 404, "not_found_error", "model_not_found"),
        (errors.not_found(), 404, "not_found_error", None),
        (HTTPException(405, headers={"Allow": "GET"}), 405, "invalid_request_error", "method_not_allowed"),
        (errors.too_large(limit=5), 413, "invalid_request_error", "too_large"),
        (errors.head_too_large(limit=5), 431, "invalid_request_error", "too_large"),
        (errors.malformed("Not JSON."), 400, "invalid_request_error", "malformed"),
        (invalid_header("X-Cost", "a number"), 400, "invalid_request_error", "invalid_header"),
        (IdempotencyMismatch("x"), 422, "invalid_request_error", "idempotency_mismatch"),
        (errors.rate_limited(reset_s=3, retry_after=3), 429, "rate_limit_error", "rate_limit_exceeded"),
        (errors.credit_exhausted(limit=5), 429, "insufficient_quota", "insufficient_quota"),
        (QueueRefused("queue_full", retry_after_s=7), 429, "rate_limit_error", "queue_full"),
        (QueueRefused("cannot_start_in_time", retry_after_s=7), 503, "server_error", "cannot_start_in_time"),
        (BackendUnavailable(SECRET), 503, "server_error", "unavailable"),
        (RuntimeError(SECRET), 500, "server_error", "internal"),
    ],
    ids=lambda value: getattr(value, "code", None) or str(value),
)
def test_refusal_has_openais_shape_status_and_code(exc: Exception, status: int, type_: str, code: str | None) -> None:
    answered, error, _ = said(exc)
    assert (answered, error["type"], error["code"]) == (status, type_, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert SECRET not in str(error)


def test_every_refusal_becomes_a_status_that_openais_clients_know() -> None:
    rows = [each for each in vars(errors).values() if isinstance(each, Refusal)]
    problems = [Problem(errors.ProblemDocument(detail="x", status=row.status, code=row.code)) for row in rows]
    assert {said(problem)[0] for problem in problems} & {402} == set()


def test_wrong_field_is_named_as_param() -> None:
    status, error, _ = said(invalid_field("required", "model", "model is required"))
    assert (status, error["param"], error["message"]) == (400, "model", "model: model is required")


def test_wait_is_said_in_seconds_and_milliseconds() -> None:
    *_, headers = said(errors.rate_limited(reset_s=3, retry_after=3))
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("3", "3000")
    assert "x-should-retry" not in headers


@pytest.mark.parametrize(
    "exc", [errors.credit_exhausted(limit=5), errors.compute_exhausted(limit=5, retry_after=86_400)]
)
def test_clients_are_kept_from_a_repeat_that_is_useless(exc: Exception) -> None:
    *_, headers = said(exc)
    assert headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/openai/v1/models/acme/llm", 401),
        ("GET", "/openai/v1/nothing", 404),
        ("GET", "/openai/v1/models/", 404),
        ("PUT", "/openai/v1/models/acme/llm", 405),
    ],
)
async def test_every_path_below_openai_refuses_in_its_shape(
    alone: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await alone.request(method, path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/v1/openai/v1/models", "/openai/models", "/v1/v1/openai/v1/models"])
async def test_openais_routes_have_one_base_only(alone: httpx.AsyncClient, path: str) -> None:
    assert (await alone.get(path)).status_code == 404
