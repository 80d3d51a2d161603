import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from director.local.launcher.processes import free_port
from director.runtime.otel import SILENT
from director.runtime.process import tracing_of
from director.runtime.tracing import OFF
from tests.support.sink import sink
from tests.support.traces import Traces

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
URL = "http://127.0.0.1:4318"
TRACE = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "rojo=1"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = [(logger, logger.level) for logger in map(logging.getLogger, SILENT)]
    yield
    for logger, level in before:
        logger.setLevel(level)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", ENDPOINT: URL},
        {"OTEL_TRACES_EXPORTER": "zipkin", ENDPOINT: URL},
        {"OTEL_SDK_DISABLED": "true", ENDPOINT: URL},
        {ENDPOINT: ""},
    ],
    ids=["nothing", "none", "another one", "disabled", "empty"],
)
def test_it_is_off_unless_a_collector_is_named(environ: dict[str, str]) -> None:
    assert tracing_of("api", accounts=False, environ=environ) is OFF


def test_every_process_begins_where_it_is_not_installed() -> None:
    without = "import sys; sys.modules['opentelemetry'] = None"
    begun = "import api.app, director.execution.main, director.keeper.keeper"
    asked = "from director.runtime.process import tracing_of; tracing_of('api', accounts=False)"
    told = "print('director.runtime.otel' in sys.modules)"
    line = [sys.executable, "-c", f"{without}; {begun}; {asked}; {told}"]
    said = subprocess.run(
        line, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, ENDPOINT: URL}
    )
    assert said.stdout == "False\n"


@pytest.mark.parametrize(
    ("protocol", "message"),
    [("", "tracing is off: it is not installed"), ("grpc", "tracing is off: its protocol is not supported")],
)
def test_missing_extra_or_protocol_is_logged_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, protocol: str, message: str
) -> None:
    if not protocol:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    environ = {ENDPOINT: URL, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    assert tracing_of("api", accounts=False, environ=environ) is OFF
    assert [record.message for record in caplog.records] == [message]


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "7"), ("OTEL_SPAN_EVENT_COUNT_LIMIT", "s3cret")]
)
def test_invalid_variable_is_logged_by_name_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str
) -> None:
    monkeypatch.setenv(ENDPOINT, URL)
    monkeypatch.setenv(variable, value)
    assert tracing_of("api", accounts=False) is OFF
    [record] = caplog.records
    assert record.message == "tracing is off: its variables contradict each other, or one is invalid"
    assert variable in record.__dict__["variables"]
    assert "s3cret" not in str(record.__dict__)


async def test_a_configured_service_name_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sink() as collector:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{collector.port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "painters")
        tracing = tracing_of("keeper", accounts=False)
        tracing.begin("webhook", TRACE).end()
        await tracing.aclose()
    [sent] = ExportTraceServiceRequest.FromString(collector.received[0].body).resource_spans
    assert "painters" in [each.value.string_value for each in sent.resource.attributes if each.key == "service.name"]


@pytest.mark.parametrize("parent", ["", "00", "what-a-later-release-writes", f"02.{'a' * 32}"])
def test_trace_of_another_release_has_no_spans_and_is_passed_on(parent: str) -> None:
    traces, trace = Traces(), {"traceparent": parent}
    span = traces.tracing("director").begin("claim", trace)
    span.end(error="left")
    assert span.headers is trace
    assert traces.all == ()


async def test_unreachable_collector_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{free_port()}/?key=s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    tracing = tracing_of("keeper", accounts=False)
    for _ in range(2):
        tracing.begin("webhook", TRACE).end()
    await tracing.aclose()
    assert [record.message for record in caplog.records if record.name != "asyncio"] == [
        "the collector does not accept spans"
    ]
    assert "s3cret" not in caplog.text
