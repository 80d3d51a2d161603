"""Test the runner for servers that answer a POST, its presets, and requests that all servers other than Cog get."""

import json
from typing import Any, Final

import jsonschema_rs
import msgspec
import pytest
from msgspec import Raw
from starlette.datastructures import UploadFile
from starlette.requests import Request as BaseRequest

from director.core.runner_config import PRESETS, decode_runner_config, preset_of
from director.servers.runners import RunnerOptions, make_runner
from director.servers.runners.http_base import KNOWN_HEALTH, HttpBase
from director.servers.runners.outcomes import MOST_FORBIDDEN
from director.servers.runners.runner import Ended, HealthStatus, Outcome, Runner, RunRequest
from tests.support.model_server import ModelServer
from tests.support.runner_conformance import CONFIGS, MOST_BYTES, follow, opened, the_end
from tests.support.scripted_cog import HEALTHY, Exchange, Script, ScriptedCog, answer, scripted_cog

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


FLAGGED: Final = answer(403, {"detail": "prompt flagged, for k-0123456789"})


@pytest.mark.parametrize("kind", ["http", "cog", "polling"])
async def test_403_after_a_success_is_about_the_input(kind: str) -> None:
    key = {"authorization": "Bearer k-0123456789"}
    async with scripted_cog() as scripted, opened(runner_of(kind, scripted, headers=key)) as runner:
        for path in ("/health", "/health-check"):
            scripted.on("GET", path, answer(200, HEALTHY))

        async def ended(said: Script) -> Ended:
            for path in ("/predict", "/predict_all", "/jobs"):
                scripted.on("POST", path, said)
            scripted.on("PUT", f"/predictions/{REQUEST.id}", said)
            return the_end(await follow(runner, REQUEST))

        await runner.health()
        assert (await ended(FLAGGED)).is_locked, "it let no run in so far"
        scripted.on("GET", "/jobs/7", answer(200, {"state": "succeeded", "result": {"items": [1]}}))
        fine = answer(200, {"job": {"id": 7}, "status": "succeeded", "output": "fine", "result": {"items": [1]}})
        for _ in range(2):
            good = await ended(fine)
            assert good.outcome is Outcome.SUCCEEDED, good.error
            flagged = [await ended(FLAGGED) for _ in range(MOST_FORBIDDEN)]
            assert [(end.outcome, end.is_locked) for end in flagged] == [(Outcome.INVALID, False)] * MOST_FORBIDDEN
            assert "prompt flagged" in (flagged[0].error or "")
            assert "0123456789" not in (flagged[0].error or "")
            more = await ended(FLAGGED)
            assert (more.outcome, more.is_locked, more.code) == (Outcome.REFUSED, True, "server_auth")
            assert "flagged" not in (more.error or "")


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
# preset: its further settings, an input, its output, an invalid input, and the error for that
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


def preset_runner(url: str, preset: str, **given: Any) -> Runner:
    config = decode_runner_config(json.dumps({"preset": preset, **given}))
    return make_runner(config, RunnerOptions(url=url, max_body=MOST_BYTES))


def request(given: Any) -> RunRequest:
    return RunRequest(id="a" * 26, input=Raw(msgspec.json.encode(given)))


def test_every_preset_with_a_schema_is_tested() -> None:
    """The others are tried with real servers: tests/integration/servers/test_real_servers.py."""
    built_on = {name for name in PRESETS if "input_schema" in preset_of(name)}
    assert set(CASES) == built_on - {"mlserver", "triton", "infinity", "comfyui"}


@pytest.mark.parametrize("preset", CASES)
async def test_server_of_a_preset_is_called_and_understood(server: ModelServer, preset: str) -> None:
    configured, given, output, wrong, outcome, why = CASES[preset]
    async with opened(preset_runner(server.url, preset, **configured)) as runner:
        assert (await runner.health()).status is HealthStatus.READY
        ended = the_end(await follow(runner, request(given)))
    assert (ended.outcome, msgspec.json.decode(ended.output or b"")) == (Outcome.SUCCEEDED, output)
    beside = configured if wrong is not None else {"model": "another"}
    async with opened(preset_runner(server.url, preset, **beside)) as runner:
        ended = the_end(await follow(runner, request(given if wrong is None else wrong)))
    assert ended.outcome is outcome
    assert why in (ended.error or "")


