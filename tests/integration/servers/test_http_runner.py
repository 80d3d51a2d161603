"""Test the runner for servers that answer a POST, its templates, and requests that all servers other than Cog get."""

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import Raw

from director.core.runner_config import TEMPLATES, decode_runner_config
from director.servers.runners import RunnerOptions, make_runner
from director.servers.runners.runner import HealthStatus, Outcome, Runner, RunRequest
from tests.support.model_server import ModelServer
from tests.support.runner_conformance import CONFIGS, MOST_BYTES, follow, opened, the_end
from tests.support.scripted_cog import ScriptedCog, answer, scripted_cog

REQUEST = RunRequest(id="a" * 26, input=Raw(b'{"prompt": "Hi"}'))
SECRET = {"authorization": "Bearer s3cret"}


def runner_of(kind: str, scripted: ScriptedCog, **given: Any) -> Runner:
    config = decode_runner_config(json.dumps(CONFIGS[kind]))
    return make_runner(config, RunnerOptions(url=scripted.url, max_body=MOST_BYTES, **given))


@pytest.mark.parametrize("kind", CONFIGS)
async def test_secret_header_is_sent_with_every_request(kind: str) -> None:
    async with scripted_cog() as scripted, opened(runner_of(kind, scripted, headers=SECRET)) as runner:
        scripted.on("POST", "/jobs", answer(200, {"job": {"id": 7}}))
        scripted.on("GET", "/jobs/7", answer(200, {"state": "failed"}))
        scripted.on("PUT", f"/predictions/{REQUEST.id}", answer(422, b"{}"))
        await runner.health()
        await runner.openapi_schema()
        await follow(runner, REQUEST)
    assert len(scripted.exchanges) > 1
    assert [exchange.headers.get("authorization") for exchange in scripted.exchanges] == ["Bearer s3cret"] * len(
        scripted.exchanges
    )
    assert {exchange.headers.get("accept-encoding") for exchange in scripted.exchanges} == {"identity"}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("status", [401, 403, 407])
async def test_rejected_secret_refuses_the_run_and_is_never_shown(kind: str, status: int) -> None:
    said = answer(status, {"error": {"message": "Incorrect API key: s3cret"}, "problem": "not s3cret"})
    async with scripted_cog() as scripted, opened(runner_of(kind, scripted, headers=SECRET)) as runner:
        for path in ("/predict", "/predict_all", "/jobs", "/v1/chat/completions"):
            scripted.on("POST", path, said)
        scripted.on("PUT", f"/predictions/{REQUEST.id}", said)
        for path in ("/health", "/health-check"):
            scripted.on("GET", path, said)
        health = await runner.health()
        ended = the_end(await follow(runner, REQUEST))
    assert (ended.outcome, ended.is_locked, ended.code) == (Outcome.REFUSED, True, "server_auth")
    assert (health.status, health.is_locked) == (HealthStatus.UNHEALTHY, True)
    for words in (health.detail, ended.error or ""):
        assert f"{status}" in words
        assert "the right key" in words
        assert "s3cret" not in words


@pytest.mark.parametrize(
    ("content_type", "output"),
    [
        ("image/png", b'"data:image/png;base64,iVAA/w=="'),
        ("Audio/WAV; rate=8000", b'"data:audio/wav;base64,iVAA/w=="'),
        ("application/octet-stream", b'"data:application/octet-stream;base64,iVAA/w=="'),
    ],
)
async def test_file_answer_is_the_output(content_type: str, output: bytes) -> None:
    async with scripted_cog() as scripted, opened(runner_of("http", scripted)) as runner:
        scripted.on("POST", "/predict", answer(200, b"\x89P\x00\xff", content_type=content_type))
        ended = the_end(await follow(runner, REQUEST))
    assert (ended.outcome, ended.output) == (Outcome.SUCCEEDED, Raw(output))


@pytest.mark.parametrize("none", [None, False, 0, "", {}, []], ids=json.dumps)
async def test_empty_error_field_is_no_failure(none: object) -> None:
    async with scripted_cog() as scripted, opened(runner_of("http", scripted)) as runner:
        scripted.on("POST", "/predict", answer(200, {"result": {"items": [1]}, "problem": none}))
        ended = the_end(await follow(runner, REQUEST))
    assert (ended.outcome, ended.output) == (Outcome.SUCCEEDED, Raw(b"[1]"))


@pytest.mark.parametrize(("status", "size"), [(500, 4), (200, MOST_BYTES + 1)], ids=["failed", "too large"])
async def test_unsuccessful_or_incomplete_file_is_no_output(status: int, size: int) -> None:
    async with scripted_cog() as scripted, opened(runner_of("http", scripted)) as runner:
        scripted.on("POST", "/predict", answer(status, b"x" * size, content_type="image/png"))
        ended = the_end(await follow(runner, REQUEST))
    assert (ended.outcome, ended.output) == (Outcome.FAILED, None)


TENSOR = {"name": "x", "shape": [2], "datatype": "INT32", "data": [1, 2]}
# template: its further settings, an input, its output, an invalid input, and the error for that
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Any, Any, Outcome, str]] = {
    "tei": ({}, {"inputs": ["a", "bcd"]}, [[1, 0.5], [3, 0.5]], {"inputs": [""]}, Outcome.INVALID, "cannot be empty"),
    "tei_batch": ({}, {"inputs": "bcd"}, [3, 0.5], {"inputs": ""}, Outcome.INVALID, "cannot be empty"),
    "openai_embeddings": ({}, {"input": "bcd"}, [3, 0.5], {"input": ""}, Outcome.INVALID, "cannot be empty"),
    "kserve": (
        {"model": "my model"},
        {"inputs": [TENSOR]},
        [{**TENSOR, "name": "doubled", "data": [2, 4]}],
        None,
        Outcome.FAILED,
        "unknown model: 'another'",
    ),
}


def template_runner(url: str, template: str, **given: Any) -> Runner:
    config = decode_runner_config(json.dumps({"template": template, **given}))
    return make_runner(config, RunnerOptions(url=url, max_body=MOST_BYTES))


def request(given: Any) -> RunRequest:
    return RunRequest(id="a" * 26, input=Raw(msgspec.json.encode(given)))


def test_every_template_is_tested() -> None:
    assert set(CASES) == set(TEMPLATES)


@pytest.mark.parametrize("template", TEMPLATES)
async def test_server_of_a_template_is_called_and_understood(server: ModelServer, template: str) -> None:
    configured, given, output, wrong, outcome, why = CASES[template]
    async with opened(template_runner(server.url, template, **configured)) as runner:
        assert (await runner.health()).status is HealthStatus.READY
        ended = the_end(await follow(runner, request(given)))
    assert (ended.outcome, msgspec.json.decode(ended.output or b"")) == (Outcome.SUCCEEDED, output)
    beside = configured if wrong is not None else {"model": "another"}
    async with opened(template_runner(server.url, template, **beside)) as runner:
        ended = the_end(await follow(runner, request(given if wrong is None else wrong)))
    assert ended.outcome is outcome
    assert why in (ended.error or "")


@pytest.mark.parametrize("template", TEMPLATES)
async def test_schemas_match_input_and_output(server: ModelServer, template: str) -> None:
    configured, given, output, *_ = CASES[template]
    async with opened(template_runner(server.url, template, **configured)) as runner:
        document = msgspec.json.decode(await runner.openapi_schema() or b"")
    schemas = document["components"]["schemas"]
    jsonschema_rs.validate(schemas["Input"], given)
    jsonschema_rs.validate(schemas["Output"], output)
    assert not jsonschema_rs.is_valid(schemas["Input"], {})
