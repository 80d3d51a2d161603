import json
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.web import errors as refusals
from api.web.errors import InvalidField, Problem, Refusal
from director.core.errors import BackendUnavailable, IdempotencyMismatch, QueueRefused, UnknownQueue
from tests.support.api import door_to

SECRET = "redis://:hunter2@10.0.0.1"


def body_of(problem: Problem) -> Any:
    return json.loads(bytes(problem.response().body))


async def answer_to(error: Exception, *, raises: bool = False) -> httpx.Response:
    async def endpoint(_request: Request) -> Response:
        raise error

    transport = httpx.ASGITransport(door_to(endpoint), raise_app_exceptions=raises)
    async with httpx.AsyncClient(transport=transport, base_url="http://director") as client:
        return await client.get("/")


def test_only_replicates_own_bodies_have_no_code() -> None:
    without = {name for name, each in vars(refusals).items() if isinstance(each, Refusal) and each.code is None}
    assert without == {
        *("no_token", "invalid_token", "forbidden", "not_found", "invalid_version"),
        *("no_destination", "no_such_part", "file_not_found"),
    }


def test_invalid_fields_are_reported_in_replicates_words() -> None:
    fields = [
        ("required", "input", "prompt is required"),
        ("number_lte", "input.num_inference_steps", "Must be less than or equal to 4"),
    ]
    assert body_of(refusals.invalid_input(InvalidField(*field) for field in fields)) == {
        "detail": "- input: prompt is required\n- input.num_inference_steps: Must be less than or equal to 4\n",
        "status": 422,
        "title": "Input validation failed",
        "invalid_fields": [dict(zip(("type", "field", "description"), field, strict=True)) for field in fields],
    }


class TestTooManyRequests:
    @pytest.mark.parametrize(
        ("code", "status", "detail"),
        [
            ("queue_full", 429, "Capacity temporarily exceeded"),
            ("no_capacity", 429, "Capacity temporarily exceeded"),
            ("too_many_queued", 429, "Too many predictions of this account are waiting for this model."),
            ("cannot_start_in_time", 429, "It would not start in the time that X-Start-By allows."),
            ("breaker_open", 503, "The servers of this model fail at the moment. Please try again later."),
        ],
    )
    async def test_of_a_queue_have_its_code_and_limit(self, code: str, status: int, detail: str) -> None:
        answer = await answer_to(QueueRefused(code, limit=3, retry_after_s=7, eta_s=12.5))
        assert answer.status_code == status
        assert answer.headers["retry-after"] == "7"
        facts = {"limit": 3, "retry_after": 7, "eta_s": 12.5}
        assert answer.json() == {"detail": detail, "status": status, "code": code, **facts}

    def test_of_a_queue_leave_out_what_is_not_known(self) -> None:
        assert {"limit", "eta_s"}.isdisjoint(body_of(refusals.problem_of(QueueRefused("breaker_open"))))


class TestFieldNames:
    def test_that_are_long_are_cut(self) -> None:
        [field] = body_of(refusals.invalid_input([InvalidField("enum", "x" * 5_000, "y" * 5_000)]))["invalid_fields"]
        assert field["field"] == "x" * 99 + "…"
        assert len(field["description"]) == 500

    def test_cannot_forge_a_line_of_the_detail(self) -> None:
        detail = body_of(refusals.invalid_input([InvalidField("enum", "a\n- b: fine", "no\x1b[31m")]))["detail"]
        assert detail.count("\n") == 1
        assert "\x1b" not in detail

    def test_only_the_first_twenty_are_told(self) -> None:
        body = body_of(refusals.invalid_input(InvalidField("enum", str(n), "no") for n in range(1_000)))
        assert len(body["invalid_fields"]) == 20
        assert body["detail"].count("\n") == 20


def test_unavailable_service_says_when_and_how_to_repeat_safely() -> None:
    problem = refusals.unavailable(retry_after=7)
    body = body_of(problem)
    assert problem.response().headers["retry-after"] == "7"
    assert body["retry_after"] == 7
    assert "may have been accepted" in body["detail"]
    assert "Idempotency-Key" in body["detail"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Problem(refusals.forbidden().document), 403, None),
        (BackendUnavailable(SECRET, retry_after_s=4), 503, "unavailable"),
        (IdempotencyMismatch(SECRET), 422, "idempotency_mismatch"),
        (UnknownQueue(SECRET), 422, None),
        (HTTPException(400, SECRET), 400, None),
        (HTTPException(404, SECRET), 404, None),
        (RuntimeError(SECRET), 500, "internal"),
    ],
)
async def test_raised_error_becomes_a_problem_without_its_text(error: Exception, status: int, code: str | None) -> None:
    answer = await answer_to(error)
    assert answer.status_code == answer.json()["status"] == status
    assert answer.json().get("code") == code
    assert answer.headers["content-type"] == "application/problem+json"
    assert "hunter2" not in answer.text


async def test_a_fault_of_ours_still_reaches_the_server_which_logs_it() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        await answer_to(RuntimeError("broken"), raises=True)