@pytest.mark.parametrize("preset", CASES)
async def test_schemas_match_input_and_output(server: ModelServer, preset: str) -> None:
    configured, given, output, *_ = CASES[preset]
    async with opened(preset_runner(server.url, preset, **configured)) as runner:
        document = msgspec.json.decode(await runner.openapi_schema() or b"")
    schemas = document["components"]["schemas"]
    jsonschema_rs.validate(schemas["Input"], given)
    jsonschema_rs.validate(schemas["Output"], output)
    assert not jsonschema_rs.is_valid(schemas["Input"], {})


def any_http(scripted: ScriptedCog, **given: Any) -> Runner:
    config = decode_runner_config(json.dumps({"kind": "http", "path": "/run", **given}))
    return make_runner(config, RunnerOptions(url=scripted.url, max_body=MOST_BYTES))


@pytest.mark.parametrize("status", [200, 204, 301, 400, 404, 405, 409, 418, 429, 500, 501])
async def test_any_answer_means_ready_where_no_health_is_known(status: int) -> None:
    async with scripted_cog() as scripted, opened(any_http(scripted)) as runner:
        for path in (*KNOWN_HEALTH, "/"):
            scripted.on("GET", path, answer(status, b""))
        assert (await runner.health()).status is HealthStatus.READY
        assert (await runner.health()).status is HealthStatus.READY


@pytest.mark.parametrize("path", KNOWN_HEALTH)
async def test_known_health_path_is_found_once_and_kept(path: str) -> None:
    async with scripted_cog() as scripted, opened(any_http(scripted)) as runner:
        for other in KNOWN_HEALTH:
            scripted.on("GET", other, answer(404, b""))
        scripted.on("GET", path, answer(503, b"loading"), answer(200, b""), answer(200, b""), answer(500, b"ill"))
        found = [await runner.health() for _ in range(4)]
        asked = [exchange.path for exchange in scripted.exchanges]
    assert [each.status for each in found] == ["starting", "ready", "ready", "unhealthy"]
    assert f"503 to GET {path}: loading" in found[0].detail
    assert asked[-2:] == [path, path]
    assert len(asked) <= 2 * (len(KNOWN_HEALTH) + 2)


async def test_server_that_was_away_is_asked_for_its_health_path_again() -> None:
    async with scripted_cog() as scripted, opened(any_http(scripted)) as runner:
        scripted.on("GET", "/health", answer(404, b""), Script(_hang_up), answer(503, b""))
        assert (await runner.health()).status is HealthStatus.READY
        scripted.on("GET", "/", Script(_hang_up))
        assert (await runner.health()).status is HealthStatus.UNREACHABLE
        scripted.on("GET", "/health", answer(503, b""))
        assert (await runner.health()).status is HealthStatus.STARTING


async def _hang(exchange: Exchange) -> None:
    await exchange.gone.wait()


async def test_server_that_came_behind_a_proxy_is_found_by_its_own_health_path() -> None:
    async with scripted_cog() as scripted, opened(any_http(scripted)) as runner:
        for path in KNOWN_HEALTH:
            scripted.on("GET", path, answer(404, b""))
        scripted.on("GET", "/health", answer(200, b""), answer(404, b"404 page not found"))
        assert (await runner.health()).status is HealthStatus.READY
        away = [await runner.health() for _ in range(2)]
        assert [each.status for each in away] == [HealthStatus.UNHEALTHY] * 2
        assert "404 to GET /health: 404 page not found" in away[0].detail
        scripted.on("GET", "/ping", answer(200, b""), answer(503, b""))
        assert (await runner.health()).status is HealthStatus.READY
        assert (await runner.health()).status is HealthStatus.STARTING


async def test_health_path_that_redirects_is_named_with_its_place() -> None:
    moved = answer(307, b"", location="http://a.example/health/?key=1")
    async with scripted_cog() as scripted, opened(any_http(scripted, health="/health")) as runner:
        scripted.on("GET", "/health", moved)
        detail = (await runner.health()).detail
    assert "answered 307 to GET /health and points to http://a.example/health/, where" in detail
    assert "key" not in detail


async def _hang_up(_: Exchange) -> None:
    return


async def test_late_health_after_a_whole_answer_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HttpBase._ask.__kwdefaults__, "timeout_s", 0.05)
    async with scripted_cog() as scripted, opened(any_http(scripted, health="/mine")) as runner:
        scripted.on("POST", "/run", answer(500, b"shape mismatch"))
        scripted.on("GET", "/mine", Script(_hang))
        end = the_end(await follow(runner, REQUEST))
        assert (await runner.health()).is_silent
        scripted.on("GET", "/mine", Script(_hang_up))
        away = the_end(await follow(runner, REQUEST))
    assert (end.outcome, end.server_is_dead) == (Outcome.FAILED, False)
    assert "shape mismatch" in (end.error or "")
    assert (away.outcome, away.server_is_dead) == (Outcome.LOST, True)


