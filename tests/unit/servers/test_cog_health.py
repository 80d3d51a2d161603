import msgspec
import pytest

from director.servers.runners.cog_answers import COGLET, Model, python_kind, read_health, read_model
from director.servers.runners.runner import HealthStatus

SETUP = {"started_at": "2026-01-01T00:00:00Z", "status": "succeeded", "logs": "loading\nTypeError: no weights\n"}


def report(status: str, **more: object) -> bytes:
    return msgspec.json.encode({"status": status, "setup": SETUP, "version": {"coglet": "0.23.1"}} | more)


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (report("READY"), HealthStatus.READY, ""),
        (report("BUSY"), HealthStatus.BUSY, "Every slot is taken"),
        (report("STARTING"), HealthStatus.STARTING, "Setup is running"),
        (report("SETUP_FAILED"), HealthStatus.SETUP_FAILED, "TypeError: no weights"),
        (report("UNHEALTHY", user_healthcheck_error="it returned\nFalse"), HealthStatus.UNHEALTHY, "it returned False"),
        (
            report("UNHEALTHY", user_healthcheck_error="Healthcheck error: protocol error: healthcheck channel closed"),
            HealthStatus.DEFUNCT,
            "Healthcheck error: protocol error: healthcheck channel closed",
        ),
        (report("DEFUNCT"), HealthStatus.DEFUNCT, "The model server does not say what is wrong"),
        (report("UNKNOWN"), HealthStatus.UNHEALTHY, "The model server says that it is 'UNKNOWN'"),
        (b"[]", HealthStatus.UNHEALTHY, "The model server's health is not of the expected shape: "),
        (b"<html>", HealthStatus.UNHEALTHY, "The model server's health is not JSON: "),
    ],
)
def test_health_is_a_status_and_one_line(body: bytes, status: HealthStatus, detail: str) -> None:
    health = read_health(200, body).health
    assert health.status is status
    assert health.detail == detail or (detail.endswith(": ") and health.detail.startswith(detail))


def test_an_answer_that_is_not_200_is_unhealthy_and_quoted() -> None:
    health = read_health(502, b"bad gateway").health
    assert health.status is HealthStatus.UNHEALTHY
    assert health.detail == "The model server answered 502 to a health check: bad gateway"


@pytest.mark.parametrize(
    ("version", "can"),
    [("0.21.0", True), ("0.20.9", False), ("1.0.0-rc1", True), ("0.9", False), ("odd", False), (None, False)],
)
def test_only_coglet_from_0_21_on_can_stream(version: str | None, can: bool) -> None:
    assert read_health(200, report("READY", version={"coglet": version})).can_stream is can


@pytest.mark.parametrize(
    ("document", "model"),
    [
        (
            {
                "paths": {"/predictions": {"post": {"x-cog-streaming": True}}, "/": {"get": {}}},
                "components": {"schemas": {"Output": {"type": "array", "items": {}}, "Odd": True}},
            },
            Model(streams=True, is_array=True, may_have_files=False),
        ),
        ({"paths": {"/predictions": {"post": {}}}}, Model()),
        ({"paths": {"/predictions": {"post": {"x-cog-streaming": "true"}}}}, Model()),
        ({"components": {"schemas": {"Output": {"type": "string"}}}}, Model(may_have_files=False)),
        ({"components": {"schemas": {"Output": {"type": "string", "format": "uri"}}}}, Model()),
        ({"components": {"schemas": {"Output": {"type": "object", "properties": {"a": {"$ref": "#/x"}}}}}}, Model()),
        ({"components": {"schemas": {"Output": {"title": "Output"}}}}, Model()),
        ({"components": {"schemas": {"Output": {"$ref": "#/x"}}}}, Model()),
        ({"paths": []}, Model()),
        ([], Model()),
    ],
)
def test_a_model_streams_and_yields_only_if_its_schema_says_so(document: object, model: Model) -> None:
    assert read_model(msgspec.json.encode(document)) == model


@pytest.mark.parametrize(
    ("version", "hears"),
    [("", False), ("odd", False), ("0.9.26", False), ("0.12.1", False), ("0.13.0", True), ("0.16.12", True)],
)
def test_python_servers_before_0_13_hear_nothing_during_a_run(version: str, hears: bool) -> None:
    assert python_kind(version).hears_meanwhile is hears
    assert COGLET.hears_meanwhile
