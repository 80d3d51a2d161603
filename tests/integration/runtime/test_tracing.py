"""Test that one trace covers a prediction from the caller to its webhook, through API, director, server and keeper."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from msgspec import Raw
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.runner_config import CogConfig
from director.core.settings import ApiSettings
from director.servers.runners import RunnerOptions
from director.servers.runners.cog import CogRunner
from director.servers.runners.inbox import Inbox
from director.servers.runners.runner import RunRequest
from director.store.accounts import Accounts
from tests.support.api import api_client, live_api
from tests.support.cog import cog_server, write_model
from tests.support.eventually import eventually, every
from tests.support.live_director import director_process, keeping, live_director
from tests.support.queue_driver import ACCOUNT, VERSION
from tests.support.servers import RedisServer
from tests.support.sink import Answer, Sink, sink
from tests.support.traces import CALLER, Trace, Traces, facts, new_traces, parent_of, traceparent_of

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
HTTP = {"runner": "http", "runner_config": '{"path": "/run", "health": ""}'}
SOURCE = """
    from cog import BasePredictor

    class Predictor(BasePredictor):
        async def predict(self, text: str = "") -> str:
            return text
"""
SECRET = "what-only-the-model-may-see"


class Service:
    """All processes in this loop, and a caller."""

    def __init__(self, client: httpx.AsyncClient, model: Sink, receiver: Sink) -> None:
        self._client = client
        self.model = model
        self._traces = new_traces()
        self.receiver = receiver

    async def create(self, *, state: str = "", flags: str = "01") -> str:
        trace_id = next(self._traces)
        headers = {"traceparent": f"00-{trace_id}-{CALLER}-{flags}"} | ({"tracestate": state} if state else {})
        answer = await self._client.post("/v1/predictions", json=self._asked, headers=headers)
        assert answer.status_code == 201, answer.text
        return trace_id

    async def create_without_a_trace(self) -> None:
        answer = await self._client.post("/v1/predictions", json=self._asked)
        assert answer.status_code == 201

    async def refused(self) -> str:
        trace_id = next(self._traces)
        asked = {**self._asked, "webhook": self.receiver.url}
        headers = {"traceparent": f"00-{trace_id}-{CALLER}-01", "X-Priority": "soon"}
        assert (await self._client.post("/v1/predictions", json=asked, headers=headers)).status_code == 422
        return trace_id

    @property
    def _asked(self) -> dict[str, Any]:
        webhook = f"{self.receiver.url}?key={SECRET}"
        events = ["completed"]
        return {"version": VERSION, "input": {"text": SECRET}, "webhook": webhook, "webhook_events_filter": events}

    @property
    def sent(self) -> dict[str, list[str]]:
        """Return the `traceparent` of each webhook, by its trace."""
        found: dict[str, list[str]] = {}
        for each in self.receiver.received:
            parent = each.headers["traceparent"]
            found.setdefault(parent.split("-")[1], []).append(parent)
        return found

    async def told(self, trace_id: str, *, times: int = 1) -> list[str]:
        """Wait for this number of webhooks of the trace. Return the `traceparent` of each."""

        def found() -> list[str]:
            sent = [each.headers.get("traceparent", "") for each in self.receiver.received]
            return [each for each in sent if trace_id in each]

        return await eventually(found, "the webhook came", until=lambda sent: len(sent) >= times)


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture(scope="module")
async def echo(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with cog_server(write_model(tmp_path_factory.mktemp("model") / "echo", SOURCE), slots=4) as url:
        yield url


@asynccontextmanager
async def serving(
    redis: Redis, url: str, traces: Traces | None, server: str = "", **given: Any
) -> AsyncIterator[Service]:
    """Run API, director and keeper, each with its own collected spans.

    The model server answers "done" to each request, unless another `server` is given.
    """
    processes = ("api", "director", "keeper")
    api, director, keeper = (None if traces is None else traces.tracing(name) for name in processes)
    token = await Accounts(redis).create_token(ACCOUNT)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(api_client(ApiSettings(redis_url=url), token=token, tracing=api))
        model, receiver = [await stack.enter_async_context(sink()) for _ in range(2)]
        keeps = keeping(url, schedule="1s,1s,1s", probe_s=0.2, **({} if keeper is None else {"tracing": keeper}))
        await stack.enter_async_context(keeps)
        given = {"webhook_allow": "loopback", "backoff_s": 0, **given} | ({} if server else HTTP)
        await stack.enter_async_context(live_director(url, server or model.url, tracing=director, **given))
        model.answer = Answer(body=b'"done"')  # only now: the director has asked for its schema
        yield Service(client, model, receiver)


@pytest.fixture
async def service(redis: Redis, server: RedisServer, queue: QueueName, traces: Traces) -> AsyncIterator[Service]:
    async with serving(redis, server.url, traces) as service:
        yield service


def check_whole(found: Trace, told: list[str]) -> None:
    """Check that the trace of a prediction with one run is complete: each span lies within its parent."""
    assert set(found) == set(STEPS)
    [[enqueue], [wait], [claim], [run]] = (found[name] for name in ("enqueue", "wait", "claim", "run"))
    within = {"enqueue": traceparent_of(enqueue).split("-")[2], "claim": traceparent_of(claim).split("-")[2]}
    assert parent_of(enqueue) == CALLER
    assert {parent_of(step) for step in (wait, claim, *found["webhook"])} == {within["enqueue"]}
    assert parent_of(run) == within["claim"]
    # a busy machine may give up an attempt before it is sent, or just after
    assert 0 < len(told) <= len(found["webhook"])
    assert set(told) <= {traceparent_of(webhook) for webhook in found["webhook"]}


STEPS = ("enqueue", "wait", "claim", "run", "webhook")


async def test_trace_is_complete_from_the_caller_to_its_webhook(
    service: Service, queue: QueueName, traces: Traces
) -> None:
    trace_id = await service.create(state="rojo=00f067aa0ba902b7")
    told = await service.told(trace_id)
    await eventually(lambda: "webhook" in traces.of(trace_id), "all spans have ended")
    found = traces.of(trace_id)
    check_whole(found, told)
    [run], [wait], [webhook] = found["run"], found["wait"], found["webhook"]
    [asked] = [each.headers for each in service.model.received if each.headers.get("traceparent")]
    assert asked["traceparent"] == traceparent_of(run)
    assert asked["tracestate"] == "rojo=00f067aa0ba902b7"
    assert service.receiver.received[0].headers["tracestate"] == "rojo=00f067aa0ba902b7"
    common = {"kind": "prediction", "queue": queue, "model": "acme/echo", "version": VERSION, "lane": "normal"}
    shown = facts(run)
    assert {name: shown[name] for name in common} == common
    assert (shown["attempt"], shown["outcome"]) == (1, "succeeded")
    assert facts(found["claim"][0])["status"] == "succeeded"
    assert facts(webhook)["http.response.status_code"] == 200
    assert wait.start_time <= wait.end_time
    assert {span.resource.attributes["service.name"] for span in traces.all} == {"api", "director"}


async def test_spans_contain_neither_input_nor_account(service: Service, traces: Traces) -> None:
    service.model.answer = Answer(status=500, body=SECRET.encode())
    trace_id = await service.create()
    await service.told(trace_id)
    refused = await service.refused()
    await eventually(lambda: "webhook" in traces.of(trace_id), "all spans have ended")
    told = "".join(span.to_json() for span in traces.all)
    assert SECRET not in told
    assert f'"{ACCOUNT}"' not in told
    assert "?" not in told
    [run] = traces.of(trace_id)["run"]
    assert facts(run)["error.type"]
    assert run.status.is_ok is False
    [enqueue] = traces.of(refused)["enqueue"]
    assert facts(enqueue)["error.type"] == "invalid_header"


async def test_spans_name_accounts_where_configured(
    redis: Redis, server: RedisServer, queue: QueueName, traces: Traces
) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    tracing = traces.tracing("api", accounts=True)
    async with api_client(ApiSettings(redis_url=server.url), token=token, tracing=tracing) as client:
        await client.post("/v1/predictions", json={"version": VERSION, "input": {}})
    [enqueue] = traces.all
    assert facts(enqueue)["account"] == ACCOUNT
    assert parent_of(enqueue) == ""


async def test_second_attempt_has_its_own_spans_in_the_same_trace(service: Service, traces: Traces) -> None:
    service.model.answers.append(Answer(reset=True))
    trace_id = await service.create()
    await service.told(trace_id)
    wanted = {"enqueue": 1, "wait": 2, "claim": 2, "run": 2, "webhook": 1}
    await eventually(
        lambda: {name: len(spans) for name, spans in traces.of(trace_id).items()}, "all spans", until=wanted.__eq__
    )
    found = traces.of(trace_id)
    assert [facts(run)["attempt"] for run in found["run"]] == [1, 2]
    assert [facts(claim)["status"] for claim in found["claim"]] == ["given_back", "succeeded"]
    first, second = found["wait"]
    assert second.start_time >= first.end_time
    asked = [each.headers["traceparent"] for each in service.model.received if "traceparent" in each.headers]
    assert asked == [traceparent_of(run) for run in found["run"]]


async def test_recovered_prediction_continues_in_the_same_trace(
    redis: Redis, server: RedisServer, scripts: Scripts, queue: QueueName, traces: Traces
) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    settings, api = ApiSettings(redis_url=server.url), traces.tracing("api")
    async with sink() as model, sink() as receiver:
        model.answer = Answer(body=b'"done"')
        async with api_client(settings, token=token, tracing=api) as client:
            service = Service(client, model, receiver)
            trace_id = await service.create()
        [claim] = await scripts.claim(queue, consumer="silent", nonce="n", count=1, lease_s=0.5)
        assert claim.record.trace["traceparent"] == traceparent_of(traces.of(trace_id)["enqueue"][0])
        director = traces.tracing("director")
        given = {"webhook_allow": "loopback", "lease_s": 1.0, **HTTP}
        async with (
            keeping(server.url, lease_s=1.0, tracing=traces.tracing("keeper")),
            live_director(server.url, model.url, tracing=director, **given),
        ):
            told = await service.told(trace_id)
            await eventually(lambda: "webhook" in traces.of(trace_id), "all spans have ended")
    found = traces.of(trace_id)
    check_whole(found, told)
    assert facts(found["run"][0])["attempt"] == 2
    wait, enqueue = found["wait"][0], found["enqueue"][0]
    assert (wait.start_time or 0) > (enqueue.end_time or 0) + 400_000_000, "it waits since the lease was over"


async def test_webhook_delivered_by_the_keeper_is_in_the_trace(service: Service, traces: Traces) -> None:
    service.receiver.answers.append(Answer(status=500))
    trace_id = await service.create()
    told = await service.told(trace_id, times=2)
    await eventually(lambda: len(traces.of(trace_id).get("webhook", [])) == 2, "both have ended")
    webhooks = traces.of(trace_id)["webhook"]
    assert told == [traceparent_of(webhook) for webhook in webhooks]
    assert [facts(webhook)["attempt"] for webhook in webhooks] == [1, 2]
    assert [webhook.status.is_ok for webhook in webhooks] == [False, True]
    assert [webhook.resource.attributes["service.name"] for webhook in webhooks] == ["director", "keeper"]
    assert {parent_of(webhook) for webhook in webhooks} == {traceparent_of(traces.of(trace_id)["enqueue"][0])[36:52]}


async def test_unsampled_trace_has_no_spans_and_is_passed_on(service: Service, traces: Traces) -> None:
    trace_id = await service.create(flags="00")
    [told] = await service.told(trace_id)
    assert told == f"00-{trace_id}-{CALLER}-00"
    assert [each.headers["traceparent"] for each in service.model.received if "traceparent" in each.headers] == [told]
    assert traces.all == ()


async def test_without_the_extra_a_trace_is_passed_on_unchanged(
    redis: Redis, server: RedisServer, queue: QueueName
) -> None:
    async with serving(redis, server.url, None) as service:
        trace_id = await service.create(state="rojo=1")
        [told] = await service.told(trace_id)
        await service.create_without_a_trace()
        await service.receiver.arrived(2)
    assert told == f"00-{trace_id}-{CALLER}-01"
    first, second = (
        each.headers for each in service.model.received if each.body
    )  # the director asked for a schema too
    assert (first["traceparent"], first["tracestate"]) == (told, "rojo=1")
    assert "traceparent" not in second
    assert "traceparent" not in service.receiver.received[1].headers


@pytest.mark.cog
async def test_cog_server_receives_the_trace(echo: str) -> None:
    parent = f"00-{'a' * 32}-{CALLER}-01"
    async with sink() as inbox:
        runner = CogRunner(CogConfig(), RunnerOptions(url=echo, slots=4, inbox=Inbox(inbox.url)))
        request = RunRequest(
            id="a" * 26, input=Raw(b'{"text": "a"}'), trace={"traceparent": parent, "tracestate": "rojo=1"}
        )
        async for _ in runner.run(request):
            pass
        await inbox.arrived(1)
        await runner.aclose()
    # coglet shows what it received only in its callbacks
    assert {each.headers["traceparent"] for each in inbox.received} == {parent}


@pytest.mark.cog
@pytest.mark.parametrize("seconds", [1, pytest.param(10, marks=pytest.mark.heavy)])
async def test_load_of_100_per_second_has_complete_traces(
    redis: Redis, server: RedisServer, queue: QueueName, traces: Traces, echo: str, seconds: int
) -> None:
    made: list[str] = []
    async with serving(redis, server.url, traces, echo, concurrent_predictions=4) as service:
        async with anyio.create_task_group() as callers:

            async def ask() -> None:
                made.append(await service.create())

            async for _ in every(0.01, 100 * seconds):
                callers.start_soon(ask)
        enough, limit_s = len(STEPS) * len(made), 60 + 10 * seconds
        await eventually(lambda: len(traces.all) >= enough, "so many spans have ended", limit_s=limit_s)
        await eventually(
            lambda: {len(trace) for trace in traces.by_trace.values()} == {len(STEPS)}, "each step has one"
        )
        sent = service.sent
    found = traces.by_trace
    assert set(found) == set(made)
    for trace_id in made:
        check_whole(found[trace_id], sent[trace_id])


async def test_processes_send_their_spans_to_one_collector(redis: Redis, server: RedisServer, queue: QueueName) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    async with sink() as model, sink() as receiver, sink() as collector:
        model.answer = Answer(body=b'"done"')
        env = {ENDPOINT: f"http://127.0.0.1:{collector.port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            async with (
                live_api(server.url) as api,
                director_process(server.url, model.url, webhook_allow="loopback", **HTTP),
                httpx.AsyncClient(base_url=api.url, headers={"Authorization": f"Bearer {token}"}) as client,
            ):
                service = Service(client, model, receiver)
                trace_id = await service.create()
                [told] = await service.told(trace_id)
                await eventually(lambda: set(brought(collector, trace_id)) == set(STEPS), "all spans came")
    spans = brought(collector, trace_id)
    assert {service for service, _ in spans.values()} == {"director-api", "director"}
    enqueue, run = spans["enqueue"][1], spans["run"][1]
    assert enqueue.parent_span_id.hex() == CALLER
    assert {spans[name][1].parent_span_id for name in ("wait", "claim", "webhook")} == {enqueue.span_id}
    assert run.parent_span_id == spans["claim"][1].span_id
    assert told.split("-")[2] == spans["webhook"][1].span_id.hex()
    assert SECRET not in str(spans)


def brought(collector: Sink, trace_id: str) -> dict[str, tuple[str, Any]]:
    """Return the spans of one trace that reached a collector, each with its name and its service."""
    return {
        span.name: (
            next(each.value.string_value for each in of.resource.attributes if each.key == "service.name"),
            span,
        )
        for sent in collector.received
        for of in ExportTraceServiceRequest.FromString(sent.body).resource_spans
        for scope in of.scope_spans
        for span in scope.spans
        if span.trace_id.hex() == trace_id
    }
