"""Test each shipped template against a small server that speaks like the real one."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import Raw

from director.core.runner_config import TEMPLATES, decode_runner_config
from director.servers.runners import RunnerOptions, make_runner
from director.servers.runners.runner import HealthStatus, Outcome, Runner, RunRequest
from tests.support.model_server import ModelServer, model_server
from tests.support.runner_conformance import MOST_BYTES, follow, opened, the_end

pytestmark = pytest.mark.anyio

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


@pytest.fixture(scope="module")
async def server() -> AsyncGenerator[ModelServer, None]:
    async with model_server() as server:
        yield server


def runner_of(url: str, template: str, **given: Any) -> Runner:
    config = decode_runner_config(json.dumps({"template": template, **given}))
    return make_runner(config, RunnerOptions(url=url, max_body=MOST_BYTES))


def request(given: Any) -> RunRequest:
    return RunRequest(id="a" * 26, input=Raw(msgspec.json.encode(given)))


def test_every_template_is_tested() -> None:
    assert set(CASES) == set(TEMPLATES)


@pytest.mark.parametrize("template", TEMPLATES)
async def test_server_of_a_template_is_called_and_understood(server: ModelServer, template: str) -> None:
    configured, given, output, wrong, outcome, why = CASES[template]
    async with opened(runner_of(server.url, template, **configured)) as runner:
        assert (await runner.health()).status is HealthStatus.READY
        ended = the_end(await follow(runner, request(given)))
    assert (ended.outcome, msgspec.json.decode(ended.output or b"")) == (Outcome.SUCCEEDED, output)
    beside = configured if wrong is not None else {"model": "another"}
    async with opened(runner_of(server.url, template, **beside)) as runner:
        ended = the_end(await follow(runner, request(given if wrong is None else wrong)))
    assert ended.outcome is outcome
    assert why in (ended.error or "")


@pytest.mark.parametrize("template", TEMPLATES)
async def test_schemas_match_input_and_output(server: ModelServer, template: str) -> None:
    configured, given, output, *_ = CASES[template]
    async with opened(runner_of(server.url, template, **configured)) as runner:
        document = msgspec.json.decode(await runner.openapi_schema() or b"")
    schemas = document["components"]["schemas"]
    jsonschema_rs.validate(schemas["Input"], given)
    jsonschema_rs.validate(schemas["Output"], output)
    assert not jsonschema_rs.is_valid(schemas["Input"], {})