async def test_given_health_path_is_the_only_one_that_is_asked() -> None:
    async with scripted_cog() as scripted, opened(any_http(scripted, health="/mine")) as runner:
        scripted.on("GET", "/health", answer(200, b""))
        scripted.on("GET", "/mine", answer(404, b""))
        found = await runner.health()
        assert (found.status, [each.path for each in scripted.exchanges]) == ("unhealthy", ["/mine"])


@pytest.mark.parametrize("given", ["bcd", ["a", "bcd"]], ids=["a text", "a list"])
async def test_embeddings_take_a_text_or_a_list_of_them(server: ModelServer, given: Any) -> None:
    async with opened(preset_runner(server.url, "openai_embeddings")) as runner:
        ended = the_end(await follow(runner, request({"input": given, "encoding_format": "float"})))
        shown = msgspec.json.decode(await runner.openapi_schema() or b"")["components"]["schemas"]
    output = msgspec.json.decode(ended.output or b"")
    assert output == ([3, 0.5] if given == "bcd" else [[1, 0.5], [3, 0.5]])
    assert msgspec.json.decode(ended.metrics["input_tokens"]) == 5
    jsonschema_rs.validate(shown["Input"], {"input": given})
    jsonschema_rs.validate(shown["Output"], output)


SOUND = "data:audio/wav;base64,UklGRg=="
FORM = {"body": "form", "files": ["audio"]}


async def test_form_has_a_field_for_each_input_and_a_file_for_each_named_one() -> None:
    async with scripted_cog() as scripted, opened(any_http(scripted, **FORM)) as runner:
        scripted.on("POST", "/run", answer(200, {"text": "hi"}))
        given = {"audio": SOUND, "language": "en", "beam": 5, "skip": None, "tags": ["a", "b"], 'a"b': "data:no,file"}
        ended = the_end(await follow(runner, request(given)))
        [exchange] = scripted.asked("POST", "/run")
    assert ended.outcome is Outcome.SUCCEEDED
    form = await BaseRequest(
        {"type": "http", "headers": [(b"content-type", exchange.headers["content-type"].encode())]},
        lambda: _once({"type": "http.request", "body": exchange.body, "more_body": False}),
    ).form()
    audio = form["audio"]
    assert isinstance(audio, UploadFile)
    assert (audio.filename, audio.content_type, await audio.read()) == ("audio.wav", "audio/wav", b"RIFF")
    texts = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
    await audio.close()
    assert texts == [("language", "en"), ("beam", "5"), ("tags", "a"), ("tags", "b"), ("a%22b", "data:no,file")]


async def _once(message: Any) -> Any:
    return message


@pytest.mark.parametrize("wrong", ["https://elsewhere/a.wav", "text", 3, "data:audio/wav;base64,####"])
async def test_member_of_a_form_without_a_file_is_refused_with_its_name(wrong: object) -> None:
    async with scripted_cog() as scripted, opened(any_http(scripted, **FORM)) as runner:
        ended = the_end(await follow(runner, request({"audio": wrong})))
        assert scripted.asked("POST", "/run") == []
    assert (ended.outcome, "audio" in (ended.error or "")) == (Outcome.INVALID, True)


async def test_schema_comes_from_the_document_of_the_server() -> None:
    asked = {"type": "object", "properties": {"text": {"type": "string"}}}
    post = {"requestBody": {"content": {"application/json": {"schema": asked}}}}
    shown = answer(200, {"paths": {"/run": {"post": post}}})
    async with scripted_cog() as scripted:
        scripted.on("GET", "/openapi.json", shown)
        given = {"input_schema": {"type": "object", "title": "mine"}, "openapi": "/openapi.json"}
        for config, title in (({}, None), ({"openapi": "/openapi.json"}, "Input"), (given, "mine")):
            async with opened(any_http(scripted, **config)) as runner:
                found = await runner.openapi_schema()
            schemas = None if found is None else msgspec.json.decode(found)["components"]["schemas"]
            assert (schemas and schemas["Input"]["title"]) == title
        async with opened(any_http(scripted, openapi="/openapi.json", input={"a": {"$input": "/a"}})) as runner:
            assert await runner.openapi_schema() is None, "what is sent is not what is given"
